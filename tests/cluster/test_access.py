"""Rights, asked of an API server that enforces the role of the manifests."""

from __future__ import annotations

import pytest

from dranet.cluster.client import ApiClient
from dranet.cluster.permissions import (
    ACCESS_REVIEWS,
    NAMESPACE,
    PERMISSIONS,
    SERVICE_ACCOUNT,
    Permission,
    build_rbac,
    build_review,
    fetch_denied,
)
from dranet.cluster.transport import FixedToken, access_from_url
from dranet.errors import ProtocolError
from testbed.apiserver.identity import User, service_account
from testbed.apiserver.server import ApiServer

USERS = {
    "driver": service_account(NAMESPACE, SERVICE_ACCOUNT, node="node-a", pod="dranet-x"),
    "nobody": User("nobody"),
}


async def ask(token: str, driver: str = "dra.net") -> list[str]:
    async with ApiServer(users=USERS, manifests=build_rbac()) as server:
        access = access_from_url(server.url, token=FixedToken(token))
        async with ApiClient(access) as client:
            return [str(denied) for denied in await fetch_denied(client, driver)]


@pytest.mark.socket
async def test_the_role_of_the_manifests_allows_all_that_the_driver_does() -> None:
    assert await ask("driver") == []


@pytest.mark.socket
async def test_who_has_no_role_is_denied_every_single_verb() -> None:
    assert len(await ask("nobody")) == sum(len(permission.verbs) for permission in PERMISSIONS)


@pytest.mark.socket
async def test_a_driver_of_another_name_lacks_what_is_given_by_name() -> None:
    assert await ask("driver", "nic.example.com") == [
        "associated-node:patch resourceclaims/driver in resource.k8s.io"
    ]


def test_a_subresource_and_a_name_are_asked_for_as_the_server_wants_them() -> None:
    permission = Permission("g", "things/status", ("patch",), "why", "when", only_driver=True)
    assert build_review(permission, "patch", "dra.net")["spec"] == {
        "resourceAttributes": {
            "group": "g",
            "resource": "things",
            "subresource": "status",
            "verb": "patch",
            "name": "dra.net",
        }
    }


async def test_an_answer_that_says_neither_yes_nor_no_is_the_servers_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def create(_: ApiClient, path: str, body: object) -> dict[str, object]:
        assert path == ACCESS_REVIEWS
        assert body
        return {"status": {}}

    monkeypatch.setattr(ApiClient, "create", create)
    async with ApiClient(access_from_url("http://127.0.0.1:1")) as client:
        with pytest.raises(ProtocolError, match="neither yes nor no"):
            await fetch_denied(client, "dra.net")
