"""Probes for addresses in use: the kernel's own answers, other probers, and what answers for everything."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dranet.kernel import conflicts
from dranet.kernel.conflicts import Conflict, Unprobed, find_conflicts, parse_claim
from tests.support.namespaces import Namespace, wait_settled, wait_unchanged

needs_kernel = pytest.mark.kernel

V4, V6 = "10.0.0.5", "fd00::5"
OWNER = "02:77:00:00:00:05"


@pytest.fixture
def owner(fabric: Namespace, node: Namespace) -> Namespace:
    """The other end of eth1, which has the addresses."""
    assert node.name
    fabric.ip_lines(
        f"link set p-eth1 address {OWNER}\naddr add {V4}/24 dev p-eth1\naddr add {V6}/64 dev p-eth1 nodad\n"
    )
    return fabric


def probe(node: Namespace, *addresses: str, ifname: str = "eth1", is_moved: bool = True) -> Any:
    return node.run(partial(find_conflicts, ifname, addresses, is_moved))


@needs_kernel
def test_the_owner_of_an_address_is_found_in_both_ip_versions(node: Namespace, owner: Namespace) -> None:
    assert owner.name
    found = probe(node, V4, "10.0.0.6", V6, "fd00::6")
    assert found == (Conflict(V4, OWNER), Conflict(V6, OWNER))


@needs_kernel
def test_an_owner_on_a_macvlan_or_behind_a_bridge_is_found(fabric: Namespace, node: Namespace) -> None:
    fabric.ip_lines(
        "link add br0 type bridge\nlink set br0 up\nlink set p-eth1 master br0\nlink set p-eth2 master br0\n"
    )
    fabric.ip_lines(
        f"link add mv0 link br0 address {OWNER} type macvlan mode bridge\nlink set mv0 up\n"
        f"addr add {V4}/24 dev mv0\naddr add {V6}/64 dev mv0 nodad\n"
    )
    found = probe(node, V4, V6)
    assert {Conflict(V4, OWNER), Conflict(V6, OWNER)} <= set(found)


@needs_kernel
def test_the_address_that_the_nic_has_itself_is_no_conflict(fabric: Namespace, node: Namespace) -> None:
    """Also where the node's next NIC in the same network answers for it, as the kernel does by default."""
    fabric.ip_lines(
        "link add br0 type bridge\nlink set br0 up\nlink set p-eth1 master br0\nlink set p-eth2 master br0\n"
    )
    node.ip_lines(f"addr add {V4}/24 dev eth1\naddr add {V6}/64 dev eth1 nodad\n")
    assert probe(node, V4, V6) == ()
    assert Conflict(V4, "02:00:00:00:00:01", is_own_node=True) in probe(node, V4, ifname="eth2")


@needs_kernel
def test_a_link_on_top_must_not_have_the_address_of_its_parent(node: Namespace) -> None:
    node.ip("addr", "add", f"{V4}/24", "dev", "eth1")
    expected = Conflict(V4, "02:00:00:00:00:01", is_own_node=True)
    assert probe(node, V4, is_moved=False) == (expected,)
    assert "is in use by 02:00:00:00:00:01 (a link of this node)" in expected.describe()


@needs_kernel
def test_the_kernels_proxy_arp_is_no_owner(fabric: Namespace, node: Namespace) -> None:
    def turn_on() -> None:
        for name in ("ipv4/conf/p-eth1/proxy_arp", "ipv4/conf/p-eth1/forwarding"):
            Path("/proc/sys/net", name).write_text("1")

    fabric.run(turn_on)
    fabric.ip_lines("route add 10.0.0.0/24 dev p-eth2\n")
    assert probe(node, V4) == ()


@needs_kernel
def test_what_answers_for_every_address_is_marked_as_a_proxy(fabric: Namespace, node: Namespace) -> None:
    with answering_everything(fabric, "p-eth1"):
        (found,) = probe(node, V4)
    assert found.proxy


@contextmanager
def answering_everything(namespace: Namespace, ifname: str) -> Iterator[None]:
    """A router that sends an ARP reply to each request."""
    ended = Event()
    sock = namespace.run(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806)))
    sock.bind((ifname, 0x0806))
    sock.settimeout(0.1)
    own = sock.getsockname()[4]

    def answer() -> None:
        while not ended.is_set():
            try:
                frame, where = sock.recvfrom(2048)
            except TimeoutError:
                continue
            if where[2] != socket.PACKET_OUTGOING and frame[20:22] == b"\0\1":
                asker, target = frame[22:28], frame[38:42]
                head = asker + own + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2)
                sock.send(head + own + target + asker + bytes(4))

    thread = Thread(target=answer)
    thread.start()
    yield
    ended.set()
    thread.join()
    sock.close()


@needs_kernel
def test_of_two_that_probe_at_the_same_time_each_finds_the_other(
    fabric: Namespace, node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "LAST_WAIT_SECONDS", 5.0)
    monkeypatch.setattr(conflicts, "PROBES", 2)
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(probe, node, V4, V6),
            threads.submit(probe, fabric, V4, V6, ifname="p-eth1"),
        ]
        found = [one.result() for one in asked]
    for one in found:
        assert isinstance(one, tuple)
        assert [(conflict.address, conflict.is_probe) for conflict in one] == [(V4, True), (V6, True)]


@needs_kernel
def test_a_link_that_is_down_is_probed_and_is_down_afterwards(node: Namespace, owner: Namespace) -> None:
    assert owner.name
    node.ip("link", "set", "eth1", "down")
    before = wait_settled(node)
    assert probe(node, V4) == (Conflict(V4, OWNER),)
    wait_unchanged(before, node)


@needs_kernel
def test_a_link_without_a_carrier_or_ethernet_is_not_probed(
    fabric: Namespace, node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "CARRIER_SECONDS", 0.1)
    fabric.ip("link", "set", "p-eth1", "down")
    assert probe(node, V4) == Unprobed("eth1 has no carrier")
    assert probe(node, V4, ifname="lo") == Unprobed("lo is no Ethernet link")


ARP = bytes.fromhex("ffffffffffff0277000000050806000108000604000102770000000500000000")


@given(st.binary(max_size=100), st.sampled_from([b"", ARP, ARP[:12] + b"\x86\xdd\x60"]))
@example(bytes(6) + bytes([10, 0, 0, 5]), ARP)
def test_any_frame_is_a_claim_of_an_address_or_nothing(tail: bytes, head: bytes) -> None:
    claim = parse_claim(head + tail)
    assert claim is None or len(claim[1]) == 6
