"""The cloud is asked in the background, remembered over a restart, and never waited for."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.cluster.nodes import NodeView
from dranet.driver import cloud as module
from dranet.driver.cloud import CloudMemory, CloudRules, CloudWatch
from dranet.errors import ProviderError
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import ProvidedAttribute, ProvidedFacts
from dranet.model.findings import Severity
from dranet.providers.cloud.answers import CloudFacts, SourceRouting
from dranet.settings import CloudProvider
from dranet.telemetry import Metrics

MAC = "42:01:0a:00:00:01"
ANSWER = CloudFacts({"gce.dra.net/block": "b1"}, {MAC: {"gce.dra.net/networkProjectNumber": 12}})
NODE = NodeView(provider_id="gce://project/zone/name", labels={"example.com/rack": "r7"})
OF_NODE = ProvidedFacts(attributes=(ProvidedAttribute("gce.dra.net/block", string="b1"),))
OF_NIC = ProvidedFacts(
    mac=MAC, attributes=(ProvidedAttribute("gce.dra.net/networkProjectNumber", integer=12),)
)


class Cloud:
    """Gives ``answer``, or fails with it."""

    def __init__(self) -> None:
        self.answer: CloudFacts | ProviderError = ANSWER
        self.asked: list[CloudProvider] = []
        self.changes = 0
        self.news = asyncio.Event()

    async def ask(self, provider: CloudProvider) -> CloudFacts:
        self.asked.append(provider)
        self.news.set()
        if isinstance(self.answer, ProviderError):
            raise self.answer
        return self.answer

    def note(self) -> None:
        self.changes += 1


def watch(cloud: Cloud, folder: Path, rules: CloudRules | None = None, boot: str = "boot-1") -> CloudWatch:
    memory = CloudMemory(folder / "cloud.json", boot)
    rules = rules or CloudRules(sysfs_root=folder)
    routers = {"eth0": "fe80::1"}
    return CloudWatch(
        rules, memory, Metrics().cloud, cloud.note, cloud.ask, lambda name: routers.get(name, "")
    )


async def run_until(watching: CloudWatch, cloud: Cloud, asked: int) -> None:
    """Run until the cloud was asked that many times and the last answer was taken."""
    task = asyncio.create_task(watching.run())
    async with asyncio.timeout(40):
        while len(cloud.asked) < asked:
            cloud.news.clear()
            await cloud.news.wait()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_node_object_names_the_cloud_whose_answer_is_published(tmp_path: Path) -> None:
    cloud = Cloud()
    watching = watch(cloud, tmp_path)
    assert not watching.facts
    watching.note_node(NODE)
    await run_until(watching, cloud, 1)
    assert cloud.asked == [CloudProvider.GCE]
    assert watching.facts == (OF_NODE, OF_NIC)
    assert cloud.changes == 1
    (finding,) = watching.read_findings()
    assert (finding.severity, finding.seen) == (Severity.OK, "gce: 2 facts about the machine")


async def test_where_nothing_names_a_cloud_nothing_is_asked_until_the_node_names_one(tmp_path: Path) -> None:
    cloud = Cloud()
    watching = watch(cloud, tmp_path)
    watching.note_node(NodeView(provider_id="kind://docker/x/y"))
    task = asyncio.create_task(watching.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (cloud.asked, watching.facts, watching.read_findings()) == ([], (), [])
    watching.note_node(NODE)  # the cloud's controller has come
    async with asyncio.timeout(40):
        await cloud.news.wait()
    assert cloud.asked == [CloudProvider.GCE]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_dmi_decides_where_the_node_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NODE_SECONDS", 0.0)
    dmi = tmp_path / "class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "sys_vendor").write_text("Google\n")
    cloud = Cloud()
    watching = watch(cloud, tmp_path)
    await run_until(watching, cloud, 1)
    assert watching.facts == (OF_NODE, OF_NIC)


async def test_off_reads_no_memory_and_waits_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "cloud.json").mkdir()  # would warn if it were read
    cloud = Cloud()
    await watch(cloud, tmp_path, CloudRules(CloudProvider.OFF)).run()
    assert cloud.asked == []


async def test_dmi_names_it_without_a_provider_id(tmp_path: Path) -> None:
    dmi = tmp_path / "class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "sys_vendor").write_text("Amazon EC2\n")
    cloud = Cloud()
    watching = watch(cloud, tmp_path)
    watching.note_node(NodeView())
    await run_until(watching, cloud, 1)
    assert cloud.asked == [CloudProvider.AWS]


async def test_a_restart_publishes_the_last_answer_of_this_boot_at_once(tmp_path: Path) -> None:
    cloud = Cloud()
    first = watch(cloud, tmp_path)
    first.note_node(NODE)
    await run_until(first, cloud, 1)
    again = watch(cloud, tmp_path)
    assert again.facts == (OF_NODE, OF_NIC)
    again.note_node(NODE)
    await run_until(again, cloud, 2)
    assert cloud.changes == 1, "the same answer is no change"
    assert watch(cloud, tmp_path, boot="boot-2").facts == ()


@pytest.mark.parametrize("content", ["", "{", '{"boot_id": "boot-1", "facts": [{"device": 1}]}', "[" * 2000])
async def test_a_damaged_memory_is_as_none(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cloud.json").write_text(content)
    assert watch(Cloud(), tmp_path).facts == ()
    assert "the cloud is asked again" in caplog.text


async def test_a_cloud_that_is_away_keeps_what_it_said_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.001, 0.001))
    cloud = Cloud()
    watching = watch(cloud, tmp_path)
    watching.note_node(NODE)
    await run_until(watching, cloud, 1)
    cloud.answer = ProviderError("metadata service 169.254.169.254: /x: no whole answer within 2 s")
    with caplog.at_level(logging.WARNING):
        await run_until(watching, cloud, 4)
    assert watching.facts == (OF_NODE, OF_NIC)
    assert caplog.text.count("does not answer") == 1
    (finding,) = watching.read_findings()
    assert finding.severity is Severity.WARNING
    assert "no whole answer" in finding.seen


async def test_what_no_slice_could_take_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = Cloud()
    cloud.answer = CloudFacts(
        {"gce.dra.net/block": "b1", "gce.dra.net/host": "h" * 65, "dra.net/ifName": "eth0", "no name": 1}
    )
    watching = watch(cloud, tmp_path)
    watching.note_node(NODE)
    with caplog.at_level(logging.WARNING):
        await run_until(watching, cloud, 1)
    assert watching.facts == (OF_NODE,)
    for text in (
        "'gce.dra.net/host' must be text of 1 to 64 bytes",
        "'dra.net/ifName' is published by",
        "no name",
    ):
        assert text in caplog.text


async def test_an_answer_that_no_file_can_take_costs_the_memory_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = Cloud()
    cloud.answer = CloudFacts({**ANSWER.node, "gce.dra.net/machineType": "a3.\ud800"}, ANSWER.by_mac)
    watching = watch(cloud, tmp_path)
    watching.note_node(NODE)
    with caplog.at_level(logging.WARNING):
        await run_until(watching, cloud, 1)
    assert watching.facts == (OF_NODE, OF_NIC)
    assert "cloud.json is not written" in caplog.text
    cloud.answer = ANSWER
    await run_until(watching, cloud, 2)
    assert watch(cloud, tmp_path).facts == (OF_NODE, OF_NIC)


async def test_labels_follow_the_node_object(tmp_path: Path) -> None:
    cloud = Cloud()
    rules = CloudRules(CloudProvider.OFF, (("example.com/rack", "example.com/rack"),))
    watching = watch(cloud, tmp_path, rules)
    await watching.run()
    watching.note_node(NODE)
    rack = ProvidedAttribute("example.com/rack", string="r7")
    assert watching.facts == (ProvidedFacts(attributes=(rack,)),)
    watching.note_node(NODE)
    assert cloud.changes == 1
    watching.note_node(NodeView())
    assert not watching.facts


async def test_a_restart_while_the_cloud_is_away_keeps_all_that_it_said(tmp_path: Path) -> None:
    """Also with a rule for labels, which come from the Node before the cloud answers."""
    rules = CloudRules(CloudProvider.GCE, (("example.com/rack", "example.com/rack"),))
    cloud = Cloud()
    config = {"rules": [{"source": "10.0.0.0/16", "table": 100}]}
    ipv6 = SourceRouting(("fd00::5/128",), 100)
    cloud.answer = CloudFacts(ANSWER.node, ANSWER.by_mac, configs={MAC: config}, ipv6_routing={MAC: ipv6})
    first = watch(cloud, tmp_path, rules)
    first.note_node(NODE)
    await run_until(first, cloud, 1)
    known = first.facts
    assert len(known) == 2
    cloud.answer = ProviderError("metadata service 169.254.169.254: /x: no whole answer within 2 s")
    again = watch(cloud, tmp_path, rules)
    assert again.facts == known
    again.note_node(NODE)
    await run_until(again, cloud, 2)
    assert again.facts == known
    nic = Device("eth0", DeviceKind.NIC, attributes={"dra.net/mac": MAC.upper()})
    found = again.find_config(nic)
    assert found is not None
    assert found.parameters == config, "without an interface there is no router of IPv6"
    found = again.find_config(replace(nic, ifname="eth0"))
    assert found is not None
    assert found.parameters == {
        "rules": [*config["rules"], {"source": "fd00::5/128", "table": 100}],
        "routes": [{"destination": "::/0", "gateway": "fe80::1", "table": 100}],
    }


async def test_what_another_cloud_said_is_not_published_after_the_setting_has_changed(tmp_path: Path) -> None:
    cloud = Cloud()
    first = watch(cloud, tmp_path, CloudRules(CloudProvider.GCE))
    await run_until(first, cloud, 1)
    assert first.facts
    assert watch(cloud, tmp_path, CloudRules(CloudProvider.AWS)).facts == ()
