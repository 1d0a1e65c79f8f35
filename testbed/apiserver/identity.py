"""Bearer tokens and the users behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dranet.desk.kubeapi.errors import unauthorized

NODE_NAME_KEY = "authentication.kubernetes.io/node-name"
"""Key in a user's ``extra``: the node of the pod that the token is bound to."""
_POD_NAME_KEY = "authentication.kubernetes.io/pod-name"
_MASTERS = "system:masters"
_SERVICE_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class User:
    """``authentication.k8s.io`` UserInfo."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_admin(self) -> bool:
        """May do everything and is asked nothing further."""
        return _MASTERS in self.groups

    @property
    def node_name(self) -> str:
        """The one node of a service account's token; empty for others."""
        nodes = self.extra.get(NODE_NAME_KEY, ())
        return nodes[0] if self.name.startswith(_SERVICE_ACCOUNT) and len(nodes) == 1 else ""

    def build_user_info(self) -> dict[str, Any]:
        return {
            "username": self.name,
            "groups": list(self.groups),
            "extra": {key: list(values) for key, values in self.extra.items()},
        }


ADMIN = User("testbed-admin", (_MASTERS, "system:authenticated"))


def service_account(namespace: str, name: str, *, node: str = "", pod: str = "") -> User:
    """The user behind a service account's token, bound to a pod on ``node`` where one is given."""
    extra = {NODE_NAME_KEY: (node,)} if node else {}
    if pod:
        extra[_POD_NAME_KEY] = (pod,)
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"{_SERVICE_ACCOUNT}{namespace}:{name}", groups, extra)


class Tokens:
    """Which tokens are let in, and as whom.

    ``accepted`` tokens are an administrator's; while it is ``None``, so is a request without a token.
    ``users`` are those of others.
    """

    def __init__(self, accepted: Iterable[str] | None, users: Mapping[str, User] | None) -> None:
        self.accepted = None if accepted is None else set(accepted)
        self.users = dict(users or {})

    def identify(self, authorization: str) -> User:
        """The user of a request by its ``Authorization`` header.

        Raises:
            Refusal: 401.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        if token in self.users:
            return self.users[token]
        if self.accepted is None:
            if token and self.users:
                raise unauthorized()
            return ADMIN
        if token not in self.accepted:
            raise unauthorized()
        return ADMIN
