"""The codec against hostile input, and the socket against the running kernel."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import KernelError, Reason
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.inet import (
    add_address_request,
    add_neighbour_request,
    add_route_request,
    is_default_route,
    is_plain_route,
    nexthop_id,
    parse_address,
    parse_nexthop,
    parse_permanent_neighbour,
    parse_route,
    route_table,
)
from dranet.kernel.netlink.rtnl import (
    decode,
    decode_all,
    dump_links_request,
    get_link_request,
    parse_link,
    parse_link_name,
    parse_lookup,
    parse_rule,
    set_link_request,
)
from dranet.kernel.netlink.socket import (
    NLM_F_ACK_TLVS,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NetlinkSocket,
    Outcome,
    Request,
    attribute,
    attribute_text,
    attribute_u32,
    iter_attributes,
    parse_attributes,
    parse_error,
    parse_messages,
)
from dranet.kernel.sysfs.files import read_boot_id
from dranet.model.facts import Address, Neighbour, Route
from tests.kernel.plans import list_descriptors
from tests.support.namespaces import Namespace

EVERY_KIND = frozenset(range(0x4000))

PARSERS: dict[str, Callable[[bytes], object]] = {
    "link": parse_link,
    "link name": parse_link_name,
    "address": partial(parse_address, names={}),
    "route": parse_route,
    "plain route": is_plain_route,
    "default route": is_default_route,
    "route's table": route_table,
    "route's nexthop object": nexthop_id,
    "nexthop object": parse_nexthop,
    "rule": parse_rule,
    "rule's table": parse_lookup,
    "neighbour": partial(parse_permanent_neighbour, ifindex=1),
}


# --- hostile input -------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_attributes_end_or_are_refused(data: bytes) -> None:
    try:
        walked = dict(iter_attributes(data))
    except KernelError:
        with pytest.raises(KernelError):
            parse_attributes(data, 0, EVERY_KIND)
    else:
        assert parse_attributes(data, 0, EVERY_KIND) == walked


@pytest.mark.parametrize("size", [0, 1, 3, 9, 0xFFFF])
def test_an_attribute_with_an_impossible_length_is_refused_and_loops_nowhere(size: int) -> None:
    with pytest.raises(KernelError, match=f"length {size} "):
        parse_attributes(struct.pack("=HHI", size, 1, 0), 0, EVERY_KIND)


@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40))))
def test_what_was_encoded_is_decoded(attributes: list[tuple[int, bytes]]) -> None:
    data = b"".join(attribute(kind, payload) for kind, payload in attributes)
    assert list(iter_attributes(data)) == attributes


@given(st.binary(max_size=300))
def test_messages_end_or_are_refused(chunk: bytes) -> None:
    try:
        payloads = [payload for _, _, _, payload in parse_messages(chunk)]
    except KernelError:
        return
    assert sum(16 + len(payload) for payload in payloads) <= len(chunk)


@given(st.binary(max_size=120), st.integers(0, 0xFFFF), st.booleans())
def test_an_error_message_of_any_shape_is_read(payload: bytes, flags: int, done: bool) -> None:
    number, text = parse_error(payload, flags, done)
    assert isinstance(number, int)
    assert not text or flags & NLM_F_ACK_TLVS


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.binary(max_size=200))
def test_a_parser_of_noise_raises_nothing_but_the_rooms_own_error(parser: str, data: bytes) -> None:
    with suppress(KernelError):
        decode(PARSERS[parser], data)


ATTRIBUTES = st.lists(st.tuples(st.integers(0, 70), st.binary(max_size=24)), max_size=12)


@pytest.mark.parametrize("parser", PARSERS)
@given(
    family=st.sampled_from([0, 2, 10, 7, 255]), header=st.binary(min_size=11, max_size=15), rest=ATTRIBUTES
)
def test_a_parser_of_well_formed_nonsense_raises_nothing_but_the_rooms_own_error(
    parser: str, family: int, header: bytes, rest: list[tuple[int, bytes]]
) -> None:
    data = bytes([family]) + header + b"".join(attribute(kind, payload) for kind, payload in rest)
    with suppress(KernelError):
        decode(PARSERS[parser], data)


def test_one_odd_message_becomes_a_warning_and_hides_no_other() -> None:
    good = struct.pack("=BxHiII", 0, 1, 7, 0, 0) + attribute_text(3, "eth7")
    odd = struct.pack("=BxHiII", 0, 1, 8, 0, 0) + attribute(3, b"\xff\xfe\0")
    nameless = struct.pack("=BxHiII", 0, 1, 9, 0, 0)
    warnings: list[str] = []
    links = decode_all(parse_link, [odd, good, nameless, b"\0"], warnings)
    assert [link.ifname for link in links] == ["eth7"]
    assert len(warnings) == 3


# --- requests round-trip through our own parsers -------------------------------------------------------

IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6).map(lambda address: socket.inet_ntop(socket.AF_INET6, address.packed))
SECONDS = st.none() | st.integers(1, 0xFFFFFFFE)


@given(IPV4, st.integers(0, 32), SECONDS, SECONDS)
def test_an_ipv4_address_survives_the_wire(
    local: str, length: int, valid: int | None, preferred: int | None
) -> None:
    address = Address(
        f"{local}/{length}",
        0,
        0,
        "eth0:a",
        valid_seconds=valid,
        preferred_seconds=preferred,
        broadcast="10.0.0.255",
    )
    body = add_address_request(3, address, "eth0").body
    assert decode(partial(parse_address, names={3: "eth0"}), body) == (3, address)


@given(IPV4, IPV4, st.integers(0, 32))
def test_a_point_to_point_address_survives_the_wire(local: str, far: str, length: int) -> None:
    address = Address(f"{local}/32", peer=f"{far}/{length}")
    parsed = decode(partial(parse_address, names={}), add_address_request(3, address, "eth0").body)
    assert parsed == (3, address if local != far else Address(f"{local}/{length}"))


@given(IPV6, IPV6, st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1), st.integers(0, 65535))
def test_an_ipv6_route_survives_the_wire(
    gateway: str, source: str, table: int, metric: int, mtu: int
) -> None:
    route = Route("2001:db8::/32", gateway, 4, (), source, 0, table, 4, metric, 1, 4, mtu)
    assert decode(parse_route, add_route_request(4, route, "eth0").body) == route


@given(IPV4, IPV6)
def test_an_ipv4_route_through_an_ipv6_router_survives_the_wire(source: str, gateway: str) -> None:
    route = Route("10.0.0.0/8", gateway, 4, source=source, protocol=4)
    assert decode(parse_route, add_route_request(4, route, "eth0").body) == route


@given(IPV6 | IPV4, st.binary(min_size=6, max_size=20))
def test_a_neighbour_survives_the_wire(address: str, mac: bytes) -> None:
    neighbour = Neighbour(address, mac.hex(":"))
    body = add_neighbour_request(5, neighbour, "eth0").body
    assert decode(partial(parse_permanent_neighbour, ifindex=5), body) == neighbour
    assert decode(partial(parse_permanent_neighbour, ifindex=6), body) is None


# --- the socket and the kernel -------------------------------------------------------------------------


@pytest.mark.kernel
def test_a_refusal_names_operation_link_errno_and_the_kernels_words(node: Namespace) -> None:
    bad = set_link_request(2, attribute_u32(4, 1), operation="set mtu", link="uplink")
    with (
        node.netns.open_netlink() as rtnl,
        pytest.raises(KernelError, match="less than device minimum") as caught,
    ):
        rtnl.request(bad)
    assert (caught.value.errno, caught.value.operation, caught.value.link) == (
        errno.EINVAL,
        "set mtu",
        "uplink",
    )


@pytest.mark.kernel
def test_answers_about_many_links_with_long_messages_fit_the_receive_buffer(node: Namespace) -> None:
    """Alternative names make a link's message long; a PCI NIC under systemd has three."""
    lines = []
    for number in range(70):
        lines.append(f"link add a{number} type veth peer name b{number}\n")
        names = " ".join(f"altname n{number}x{position}{'y' * 100}" for position in range(9))
        lines.append(f"link property add dev a{number} {names}\n")
    node.ip_lines("".join(lines))

    def ask() -> list[Outcome]:
        with NetlinkSocket.open() as rtnl:
            return rtnl.batch([get_link_request(ifname=f"a{number}") for number in range(70)])

    assert [type(outcome) for outcome in node.run(ask)] == [tuple] * 70


