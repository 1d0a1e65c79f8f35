"""What a webhook provider says about devices, asked in the background: against a provider stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.errors import ProviderError
from dranet.http1 import Tls
from dranet.model.device import Device, DeviceKind
from dranet.providers import webhook_devices
from dranet.providers.webhook import WebhookCapabilities, WebhookClient, parse_url
from dranet.providers.webhook_devices import WebhookDevices, parse_attributes
from testbed.provider import ATTRIBUTES, CONFIG, HEALTH, Provider, ProviderServer, Trouble
from tests.support.waiting import until

pytestmark = pytest.mark.socket

NIC = Device("pci-0000-8a-00-0", DeviceKind.NIC, {"dra.net/mac": "02:00:00:00:00:01"}, "eth1", "0000:8a:00.0")
OTHER = Device("eth2", DeviceKind.NIC, {"dra.net/mac": "02:00:00:00:00:02"}, "eth2")
HCA = Device("pci-0000-8b-00-0", DeviceKind.RDMA, pci_address="0000:8b:00.0", rdma_device="mlx5_1")
GPU = Device("gpu-0", DeviceKind.GPU)
RACK = {"example.com/rack": {"string": "r7"}}


class Node:
    """The driver's side: what is offered, and what it hears."""

    def __init__(self, server: ProviderServer, folder: Path, refresh_seconds: float) -> None:
        self.offered: list[Device] = [NIC, HCA, GPU]
        self.looks = 0
        self.changes = 0
        self.up: list[bool] = []
        self.oldest = 0.0
        self.devices = WebhookDevices(
            WebhookClient(parse_url(server.url, Tls()), 1.0),
            WebhookCapabilities(cloud_provider=True),
            self._get_offered,
            self._note,
            self,
            folder / "webhook.json",
            refresh_seconds,
        )
        self._task = asyncio.create_task(self.devices.run())

    def _get_offered(self) -> list[Device]:
        self.looks += 1
        return self.offered

    def _note(self) -> None:
        self.changes += 1

    def is_up(self, url: str, up: bool) -> None:
        assert url.startswith("http://")
        self.up.append(up)

    def oldest_answer(self, url: str, unix_time: float) -> None:
        assert url.startswith("http://")
        self.oldest = unix_time

    def offer(self, *devices: Device) -> None:
        self.offered = list(devices)
        self.devices.scanned()

    def published(self) -> dict[str, dict[str, Any]]:
        return {one.device: {a.name: a.value for a in one.attributes} for one in self.devices.facts}

    def config(self, device: Device = NIC) -> Any:
        with contextlib.suppress(ProviderError):
            return self.devices.find_config(device)

    def problem(self, device: Device) -> str:
        with pytest.raises(ProviderError) as caught:
            self.devices.find_config(device)
        return str(caught.value)

    def is_known(self) -> bool:
        return bool(self.published() and self.config())

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


def saved(folder: Path) -> set[str]:
    """The devices about which a restart knows something."""
    file = folder / "webhook.json"
    return set(json.loads(file.read_text())["answers"]) if file.exists() else set()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_devices, "HEALTH_SECONDS", 0.02)
    monkeypatch.setattr(webhook_devices, "FIRST_RETRY_SECONDS", 0.01)


@pytest.fixture
def provider() -> Provider:
    return Provider(attributes={"eth1": RACK}, configs={NIC.name: {"interface": {"mtu": 1450}}})


@pytest.fixture
def server(provider: Provider) -> Iterator[ProviderServer]:
    with ProviderServer(provider) as running:
        yield running


Start = Any


@pytest.fixture
async def start(server: ProviderServer, tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Node] = []

    async def make(refresh_seconds: float = 1000.0) -> Node:
        for node in started:
            await node.stop()
        started.append(Node(server, tmp_path, refresh_seconds))
        return started[-1]

    yield make
    for node in started:
        await node.stop()


async def test_each_device_is_asked_about_once_and_a_gpu_never(provider: Provider, start: Start) -> None:
    node = await start()
    await until(lambda: node.is_known() and node.config(HCA) is not None)
    assert node.published() == {NIC.name: {"example.com/rack": "r7"}}
    assert node.config() == {"interface": {"mtu": 1450}}
    assert node.devices.find_config(GPU) is None
    health = len(provider.asked(HEALTH))
    node.devices.scanned()
    await until(lambda: len(provider.asked(HEALTH)) > health + 1)
    assert sorted(body["name"] for body in provider.asked(ATTRIBUTES)) == ["", "eth1"]
    assert sorted(body["name"] for body in provider.asked(CONFIG)) == [NIC.name, HCA.name]
    assert node.changes == 1


async def test_a_new_device_is_asked_about_at_once(provider: Provider, start: Start) -> None:
    provider.attributes["eth2"] = {"speedclass": {"int": 4}, "dra.net/gold": {"bool": True}}
    node = await start()
    await until(node.is_known)
    node.offer(NIC, OTHER)
    await until(lambda: OTHER.name in node.published())
    assert node.published()[OTHER.name] == {"dra.net/speedclass": 4, "dra.net/gold": True}


