"""RSS, flow rules and DCB by encoded messages: a card in the test keeps what it is told, as drivers do.

``tests/machine/test_restore.py`` does the same with a real kernel; its judges are ``ethtool`` and
``dcb``.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.ethtool import steering
from dranet.kernel.ethtool.steering import (
    EQUAL,
    FLOW_TYPES,
    FLOWS,
    RSS,
    Nic,
    parse_context,
    read_steering,
    restore_steering,
    steering_difference,
)
from dranet.kernel.netlink import socket as socket_module
from dranet.kernel.netlink.socket import (
    Message,
    NetlinkSocket,
    Outcome,
    Request,
    attribute,
    attribute_u32,
    iter_attributes,
    kernel_error,
    nested,
)
from dranet.kernel.netlink.tc import dcb_difference, parse_dcb, read_dcb, restore_dcb
from dranet.model.plan import DcbState, FlowRule, RssContext, SteeringState

ENTRIES, KEY_BYTES, QUEUES = 8, 4, 4
GENL = b"\x01\x01\0\0"


@dataclass
class Card(NetlinkSocket):
    """The driver and the kernel of one link: tables by context, rules by place, fields by flow."""

    contexts: dict[int, tuple[tuple[int, ...], bytes, int]]
    rules: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    fields: dict[int, int] = field(default_factory=dict)
    refuses: dict[int, int] = field(default_factory=dict)
    """By command: the errno that it ends with."""
    asked: list[int] = field(default_factory=list)

    def close(self) -> None:
        pass

    # --- SIOCETHTOOL

    def ask(self, data: bytes, operation: str) -> bytes:
        (command,) = struct.unpack_from("=I", data)
        self.asked.append(command)
        if command in self.refuses:
            raise kernel_error(self.refuses[command], "", operation, "card0")
        if command in (steering.GRSSH, steering.SRSSH):
            return self._get_rss(data) if command == steering.GRSSH else self._set_rss(data, operation)
        return self._flows(data, operation)

    def _get_rss(self, data: bytes) -> bytes:
        command, number, entries, _, _, _, _ = RSS.unpack_from(data)
        table, key, function = self.contexts[number]
        head = RSS.pack(command, number, len(table), len(key), function, 0, 0)
        return head + (struct.pack(f"={len(table)}I", *table) + key if entries else b"")

    def _set_rss(self, data: bytes, operation: str) -> bytes:
        command, number, entries, key_bytes, function, transform, _ = RSS.unpack_from(data)
        if number and not entries:
            if any(context == number for _, context in self.rules.values()):
                raise kernel_error(errno.EBUSY, "", operation, "card0")
            del self.contexts[number]
            return data
        if number == steering.NEW_CONTEXT:
            number = next(free for free in range(1, 99) if free not in self.contexts)
            self.contexts[number] = self.contexts[0]
        table, key, old = self.contexts[number]
        count = 0 if entries == steering.NO_CHANGE else entries
        if not entries:
            table = tuple(place % QUEUES for place in range(ENTRIES))
        elif count:
            assert count == ENTRIES
            table = struct.unpack_from(f"={count}I", data, RSS.size)
        key = data[RSS.size + 4 * count :][:key_bytes] or key
        self.contexts[number] = (table, key, function or old)
        return RSS.pack(command, number, entries, key_bytes, function, transform, 0) + data[RSS.size :]

    def _flows(self, data: bytes, operation: str) -> bytes:
        command, flow, value, spec, last = FLOWS.unpack_from(data)
        (place,) = struct.unpack_from("=I", spec, 160)
        if command == steering.GRXRINGS:
            value = QUEUES
        elif command == steering.GRXFH:
            value = self.fields[flow]
        elif command == steering.SRXFH:
            self.fields[flow] = value
        elif command in (steering.GRXCLSRLCNT, steering.GRXCLSRLALL):
            last = len(self.rules)
        elif command == steering.GRXCLSRULE:
            body, last = self.rules[place]
            spec = body.ljust(160, b"\0") + spec[160:]
        elif command == steering.SRXCLSRLDEL:
            del self.rules[place]
        elif command == steering.SRXCLSRLINS:
            if last and last not in self.contexts:
                raise kernel_error(errno.EINVAL, "", operation, "card0")
            self.rules[place] = (spec[:160].rstrip(b"\0"), last)
        told = FLOWS.pack(command, flow, value, spec, last)
        if command == steering.GRXCLSRLALL:
            told = told[:188] + struct.pack(f"={len(self.rules)}I", *reversed(list(self.rules)))
        return told

    # --- netlink: the list of contexts

    def request(self, request: Request) -> tuple[Message, ...]:
        assert request.type == 16, "only the family is asked for"
        return (Message(16, GENL + attribute(1, struct.pack("=H", 30))),)

    def dump(self, request: Request) -> list[bytes]:
        assert request.body[0] == 38
        if steering.NEW_CONTEXT in self.refuses:
            raise kernel_error(self.refuses[steering.NEW_CONTEXT], "", request.operation, "card0")
        return [
            GENL
            + attribute_u32(2, number)
            + attribute_u32(3, function)
            + attribute(4, struct.pack(f"={len(table)}I", *table))
            + attribute(5, key)
            for number, (table, key, function) in sorted(self.contexts.items(), reverse=True)
            if number
        ]


@pytest.fixture(autouse=True)
def through_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_module, "_families", {})
    monkeypatch.setattr(Nic, "ask", lambda nic, data, operation: nic.genl.ask(data, operation))


def equal(queues: int) -> tuple[int, ...]:
    return tuple(place % queues for place in range(ENTRIES))


def make_card() -> Card:
    """With a table of the kernel, a context that a rule names, and a rule that drops."""
    tcp, over_context = struct.pack("=I", 1), struct.pack("=I", 1 | 0x20000000)
    return Card(
        {0: (equal(QUEUES), b"keys", 1), 2: ((3,) * ENTRIES, b"sec2", 1)},
        {5: (over_context + b"\x50", 2), 3: (tcp + b"\x11", 0)},
        dict.fromkeys(FLOW_TYPES.values(), 7),
    )


def on(card: Card) -> Nic:
    return Nic(card, 2, "card0")


def restore(card: Card, wanted: SteeringState) -> list[str]:
    return restore_steering(on(card), wanted, read_steering(on(card), wanted))


def test_all_that_a_card_tells_is_recorded() -> None:
    state = read_steering(on(make_card()))
    assert state == SteeringState(
        rss=RssContext(0, "equal 4", b"keys".hex(), 1),
        contexts=(RssContext(2, "3,3,3,3,3,3,3,3", b"sec2".hex(), 1),),
        hash_fields=dict.fromkeys(FLOW_TYPES, 7),
        rules=(FlowRule(3, "0100000011"), FlowRule(5, "0100002050", 2)),
    )


def test_what_is_as_recorded_is_read_and_not_written() -> None:
    card = make_card()
    wanted = read_steering(on(card))
    card.asked.clear()
    assert restore(card, wanted) == steering_difference(wanted, read_steering(on(card), wanted)) == []
    writes = {steering.SRSSH, steering.SRXFH, steering.SRXCLSRLDEL, steering.SRXCLSRLINS}
    assert not writes & set(card.asked)


CONTEXT = st.tuples(
    st.lists(st.integers(0, 7), min_size=ENTRIES, max_size=ENTRIES).map(tuple),
    st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    st.integers(1, 4),
)


@st.composite
def cards(draw: st.DrawFn) -> Card:
    """Contexts are numbered from one without a hole, which a kernel that makes them again fills."""
    made = draw(st.lists(CONTEXT, max_size=3))
    contexts = dict(enumerate((draw(CONTEXT), *made)))
    queues = draw(st.integers(0, QUEUES))
    if queues:
        contexts[0] = (equal(queues), *contexts[0][1:])
    rules: dict[int, tuple[bytes, int]] = {}
    for place in draw(st.sets(st.integers(0, 9), max_size=4)):
        context = draw(st.sampled_from(sorted(contexts)))
        flow = struct.pack("=I", draw(st.integers(1, 18)) | (0x20000000 if context else 0))
        rules[place] = (flow + draw(st.binary(max_size=20)).rstrip(b"\0") + b"\x01", context)
    fields = {number: draw(st.integers(0, 255)) for number in FLOW_TYPES.values()}
    return Card(contexts, rules, fields)


@given(node=cards(), tenant=cards())
def test_whatever_a_tenant_leaves_the_card_becomes_what_it_was(node: Card, tenant: Card) -> None:
    socket_module._families.clear()
    wanted = read_steering(on(node))
    for _ in range(2):  # as restoring has two rounds
        restore(tenant, wanted)
    assert steering_difference(wanted, read_steering(on(tenant), wanted)) == []
    assert (tenant.contexts, tenant.rules, tenant.fields) == (node.contexts, node.rules, node.fields)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBUSY, errno.EPERM, errno.EIO, errno.EOPNOTSUPP])
@pytest.mark.parametrize(
    ("command", "lost"),
    [
        (steering.GRSSH, {"rss": None, "contexts": None}),
        (steering.NEW_CONTEXT, {"contexts": None}),
        (steering.GRXFH, {"hash_fields": {}}),
        (steering.GRXCLSRLCNT, {"rules": None}),
        (steering.GRXCLSRULE, {"rules": None}),
    ],
)
def test_what_a_card_fails_to_tell_is_left_out_alone(command: int, lost: dict[str, Any], number: int) -> None:
    card, whole = make_card(), read_steering(on(make_card()))
    card.refuses[command] = number
    state = read_steering(on(card))
    assert state == replace(whole, **lost)
    card.asked.clear()
    assert restore(card, state) == []
    assert command not in card.asked, "and is not asked for again"


def test_a_card_that_is_gone_is_an_error() -> None:
    card = make_card()
    card.refuses[steering.GRSSH] = errno.ENODEV
    with pytest.raises(KernelError, match="ENODEV"):
        read_steering(on(card))


def test_what_cannot_be_restored_is_told_and_hides_nothing_else() -> None:
    card = make_card()
    wanted = read_steering(on(card))
    card.contexts[0] = ((0,) * ENTRIES, b"evil", 1)
    card.rules[9] = (b"\x01", 0)
    card.refuses[steering.SRSSH] = errno.EBUSY
    (refusal,) = restore(card, wanted)
    assert refusal.startswith("set RSS of card0: ")
    assert steering_difference(wanted, read_steering(on(card), wanted)) == [
        "RSS table: wanted equal 4, found 0,0,0,0,0,0,0,0",
        f"RSS key: wanted {b'keys'.hex()}, found {b'evil'.hex()}",
    ]
    assert 9 not in card.rules


def test_a_table_of_the_kernel_is_restored_by_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is written keeps the number of channels from being lowered."""
    card = make_card()
    wanted = read_steering(on(card))
    assert wanted.rss is not None
    assert wanted.rss.table.startswith(EQUAL)
    card.contexts[0] = ((0,) * ENTRIES, b"keys", 1)
    sent: list[bytes] = []
    ask = card.ask

    def record(data: bytes, operation: str) -> bytes:
        sent.append(data)
        return ask(data, operation)

    monkeypatch.setattr(card, "ask", record)
    assert restore(card, wanted) == []
    (write,) = [data for data in sent if data[:4] == struct.pack("=I", steering.SRSSH)]
    assert RSS.unpack_from(write)[2:5] == (0, 0, 0), "no entries, no key, no function"


