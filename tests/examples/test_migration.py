"""From another driver of the same name to this one: what ``docs/guides/migrate-from-dranet.md`` says of pods.

The other driver is played as DraNet works where it matters here: it answers Prepare without devices, moves
the NIC under a name of the pod, keeps no record that we could read, and publishes a slice of the node's pool.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from testbed.cluster import DRIVER_NAME, NODE_NAME, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.node.iproute import in_namespace, read_json, read_text, run_ip
from testbed.runtimes import stand_in
from testbed.vendor import GiveNothing
from tests.support.waiting import until, until_in_thread

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

DEADLINE = 60.0
NIC, DEVICE = "enp35s0np0", "pci-0000-23-00-0"
EXPRESSION = 'device.driver == "dra.net" && device.attributes["dra.net"].ifName == "enp35s0np0"'
"""As DraNet's users write it: without a guard, because its devices all say it."""


def objects(name: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    request = {
        "name": "nic",
        "exactly": {"deviceClassName": "dranet.net", "selectors": [{"cel": {"expression": EXPRESSION}}]},
    }
    config = [{"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}] if parameters else []
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "dranet.net"},
            "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.net"'}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request], "config": config}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "resourceClaims": [{"name": "nic", "resourceClaimName": name}],
                "containers": [container],
            },
        },
    ]


def the_others_slice() -> dict[str, Any]:
    attributes = {"dra.net/ifName": {"string": NIC}, "dra.net/rdma": {"bool": True}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{NODE_NAME}-dra.net-x7k2p"},
        "spec": {
            "driver": DRIVER_NAME,
            "nodeName": NODE_NAME,
            "pool": {"name": NODE_NAME, "generation": 3, "resourceSliceCount": 1},
            "devices": [{"name": DEVICE, "attributes": attributes}],
        },
    }


async def start_the_other(testbed: Testbed) -> KubeletPlugin:
    root = testbed.places.kubelet_root
    plugin = KubeletPlugin(
        DRIVER_NAME,
        root / "plugins" / DRIVER_NAME / "dra.sock",
        root / "plugins_registry" / f"{DRIVER_NAME}-reg.sock",
        GiveNothing(),
    )
    await plugin.start()
    await testbed.api.create(paths.RESOURCE_SLICES, the_others_slice())
    return plugin


def move_as_the_other(netns_path: str) -> None:
    run_ip("link", "set", NIC, "down")
    run_ip("link", "set", NIC, "netns", netns_path, "name", "net1")
    read_json(*in_namespace(netns_path, "ip", "link", "set", "net1", "up"))


async def devices(testbed: Testbed) -> dict[str, dict[str, Any]]:
    slices = await testbed.fetch_slices()
    return {device["name"]: device["attributes"] for one in slices for device in one["spec"]["devices"]}


def in_pod(testbed: Testbed, pod: str) -> list[str]:
    sandbox = testbed.sandbox(pod)
    assert sandbox is not None
    return [str(link["ifname"]) for link, _ in testbed.node.nics_in(sandbox.netns_path)]


async def story() -> None:
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed, asyncio.timeout(DEADLINE):
        other = await start_the_other(testbed)
        await testbed.apply(objects("old"))
        await testbed.kubelet.wait_running(testbed.pod_uid("old"))
        sandbox = testbed.sandbox("old")
        assert sandbox is not None
        await asyncio.to_thread(move_as_the_other, sandbox.netns_path)
        await other.stop()

        await testbed.driver.start()
        await testbed.driver.wait_ready(DEADLINE)
        assert in_pod(testbed, "old") == ["net1"], "a pod of the other driver keeps its NIC"
        await until(lambda: is_ours_alone(testbed), "one slice, and the pod's NIC is not in it", DEADLINE)

        await testbed.delete_pod("old")
        await testbed.kubelet.wait_gone(testbed.pod_uid("old"))
        await until(
            lambda: is_back(testbed), "the device is offered again, by the pod's name for it", DEADLINE
        )
        assert not is_up("net1"), "nobody restored it: it has neither name nor address of before"
        await testbed.driver.stop()


