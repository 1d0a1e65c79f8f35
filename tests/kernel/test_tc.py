"""Qdiscs, classes and filters: read, taken away, put back; ``tc`` is the judge.

Kinds that this kernel lacks are in ``tests/machine/test_traffic.py``.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import KernelError
from dranet.kernel.netlink import tc as traffic
from dranet.kernel.netlink.rtnl import decode
from dranet.kernel.netlink.socket import attribute, attribute_text
from dranet.kernel.netlink.tc import (
    CLSACT_EGRESS,
    TC_H_ROOT,
    TCMSG,
    Filter,
    add_requests,
    format_handle,
    parse_class,
    parse_filter,
    parse_qdisc,
    read_filters,
    read_traffic_control,
)
from dranet.model.plan import TrafficControl
from tests.kernel.loaded import attach_filter, ifindex_of, loader, tc
from tests.support.namespaces import Namespace

QDISCS = {
    "token bucket": ["qdisc add dev eth1 root handle 1: tbf rate 20mbit burst 16kb latency 30ms"],
    "fast token bucket with a peak": [
        "qdisc add dev eth1 root handle 1: tbf rate 40gbit burst 2mb limit 9mb peakrate 50gbit mtu 70000"
    ],
    "chosen handle": ["qdisc add dev eth1 root tbf rate 1mbit burst 4kb latency 30ms"],
    "packet fifo": ["qdisc add dev eth1 root handle abcd: pfifo limit 77"],
    "byte fifo": ["qdisc add dev eth1 root handle 1: bfifo limit 77777"],
    "explicit default": ["qdisc add dev eth1 root handle 1: pfifo_fast"],
    "no queue": ["qdisc add dev eth1 root handle 1: noqueue"],
    "traffic hooks": ["qdisc add dev eth1 clsact"],
    "ingress hook": ["qdisc add dev eth1 ingress"],
    "root and hooks": [
        "qdisc add dev eth1 clsact",
        "qdisc add dev eth1 root handle 7: tbf rate 5mbit burst 4kb latency 30ms",
    ],
    "classes": [
        "qdisc add dev eth1 root handle 1: htb default 20 r2q 5 direct_qlen 77",
        "class add dev eth1 parent 1: classid 1:1 htb rate 30gbit ceil 40gbit burst 200k cburst 300k",
        "class add dev eth1 parent 1:1 classid 1:20 htb rate 1mbit ceil 2mbit prio 3 quantum 2000",
        "class add dev eth1 parent 1:1 classid 1:10 htb rate 50gbit prio 1 mpu 64 overhead 24",
        "class add dev eth1 parent 1: classid 1:a htb rate 3mbit",
        "qdisc add dev eth1 parent 1:20 handle 5: pfifo limit 5",
        "qdisc add dev eth1 parent 1:10 handle 2: tbf rate 1mbit burst 4kb latency 30ms",
        "qdisc add dev eth1 parent 2: handle 9: bfifo limit 5555",
    ],
    "queues": [
        "qdisc add dev eth1 root handle 1: mq",
        "qdisc replace dev eth1 parent 1:2 handle 20: bfifo limit 4444",
    ],
    "queues alone": ["qdisc add dev eth1 root handle 8003: mq"],
}


@pytest.fixture
def nic(node: Namespace, fabric: Namespace) -> Namespace:
    """A node whose eth1 has four queues."""
    node.ip("link", "del", "eth1")
    queues = ["numtxqueues", "4", "numrxqueues", "4"]
    end = ["peer", "name", "p-eth1", "netns", fabric.name]
    node.ip("link", "add", "eth1", *queues, "type", "veth", *end)
    node.ip("link", "set", "eth1", "up")
    fabric.ip("link", "set", "p-eth1", "up")
    return node


def tc_lines(node: Namespace, lines: Sequence[str]) -> None:
    for line in lines:
        done = subprocess.run(["tc", "-n", node.name, *line.split()], capture_output=True, text=True)
        if "kind is unknown" in done.stderr:
            pytest.skip(f"this kernel lacks what it takes: {line}")
        assert done.returncode == 0, f"{line}: {done.stderr}"


def shown(node: Namespace, link: str = "eth1") -> list[str]:
    """Qdiscs and classes as ``tc`` prints them, sorted: the kernel lists them by a hash."""
    texts = [tc(node, "-details", what, "show", "dev", link) for what in ("qdisc", "class")]
    return sorted(line for text in texts for line in text.splitlines())


def read(node: Namespace, link: str = "eth1") -> tuple[TrafficControl, ...]:
    with node.netns.open_netlink() as rtnl:
        return read_traffic_control(rtnl, ifindex_of(node, link))


def put_back(node: Namespace, items: Sequence[TrafficControl], link: str = "eth1") -> list[KernelError]:
    """Replay; returns the refusals."""
    with node.netns.open_netlink() as rtnl:
        outcomes = rtnl.batch(add_requests(ifindex_of(node, link), items, link))
    return [outcome for outcome in outcomes if isinstance(outcome, KernelError)]


@pytest.mark.kernel
@pytest.mark.parametrize("kind", QDISCS)
def test_what_was_put_on_a_link_comes_back_after_its_move(kind: str, nic: Namespace, pod: Namespace) -> None:
    tc_lines(nic, QDISCS[kind])
    before, items = shown(nic), read(nic)
    assert len(items) == len(QDISCS[kind]), "the kernel's own are left out"
    nic.ip("link", "set", "eth1", "netns", pod.name)
    pod.ip("link", "set", "eth1", "netns", nic.name)
    nic.ip("link", "set", "eth1", "up")
    assert shown(nic) != before, "the move takes them"
    assert put_back(nic, items) == []
    assert shown(nic) == before
    assert read(nic) == items


@pytest.mark.kernel
@pytest.mark.parametrize("kind", QDISCS)
def test_a_link_that_is_down_takes_them_too(kind: str, nic: Namespace, pod: Namespace) -> None:
    tc_lines(nic, QDISCS[kind])
    before, items = shown(nic), read(nic)
    nic.ip("link", "set", "eth1", "netns", pod.name)
    pod.ip("link", "set", "eth1", "netns", nic.name)
    assert put_back(nic, items) == []
    nic.ip("link", "set", "eth1", "up")
    assert shown(nic) == before


@pytest.mark.kernel
def test_what_is_the_kernels_own_is_not_ours_to_record(nic: Namespace) -> None:
    assert shown(nic), "noqueue"
    assert read(nic) == ()
    tc_lines(nic, ["qdisc add dev eth2 root handle 1: pfifo"])
    assert read(nic) == (), "another link's"
    tc_lines(nic, ["qdisc add dev eth1 root handle 1: mq"])
    assert len(shown(nic)) > 2, "mq has queues of its own"
    assert [(item.kind, item.handle, item.parent) for item in read(nic)] == [("mq", 0x10000, TC_H_ROOT)]


@pytest.mark.kernel
def test_counters_are_no_difference(nic: Namespace) -> None:
    """htb counts among its options what went past all classes."""
    tc_lines(nic, ["qdisc add dev eth1 root handle 1: htb default 0"])
    before = read(nic)
    nic.ip("addr", "add", "203.0.113.1/24", "dev", "eth1")
    nic.run(send_broadcast)
    (told,) = (line for line in shown(nic) if line.startswith("qdisc htb"))
    assert "direct_packets_stat 0" not in told
    assert read(nic) == before


def send_broadcast() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.sendto(b"x", ("203.0.113.255", 9))


@pytest.mark.kernel
def test_putting_back_what_is_there_already_changes_nothing(nic: Namespace) -> None:
    tc_lines(nic, ["qdisc add dev eth1 clsact", *QDISCS["token bucket"]])
    before, items = shown(nic), read(nic)
    assert put_back(nic, items) == []
    assert shown(nic) == before


@pytest.mark.kernel
def test_a_kind_that_the_kernel_does_not_have_is_refused_by_name(nic: Namespace) -> None:
    (refusal,) = put_back(nic, [TrafficControl("qdisc", "nosuchkind", 0x10000, TC_H_ROOT)])
    assert "add qdisc nosuchkind 1: of eth1" in refusal.message


# --- filters --------------------------------------------------------------------------------------------


def words(node: Namespace) -> tuple[str, ...]:
    with node.netns.open_netlink() as rtnl:
        return read_filters(rtnl, ifindex_of(node, "eth1"))


@pytest.mark.kernel
def test_filters_that_are_no_programs_are_said_in_words(nic: Namespace) -> None:
    match = "protocol ip u32 match ip dst 192.0.2.1/32 flowid 1:10"
    tc_lines(nic, ["qdisc add dev eth1 clsact", *QDISCS["classes"]])
    assert words(nic) == ()
    tc_lines(nic, [f"filter add dev eth1 {place} {match}" for place in ("ingress", "parent 1:1")])
    tc(nic, "filter", "add", "dev", "eth1", "egress", "protocol", "all", "bpf", "bytecode", "1,6 0 0 0,")
    with loader() as bpf_loader:
        attach_filter(nic, bpf_loader.load("prog"), ifindex_of(nic, "eth1"), CLSACT_EGRESS, b"prog")
    assert sorted(words(nic)) == [
        "bpf filter 0x1 on egress",
        "u32 filter 800::800 on 1:1",
        "u32 filter 800::800 on ingress",
    ]


@pytest.mark.kernel
def test_a_bucket_of_a_hash_table_is_told(nic: Namespace) -> None:
    place, match = "filter add dev eth1 ingress prio 5", "match ip dst 192.0.2.1/32 flowid 1:1"
    tc_lines(
        nic,
        [
            "qdisc add dev eth1 clsact",
            f"{place} handle 3: protocol ip u32 divisor 256",
            f"{place} protocol ip u32 ht 3:1f: {match}",
        ],
    )
    assert words(nic) == ("u32 filter 3:1f:800 on ingress",)


@pytest.mark.kernel
def test_shared_blocks_and_size_tables_are_said_in_words(nic: Namespace) -> None:
    tc_lines(
        nic,
        [
            "qdisc add dev eth1 ingress_block 22 clsact",
            "qdisc add dev eth2 ingress_block 22 clsact",
            "filter add block 22 protocol ip u32 match ip dst 192.0.2.1/32 flowid 1:1",
            "qdisc add dev eth1 root handle 1: stab overhead 8 linklayer atm bfifo",
        ],
    )
    assert sorted(words(nic)) == [
        "block 22 of shared filters",
        "size table of qdisc bfifo 1:",
        "u32 filter 800::800 on ingress",
    ]


@pytest.mark.parametrize(
    ("handle", "words"),
    [
        (0x10000, "1:"),
        (0xFFFF0000, "ffff:"),
        (0x1000A, "1:a"),
        (TC_H_ROOT, "root"),
        (CLSACT_EGRESS, "egress"),
    ],
)
def test_handles_are_written_as_tc_does(handle: int, words: str) -> None:
    assert format_handle(handle) == words


# --- hostile input and order ----------------------------------------------------------------------------

PARSERS: dict[str, Callable[[bytes], object]] = {
    "qdisc": partial(parse_qdisc, ifindex=7),
    "class": partial(parse_class, ifindex=7),
    "filter": parse_filter,
}
KINDS = st.sampled_from([b"htb", b"sfq", b"mqprio", b"fq_codel", b"codel", b"pie", b"fq_pie", b"bpf", b"u32"])
VALUES = st.binary(max_size=24) | KINDS
OPTIONS = st.lists(st.tuples(st.integers(0, 12), VALUES), max_size=5).map(
    lambda pairs: b"".join(attribute(kind, payload) for kind, payload in pairs)
)


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.binary(max_size=120))
def test_a_parser_of_noise_raises_nothing_but_the_rooms_own_error(parser: str, data: bytes) -> None:
    with suppress(KernelError):
        decode(PARSERS[parser], data)


@pytest.mark.parametrize("parser", PARSERS)
@given(
    kind=KINDS,
    handle=st.integers(0, 2**32 - 1),
    rest=st.lists(st.tuples(st.integers(0, 15), VALUES | OPTIONS), max_size=5),
    size=st.integers(0, 300),
)
def test_a_parser_of_well_formed_nonsense_raises_nothing_but_the_rooms_own_error(
    parser: str, kind: bytes, handle: int, rest: list[tuple[int, bytes]], size: int
) -> None:
    data = TCMSG.pack(0, 7, handle, TC_H_ROOT, 0) + attribute_text(1, kind.decode())
    data += b"".join(attribute(number, payload) for number, payload in rest)
    with suppress(KernelError):
        found = decode(PARSERS[parser], data[:size])
        if isinstance(found, Filter):
            assert found.program_name is None or found.kind == "bpf"


WHATS: list[Literal["qdisc", "class"]] = ["qdisc", "class"]
HANDLES = st.integers(1, 6).map(lambda major: major << 16) | st.integers(0x10001, 0x10006)
ITEMS = st.builds(
    TrafficControl, st.sampled_from(WHATS), st.just("htb"), HANDLES, HANDLES | st.just(TC_H_ROOT)
)


@given(items=st.lists(ITEMS, max_size=8, unique_by=lambda item: item.handle), shift=st.integers(0, 7))
def test_parents_come_first_in_an_order_that_does_not_depend_on_the_kernels(
    items: list[TrafficControl], shift: int
) -> None:
    ordered = traffic._parents_first(items)
    assert sorted(ordered, key=str) == sorted(items, key=str), "cycles of noise lose nothing"
    assert traffic._parents_first(items[shift:] + items[:shift]) == ordered
    if all(item.parent == TC_H_ROOT or item.parent < item.handle for item in items):
        for position, item in enumerate(ordered):
            assert item.parent not in {later.handle for later in ordered[position:]}
