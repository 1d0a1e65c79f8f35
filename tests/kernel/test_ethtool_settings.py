"""What ethtool may change: set and given back on the running kernel's own links, and hostile or odd drivers.

The judges are the ``ethtool`` program and pyroute2's ioctl, which know nothing of our netlink. A veth has
offloads and channels, a tap has coalescing; rings and private flags need a real driver: ``tests/machine``.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroute2.ethtool.ioctl import IoctlEthtool

from dranet.claims.plan.link import resolve_features
from dranet.errors import KernelError
from dranet.kernel.ethtool import settings as ethtool
from dranet.kernel.ethtool.messages import (
    CHANNELS,
    COALESCE,
    EEE,
    FEC,
    PAUSE,
    PRIVATE_FLAGS,
    RINGS,
    EthtoolPart,
    Features,
    bitset_attribute,
    parse_bitset,
    parse_features,
)
from dranet.kernel.ethtool.settings import difference, read_ethtool_state, restore_ethtool, set_ethtool
from dranet.kernel.netlink import socket as socket_module
from dranet.kernel.netlink.socket import (
    NETLINK_GENERIC,
    Message,
    NetlinkSocket,
    Outcome,
    Request,
    attribute,
    attribute_u8,
    attribute_u32,
    iter_attributes,
    kernel_error,
    nested,
    resolve_family,
)
from dranet.model.plan import EthtoolState
from tests.support.namespaces import Namespace

GENL = b"\x01\x01\0\0"

T = TypeVar("T")


# --- hostile input -------------------------------------------------------------------------------------

PARSERS: dict[str, Callable[[bytes], object]] = {
    "bitset": parse_bitset,
    "features": parse_features,
    "private flags": PRIVATE_FLAGS.parse,
    **{numbers.name: numbers.parse for numbers in (RINGS, CHANNELS, COALESCE, PAUSE, EEE, FEC)},
}


def attributes_of(payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    one = st.builds(attribute, st.integers(0, 30), payloads)
    return st.lists(one, max_size=6).map(b"".join)


NESTED = st.recursive(st.binary(max_size=8), attributes_of, max_leaves=20)
"""Attributes in attributes, with noise at the bottom."""


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.binary(max_size=120))
def test_a_parser_of_noise_raises_nothing_but_the_rooms_own_error(parser: str, data: bytes) -> None:
    with suppress(KernelError):
        PARSERS[parser](data)


@pytest.mark.parametrize("parser", PARSERS)
@given(data=attributes_of(NESTED))
def test_a_parser_of_well_formed_nonsense_raises_nothing_but_the_rooms_own_error(
    parser: str, data: bytes
) -> None:
    with suppress(KernelError):
        PARSERS[parser](GENL + data)


class StubbornKernel(NetlinkSocket):
    """Answers whatever it is asked with the same bytes."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def close(self) -> None:
        pass

    def batch(self, requests: Sequence[Request]) -> list[Outcome]:
        return [(Message(30, self.payload),) for _ in requests]


@given(data=attributes_of(NESTED) | st.binary(max_size=60), value=st.integers(-1, 2**33))
def test_hostile_answers_end_in_a_state_or_in_the_rooms_own_error(data: bytes, value: int) -> None:
    kernel = StubbornKernel(GENL + data)
    socket_module._families.setdefault("ethtool", 30)
    asked = EthtoolState(rings={"rx": value}, coalesce={"adaptive_rx": value}, features={"rx-gro": True})
    with suppress(KernelError):
        state = read_ethtool_state(kernel, 2)
        assert difference(state, state) == []
    with suppress(KernelError):
        restore_ethtool(kernel, 2, asked, "eth1")
    with suppress(KernelError):
        set_ethtool(kernel, 2, asked, "eth1")


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)


@given(bits=st.dictionaries(NAMES, st.booleans(), max_size=8))
def test_a_bit_set_reads_back_as_it_was_written(bits: dict[str, bool]) -> None:
    ((kind, payload),) = iter_attributes(bitset_attribute(3, bits))
    assert (kind, parse_bitset(payload)) == (3, bits)


def test_a_bit_set_without_mask_lists_what_is_set() -> None:
    named = nested(1, attribute_u32(1, 0), attribute(2, b"rx-gro\0"))
    assert parse_bitset(attribute(1, b"") + nested(3, named)) == {"rx-gro": True}
    assert parse_bitset(nested(3, named)) == {"rx-gro": False}
    assert parse_bitset(nested(3, nested(1, attribute_u32(1, 4)))) == {}, "a bit without a name says nothing"