# --- DCB -----------------------------------------------------------------------------------------------

ETS = bytes((0, 8, 0)) + bytes(range(56))
PFC = bytes((8, 0b1000, 0, 0)) + struct.pack("=H", 100)
COUNTERS = bytes(2) + struct.pack("=16Q", *range(16))


@dataclass
class Port(NetlinkSocket):
    """Settings of DCB by attribute, and its APP table."""

    settings: dict[int, bytes]
    apps: set[tuple[int, bytes]]
    dcbx: int = 5
    refuses: dict[int, int] = field(default_factory=dict)
    """By attribute: what the driver answers, as the kernel puts it into one byte."""
    errno: int = 0
    writes: list[int] = field(default_factory=list)

    def close(self) -> None:
        pass

    def batch(self, requests: Sequence[Request]) -> list[Outcome]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Outcome:
        if self.errno:
            return kernel_error(self.errno, "", request.operation, request.link)
        command, found = request.body[1], dict(iter_attributes(request.body, 4))
        assert found[1] == b"card0\0"
        if command == 21:
            return (Message(78, request.body[:4] + self._tell()),)
        self.writes.append(command)
        if command == 23:
            (self.dcbx,) = found[14]
            return (Message(78, request.body[:4] + attribute(14, b"\0")),)
        number = self._set(command, iter_attributes(found[13]))
        return (Message(78, request.body[:4] + attribute(13, bytes((number,)))),)

    def _tell(self) -> bytes:
        apps = b"".join(attribute(kind, app) for kind, app in sorted(self.apps))
        settings = b"".join(attribute(kind, value) for kind, value in self.settings.items())
        return nested(13, settings, nested(3, apps)) + attribute(14, bytes((self.dcbx,)))

    def _set(self, command: int, found: Iterable[tuple[int, bytes]]) -> int:
        for kind, value in found:
            if kind in self.refuses:
                return self.refuses[kind]
            if kind == 3:
                change = self.apps.difference_update if command == 27 else self.apps.update
                change(set(iter_attributes(value)))
            else:
                told = self.settings[kind]
                self.settings[kind] = value[:6] + told[6:] if kind == 2 else value
        return 0


