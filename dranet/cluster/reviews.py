"""Who somebody is and what they may do, asked of the API server: ``TokenReview``, ``SubjectAccessReview``.

Only with the setting ``metrics_authentication: kubernetes``; the rights for it are
``permissions.AUTHENTICATION_PERMISSIONS``.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dranet.cluster.client import ApiClient, JsonObject
from dranet.errors import ProtocolError

OF_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
OF_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(Struct, frozen=True):
    """A user as the server knows them; ``attributes`` (groups, uid, extra) are handed on as they are."""

    name: str
    attributes: JsonObject


async def fetch_user(client: ApiClient, token: str) -> User | None:
    """Whose token it is; ``None``: nobody's.

    Raises:
        ClusterError: no answer, or we may not ask.
        ProtocolError: an answer that is no review.
    """
    status = await _review(client, OF_TOKENS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
    if status.get("authenticated") is not True:
        return None
    user = status.get("user")
    if not isinstance(user, dict) or not isinstance(user.get("username"), str) or not user["username"]:
        raise ProtocolError("the API server knows a token and does not say whose it is")
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