@pytest.mark.kernel
def test_a_batch_has_one_outcome_for_each_request_in_order(node: Namespace) -> None:
    requests = [get_link_request(ifname=name) for name in ("eth1", "nope", "eth2")] * 50
    with node.netns.open_netlink() as rtnl:
        outcomes = rtnl.batch(requests)
        assert rtnl.batch([]) == []
    assert len(outcomes) == 150
    for position, outcome in enumerate(outcomes):
        if position % 3 == 1:
            assert isinstance(outcome, KernelError)
            assert outcome.errno == errno.ENODEV
        else:
            assert not isinstance(outcome, KernelError)
            assert parse_link(outcome[0].payload).ifname == ("eth1", "nope", "eth2")[position % 3]


@pytest.mark.kernel
def test_a_dump_that_a_change_interrupts_is_read_again(node: Namespace) -> None:
    """Links come and go while we read; every dump must still hold all those that stay."""
    node.ip_lines("".join(f"link add s{n} type veth peer name t{n}\n" for n in range(150)))
    staying = {f"{side}{n}" for side in "st" for n in range(150)} | {"lo", "uplink", "eth1", "eth2", "eth3"}
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            node.ip_lines("link add z0 type veth peer name z1\nlink del z0\n" * 5)

    thread = threading.Thread(target=churn)
    thread.start()
    read = 0
    try:
        with node.netns.open_netlink() as rtnl:
            for _ in range(30):
                with suppress_interrupted():
                    names = {parse_link(payload).ifname for payload in rtnl.dump(dump_links_request())}
                    assert staying <= names
                    read += 1
    finally:
        stop.set()
        thread.join()
    assert read