def test_a_feature_that_may_never_change_is_known_but_not_offered() -> None:
    payload = GENL + b"".join(
        bitset_attribute(kind, bits)
        for kind, bits in (
            (2, {"rx-gro": True, "rx-lro": False, "loopback": True}),
            (3, {"rx-gro": True}),
            (4, {"highdma": True}),
            (5, {"loopback": True}),
        )
    )
    known = frozenset({"rx-gro", "rx-lro", "loopback"})
    found = parse_features(payload)
    assert found == Features({"rx-gro": True}, frozenset({"highdma"}), known)
    assert found.fixed == {"rx-lro": False, "loopback": False}


# --- differences ---------------------------------------------------------------------------------------


def test_each_difference_is_a_line_that_says_what_was_wanted_and_what_is() -> None:
    wanted = EthtoolState(
        features={"rx-gro": True, "rx-lro": False},
        private_flags={"legacy-rx": False},
        rings={"rx": 256, "tx": 256},
        channels={"combined": 4},
        coalesce={"rx_usecs": 3, "adaptive_rx": 0},
    )
    found = EthtoolState(
        features={"rx-gro": False, "rx-lro": False},
        private_flags={"legacy-rx": True},
        rings={"rx": 512, "tx": 256, "rx_mini": 1},
        coalesce={"rx_usecs": 8, "adaptive_rx": 1},
    )
    assert difference(wanted, found) == [
        "private flag legacy-rx: wanted off, found on",
        "channels combined: wanted 4, found nothing",
        "rings rx: wanted 256, found 512",
        "coalesce rx_usecs: wanted 3, found 8",
        "coalesce adaptive_rx: wanted 0, found 1",
        "feature rx-gro: wanted on, found off",
    ]
    assert difference(wanted, wanted) == difference(EthtoolState(), found) == []


def test_what_a_driver_adapts_by_itself_is_no_difference() -> None:
    before = EthtoolState(coalesce={"adaptive_rx": 1, "adaptive_tx": 0, "rx_usecs": 50, "tx_usecs": 50})
    after = EthtoolState(coalesce={"adaptive_rx": 1, "adaptive_tx": 0, "rx_usecs": 8, "tx_usecs": 8})
    assert difference(before, after) == ["coalesce tx_usecs: wanted 50, found 8"]


# --- a driver in the test: what this machine's drivers do not have --------------------------------------

SETS = {
    14: "private_flags",
    16: "rings",
    18: "channels",
    20: "coalesce",
    22: "pause",
    24: "eee",
    30: "fec",
    12: "features",
}
GETS = {command - 1: part for command, part in SETS.items()}
NUMBERS: dict[str, EthtoolPart] = {
    numbers.name: numbers for numbers in (RINGS, CHANNELS, COALESCE, PAUSE, EEE, FEC)
}

Refuse = Callable[["Driver", str, dict[str, int]], str]


@dataclass
class Driver(NetlinkSocket):
    """One link with these settings. ``refuse`` gives the reason why it takes no such values, or nothing."""

    settings: dict[str, dict[str, int]]
    maxima: dict[str, int] = field(default_factory=dict)
    refuse: Refuse = lambda *_: ""
    log: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    sends: int = 0

    def close(self) -> None:
        pass

    def request(self, request: Request) -> tuple[Message, ...]:
        assert request.type == 16, "only the family is asked for alone"
        return (Message(16, GENL + attribute(1, struct.pack("=H", 30))),)

    def batch(self, requests: Sequence[Request]) -> list[Outcome]:
        self.sends += 1
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Outcome:
        part = GETS.get(request.body[0]) or SETS[request.body[0]]
        if part not in self.settings:
            return kernel_error(errno.EOPNOTSUPP, "", request.operation, request.link)
        if request.body[0] in GETS:
            return (Message(30, GENL + self._tell(part)),)
        values = self._decode(part, request.body)
        self.log.append((part, values))
        refusal = self.refuse(self, part, values)
        if refusal:
            return kernel_error(errno.EINVAL, refusal, request.operation, request.link)
        self.settings[part] |= values
        return ()

    def _tell(self, part: str) -> bytes:
        values = self.settings[part]
        if part == "private_flags":
            return bitset_attribute(2, _as_bits(values))
        if part == "features":
            on = {name: True for name, value in values.items() if value}
            everything = dict.fromkeys(values, True)
            return b"".join(
                bitset_attribute(kind, bits) for kind, bits in ((2, everything), (3, on), (4, on), (5, {}))
            )
        if part == "fec":  # a plain list of what is on
            values = {name: value for name, value in values.items() if value or name == "auto"}
        settings = NUMBERS[part].settings
        most = [
            attribute_u32(settings[name].most, self.maxima[f"{part}.{name}"])
            for name in values
            if f"{part}.{name}" in self.maxima
        ]
        return b"".join([*most, *NUMBERS[part].attributes(values)])

    def _decode(self, part: str, body: bytes) -> dict[str, int]:
        if part in NUMBERS:
            return NUMBERS[part].parse(body)[0]
        kind = 2 if part == "private_flags" else 3
        return dict(parse_bitset(dict(iter_attributes(body, 4))[kind]))


