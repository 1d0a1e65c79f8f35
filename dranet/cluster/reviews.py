"""Questions about identity and rights that only the API server can answer.

``SelfSubjectAccessReview``: what the caller may do, which everyone who is authenticated may ask; the
questions are the rows of :mod:`dranet.cluster.permissions`. ``TokenReview`` and ``SubjectAccessReview``:
whose token it is and what that user may do, only with the setting ``metrics_authentication: kubernetes``;
the rights to ask are ``permissions.AUTHENTICATION_PERMISSIONS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.permissions import PERMISSIONS, Permission
from dranet.errors import ProtocolError

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Denied(Struct, frozen=True):
    """Something that the driver does and this caller may not. ``reason`` is the server's, often empty."""

    permission: Permission
    verb: str
    reason: str = ""

    def __str__(self) -> str:
        group = f" in {self.permission.group}" if self.permission.group else ""
        return f"{self.verb} {self.permission.resource}{group}"


async def fetch_denied(
    client: ApiClient, driver: str, permissions: Iterable[Permission] = PERMISSIONS
) -> list[Denied]:
    """What is refused of ``permissions``, one question each.

    Raises:
        ClusterError: no answer, or the server answers no such questions.
        ProtocolError: an answer that is no review.
    """
    asked = [(permission, verb) for permission in permissions for verb in permission.verbs]
    answers = [await _ask(client, driver, permission, verb) for permission, verb in asked]
    return [denied for denied in answers if denied is not None]


async def _ask(client: ApiClient, driver: str, permission: Permission, verb: str) -> Denied | None:
    review = build_review(permission, verb, driver)
    status = (await client.create(ACCESS_REVIEWS, review)).get("status")
    if not isinstance(status, dict) or not isinstance(status.get("allowed"), bool):
        raise ProtocolError("the API server's answer to an access review contains neither yes nor no")
    if status["allowed"]:
        return None
    return Denied(permission, verb, str(status.get("reason") or ""))


def build_review(permission: Permission, verb: str, driver: str) -> JsonObject:
    """The question, for all namespaces; rights that are given by driver are asked for by its name."""
    resource, _, subresource = permission.resource.partition("/")
    attributes = {"group": permission.group, "resource": resource, "verb": verb}
    if subresource:
        attributes["subresource"] = subresource
    if permission.only_driver:
        attributes["name"] = driver
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


OF_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
OF_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(Struct, frozen=True):
    """A user as the server knows them; ``attributes`` (groups, uid, extra) are passed on as they are."""

    name: str
    attributes: JsonObject


async def fetch_user(client: ApiClient, token: str) -> User | None:
    """Return the user of a token; ``None`` if the server does not know it.

    Raises:
        ClusterError: no answer, or we may not ask.
        ProtocolError: an answer that is no review.
    """
    status = await _review(client, OF_TOKENS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
    if status.get("authenticated") is not True:
        return None
    user = status.get("user")
    if not isinstance(user, dict) or not isinstance(user.get("username"), str) or not user["username"]:
        raise ProtocolError("the API server knows a token and does not name its user")
    known = {name: user[name] for name in ("groups", "uid", "extra") if user.get(name)}
    return User(user["username"], known)


async def fetch_may_get(client: ApiClient, user: User, path: str) -> bool:
    """Whether they may ``get`` this path, which is no resource.

    Raises:
        ClusterError: no answer, or we may not ask.
        ProtocolError: an answer that is no review.
    """
    asked = {"path": path, "verb": "get"}
    spec: JsonObject = {"user": user.name, "nonResourceAttributes": asked, **user.attributes}
    version = "authorization.k8s.io/v1"
    status = await _review(client, OF_ACCESS, version, "SubjectAccessReview", spec)
    return status.get("allowed") is True and status.get("denied") is not True


async def _review(client: ApiClient, path: str, version: str, kind: str, spec: dict[str, Any]) -> JsonObject:
    answer = await client.create(path, {"apiVersion": version, "kind": kind, "spec": spec})
    status = answer.get("status")
    if not isinstance(status, dict):
        raise ProtocolError(f"the API server's answer to a {kind} has no status")
    return status