@contextmanager
def suppress_interrupted() -> Iterator[None]:
    """On a busy machine each of ten tries may meet a change: that is an error, and no partial answer."""
    try:
        yield
    except KernelError as error:
        if error.errno != errno.EINTR:
            raise


class ScriptedSocket(NetlinkSocket):
    """Answers come from the test instead of the kernel."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks
        self._sequence = 0

    def _send(self, requests: Sequence[Request], flags: int) -> int:
        assert flags
        first = self._sequence + 1
        self._sequence += len(requests)
        return first

    def _receive(self) -> bytes:
        return self._chunks.pop(0)


def message(kind: int, sequence: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload


DONE = struct.pack("=i", 0)
DUMP = Request(18, b"", operation="read links")


def test_a_dump_that_the_kernel_marks_as_interrupted_is_read_again() -> None:
    first = message(16, 1, b"old!", NLM_F_DUMP_INTR) + message(NLMSG_DONE, 1, DONE)
    second = message(16, 2, b"new!") + message(NLMSG_DONE, 2, DONE)
    assert ScriptedSocket([first, second]).dump(DUMP) == [b"new!"]


def test_a_dump_that_never_holds_still_is_an_error_and_no_partial_answer() -> None:
    chunks = [message(NLMSG_DONE, n, DONE, NLM_F_DUMP_INTR) for n in range(1, 20)]
    with pytest.raises(KernelError) as caught:
        ScriptedSocket(chunks).dump(DUMP)
    assert caught.value.errno == errno.EINTR
    assert caught.value.retryable


def test_a_dump_that_fails_at_its_end_is_an_error() -> None:
    failed = message(16, 1, b"some") + message(NLMSG_DONE, 1, struct.pack("=i", -errno.ENOMEM))
    with pytest.raises(KernelError) as caught:
        ScriptedSocket([failed]).dump(DUMP)
    assert caught.value.errno == errno.ENOMEM


def test_an_answer_to_an_earlier_request_is_passed_over() -> None:
    late = message(16, 7, b"late") + message(NLMSG_DONE, 7, DONE)
    mine = message(16, 1, b"mine") + message(NLMSG_DONE, 1, DONE)
    assert ScriptedSocket([late, mine]).dump(DUMP) == [b"mine"]


# --- namespaces ----------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_a_socket_stays_in_the_namespace_where_it_was_opened_and_the_caller_too(
    node: Namespace, pod: Namespace
) -> None:
    with NetworkNamespace.current() as here, pod.netns.open_netlink() as rtnl:
        assert parse_link(rtnl.request(get_link_request(ifname="cni0"))[0].payload).ifname == "cni0"
        with NetworkNamespace.current() as still_here:
            assert here == still_here
            assert here not in {node.netns, pod.netns}


@pytest.mark.kernel
def test_a_namespace_is_known_by_what_it_is_and_not_by_its_path(node: Namespace, pod: Namespace) -> None:
    with NetworkNamespace.open(node.path) as again, NetworkNamespace.from_fd(node.netns.fileno()) as copy:
        assert again == node.netns == copy
        assert len({again, copy, node.netns, pod.netns}) == 2
        assert node.run(NetworkNamespace.current) == again


@pytest.mark.kernel
def test_an_open_namespace_outlives_its_name(make_namespace: Callable[..., Namespace]) -> None:
    namespace = make_namespace()
    with NetworkNamespace.open(namespace.path) as held:
        namespace.delete()
        with held.open_netlink() as rtnl:
            assert parse_link(rtnl.dump(dump_links_request())[0]).ifname == "lo"


@pytest.mark.kernel
def test_what_a_function_raises_inside_a_namespace_reaches_the_caller(node: Namespace) -> None:
    with pytest.raises(ZeroDivisionError):
        node.run(lambda: 1 // 0)


@pytest.mark.kernel
def test_another_kind_of_namespace_is_refused() -> None:
    with pytest.raises(KernelError, match="not a network namespace") as caught:
        NetworkNamespace.open("/proc/self/ns/mnt")
    assert caught.value.reason is Reason.NETNS_GONE


@pytest.mark.kernel
def test_no_descriptor_and_no_thread_is_left_behind(node: Namespace) -> None:
    def open_and_close() -> None:
        with NetworkNamespace.open(node.path) as netns, netns.open_netlink() as rtnl:
            rtnl.request(get_link_request(ifname="lo"))
        with pytest.raises(KernelError):
            NetworkNamespace.open("/proc/self/ns/mnt")

    open_and_close()
    descriptors, threads = list_descriptors(), set(threading.enumerate())
    for _ in range(20):
        open_and_close()
    assert list_descriptors() <= descriptors
    assert set(threading.enumerate()) <= threads


def test_a_protocol_that_the_kernel_lacks_is_named() -> None:
    with pytest.raises(KernelError) as caught:
        NetlinkSocket.open(31)
    assert caught.value.errno == errno.EPROTONOSUPPORT


def test_the_boot_id_is_read_and_its_absence_is_named(tmp_path: Path) -> None:
    assert len(read_boot_id(Path("/proc"))) == 36
    with pytest.raises(KernelError, match="boot_id"):
        read_boot_id(tmp_path)
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").touch()
    with pytest.raises(KernelError, match="empty"):
        read_boot_id(tmp_path)