async def test_a_refresh_brings_what_has_changed_also_that_an_attribute_is_gone(
    provider: Provider, start: Start
) -> None:
    node = await start(refresh_seconds=0.02)
    await until(node.is_known)
    provider.attributes["eth1"] = {}
    provider.configs[NIC.name] = {}
    await until(lambda: node.published() == {} and node.config() == {})
    assert node.changes == 2


async def test_the_last_answers_stay_while_the_provider_is_away_and_after_a_restart(
    provider: Provider, server: ProviderServer, start: Start
) -> None:
    node = await start(refresh_seconds=0.02)
    await until(node.is_known)
    server.stop()
    await until(lambda: node.up[-1] is False)
    asked = len(provider.asked(ATTRIBUTES))
    node = await start()
    assert node.published() == {NIC.name: {"example.com/rack": "r7"}}
    assert node.config() == {"interface": {"mtu": 1450}}
    await until(lambda: node.up.count(False) >= 3)
    assert node.published() == {NIC.name: {"example.com/rack": "r7"}}
    assert node.changes == 0
    assert "is it running" in node.devices.problem
    provider.attributes["eth1"] = {"example.com/rack": {"string": "r8"}}
    server.start()
    await until(lambda: node.published() == {NIC.name: {"example.com/rack": "r8"}})
    assert len(provider.asked(ATTRIBUTES)) > asked
    assert node.devices.problem == ""


@pytest.mark.parametrize("path", [ATTRIBUTES, CONFIG])
@pytest.mark.parametrize(
    "trouble", [Trouble(status=500), Trouble(status=404), Trouble(body=b"[]"), Trouble(body=b"{")]
)
async def test_one_failing_question_takes_nothing_from_a_device(
    provider: Provider, start: Start, path: str, trouble: Trouble
) -> None:
    node = await start(refresh_seconds=0.02)
    await until(node.is_known)
    provider.trouble[path] = trouble
    asked = len(provider.asked(path))
    await until(lambda: len(provider.asked(path)) > asked + 4)
    assert node.published() == {NIC.name: {"example.com/rack": "r7"}}
    assert node.config() == {"interface": {"mtu": 1450}}
    assert node.changes == 1


@pytest.mark.parametrize("body", [b'{"a": "\\ud800"}', b'{"a": NaN}'])
async def test_an_odd_config_of_one_device_takes_nothing_from_others_at_a_restart(
    provider: Provider, server: ProviderServer, start: Start, body: bytes
) -> None:
    node = await start()
    await until(node.is_known)
    provider.trouble[CONFIG] = Trouble(body=body)
    node.offer(NIC, OTHER)
    await until(lambda: "not JSON" in node.problem(OTHER))
    server.stop()
    node = await start()
    assert node.config() == {"interface": {"mtu": 1450}}


async def test_one_failing_device_does_not_keep_others_from_their_answers(
    provider: Provider, start: Start
) -> None:
    provider.trouble[ATTRIBUTES] = Trouble(status=500)
    node = await start()
    await until(lambda: node.config() == {"interface": {"mtu": 1450}})
    assert node.up[-1] is True
    assert node.published() == {}


async def test_a_device_of_which_nothing_is_known_is_named_with_the_cause(
    server: ProviderServer, start: Start
) -> None:
    server.stop()
    node = await start()
    await until(lambda: node.devices.problem)
    with pytest.raises(ProviderError) as caught:
        node.devices.find_config(NIC)
    assert caught.value.retryable
    assert f"device {NIC.name}: the webhook provider {server.url} has not answered yet" in str(caught.value)
    assert "/health" in str(caught.value)


async def test_a_provider_without_the_capability_is_not_asked_about_devices(
    provider: Provider, start: Start
) -> None:
    provider.capabilities = {"cloudProvider": False, "profileProvider": True}
    node = await start()
    await until(lambda: "has no cloudProvider" in node.devices.problem)
    assert provider.asked(ATTRIBUTES) == []


async def test_another_nic_in_the_slot_does_not_get_the_answers_of_the_former(
    provider: Provider, server: ProviderServer, start: Start
) -> None:
    node = await start()
    await until(node.is_known)
    server.stop()
    await until(lambda: node.up[-1] is False)
    swapped = replace(NIC, attributes={"dra.net/mac": "02:00:00:00:00:99"})
    node.offer(swapped)
    assert node.config(swapped) is None
    server.start()
    await until(lambda: node.config(swapped))
    assert provider.asked(CONFIG)[-1]["mac_address"] == "02:00:00:00:00:99"


async def test_a_device_in_a_pod_keeps_its_answers_and_is_not_asked_about(
    provider: Provider, start: Start
) -> None:
    node = await start(refresh_seconds=0.02)
    await until(node.is_known)
    node.offer(replace(NIC, ifname=""))
    asked, health = len(provider.asked(CONFIG)), len(provider.asked(HEALTH))
    await until(lambda: len(provider.asked(HEALTH)) > health + 3)
    assert len(provider.asked(CONFIG)) <= asked + 1
    assert node.published() == {NIC.name: {"example.com/rack": "r7"}}