def make_port() -> Port:
    return Port({1: ETS, 2: PFC + COUNTERS, 7: bytes(64)}, {(1, struct.pack("=BBH", 5, 3, 24))})


def test_the_settings_of_a_port_are_recorded_without_counters() -> None:
    state = read_dcb(make_port(), "card0")
    assert state.settings == {"ets": ETS.hex(), "pfc": PFC.hex(), "maxrate": bytes(64).hex(), "dcbx": "05"}
    assert state.apps == ("1:5,3,24",)


def test_what_a_tenant_changed_of_a_port_is_restored_and_only_that_is_written() -> None:
    port = make_port()
    wanted = read_dcb(port, "card0")
    port.settings[2] = bytes((8, 0, 0, 0, 0, 0)) + COUNTERS
    port.apps = {(1, struct.pack("=BBH", 5, 0, 24)), (1, struct.pack("=BBH", 1, 2, 0x8915))}
    port.dcbx = 1
    found = read_dcb(port, "card0")
    assert len(dcb_difference(wanted, found)) == 3
    assert restore_dcb(port, "card0", wanted, found) == []
    assert dcb_difference(wanted, read_dcb(port, "card0")) == []
    assert port.settings[2] == PFC + COUNTERS, "counters go on"
    assert port.writes == [23, 20, 27, 27, 20]


def test_a_driver_that_refuses_in_its_answer_is_told() -> None:
    port = make_port()
    wanted = read_dcb(port, "card0")
    port.settings[1] = bytes(59)
    port.refuses[1] = 256 - errno.EINVAL
    (refusal,) = restore_dcb(port, "card0", wanted, read_dcb(port, "card0"))
    assert refusal == "set DCB ets of card0: Invalid argument (EINVAL)"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EIO])
def test_a_port_that_tells_nothing_of_dcb_has_nothing_to_restore(number: int) -> None:
    port = make_port()
    port.errno = number
    assert read_dcb(port, "card0") == DcbState()
    assert dcb_difference(DcbState(), read_dcb(make_port(), "card0")) == []


@given(data=st.binary(max_size=120))
def test_parsers_of_noise_raise_nothing_but_the_rooms_own_error(data: bytes) -> None:
    for parser in (parse_dcb, parse_context):
        with suppress(KernelError):
            parser(data)
