"""LLDP frames: what switches send, and what nobody should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import ProtocolError
from dranet.kernel.lldp.message import GROUPS, NEAREST_BRIDGE, Message, parse_frame, parse_message
from tests.support.lldp_switch import build_frame, build_message, tlv

LLDPD = bytes.fromhex(
    "0180c200000e7e30f4a1b6ce88cc0207047e30f4a1b6ce04050573777037060200140a0c6c6561662d30332e706f64310c0b6472"
    "616e657420746573740e04009c008010181102fe800000000000007c30f4fffea1b6ce020000000200080f746f206770752d3120"
    "7261696c2032fe0900120f030100000000fe0900120f0100800000360000"
)
"""Captured from lldpd 1.0.16 (Debian 12) with the port's alias ``to gpu-1 rail 2``."""

CHASSIS, PORT, TTL = tlv(1, b"\x04\x02\x00\x00\x00\x57\x01"), tlv(2, b"\x05swp7"), tlv(3, b"\x00\x78")
END = tlv(0, b"")


def test_a_frame_of_a_real_switch_daemon_is_read() -> None:
    assert parse_frame(LLDPD) == (
        NEAREST_BRIDGE,
        Message("7e:30:f4:a1:b6:ce", "swp7", 20, "leaf-03.pod1", "to gpu-1 rail 2"),
    )


@pytest.mark.parametrize(
    ("subtype", "content", "text"),
    [
        (1, b"chassis 7", "chassis 7"),
        (4, bytes.fromhex("440c39abcdef"), "44:0c:39:ab:cd:ef"),
        (5, b"\x01\x0a\x00\x00\x01", "10.0.0.1"),
        (5, b"\x02" + bytes(15) + b"\x01", "::1"),
        (5, b"\x01\x0a\x00", "01:0a:00"),
        (6, b"Ethernet1", "Ethernet1"),
        (7, b"leaf-1\0\0", "leaf-1"),
        (7, b"\xff\x00\x01", "ff:00:01"),
        (7, b"a\x1b[2Jb", "61:1b:5b:32:4a:62"),
        (7, "Blatt-ä".encode(), "Blatt-ä"),
        (99, b"new", "new"),
    ],
)
def test_a_chassis_id_is_text_whatever_its_subtype(subtype: int, content: bytes, text: str) -> None:
    assert parse_message(tlv(1, bytes([subtype]) + content) + PORT + TTL + END).chassis_id == text


@pytest.mark.parametrize(
    ("subtype", "content", "text"),
    [
        (3, bytes.fromhex("440c39abcdef"), "44:0c:39:ab:cd:ef"),
        (4, b"\x01\x0a\x00\x00\x01", "10.0.0.1"),
        (5, b"Ethernet1/5", "Ethernet1/5"),
        (7, b"etp12a", "etp12a"),
    ],
)
def test_a_port_id_is_text_whatever_its_subtype(subtype: int, content: bytes, text: str) -> None:
    assert parse_message(CHASSIS + tlv(2, bytes([subtype]) + content) + TTL + END).port_id == text


def test_a_goodbye_has_ids_and_no_time_to_live() -> None:
    assert parse_message(build_message(name="", ttl=0)) == Message("02:00:00:00:57:01", "swp7", 0)


def test_unknown_tlvs_are_passed_over_and_of_two_names_the_first_counts() -> None:
    more = tlv(127, b"\x00\x12\x0f\x01") + tlv(5, b"first") + tlv(5, b"second") + tlv(9, b"?")
    assert parse_message(CHASSIS + PORT + TTL + more + END).system_name == "first"


def test_what_follows_the_end_is_padding_and_a_missing_end_is_forgiven() -> None:
    whole = CHASSIS + PORT + TTL
    assert parse_message(whole + END + b"\xff" * 30) == parse_message(whole)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin with"),
        (END, "does not begin with"),
        (PORT + CHASSIS + TTL + END, "does not begin with"),
        (CHASSIS + PORT + END, "does not begin with"),
        (CHASSIS + PORT + TTL + CHASSIS + END, "twice"),
        (CHASSIS + PORT + tlv(3, b"\x01") + END, "TTL is cut short"),
        (CHASSIS + PORT + TTL + tlv(5, b"leaf")[:-1], "TLV 5 is cut short"),
        (tlv(1, b"\x04") + PORT + TTL + END, "an id of 1 bytes"),
        (tlv(1, b"") + PORT + TTL + END, "an id of 0 bytes"),
        (tlv(1, b"\x07" + b"x" * 256) + PORT + TTL + END, "an id of 257 bytes"),
    ],
)
def test_a_broken_message_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        parse_message(data)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x01\x80",
        build_frame(build_message(), b"\x02\x00\x00\x00\x00\x01"),
        LLDPD.replace(b"\x88\xcc", b"\x08\x00"),
    ],
)
def test_a_frame_of_another_kind_or_address_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_frame(frame)


@given(st.binary(max_size=300))
def test_bytes_are_a_message_or_refused(data: bytes) -> None:
    check(build_frame(data))


@given(st.data())
def test_a_real_frame_with_some_bytes_changed_is_a_message_or_refused(data: st.DataObject) -> None:
    frame = bytearray(LLDPD)
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


def check(frame: bytes) -> None:
    try:
        group, message = parse_frame(frame)
    except ProtocolError:
        return
    texts = (message.chassis_id, message.port_id, message.system_name, message.port_description)
    assert group in GROUPS
    assert 0 <= message.ttl < 1 << 16
    assert all(text.isprintable() and len(text.encode()) <= 3 * 511 for text in texts)


@given(st.text(max_size=60).filter(str.isprintable), st.integers(0, 65535))
def test_what_a_switch_says_is_what_is_read(name: str, ttl: int) -> None:
    found = parse_message(build_message(name, "swp7", "x" + name, ttl))
    assert (found.system_name, found.ttl) == (name.strip(), ttl)
