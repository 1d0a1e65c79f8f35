"""Sections 1, 3 and 4 against the real driver: registration, health, slices, start and stop."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dranet.cluster import paths
from tests.contract.calls import HEALTH_SERVICES
from tests.contract.driver_node import NIC, OTHER_NIC, DrivenNode, Result
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.shared_node, pytest.mark.timeout(300)]

DRIVER = "dra.net"


@pytest.mark.smoke
async def test_a_kubelet_meets_the_names_of_the_go_helper(node: DrivenNode) -> None:
    """1.1, 1.2: what is advertised, in which order, and at which paths."""
    info = await node.calls.get_info()
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    root = node.testbed.places.kubelet_root
    assert info.endpoint == str(root / "plugins" / DRIVER / "dra.sock")
    assert [path.name for path in (root / "plugins_registry").iterdir() if path.name[0] != "."] == [
        f"{DRIVER}-reg.sock"
    ]


async def test_a_restarted_kubelet_gets_registration_and_slices_again(node: DrivenNode) -> None:
    """1.3, 1.4: at its start the kubelet wipes every slice of the node; they come back by themselves."""
    before = {found["metadata"]["uid"]: found["spec"] for found in await node.testbed.fetch_slices()}
    await node.testbed.kubelet.restart()
    await node.testbed.kubelet.wait_driver(DRIVER)
    await until(node.testbed.fetch_slices)
    after = {found["metadata"]["uid"]: found["spec"] for found in await node.testbed.fetch_slices()}
    assert not before.keys() & after.keys()
    assert [spec["devices"] for spec in after.values()] == [spec["devices"] for spec in before.values()]


async def test_slices_that_somebody_deleted_come_back(node: DrivenNode) -> None:
    """5.1: a slice deleted by anyone else is published again."""
    for found in await node.testbed.fetch_slices():
        await node.testbed.api.delete(paths.resource_slice(found["metadata"]["name"]))
    await until(node.testbed.fetch_slices)


async def test_folders_that_were_made_anew_are_served_again(node: DrivenNode) -> None:
    """1.3: a node was reset under a driver that lives; a kubelet that starts then finds it."""
    root = node.testbed.places.kubelet_root
    for folder in (root / "plugins_registry", root / "plugins" / DRIVER):
        await asyncio.to_thread(_remove, folder)
    await until(lambda: asyncio.to_thread(node.calls.registration_socket.exists))
    await until(lambda: asyncio.to_thread(node.calls.dra_socket.exists))
    claim = await node.claim("after-reset", Result(NIC))
    await node.testbed.kubelet.restart()
    await node.testbed.kubelet.wait_driver(DRIVER)
    assert not (await node.calls.prepare([claim])).claims[claim.uid].error


def _remove(folder: Path) -> None:
    """At once: the driver is quicker than to remove one file after the other."""
    shutil.rmtree(folder.rename(folder.with_name("removed")))


async def test_a_refused_registration_shows_in_readyz_until_it_succeeds(node: DrivenNode) -> None:
    """4.4: the operator sees the kubelet's own words."""
    with pytest.raises(grpc.aio.AioRpcError):
        await node.calls.notify(registered=False, error="the kubelet says no")
    refused = next(line for line in (await node.fetch("/readyz")).splitlines() if "kubelet" in line)
    assert refused.startswith("[-] kubelet: ")
    assert refused.endswith("the kubelet says no")
    await node.calls.notify(registered=True)
    assert "[+] kubelet\n" in await node.fetch("/readyz")


async def test_registration_does_not_wait_for_slices_nor_slices_for_registration(node: DrivenNode) -> None:
    """4.1: with an API server that hangs the kubelet has the driver all the same, and claims that are
    prepared already can be given back."""
    claim = await node.claim("before", Result(NIC))
    await node.calls.prepare([claim])
    await node.testbed.driver.kill()
    await node.testbed.kubelet.wait_driver(DRIVER, registered=False)
    node.proxy.stall()
    await node.start(wait=False)
    await node.testbed.kubelet.wait_driver(DRIVER)
    assert (await node.calls.get_info()).name == DRIVER
    assert not (await node.calls.unprepare([claim])).claims[claim.uid].error
    assert "[-] slices" in await node.fetch("/readyz")


async def test_stop_removes_both_sockets_keeps_the_slices_and_ends_well(node: DrivenNode) -> None:
    """4.1: slices stay for the successor, who finds and keeps them; the kubelet wipes after 30 s, not we."""
    before = [found["metadata"]["uid"] for found in await node.testbed.fetch_slices()]
    ended = await node.testbed.driver.stop()
    assert ended.exit_code == 0
    assert not node.calls.registration_socket.exists()
    assert not node.calls.dra_socket.exists()
    assert [found["metadata"]["uid"] for found in await node.testbed.fetch_slices()] == before
    await node.start()
    assert [found["metadata"]["uid"] for found in await node.testbed.fetch_slices()] == before


async def test_sockets_of_a_killed_driver_are_replaced_by_the_next(node: DrivenNode) -> None:
    """4.2: a crash leaves dead sockets; the kubelet's connection comes back to life with the new ones."""
    await node.testbed.driver.kill()
    assert node.calls.registration_socket.exists()
    await node.testbed.kubelet.wait_driver(DRIVER, registered=False)
    await node.start()
    await node.testbed.kubelet.wait_driver(DRIVER)


async def test_the_health_stream_has_every_published_device_at_once(node: DrivenNode) -> None:
    """3.2: a full snapshot at subscription, under both versions, with a lease that outlives the pace."""
    (found,) = await node.testbed.fetch_slices()
    published = {device["name"] for device in found["spec"]["devices"]}
    for service in HEALTH_SERVICES:
        async with node.calls.watch_health(service) as stream:
            response = await anext(stream)
        assert {entry.device.device_name for entry in response.devices} == published
        assert {entry.device.pool_name for entry in response.devices} == {"testbed-node"}
        assert all(entry.health_check_timeout_seconds >= 20 for entry in response.devices)


async def test_an_api_server_that_breaks_off_is_no_end_of_the_driver(node: DrivenNode) -> None:
    """4.4: failures to publish are logged and tried again; what needs no API server goes on meanwhile."""
    claim = await node.claim("meanwhile", Result(OTHER_NIC))
    await node.calls.prepare([claim])
    pid = node.testbed.driver.pid
    node.proxy.stall()
    node.proxy.break_off()
    for found in await node.testbed.fetch_slices():
        await node.testbed.api.delete(paths.resource_slice(found["metadata"]["name"]))
    assert not (await node.calls.prepare([claim], seconds=5)).claims[claim.uid].error
    node.proxy.flow()
    await until(node.testbed.fetch_slices)
    assert node.testbed.driver.pid == pid