def _as_bits(values: dict[str, int]) -> dict[str, bool]:
    return {name: bool(value) for name, value in values.items()}


@pytest.fixture(autouse=True)
def forget_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_module, "_families", {})


@pytest.fixture
def nic() -> Driver:
    return Driver(
        {
            "private_flags": {"legacy-rx": 0, "striding": 1},
            "rings": {"rx": 256, "tx": 256},
            "channels": {"combined": 4, "other": 1},
            "coalesce": {"rx_usecs": 3, "tx_usecs": 3, "adaptive_rx": 1, "adaptive_tx": 0},
            "pause": {"autoneg": 0, "rx": 1, "tx": 1},
            "eee": {"enabled": 1, "tx_lpi_enabled": 0, "tx_lpi_timer": 17, "1000baseT/Full": 1},
            "fec": {"auto": 0, "None": 0, "RS": 1, "BASER": 0, "LLRS": 0},
            "features": {"rx-gro": 1, "rx-lro": 0},
        },
        {"rings.rx": 4096, "rings.tx": 4096, "channels.combined": 8, "channels.other": 1},
    )


def test_everything_that_a_driver_tells_is_in_the_state(nic: Driver) -> None:
    state = read_ethtool_state(nic, 2)
    assert state == EthtoolState(
        features={"rx-gro": True, "rx-lro": False},
        private_flags={"legacy-rx": False, "striding": True},
        rings={"rx": 256, "tx": 256},
        channels={"combined": 4, "other": 1},
        coalesce={"rx_usecs": 3, "tx_usecs": 3, "adaptive_rx": 1, "adaptive_tx": 0},
        maxima=nic.maxima,
        pause={"autoneg": 0, "rx": 1, "tx": 1},
        eee={"enabled": 1, "tx_lpi_enabled": 0, "tx_lpi_timer": 17, "1000baseT/Full": 1},
        fec={"auto": 0, "None": 0, "RS": 1, "BASER": 0, "LLRS": 0},
    )
    assert nic.sends == 1


def test_pause_frames_eee_and_fec_are_restored_and_only_what_differs_is_sent(nic: Driver) -> None:
    before = read_ethtool_state(nic, 2)
    nic.settings["pause"] |= {"rx": 0}
    nic.settings["eee"] |= {"enabled": 0, "1000baseT/Full": 0}
    nic.settings["fec"] |= {"RS": 0, "BASER": 1}
    assert restore_ethtool(nic, 2, before, "eth1") == []
    assert nic.log == [
        ("pause", {"rx": 1}),
        ("eee", {"enabled": 1, "1000baseT/Full": 1}),
        ("fec", {"None": 0, "RS": 1, "BASER": 0, "LLRS": 0}),
    ]


def test_directions_of_pause_frames_that_are_agreed_on_with_the_switch_are_no_difference() -> None:
    before = EthtoolState(pause={"autoneg": 1, "rx": 1, "tx": 1})
    after = EthtoolState(pause={"autoneg": 1, "rx": 0, "tx": 0})
    assert difference(before, after) == []
    assert difference(before, replace(after, pause={"autoneg": 0, "rx": 1, "tx": 0})) == [
        "pause autoneg: wanted 1, found 0",
        "pause tx: wanted 1, found 0",
    ]


def test_what_the_driver_did_not_tell_at_prepare_is_not_asked_for_again() -> None:
    asked: list[int] = []

    class Counting(Driver):
        def _answer(self, request: Request) -> Outcome:
            asked.append(request.body[0])
            return super()._answer(request)

    counting = Counting({"rings": {"rx": 256}})
    recorded = read_ethtool_state(counting, 2)
    assert len(asked) == len(GETS)
    asked.clear()
    assert restore_ethtool(counting, 2, recorded, "eth1") == []
    assert asked == [15]


