"""What the API server lets the caller do, asked of it (``SelfSubjectAccessReview``).

Everybody who is authenticated may ask this about themselves. The questions are the rows of
:mod:`dranet.cluster.permissions`.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        raise ProtocolError("the API server's answer to an access review says neither yes nor no")
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
