"""The node against the running kernel: its links, the fabric behind them, and the tree that follows.

Each test runs in a private tree, where it builds the small node; pods are bare network namespaces here.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import patch

import pytest

from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.discovery.watch import ChangeWatch
from dranet.model.facts import NodeFacts
from testbed.isolation import WORK_DIR
from testbed.node.fabric import Fabric
from testbed.node.hardware import load_hardware
from testbed.node.hoststate import HostState
from testbed.node.iproute import read_json
from testbed.node.node import Node
from testbed.node.sysfs_tree import ShownLink, SysfsTree
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.private_tree]

RAIL0, RAIL1 = "enp35s0np0", "enp131s0np0"
POD = "/run/netns/pod"
HAS_IPV6 = Path("/proc/sys/net/ipv6").exists()


@contextmanager
def small_node() -> Iterator[Node]:
    with Node(load_hardware("two-nic"), WORK_DIR) as node:
        yield node


def ip(command: str) -> str:
    return subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True).stdout


def shown(node: Node) -> set[str]:
    return {path.name for path in (node.sysfs_root / "class/net").iterdir() if path.exists()}


def test_the_nics_are_up_with_name_mac_mtu_and_address_of_the_file() -> None:
    with small_node() as node:
        assert shown(node) == {"lo", "eno1", RAIL0, RAIL1}
        line = ip(f"-br address show {RAIL0}")
        assert "UP" in line
        assert "10.64.0.1/24" in line
        details = ip(f"link show {RAIL0}")
        assert "mtu 9000" in details
        assert "b8:3f:d2:6c:00:23" in details


def test_a_node_is_there_when_all_its_nics_are_up() -> None:
    build = Fabric.build

    def build_with_one_cable_loose(fabric: Fabric) -> None:
        build(fabric)
        ip("-n fabric link set sw-640001 down")
        Timer(0.3, lambda: ip("-n fabric link set sw-640001 up")).start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fabric, "build", build_with_one_cable_loose)
        with small_node():
            assert "NO-CARRIER" not in ip("-br link")


def test_the_management_nic_has_the_default_route_and_each_rail_a_route_to_the_others() -> None:
    with small_node():
        routes = ip("route")
        assert "default via 10.0.0.254 dev eno1" in routes
        assert f"10.64.0.0/16 via 10.64.0.254 dev {RAIL0} proto static metric 100" in routes
        assert f"10.64.0.0/16 via 10.64.1.254 dev {RAIL1} proto static metric 101" in routes


def test_every_gateway_of_the_fabric_answers() -> None:
    with small_node():
        for address in ("10.0.0.254", "10.64.0.254", "10.64.1.254"):
            with pytest.raises(ConnectionRefusedError):  # refused by the gateway itself: nobody listens there
                socket.create_connection((address, 9), timeout=20)


def test_the_tree_follows_a_rename() -> None:
    with small_node() as node:
        ip(f"link set {RAIL0} down")
        ip(f"link set {RAIL0} name rail0")
        wait_until(lambda: shown(node) == {"lo", "eno1", "rail0", RAIL1})
        assert (node.sysfs_root / "class/net/rail0/device").resolve().name == "0000:23:00.0"


def test_what_the_tree_shows_late_is_announced_once_more() -> None:
    """Who has read the tree right after the kernel's own notification reads it again."""
    with small_node() as node, pytest.MonkeyPatch.context() as patch:
        told, may_show = threading.Event(), threading.Event()
        show_links = SysfsTree.show_links

        def show_late(tree: SysfsTree, links: Iterable[ShownLink]) -> list[ShownLink]:
            told.set()
            assert may_show.wait(20)
            return show_links(tree, links)

        patch.setattr(SysfsTree, "show_links", show_late)

        async def scan_twice() -> tuple[list[str], list[str]]:
            scanner = NodeScanner(node.sysfs_root, node.procfs_root)
            async with ChangeWatch() as watch, asyncio.timeout(40):
                scanner.read()
                ip(f"link set {RAIL0} name rail0")
                assert await asyncio.to_thread(told.wait, 20)
                early = functions_of(scanner.read(await watch.wait_changed()), "rail0")
                may_show.set()
                return early, functions_of(scanner.read(await watch.wait_changed()), "rail0")

        assert asyncio.run(scan_twice()) == ([""], ["0000:23:00.0"])


def functions_of(facts: NodeFacts, ifname: str) -> list[str]:
    return [link.pci_address for link in facts.links if link.ifname == ifname]


def test_the_tree_follows_a_move_into_a_pod_and_back() -> None:
    with small_node() as node:
        ip("netns add pod")
        ip(f"link set {RAIL0} netns pod name net1")
        wait_until(lambda: shown(node) == {"lo", "eno1", RAIL1})
        ip(f"-n pod link set net1 netns 2 name {RAIL0}")
        wait_until(lambda: shown(node) == {"lo", "eno1", RAIL0, RAIL1})


def test_a_link_of_the_nodes_own_shows_as_virtual() -> None:
    with small_node() as node:
        ip("link add br0 type bridge")
        wait_until(lambda: "br0" in shown(node))
        assert "devices/virtual/net/br0" in str((node.sysfs_root / "class/net/br0").resolve())


