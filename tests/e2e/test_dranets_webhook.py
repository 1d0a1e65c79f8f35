"""DraNet's own webhook programs, unchanged: its provider with our client, its client with our stand-in."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dranet.errors import ProviderError
from dranet.http1 import Tls
from dranet.model.provider import DeviceIdentity
from dranet.providers.webhook import WebhookClient, describe_profile, parse_url
from e2e.access import LaneUnavailable
from e2e.dranet.programs import build_client, find_provider
from testbed.provider import Provider, ProviderServer
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

NIC = DeviceIdentity("pci-0000-8a-00-0", "eth1", "02:00:00:00:00:01", "0000:8a:00.0")
CONFIG: dict[str, Any] = {
    "profile": "python-profile",
    "interface": {"name": "net1", "mtu": 9000, "dhcp": False, "addresses": ["10.0.0.5/24"]},
    "routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.0.1", "table": 100}],
    "rules": [{"source": "10.0.0.5/32", "table": 100, "priority": 7}],
    "neighbors": [{"destination": "10.0.0.9", "hardwareAddr": "02:00:00:00:00:09"}],
    "ethtool": {"features": {"gro": False}},
}


def connect(url: str) -> WebhookClient:
    return WebhookClient(parse_url(url, Tls()), 10.0)


@pytest.fixture
def dranets_provider() -> Iterator[str]:
    """Its URL."""
    try:
        script = find_provider()
    except LaneUnavailable as shortage:
        pytest.skip(str(shortage))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(script), "--port", str(port)], stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


async def test_dranets_provider_works_unchanged(dranets_provider: str) -> None:
    client = connect(dranets_provider)
    dummy = DeviceIdentity("dummy1", "dummy1", "02:00:00:00:00:01")

    async def is_up() -> bool:
        try:
            return (await client.read_capabilities()).profile_provider
        except ProviderError:
            return False

    await until(is_up, "the provider answers")
    assert (await client.read_capabilities()).cloud_provider
    assert await client.read_attributes(dummy) == {"dra.net/webhook_attr": {"string": "python"}}
    assert await client.read_attributes(NIC) == {}
    assert await client.read_config(dummy) == {"interface": {"mtu": 1450}}
    document = describe_profile(dummy, "uid", {"profile": "python-profile"})
    assert await client.get_profile(document) == {"interface": {"addresses": ["10.200.200.200/24"]}}
    await client.release_profile(document)


@pytest.fixture(scope="session")
def dranets_client() -> Path:
    try:
        return build_client()
    except LaneUnavailable as shortage:
        pytest.skip(str(shortage))


def ask(program: Path, url: str, question: dict[str, Any]) -> Any:
    text = json.dumps(question)
    done = subprocess.run([program, url], input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.timeout(600)
async def test_dranets_client_and_ours_send_the_same_and_understand_the_same(dranets_client: Path) -> None:
    attributes = {"example.com/rack": {"string": "r7"}, "rail": {"int": 3}, "a.com/gold": {"bool": True}}
    provider = Provider(
        attributes={"eth1": attributes},
        configs={NIC.name: {"interface": {"mtu": 1450}}},
        profiles={"python-profile": {"interface": {"addresses": ["10.1.0.5/24"]}}},
    )
    with ProviderServer(provider) as server:
        known = {"mac_address": NIC.mac, "pci_address": NIC.pci_address}
        question = {
            "interface": {**known, "name": NIC.ifname},
            "device": {**known, "name": NIC.name},
            "claim_uid": "uid",
            "config": CONFIG,
        }
        told = await asyncio.to_thread(ask, dranets_client, server.url, question)
        theirs, provider.calls = provider.calls, []
        client = connect(server.url)
        offered = await client.read_capabilities()
        answers: dict[str, Any] = {
            "cloudProvider": offered.cloud_provider,
            "profileProvider": offered.profile_provider,
            "attributes": await client.read_attributes(NIC),
            "config": await client.read_config(NIC),
        }
        document = describe_profile(NIC, "uid", CONFIG)
        answers["profile"] = await client.get_profile(document)
        await client.release_profile(document)
    assert [(call.path, call.body) for call in provider.calls] == [(call.path, call.body) for call in theirs]
    assert told == answers
