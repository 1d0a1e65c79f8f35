"""Link settings and drivers: against the running kernel with ethtool as the judge, and hostile bytes.

A veth stands for the NIC: its driver tells a speed, a duplex and channels. Which speeds real drivers tell is
seen only on real machines.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import KernelError
from dranet.kernel.ethtool import messages as ethtool
from dranet.kernel.ethtool.messages import (
    DriverInfo,
    LinkSettings,
    parse_driver_info,
    parse_ifindex,
    parse_modes,
    parse_queues,
    read_driver_infos,
    read_link_settings,
)
from dranet.kernel.netlink import socket as socket_module
from dranet.kernel.netlink.socket import (
    Message,
    NetlinkSocket,
    Outcome,
    Request,
    attribute,
    attribute_u8,
    attribute_u32,
    kernel_error,
    nested,
    parse_family,
    resolve_family,
)
from tests.kernel.plans import list_descriptors
from tests.support.namespaces import Namespace

GENL = b"\x01\x01\0\0"

PARSERS: dict[str, Callable[[bytes], object]] = {
    "family": lambda payload: parse_family(payload, "ethtool"),
    "ifindex": parse_ifindex,
    "modes": parse_modes,
    "queues": parse_queues,
}


# --- hostile input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.binary(max_size=120))
def test_a_parser_of_noise_raises_nothing_but_the_rooms_own_error(parser: str, data: bytes) -> None:
    with suppress(KernelError):
        PARSERS[parser](data)


ATTRIBUTES = st.lists(st.tuples(st.integers(0, 12), st.binary(max_size=8)), max_size=10)


@pytest.mark.parametrize("parser", PARSERS)
@given(rest=ATTRIBUTES)
def test_a_parser_of_well_formed_nonsense_raises_nothing_but_the_rooms_own_error(
    parser: str, rest: list[tuple[int, bytes]]
) -> None:
    data = GENL + b"".join(attribute(kind, payload) for kind, payload in rest)
    with suppress(KernelError):
        PARSERS[parser](data)


@given(speed=st.integers(0, 2**32 - 1), duplex=st.integers(0, 255))
def test_only_what_is_known_of_speed_and_duplex_becomes_a_fact(speed: int, duplex: int) -> None:
    known_speed, known_duplex = parse_modes(GENL + attribute_u32(5, speed) + attribute_u8(6, duplex))
    assert known_speed == (speed if 0 < speed <= 2**31 - 1 else None)
    assert known_duplex == {0: "half", 1: "full"}.get(duplex, "")


def test_receive_queues_are_rx_and_combined_channels() -> None:
    tx_and_other = attribute_u32(7, 16) + attribute_u32(8, 32)
    assert parse_queues(GENL + attribute_u32(6, 3) + tx_and_other + attribute_u32(9, 60)) == 63
    assert parse_queues(GENL + attribute_u32(9, 60)) == 60
    assert parse_queues(GENL + tx_and_other) is None


@given(st.binary(min_size=196, max_size=196))
def test_driver_information_of_any_bytes_is_text(data: bytes) -> None:
    info = parse_driver_info(data)
    for field in (info.driver, info.version, info.firmware):
        assert "\0" not in field
        field.encode()


@pytest.mark.parametrize("firmware", [b"", b"N/A", b"n/a\0rest", b"  ", b"\0" * 32])
def test_a_firmware_that_is_not_told_is_no_fact(firmware: bytes) -> None:
    raw = struct.pack("=I32s32s32s96x", 3, b"mlx5_core", b"6.8.0", firmware)
    assert parse_driver_info(raw) == DriverInfo("mlx5_core", "6.8.0", "")


def test_a_firmware_keeps_its_board_name() -> None:
    raw = struct.pack("=I32s32s32s96x", 3, b"mlx5_core", b"6.8.0", b"28.39.1002 (MT_0000000838)")
    assert parse_driver_info(raw).firmware == "28.39.1002 (MT_0000000838)"


# --- a recorded kernel: refusals that this machine's drivers do not give -------------------------------

MODES, CHANNELS = 4, 17


def modes_of(ifindex: int, speed: int = 400_000) -> bytes:
    header = nested(1, attribute_u32(1, ifindex), attribute(2, b"eth\0"))
    return bytes([MODES, 1, 0, 0]) + header + attribute_u32(5, speed) + attribute_u8(6, 1)


class RecordedKernel(NetlinkSocket):
    """Answers for each link as told; keeps what it was asked."""

    def __init__(self, answers: dict[int, int | bytes], dump_errno: int = 0) -> None:
        self.answers, self.dump_errno = answers, dump_errno
        self.asked: list[str] = []

    def close(self) -> None:
        pass

    def request(self, request: Request) -> tuple[Message, ...]:
        assert request.type == 16, "only the family is asked for alone"
        return (Message(16, GENL + attribute(1, struct.pack("=H", 30))),)

    def dump(self, request: Request) -> list[bytes]:
        self.asked.append(f"dump {request.body[0]}")
        if self.dump_errno:
            raise kernel_error(self.dump_errno, "", request.operation)
        return [answer for answer in self.answers.values() if isinstance(answer, bytes)]

    def batch(self, requests: Sequence[Request]) -> list[Outcome]:
        self.asked.append(f"{len(requests)} links {requests[0].body[0]}")
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Outcome:
        assert request.type == 30
        answer = self.answers.get(parse_ifindex(request.body), 95)
        if isinstance(answer, int) or request.body[0] != MODES:
            return kernel_error(
                answer if isinstance(answer, int) else 95, "", request.operation, request.link
            )
        return (Message(30, answer),)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[RecordedKernel], RecordedKernel]:
    def use(kernel: RecordedKernel) -> RecordedKernel:
        monkeypatch.setattr(socket_module, "_families", {})
        monkeypatch.setattr(NetlinkSocket, "open", {16: kernel}.__getitem__)
        return kernel

    return use


Play = Callable[[RecordedKernel], RecordedKernel]


def test_a_link_that_refuses_hides_no_other(play: Play) -> None:
    play(RecordedKernel({2: modes_of(2), 3: 95, 4: 19, 5: 5, 6: modes_of(6)}))
    warnings: list[str] = []
    found = read_link_settings([2, 3, 4, 5, 6], warnings)
    assert found == {index: LinkSettings(400_000, "full") for index in (2, 6)}
    # One for each of the two questions; EOPNOTSUPP and ENODEV are silent.
    assert warnings == [
        f"read {what} of link 5: Input/output error (EIO)" for what in ("link modes", "channels")
    ]


def test_a_malformed_answer_is_a_warning_and_hides_no_other(play: Play) -> None:
    play(RecordedKernel({2: GENL + b"\x03\0\1\0", 3: GENL, 4: modes_of(4)}))
    warnings: list[str] = []
    assert read_link_settings([2, 3, 4], warnings) == {4: LinkSettings(400_000, "full")}
    assert warnings == [
        "read link modes: malformed netlink attribute: length 3 at byte 4 of 8",
        "read link modes: an ethtool message names no link",
    ]


def test_many_links_are_asked_in_one_dump_for_each_question(play: Play) -> None:
    kernel = play(RecordedKernel({index: modes_of(index) for index in range(1, 201)}))
    found = read_link_settings(range(1, 101), [])
    assert sorted(found) == list(range(1, 101))
    assert kernel.asked == [f"dump {MODES}", f"dump {CHANNELS}"]


def test_a_dump_that_a_vanishing_link_ends_is_made_up_for_by_asking_each(play: Play) -> None:
    kernel = play(RecordedKernel({index: modes_of(index) for index in range(1, 101)}, dump_errno=19))
    warnings: list[str] = []
    assert len(read_link_settings(range(1, 101), warnings)) == 100
    assert kernel.asked == ["dump 4", "100 links 4", "dump 17", "100 links 17"]
    assert warnings == []


def test_a_kernel_without_the_command_is_not_asked_for_each_link(play: Play) -> None:
    kernel = play(RecordedKernel({}, dump_errno=95))
    warnings: list[str] = []
    assert read_link_settings(range(1, 101), warnings) == {}
    assert (kernel.asked, warnings) == (["dump 4", "dump 17"], [])


def test_a_kernel_without_the_family_gives_nothing_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ethtool, "ETHTOOL_FAMILY", "nosuchfamily")
    warnings: list[str] = []
    assert read_link_settings([1, 2], warnings) == {}
    assert warnings == ["find netlink family nosuchfamily: No such file or directory (ENOENT)"]


def test_a_kernel_without_generic_netlink_gives_nothing_and_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ethtool, "NETLINK_GENERIC", 31)
    warnings: list[str] = []
    assert read_link_settings([1], warnings) == {}
    assert read_driver_infos(["lo"], warnings) == {}
    assert warnings == ["open netlink socket 31: Protocol not supported (EPROTONOSUPPORT)"] * 2


# --- the running kernel --------------------------------------------------------------------------------


@pytest.fixture
def wide_node(node: Namespace) -> Namespace:
    """The node with one more NIC that has four queues, three of them in use, and a bridge."""
    node.ip_lines(
        "link add dev wide numrxqueues 4 numtxqueues 4 up type veth peer name narrow\n"
        "link set dev narrow up\nlink add dev br0 type bridge\n"
    )
    node.run(lambda: set_receive_channels(indexes(node)["wide"], 3))
    return node


def set_receive_channels(ifindex: int, count: int) -> None:
    """What ``ethtool -L wide rx 3`` does: CHANNELS_SET."""
    with NetlinkSocket.open(16) as genl:
        body = bytes([18, 1, 0, 0]) + nested(1, attribute_u32(1, ifindex)) + attribute_u32(6, count)
        genl.request(Request(resolve_family(genl, "ethtool"), body, operation="set channels"))


def run_ethtool(node: Namespace, *arguments: str) -> str:
    if shutil.which("ethtool") is None:
        pytest.skip("there is no ethtool program")
    command = ["ip", "netns", "exec", node.name, "ethtool", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def indexes(node: Namespace) -> dict[str, int]:
    return {link["ifname"]: link["ifindex"] for link in node.read_raw("link")}


def settings(node: Namespace, *names: str) -> dict[str, LinkSettings]:
    """What we read of these links (or of all), by name, without a warning."""
    warnings: list[str] = []
    by_name = {name: index for name, index in indexes(node).items() if not names or name in names}
    found = node.run(lambda: read_link_settings(by_name.values(), warnings))
    assert warnings == []
    return {name: found[index] for name, index in by_name.items() if index in found}


@pytest.mark.kernel
@pytest.mark.parametrize("asked_singly", [0, 64])
def test_a_dump_and_single_requests_tell_the_same(
    node: Namespace, monkeypatch: pytest.MonkeyPatch, asked_singly: int
) -> None:
    monkeypatch.setattr(ethtool, "_MOST_ASKED_SINGLY", asked_singly)
    veth = LinkSettings(10_000, "full", 1)
    assert settings(node) == dict.fromkeys(("uplink", "eth1", "eth2", "eth3"), veth)  # nothing of lo
    assert settings(node, "eth2", "lo") == {"eth2": veth}


@pytest.mark.kernel
def test_speed_duplex_and_queues_are_those_that_ethtool_prints(wide_node: Namespace) -> None:
    all_settings = settings(wide_node)
    assert set(all_settings) == {"uplink", "eth1", "eth2", "eth3", "wide", "narrow"}
    for name, found in all_settings.items():
        link, channels = run_ethtool(wide_node, name), run_ethtool(wide_node, "-l", name)
        speed = re.search(r"Speed: (\d+)Mb/s", link)
        duplex = re.search(r"Duplex: (Full|Half)", link)
        current = channels.partition("Current hardware settings:")[2]
        queues = [int(count) for count in re.findall(r"^(?:RX|Combined):\s+(\d+)", current, re.MULTILINE)]
        assert found == LinkSettings(
            int(speed[1]) if speed else None, duplex[1].lower() if duplex else "", sum(queues) or None
        )


@pytest.mark.kernel
def test_queues_are_those_in_use_and_not_the_most_there_could_be(wide_node: Namespace) -> None:
    assert settings(wide_node, "wide") == {"wide": LinkSettings(10_000, "full", 3)}


@pytest.mark.kernel
def test_a_link_without_speed_has_no_settings(node: Namespace) -> None:
    node.ip("link", "add", "dev", "br0", "type", "bridge")
    assert settings(node, "br0", "lo") == {}


@pytest.mark.kernel
def test_a_link_that_is_gone_is_no_fact_and_no_warning(node: Namespace) -> None:
    gone = indexes(node)["eth3"]
    node.ip("link", "del", "dev", "eth3")
    warnings: list[str] = []
    assert node.run(lambda: read_link_settings([gone, 2**31 - 1], warnings)) == {}
    assert warnings == []


@pytest.mark.kernel
def test_the_driver_is_the_one_that_ethtool_prints(wide_node: Namespace) -> None:
    warnings: list[str] = []
    names = sorted(indexes(wide_node))
    found = wide_node.run(lambda: read_driver_infos(names, warnings))
    assert warnings == []
    assert {"eth1", "wide", "br0"} <= set(found)
    for name, info in found.items():
        told = dict(re.findall(r"^([\w-]+): *(.*)$", run_ethtool(wide_node, "-i", name), re.MULTILINE))
        firmware = told["firmware-version"] if told["firmware-version"] != "N/A" else ""
        assert info == DriverInfo(told["driver"], told["version"], firmware)
    assert found["wide"].driver == "veth"


@pytest.mark.kernel
def test_a_name_that_no_link_can_have_is_left_out(node: Namespace) -> None:
    longest = "bridge890123456"
    node.ip("link", "add", "dev", longest, "type", "bridge")
    warnings: list[str] = []
    odd = ["eth1", "lo", "eth9", "", "eth1\0x", f"{longest}7", "\udcff\udcfe", "ethé"]
    assert set(node.run(lambda: read_driver_infos(odd, warnings))) == {"eth1"}
    assert warnings == []


def test_nothing_asked_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ethtool, "NETLINK_GENERIC", 31)
    warnings: list[str] = []
    assert (read_link_settings([], warnings), read_driver_infos([], warnings)) == ({}, {})
    assert warnings == []


@pytest.mark.kernel
def test_no_descriptor_is_left_open(node: Namespace) -> None:
    def read() -> None:
        read_link_settings(range(1, 100), [])
        read_driver_infos(["eth1", "eth9"], [])

    node.run(read)
    before = list_descriptors()
    for _ in range(5):
        node.run(read)
    assert list_descriptors() <= before