async def test_a_device_that_is_long_in_a_pod_keeps_the_loop_as_quiet_as_before_and_is_asked_about_after(
    provider: Provider, start: Start
) -> None:
    node = await start(refresh_seconds=0.02)
    await until(node.is_known)
    node.offer(replace(NIC, ifname=""))
    health = len(provider.asked(HEALTH))
    await until(lambda: len(provider.asked(HEALTH)) > health + 3)  # by now it would be due
    looks, health = node.looks, len(provider.asked(HEALTH))
    await until(lambda: len(provider.asked(HEALTH)) > health + 5)
    assert node.looks - looks <= 3 * (len(provider.asked(HEALTH)) - health + 1)
    provider.configs[NIC.name] = {"interface": {"mtu": 1300}}
    node.offer(NIC)
    await until(lambda: node.config() == {"interface": {"mtu": 1300}})


async def test_a_device_that_is_gone_is_forgotten_in_time(provider: Provider, start: Start) -> None:
    node = await start(refresh_seconds=0.05)
    await until(node.is_known)
    node.offer(OTHER)
    await until(lambda: NIC.name not in node.published() and node.config(OTHER) == {})
    assert provider.asked(CONFIG)


async def test_a_device_that_went_before_a_restart_is_forgotten_in_time_also_in_the_file(
    provider: Provider, start: Start, tmp_path: Path
) -> None:
    await start(refresh_seconds=0.05)
    await until(lambda: NIC.name in saved(tmp_path))
    node = await start(refresh_seconds=0.05)
    node.offer(OTHER)
    await until(lambda: NIC.name not in node.published() and NIC.name not in saved(tmp_path))
    assert provider.asked(CONFIG)


@pytest.mark.parametrize("others", [(), (replace(NIC, ifname=""),)])
async def test_the_oldest_answer_is_of_a_device_that_is_asked_about(
    provider: Provider, start: Start, tmp_path: Path, others: tuple[Device, ...]
) -> None:
    node = await start()
    node.offer(NIC, OTHER)
    await until(lambda: {NIC.name, OTHER.name} <= saved(tmp_path))
    node = await start()
    node.offer(OTHER, *others)
    before = time.time()
    await until(lambda: node.oldest >= before)
    assert node.published().keys() == {NIC.name}
    assert provider.asked(CONFIG)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"dra.net/ifName": {"string": "lo"}}, "published by the driver itself"),
        ({"resource.kubernetes.io/pcieRoot": {"string": "pci"}}, "published by the driver itself"),
        ({"example.com/a b": {"string": "x"}}, "no qualified attribute name"),
        ({"example.com/long": {"string": "x" * 65}}, "1 to 64 bytes"),
        ({"example.com/big": {"int": 2**63}}, "64-bit integer"),
        ({"example.com/kind": {"int": "7"}}, "must be text"),
        ({"example.com/two": {"int": 7, "bool": True}}, "must be text"),
        ({"example.com/bare": 7}, "must be text"),
        ({"example.com/version": {"version": "1.2.3"}}, "must be text"),
    ],
)
async def test_an_attribute_that_a_slice_cannot_take_is_left_out_and_the_rest_stays(
    provider: Provider, start: Start, answer: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider.attributes["eth1"] = {**RACK, **answer}
    node = await start()
    await until(node.is_known)
    assert node.published() == {NIC.name: {"example.com/rack": "r7"}}
    assert words in caplog.text


async def test_a_file_that_cannot_be_read_costs_the_memory_only(
    provider: Provider, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "webhook.json").write_text('{"format": 1, "url": 7}')
    node = await start()
    await until(node.is_known)
    written = json.loads(await asyncio.to_thread((tmp_path / "webhook.json").read_text))
    assert written["answers"][NIC.name]["config"] == {"interface": {"mtu": 1450}}
    assert provider.asked(CONFIG)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80)
_kinds = st.sampled_from(["string", "int", "bool", "version", "strings"])
_answers = st.dictionaries(
    st.text(max_size=12)
    | st.sampled_from(["rack", "dra.net/rack", "example.com/rack", "dra.net/mac", "a/b/c"]),
    _scalars | st.lists(_scalars, max_size=2) | st.dictionaries(_kinds, _scalars, max_size=2),
    max_size=20,
)


@given(_answers)
def test_any_attributes_fit_a_slice_or_are_named(answer: dict[str, Any]) -> None:
    found = parse_attributes(answer)
    assert all(problem.isprintable() for problem in found.problems)
    assert bool(found.problems) or len(found.attributes) <= len(answer)
    for one in found.attributes:
        kind = {str: "string", int: "int", bool: "bool"}[type(one.value)]
        assert {kind: one.value} in answer.values()
        assert one.name != "dra.net/mac"
