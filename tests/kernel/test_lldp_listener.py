"""Real frames on real links: what the packet socket hears, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dranet.kernel.lldp.listener import MAX_FRAMES_PER_READ, Heard, Listener
from tests.support.lldp_switch import CUSTOMER_BRIDGE, build_frame, build_message, send
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel


@pytest.fixture
def listener(node: Namespace) -> Iterator[Listener]:
    found = node.run(Listener)
    join(found, node)
    yield found
    found.close()


def join(listener: Listener, node: Namespace) -> None:
    links = {link["ifindex"]: link["ifname"] for link in node.read_raw("link")}
    listener.join({index: name for index, name in links.items() if name.startswith("eth")})


def read(listener: Listener) -> list[Heard]:
    found: list[Heard] = []
    listener.read(found.append)
    return found


def announce(fabric: Namespace, ifname: str, *frames: bytes) -> None:
    fabric.run(lambda: send(ifname, *frames or [build_frame(build_message())]))


def test_each_link_is_heard_under_its_own_name(listener: Listener, fabric: Namespace) -> None:
    for ifname in ("p-eth1", "p-eth2"):
        announce(fabric, ifname)
    assert [(heard.ifname, heard.message.system_name) for heard in read(listener)] == [
        ("eth1", "leaf-02"),
        ("eth2", "leaf-02"),
    ]


def test_what_the_node_itself_sends_is_not_heard(listener: Listener, node: Namespace) -> None:
    node.run(lambda: send("eth1", build_frame(build_message("the node"))))
    assert read(listener) == []


def test_a_link_in_a_pod_is_not_heard_and_again_when_it_is_back(
    listener: Listener, node: Namespace, fabric: Namespace, pod: Namespace
) -> None:
    node.ip("link", "set", "eth1", "netns", pod.name)
    pod.ip("link", "set", "eth1", "up")
    announce(fabric, "p-eth1")
    assert read(listener) == []
    pod.ip("link", "set", "eth1", "netns", node.name)
    node.ip("link", "set", "eth1", "up")
    join(listener, node)
    wait_until(lambda: node.read_raw("link", "show", "eth1")[0]["operstate"] == "UP")
    announce(fabric, "p-eth1")
    assert [heard.ifname for heard in read(listener)] == ["eth1"]


def test_broken_frames_are_counted_and_good_ones_behind_them_are_heard(
    listener: Listener, fabric: Namespace
) -> None:
    announce(fabric, "p-eth1", build_frame(b"\xff" * 40), build_frame(build_message(), CUSTOMER_BRIDGE))
    assert [heard.group for heard in read(listener)] == [CUSTOMER_BRIDGE]
    assert listener.odd_frames == 1
    assert listener.oddity.startswith("eth1: ")


def test_a_flood_is_read_in_portions_and_what_does_not_fit_is_dropped(
    listener: Listener, fabric: Namespace
) -> None:
    announce(fabric, "p-eth1", *[build_frame(build_message(port=f"p{number}")) for number in range(3000)])
    assert listener.read(lambda _: None) == MAX_FRAMES_PER_READ
    assert sum(iter(lambda: listener.read(lambda _: None), 0)) < 3000