async def story_back() -> None:
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed, asyncio.timeout(DEADLINE):
        before = await asyncio.to_thread(testbed.node.snapshot)
        await testbed.driver.start()
        await testbed.driver.wait_ready(DEADLINE)
        await testbed.apply(objects("new", {"interface": {"name": "net1"}}))
        await testbed.kubelet.wait_running(testbed.pod_uid("new"))
        await testbed.driver.stop()

        other = await start_the_other(testbed)
        await testbed.delete_pod("new")
        await testbed.kubelet.wait_gone(testbed.pod_uid("new"))
        assert not is_up("net1"), "the other driver knows nothing of it"
        await other.stop()

        await testbed.driver.start()
        await until_in_thread(
            lambda: not before.differences(testbed.node.snapshot()), "the node is as before", DEADLINE
        )


DRANETS_PARAMETERS: dict[str, Any] = {
    "interface": {
        "name": "net1",
        "addresses": ["192.168.9.1/24"],
        "mtu": 4321,
        "hardwareAddr": "00:11:22:33:44:55",
        "gsoMaxSize": 65536,
        "groMaxSize": 65536,
        "gsoIPv4MaxSize": 65536,
        "groIPv4MaxSize": 65536,
        "disableEbpfPrograms": True,
        "forwarding": True,
        "arpIgnore": 1,
        "arpAnnounce": 2,
    },
    "routes": [
        {"destination": "10.9.0.0/16", "gateway": "192.168.9.254", "table": 100},
        {"destination": "192.168.8.1/32", "scope": 253},
    ],
    "rules": [{"source": "192.168.9.0/24", "table": 100, "priority": 32000}],
    "neighbors": [{"destination": "192.168.9.7", "hardwareAddr": "02:00:00:00:00:07"}],
    "ethtool": {
        "features": {
            "tcp-segmentation-offload": False,
            "generic-receive-offload": False,
            "large-receive-offload": False,  # which few devices have: no obstacle
        }
    },
}
"""All that DraNet 1.4 knows, but for VRFs, which not every kernel has, and profiles."""


async def story_of_parameters() -> None:
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed, asyncio.timeout(DEADLINE):
        before = await asyncio.to_thread(testbed.node.snapshot)
        await testbed.driver.start()
        await testbed.driver.wait_ready(DEADLINE)
        await testbed.apply(objects("new", DRANETS_PARAMETERS))
        await testbed.kubelet.wait_running(testbed.pod_uid("new"))
        sandbox = testbed.sandbox("new")
        assert sandbox is not None
        shown = {
            command: read_text(*in_namespace(sandbox.netns_path, "ip", *command.split()))
            for command in ("address show net1", "route show table all", "rule", "neighbour")
        }
        for command, text in (
            ("address show net1", "mtu 4321"),
            ("address show net1", "link/ether 00:11:22:33:44:55"),
            ("address show net1", "inet 192.168.9.1/24"),
            ("route show table all", "10.9.0.0/16 via 192.168.9.254 dev net1 table 100"),
            ("route show table all", "192.168.8.1 dev net1"),
            ("rule", "32000:\tfrom 192.168.9.0/24 lookup 100"),
            ("neighbour", "192.168.9.7 dev net1 lladdr 02:00:00:00:00:07 PERMANENT"),
        ):
            assert text in shown[command], shown[command]

        await testbed.delete_pod("new")
        await testbed.kubelet.wait_gone(testbed.pod_uid("new"))
        await until_in_thread(
            lambda: not before.differences(testbed.node.snapshot()), "the node is as before", DEADLINE
        )


async def is_ours_alone(testbed: Testbed) -> bool:
    names = [one["metadata"]["name"] for one in await testbed.fetch_slices()]
    return (
        len(names) == 1
        and names != [the_others_slice()["metadata"]["name"]]
        and DEVICE not in await devices(testbed)
    )


async def is_back(testbed: Testbed) -> bool:
    return (await devices(testbed)).get(DEVICE, {}).get("dra.net/ifName") == {"string": "net1"}


def is_up(name: str) -> bool:
    (link,) = [link for link in read_json("ip", "-json", "address") if link["ifname"] == name]
    return "UP" in link["flags"] or bool(link.get("addr_info"))


def test_a_pod_of_another_driver_keeps_its_nic_and_ends_well_but_the_nic_comes_back_bare() -> None:
    asyncio.run(story())


def test_a_nic_that_came_back_under_another_driver_is_restored_when_this_one_returns() -> None:
    asyncio.run(story_back())


def test_a_claim_with_each_of_dranets_parameters_gets_what_it_says() -> None:
    asyncio.run(story_of_parameters())