ASKED = EthtoolState(
    features={"rx-gro": False, "rx-lro": False},
    private_flags={"legacy-rx": True},
    rings={"rx": 4096, "tx": 256},
    channels={"combined": 8},
    coalesce={"rx_usecs": 10, "adaptive_rx": 0},
)


def test_only_what_differs_is_sent_and_what_others_depend_on_first(nic: Driver) -> None:
    set_ethtool(nic, 2, ASKED, "net1")
    assert nic.log == [
        ("private_flags", {"legacy-rx": True}),
        ("channels", {"combined": 8}),
        ("rings", {"rx": 4096}),
        ("coalesce", {"rx_usecs": 10, "adaptive_rx": 0}),
        ("features", {"rx-gro": False}),
    ]
    assert nic.sends == 2, "one batch to read, one to write and read again"
    nic.log.clear()
    set_ethtool(nic, 2, ASKED, "net1")
    assert nic.log == [], "it is so already"


def test_nothing_asked_is_nothing_sent(nic: Driver) -> None:
    set_ethtool(nic, 2, EthtoolState(maxima={"rings.rx": 4096}), "net1")
    assert restore_ethtool(nic, 2, EthtoolState(), "net1") == []
    assert nic.sends == 0


def test_what_the_driver_lacks_or_cannot_take_is_said_all_at_once_and_nothing_is_sent(nic: Driver) -> None:
    asked = EthtoolState(
        rings={"rx": 8192, "rx_mini": 64},
        channels={"combined": 9},
        private_flags={"rx_cqe_compress": True},
        features={"tls-hw-rx-offload": True},
        coalesce={"adaptive_rx": 256, "tx_usecs": -1},
    )
    with pytest.raises(KernelError) as caught:
        set_ethtool(nic, 2, asked, "net1")
    assert caught.value.message == (
        "set ethtool settings of net1: the driver has no private flag rx_cqe_compress; "
        "the driver has no rings rx_mini; there is no feature tls-hw-rx-offload; "
        "channels combined=9: the device takes 0 to 8; rings rx=8192: the device takes 0 to 4096; "
        "coalesce adaptive_rx=256: the device takes 0 to 255; "
        "coalesce tx_usecs=-1: the device takes 0 to 4294967295"
    )
    assert "private flag: legacy-rx, striding" in caught.value.hint
    assert (caught.value.operation, caught.value.link) == ("set-ethtool", "net1")
    assert nic.log == []


def test_a_refusal_carries_the_kernels_words_and_the_setting(nic: Driver) -> None:
    nic.refuse = lambda _, part, __: "ring size must be a power of two" if part == "rings" else ""
    with pytest.raises(KernelError) as caught:
        set_ethtool(nic, 2, replace(ASKED, rings={"rx": 1000}), "net1")
    assert caught.value.message == "set rings rx=1000 of net1: ring size must be a power of two (EINVAL)"
    error = caught.value
    assert (error.operation, error.link, error.errno) == ("set-ethtool", "net1", errno.EINVAL)


def test_a_driver_that_cannot_change_what_it_tells_says_so_with_a_hint(nic: Driver) -> None:
    class Fixed(Driver):
        def _answer(self, request: Request) -> Outcome:
            if request.body[0] == 16:
                return kernel_error(errno.EOPNOTSUPP, "", request.operation, request.link)
            return super()._answer(request)

    with pytest.raises(KernelError) as caught:
        set_ethtool(Fixed(nic.settings, nic.maxima), 2, EthtoolState(rings={"rx": 512}), "net1")
    assert caught.value.message.startswith("set rings rx=512 of net1: Operation not supported (E")
    assert caught.value.hint == "the driver cannot change this; `ethtool -g net1` shows what it has"


ODD = (errno.EINVAL, errno.EBUSY, errno.EPERM, errno.EIO, errno.ERANGE, errno.ETIMEDOUT)
"""What drivers answer to a GET where they mean "not now" or "not here"."""


@dataclass
class Odd(Driver):
    """Answers one command with this errno."""

    command: int = 0
    number: int = 0

    def _answer(self, request: Request) -> Outcome:
        if request.body[0] == self.command:
            return kernel_error(self.number, "", request.operation, request.link)
        return super()._answer(request)