class TestReclaim:
    """What the kernel does to physical NICs of a dying namespace (net/core/dev.c)."""

    def test_a_nic_comes_home_down_without_addresses_under_the_name_it_had_inside(self) -> None:
        with small_node() as node:
            ip("netns add pod")
            ip(f"link set {RAIL0} netns pod name net1")
            ip("-n pod link set net1 up")
            for address in ("10.64.0.1/24", *(["fd00::1/64"] if HAS_IPV6 else [])):
                ip(f"-n pod address add {address} dev net1")
            node.reclaim(POD)
            ip("netns delete pod")
            assert "DOWN" in ip("-br address show net1")
            assert "inet" not in ip("address show net1")
            wait_until(lambda: shown(node) == {"lo", "eno1", "net1", RAIL1})
            assert (node.sysfs_root / "class/net/net1/device").resolve().name == "0000:23:00.0"

    def test_a_nic_that_is_home_is_the_drivers(self) -> None:
        """A driver that saw it come has already put it right: nothing is taken from it again."""

        def move_and_restore(*command: str) -> list[dict[str, Any]]:
            answer = read_json(*command)
            if "netns" in command:
                ip(f"link set net1 name {RAIL0}")
                ip(f"address add 10.64.0.9/24 dev {RAIL0}")
            return answer

        with small_node() as node, patch("testbed.node.fabric.read_json", move_and_restore):
            ip("netns add pod")
            ip(f"link set {RAIL0} netns pod name net1")
            node.reclaim(POD)
            assert "10.64.0.9/24" in ip(f"-br address show {RAIL0}")

    def test_a_name_that_is_taken_becomes_dev_and_its_index(self) -> None:
        with small_node() as node:
            ip("netns add pod")
            ip(f"link set {RAIL0} netns pod name {RAIL1}")
            node.reclaim(POD)
            (fallback,) = shown_in_kernel() - {"lo", "eno1", RAIL1}
            assert fallback.removeprefix("dev").isdigit()

    def test_links_that_are_not_the_nodes_stay_where_they_are(self) -> None:
        with small_node() as node:
            ip("netns add pod")
            ip("-n pod link add eth0 type veth peer name peer0")
            node.reclaim(POD)
            assert "eth0" in ip("-n pod -br link")

    def test_a_pods_nics_are_told_from_its_other_links(self) -> None:
        with small_node() as node:
            ip("netns add pod")
            ip("-n pod link add eth0 type veth peer name peer0")
            ip(f"link set {RAIL0} netns pod name net1")
            assert [(link["ifname"], nic.nic.rdma) for link, nic in node.nics_in(POD)] == [("net1", "mlx5_0")]


def shown_in_kernel() -> set[str]:
    return {line.split()[0].partition("@")[0] for line in ip("-br link").splitlines()}


class TestHostState:
    def test_nothing_done_is_no_difference(self) -> None:
        with small_node() as node:
            assert node.snapshot().differences(node.snapshot()) == ()

    @pytest.mark.skipif(not HAS_IPV6, reason="this kernel has no IPv6")
    def test_it_is_complete_at_once(self) -> None:
        """No duplicate address detection keeps the state changing after the boot."""
        with small_node() as node:
            assert not [fact for fact in node.snapshot().facts if "tentative" in fact]
            assert "tentative" not in ip("address")

    def test_every_kind_of_change_shows_as_a_line(self) -> None:
        with small_node() as node:
            before = node.snapshot()
            ip(f"link set {RAIL0} mtu 1500")
            ip(f"address add 192.0.2.1/32 dev {RAIL0}")
            ip("route add 198.51.100.0/24 via 10.0.0.254")
            ip(f"neighbour add 10.64.0.77 lladdr 02:00:00:00:00:01 dev {RAIL0} nud permanent")
            ip("rule add from 192.0.2.1 table 100")
            subprocess.run(["tc", "qdisc", "add", "dev", "eno1", "root", "pfifo"], check=True)
            differences = before.differences(node.snapshot())
        text = "\n".join(differences)
        for line in (
            f"- link {RAIL0}: mtu 9000",
            f"+ link {RAIL0}: mtu 1500",
            f"+ address of {RAIL0}: family inet label {RAIL0} local 192.0.2.1",
            "+ route (4) of eno1: dst 198.51.100.0/24",
            f"+ neighbour (4) of {RAIL0}: dst 10.64.0.77",
            "+ rule (4): ",
            "+ qdisc of eno1: ",
        ):
            assert line in text, text

    def test_a_nic_moved_away_and_put_back_as_it_was_is_no_difference(self) -> None:
        with small_node() as node:
            before = node.snapshot()
            ip("netns add pod")
            ip(f"link set {RAIL0} netns pod name net1")
            away = before.differences(node.snapshot())
            assert f"- link {RAIL0}: mtu 9000" in away
            ip(f"-n pod link set net1 netns 2 name {RAIL0}")
            ip(f"address add 10.64.0.1/24 broadcast + dev {RAIL0}")
            ip(f"link set {RAIL0} up")
            ip(f"route add 10.64.0.0/16 via 10.64.0.254 dev {RAIL0} proto static metric 100")
            ip("netns delete pod")
            wait_until(lambda: before.differences(node.snapshot()) == ())


def test_differences_put_the_old_and_the_new_value_together() -> None:
    before = HostState(frozenset({"link a: mtu 9000", "link b: up"}))
    after = HostState(frozenset({"link a: mtu 1500", "link b: up", "link c: up"}))
    assert before.differences(after) == ("+ link a: mtu 1500", "- link a: mtu 9000", "+ link c: up")