@pytest.mark.parametrize("number", ODD)
@pytest.mark.parametrize("command", GETS)
def test_an_odd_answer_to_one_question_leaves_out_that_part_alone(
    nic: Driver, command: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    odd, part = Odd(nic.settings, nic.maxima, command=command, number=number), GETS[command]
    link = f"odd{command}-{number}"
    with caplog.at_level("WARNING"):
        states = [read_ethtool_state(odd, 2, link=link) for _ in range(2)]
    reason = f"settings of link {link}: {os.strerror(number)} ({errno.errorcode[number]})"
    assert [reason in record.getMessage() for record in caplog.records] == [True], "said, and once"
    whole = read_ethtool_state(nic, 2)
    kept = {name: most for name, most in whole.maxima.items() if not name.startswith(f"{part}.")}
    expected = replace(whole, maxima=kept, refused=states[0].refused, **{part: {}})
    assert states == [expected, expected]
    assert list(states[0].refused) == [part]
    assert reason in states[0].refused[part]


def test_an_odd_answer_refuses_only_the_claim_that_sets_that_part(nic: Driver) -> None:
    odd = Odd(nic.settings, nic.maxima, command=19, number=errno.EIO)
    set_ethtool(odd, 2, EthtoolState(rings={"rx": 512}), "net1")
    assert nic.settings["rings"]["rx"] == 512
    with pytest.raises(KernelError, match="read coalesce settings of link net1: Input/output error") as error:
        set_ethtool(odd, 2, EthtoolState(coalesce={"rx_usecs": 8}), "net1")
    assert (error.value.operation, error.value.link) == ("set-ethtool", "net1")


def test_a_link_that_is_gone_is_an_error(nic: Driver) -> None:
    gone = Odd(nic.settings, nic.maxima, command=15, number=errno.ENODEV)
    with pytest.raises(KernelError, match="ENODEV"):
        read_ethtool_state(gone, 2)


def test_giving_back_restores_all_that_a_tenant_changed(nic: Driver) -> None:
    before = read_ethtool_state(nic, 2)
    set_ethtool(nic, 2, ASKED, "net1")
    nic.log.clear()
    assert restore_ethtool(nic, 2, before, "eth1") == []
    assert read_ethtool_state(nic, 2) == before
    assert nic.log == [
        ("private_flags", {"legacy-rx": False}),
        ("channels", {"combined": 4}),
        ("rings", {"rx": 256}),
        ("coalesce", {"rx_usecs": 3}),
        ("features", {"rx-gro": True}),
        ("coalesce", {"adaptive_rx": 1}),
    ]


def adapting(driver: Driver, part: str, values: dict[str, int]) -> str:
    """As ice: no microseconds while it adapts them by itself."""
    if part != "coalesce":
        return ""
    adapts = values.get("adaptive_rx", driver.settings["coalesce"]["adaptive_rx"])
    return (
        "rx-usecs cannot be changed while adaptive-rx is enabled" if adapts and "rx_usecs" in values else ""
    )


def test_a_driver_that_takes_no_values_while_it_adapts_is_given_back_too(nic: Driver) -> None:
    nic.refuse = adapting
    before = read_ethtool_state(nic, 2)
    set_ethtool(nic, 2, EthtoolState(coalesce={"rx_usecs": 10, "adaptive_rx": 0}), "net1")
    assert restore_ethtool(nic, 2, before, "eth1") == []
    assert read_ethtool_state(nic, 2) == before


def test_what_is_refused_for_the_sake_of_something_later_is_taken_the_second_time(nic: Driver) -> None:
    nic.refuse = lambda driver, part, _: (
        "not while lro is on" if part == "private_flags" and driver.settings["features"]["rx-lro"] else ""
    )
    before = read_ethtool_state(nic, 2)
    nic.settings["private_flags"]["striding"] = 0
    nic.settings["features"]["rx-lro"] = 1
    assert restore_ethtool(nic, 2, before, "eth1") == []
    assert read_ethtool_state(nic, 2) == before


def test_what_cannot_be_given_back_is_told_with_the_reason_and_hides_nothing_else(nic: Driver) -> None:
    before = read_ethtool_state(nic, 2)
    set_ethtool(nic, 2, ASKED, "net1")
    nic.refuse = lambda _, part, __: "a queue pair is in use" if part == "channels" else ""
    assert restore_ethtool(nic, 2, before, "eth1") == [
        "channels combined: wanted 4, found 8",
        "set channels combined=4 of eth1: a queue pair is in use (EINVAL)",
    ]
    assert nic.settings["rings"]["rx"] == 256


# --- the running kernel --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """One link of the node, as our code and as others see it."""

    node: Namespace
    name: str
    index: int

    def read(self) -> EthtoolState:
        return self.run(lambda genl: read_ethtool_state(genl, self.index))

    def set(self, **settings: Any) -> None:
        self.run(lambda genl: set_ethtool(genl, self.index, EthtoolState(**settings), self.name))

    def restore(self, state: EthtoolState) -> list[str]:
        return self.run(lambda genl: restore_ethtool(genl, self.index, state, self.name))

    def run(self, function: Callable[[NetlinkSocket], T]) -> T:
        def call() -> T:
            with NetlinkSocket.open(NETLINK_GENERIC) as genl:
                return function(genl)

        return self.node.run(call)

    def ethtool(self, *arguments: str) -> str:
        """What the program prints; skips the test where there is none."""
        if shutil.which("ethtool") is None:
            pytest.skip("there is no ethtool program")
        command = ["ip", "netns", "exec", self.node.name, "ethtool", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shown(self, name: str) -> tuple[bool, bool]:
        """(requested, active) of a feature, as ``ethtool -k`` shows it."""
        (entry,) = json.loads(self.ethtool("--json", "-k", self.name))
        feature = entry[SHOWN_AS.get(name, name)]
        return feature["requested"], feature["active"]

    def all_shown(self) -> str:
        """``ethtool -k`` and ``-l`` together, to compare."""
        return self.ethtool("-k", self.name) + self.ethtool("-l", self.name)


SHOWN_AS = {
    "rx-checksum": "rx-checksumming",
    "tx-generic-segmentation": "generic-segmentation-offload",
    "rx-gro": "generic-receive-offload",
    "rx-lro": "large-receive-offload",
    "rx-vlan-hw-parse": "rx-vlan-offload",
    "tx-vlan-hw-insert": "tx-vlan-offload",
    "rx-ntuple-filter": "ntuple-filters",
    "rx-hashing": "receive-hashing",
}
"""``ethtool`` shows these under a name of its own."""


@pytest.fixture
def links(node: Namespace) -> dict[str, Link]:
    """A veth with queues, a tap and a bridge, and what the node has anyway."""
    node.ip_lines(
        "link add dev wide numrxqueues 4 numtxqueues 4 type veth peer name narrow\n"
        "link set dev wide up\nlink set dev narrow up\nlink add dev br0 type bridge\n"
        "tuntap add dev tap0 mode tap\n"
    )
    indexes = {entry["ifname"]: entry["ifindex"] for entry in node.read_raw("link")}
    return {name: Link(node, name, index) for name, index in indexes.items()}


@pytest.fixture
def wide(links: dict[str, Link]) -> Link:
    return links["wide"]


@pytest.fixture
def tap(links: dict[str, Link]) -> Link:
    return links["tap0"]


@pytest.mark.kernel
def test_features_are_those_that_the_ioctl_tells(links: dict[str, Link]) -> None:
    ioctl: Any = IoctlEthtool
    for link in links.values():

        def ask(name: str = link.name) -> dict[str, bool]:
            with closing(ioctl(name)) as tool:
                found = tool.get_features()
            names = [entry[0] for entry in found if entry[0]]  # a bridge offers one that has no name
            offered = [name for name in names if found.is_available(name)]
            return {f: bool(found.is_requested(f)) for f in offered if not found.is_never_changed(f)}

        assert dict(link.read().features) == link.node.run(ask), link.name


@pytest.mark.kernel
def test_channels_and_their_maxima_are_those_that_ethtool_shows(wide: Link, tap: Link) -> None:
    wide.ethtool("-L", "wide", "rx", "3", "tx", "2")
    state = wide.read()
    most, current = shown_channels(wide)
    assert dict(state.channels) == current == {"rx": 3, "tx": 2}
    assert {name: value for name, value in state.maxima.items() if name.startswith("channels.")} == {
        f"channels.{name}": value for name, value in most.items()
    }
    assert dict(tap.read().channels) == shown_channels(tap)[1]


def shown_channels(link: Link) -> tuple[dict[str, int], dict[str, int]]:
    """(most, current) as ``ethtool -l`` prints them."""
    most, _, current = link.ethtool("-l", link.name).partition("Current hardware settings:")
    return counts(most), counts(current)


def counts(text: str) -> dict[str, int]:
    lines = re.findall(r"^(RX|TX|Other|Combined):\s+(\d+)$", text, re.MULTILINE)
    return {name.lower(): int(count) for name, count in lines}


@pytest.mark.kernel
def test_what_no_driver_of_this_kernel_has_is_absent(links: dict[str, Link]) -> None:
    for link in links.values():
        state = link.read()
        assert (state.rings, state.private_flags) == ({}, {}), link.name
    assert links["br0"].read().channels == {}
    assert links["wide"].read().coalesce == {}


@pytest.mark.kernel
def test_each_feature_that_can_be_changed_is_and_is_given_back(wide: Link) -> None:
    before, shown = wide.read(), wide.all_shown()
    assert len(before.features) > 15
    for name, value in before.features.items():
        wide.set(features={name: not value})
        assert wide.shown(name) == (not value, not value), name
        assert wide.restore(before) == [], name
        assert wide.all_shown() == shown, name


@pytest.mark.kernel
def test_a_feature_that_the_kernel_drops_is_an_error_that_says_what_it_depends_on(wide: Link) -> None:
    with pytest.raises(KernelError) as caught:
        wide.set(features={"tx-scatter-gather": False, "tx-tcp-segmentation": True})
    assert caught.value.message == (
        "set feature tx-tcp-segmentation=on of wide: the driver kept tx-tcp-segmentation off: "
        "it depends on tx-scatter-gather"
    )
    assert (caught.value.operation, caught.value.link) == ("set-ethtool", "wide")
    assert wide.shown("tx-tcp-segmentation") == (True, False), "asked for, and silently not so"


@pytest.mark.kernel
def test_two_features_of_which_one_needs_the_other_are_switched_on_together(wide: Link) -> None:
    wide.ethtool("-K", "wide", "sg", "off", "tx", "off")
    asked = {"tx-tcp-segmentation": True, "tx-scatter-gather": True, "tx-checksum-ip-generic": True}
    wide.set(features=asked)
    assert {name: wide.shown(name) for name in asked} == dict.fromkeys(asked, (True, True))


@pytest.mark.kernel
def test_a_fixed_feature_is_refused_unless_it_is_so_anyway(wide: Link) -> None:
    wide.set(features={"rx-lro": False})
    with pytest.raises(KernelError) as caught:
        wide.set(features={"rx-lro": True, "warp-drive": True})
    assert caught.value.message == (
        "set ethtool settings of wide: feature rx-lro is fixed to off; there is no feature warp-drive"
    )


@pytest.mark.kernel
def test_a_feature_that_was_asked_for_but_never_on_is_given_back_so(tap: Link) -> None:
    before = tap.read()
    name = "tx-checksum-ip-generic"
    assert (before.features[name], tap.shown(name)) == (True, (True, False)), "nobody reads this tap"
    tap.ethtool("-K", "tap0", "tx", "off")
    assert tap.shown(name) == (False, False)
    assert tap.restore(before) == []
    assert tap.shown(name) == (True, False)
    with pytest.raises(KernelError, match="the driver kept tx-checksum-ip-generic off"):
        tap.set(features={name: True})


@pytest.mark.kernel
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_channels_are_set_and_given_back(wide: Link, up: bool) -> None:
    wide.node.ip("link", "set", "wide", "up" if up else "down")
    before, shown = wide.read(), wide.all_shown()
    wide.set(channels={"rx": 2, "tx": 3})
    assert shown_channels(wide)[1] == {"rx": 2, "tx": 3}
    assert wide.restore(before) == []
    assert wide.all_shown() == shown


@pytest.mark.kernel
def test_more_channels_than_there_are_are_refused_before_anything_is_set(wide: Link) -> None:
    with pytest.raises(KernelError) as caught:
        wide.set(channels={"rx": 5, "combined": 1}, features={"rx-gro": True})
    assert caught.value.message == (
        "set ethtool settings of wide: the driver has no channels combined; "
        "channels rx=5: the device takes 0 to 4"
    )
    assert caught.value.hint == "the driver has channels: rx, tx"
    assert wide.shown("rx-gro") == (False, False)


@pytest.mark.kernel
def test_what_the_kernel_refuses_is_told_in_its_words(wide: Link) -> None:
    with pytest.raises(KernelError) as caught:
        wide.set(channels={"rx": 0, "tx": 0})
    assert re.fullmatch(r"set channels rx=0 tx=0 of wide: .+ \(EINVAL\)", caught.value.message)
    assert "Invalid argument" not in caught.value.message, "the kernel's own text is there"
    assert caught.value.errno == errno.EINVAL


@pytest.mark.kernel
def test_what_a_veth_does_not_have_is_refused(wide: Link) -> None:
    asked: dict[str, dict[str, int]] = {
        "rings": {"rx": 512},
        "private_flags": {"legacy-rx": True},
        "coalesce": {"rx_usecs": 8},
    }
    for part, values in asked.items():
        with pytest.raises(KernelError, match=f"the driver has no .*{next(iter(values))}") as caught:
            wide.set(**{part: values})
        assert caught.value.errno == errno.EOPNOTSUPP
        assert caught.value.hint.endswith(": none")


@pytest.mark.kernel
def test_coalescing_of_a_tap_is_set_and_given_back(tap: Link) -> None:
    before = tap.read()
    assert dict(before.coalesce) == {"rx_max_frames": 0}
    tap.set(coalesce={"rx_max_frames": 32})
    assert re.search(r"^rx-frames: *\t*32$", tap.ethtool("-c", "tap0"), re.MULTILINE)
    assert tap.restore(before) == []
    assert re.search(r"^rx-frames: *\t*0$", tap.ethtool("-c", "tap0"), re.MULTILINE)


@pytest.mark.kernel
@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_tenant_does_with_ethtool_is_given_back(wide: Link, seed: int) -> None:
    chance = random.Random(seed)
    before, shown = wide.read(), wide.all_shown()
    chosen = chance.sample(sorted(before.features), chance.randint(1, 8))
    for name in chosen:
        switch = chance.choice(["on", "off"])
        wide.ethtool("-K", "wide", SHOWN_AS.get(name, name), switch)
    wide.ethtool("-L", "wide", "rx", str(chance.randint(1, 4)), "tx", str(chance.randint(1, 4)))
    assert wide.restore(before) == []
    assert wide.all_shown() == shown
    assert difference(before, wide.read()) == []


@pytest.mark.kernel
@pytest.mark.parametrize("alias", ["rx", "tx", "sg", "tso", "gso", "gro", "rxvlan", "txvlan"])
def test_a_name_of_ethtool_means_what_the_program_means_by_it(wide: Link, alias: str) -> None:
    before = wide.read()
    off, _ = resolve_features({alias: False}, before.features)
    wide.set(features=dict.fromkeys(off, True))
    wide.ethtool("-K", "wide", alias, "off")
    after = wide.read().features
    changed = {name for name, value in after.items() if not value and name in off}
    assert changed == set(off) != set()
    untouched = {name: value for name, value in before.features.items() if name not in off}
    assert {name: after[name] for name in untouched} == untouched


@pytest.mark.kernel
def test_every_long_name_that_ethtool_prints_is_known_to_us(links: dict[str, Link]) -> None:
    for link in links.values():
        (entry,) = json.loads(link.ethtool("--json", "-k", link.name))
        changeable = link.read().features
        printed = {name: shown for name, shown in entry.items() if isinstance(shown, dict)}
        for name, shown in printed.items():
            resolved, unknown = resolve_features({name: True}, changeable)
            if shown["fixed"] is False:
                assert (len(resolved), unknown) == (1, ()), name
            elif shown["fixed"] is True:
                assert (resolved, unknown) == ({}, (name,)), name


@pytest.mark.kernel
def test_a_link_that_is_gone_is_said_to_be(wide: Link) -> None:
    state = wide.read()
    wide.node.ip("link", "del", "wide")
    for call in (wide.read, lambda: wide.set(features={"rx-gro": True}), lambda: wide.restore(state)):
        with pytest.raises(KernelError) as caught:
            call()
        assert caught.value.errno == errno.ENODEV


@pytest.mark.kernel
def test_a_kernel_without_the_family_has_nothing_and_takes_nothing(
    wide: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ethtool, "ETHTOOL_FAMILY", "nosuchfamily")
    assert wide.read() == EthtoolState()
    assert wide.restore(EthtoolState()) == []
    with pytest.raises(KernelError) as caught:
        wide.set(features={"rx-gro": True})
    assert (caught.value.operation, caught.value.errno) == ("set-ethtool", errno.ENOENT)


@pytest.fixture
def genl() -> Iterator[NetlinkSocket]:
    with NetlinkSocket.open(NETLINK_GENERIC) as sock:
        yield sock


@pytest.mark.kernel
def test_the_kernel_is_asked_for_a_family_once(genl: NetlinkSocket) -> None:
    family = resolve_family(genl, "ethtool")
    genl.close()
    assert resolve_family(genl, "ethtool") == family


@pytest.mark.kernel
def test_a_family_that_is_not_there_is_asked_for_again(genl: NetlinkSocket) -> None:
    for _ in range(2):
        with pytest.raises(KernelError, match="find netlink family nosuchfamily") as caught:
            resolve_family(genl, "nosuchfamily")
        assert caught.value.errno == errno.ENOENT


def test_switches_are_bytes_and_counts_are_words() -> None:
    assert CHANNELS.attributes({"combined": 8}) == [attribute_u32(9, 8)]
    assert COALESCE.attributes({"adaptive_rx": 1}) == [attribute_u8(11, 1)]
