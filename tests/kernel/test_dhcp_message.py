"""DHCP messages and their frames: hostile bytes, what a lease must be like, and pyroute2 as the judge."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroute2.dhcp.dhcp4msg import dhcp4msg

from dranet.errors import ProtocolError
from dranet.kernel.dhcp import message, wire
from dranet.kernel.dhcp.message import FOR_EVER, Message, MessageType, Option, seconds_left
from dranet.model.plan import DhcpLease

MAC = "02:00:00:00:00:01"
SERVER_MAC = "02:00:00:00:00:99"
LEASE = DhcpLease("10.77.0.50/24", "10.77.0.1", SERVER_MAC, MAC, 1000.0, 600, 300, 525)
OFFER = Message(
    MessageType.OFFER,
    0x12345678,
    MAC,
    your_address="10.77.0.50",
    is_reply=True,
    options={
        Option.SERVER_ID: socket.inet_aton("10.77.0.1"),
        Option.SUBNET_MASK: bytes((255, 255, 255, 0)),
        Option.LEASE_TIME: (600).to_bytes(4),
    },
)

macs = st.binary(min_size=6, max_size=6).map(lambda data: data.hex(":"))
addresses = st.ip_addresses(v=4).map(str)
known_options = st.dictionaries(
    st.sampled_from(
        [o for o in Option if o not in (Option.PAD, Option.END, Option.MESSAGE_TYPE, Option.OVERLOAD)]
    ),
    st.one_of(
        st.binary(max_size=600),
        st.sampled_from([b"\xff\xff\xff\x00", b"\x0a\x4d\x00\x01", b"\x00\x00\x02\x58"]),
    ),
)
messages = st.builds(
    Message,
    type=st.sampled_from(MessageType),
    xid=st.integers(0, 2**32 - 1),
    client_mac=macs,
    client_address=addresses,
    your_address=addresses,
    seconds=st.integers(0, 0xFFFF),
    broadcast=st.booleans(),
    is_reply=st.booleans(),
    options=known_options,
)


def having(**options: bytes) -> Message:
    """An offer with these options by name instead of its own; an empty one is left out."""
    changed: dict[int, bytes] = {**OFFER.options, **{Option[name]: value for name, value in options.items()}}
    return replace(OFFER, options={code: value for code, value in changed.items() if value})


def read(offer: Message) -> DhcpLease:
    return message.read_lease(offer, SERVER_MAC, 1000.0)


# --- bytes ---------------------------------------------------------------------------------------------


@given(messages)
def test_what_is_said_is_heard(said: Message) -> None:
    heard = message.parse(message.encode(said))
    assert replace(heard, options={}) == replace(said, options={})
    assert heard.options == {Option.MESSAGE_TYPE: bytes((said.type,)), **said.options}


def test_an_independent_decoder_reads_what_a_client_says() -> None:
    decoded = dhcp4msg(buf=message.encode(message.discover(7, MAC, "10.77.0.9", seconds=3))).decode()
    assert (decoded["op"], decoded["htype"], decoded["hlen"]) == (1, 1, 6)
    assert (decoded["xid"], decoded["secs"], decoded["flags"]) == (7, 3, 0x8000)
    assert decoded["chaddr"] == MAC
    options = decoded["options"]
    assert options["message_type"] == 1
    assert options["requested_ip"] == "10.77.0.9"
    assert options["client_id"] == {"type": 1, "key": MAC}
    assert list(options["parameter_list"])[:3] == [1, 121, 3]


def test_an_independent_encoder_is_read() -> None:
    said = dhcp4msg({"op": 2, "xid": 9, "chaddr": MAC, "yiaddr": "10.77.0.50"})
    said["options"] = {
        "message_type": 2,
        "server_id": "10.77.0.1",
        "subnet_mask": "255.255.255.0",
        "lease_time": 600,
        "router": ["10.77.0.2", "10.77.0.3"],
    }
    lease = read(message.parse(bytes(said.encode().buf)))
    assert (lease.address, lease.server, lease.routers) == (
        "10.77.0.50/24",
        "10.77.0.1",
        ("10.77.0.2", "10.77.0.3"),
    )


@given(st.binary(max_size=1500))
def test_noise_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        message.parse(data)


@given(
    st.binary(max_size=400),
    st.binary(min_size=64, max_size=64),
    st.binary(min_size=128, max_size=128),
    st.integers(0, 255),
)
@example(b"\x34\x01\x03", bytes(64), bytes(128), 3)
def test_hostile_options_are_a_message_or_a_protocol_error(
    options: bytes, server_name: bytes, file: bytes, overload: int
) -> None:
    """And what the message then gives is a lease that a link can have, or a protocol error, too."""
    start = bytearray(message.encode(OFFER)[:240])
    start[44:108], start[108:236] = server_name, file
    data = bytes(start) + bytes((53, 1, 2, 52, 1, overload)) + options
    try:
        lease = read(message.parse(data))
    except ProtocolError:
        return
    check_sane(lease)


@given(messages)
def test_any_answer_gives_a_sane_lease_or_a_protocol_error(said: Message) -> None:
    try:
        assert isinstance(said.server, str)
        check_sane(read(said))
    except ProtocolError:
        return


@given(st.binary(max_size=400), st.integers(0, 400))
def test_a_message_that_is_cut_is_never_another_error(tail: bytes, length: int) -> None:
    try:
        message.parse((message.encode(OFFER) + tail)[:length])
    except ProtocolError:
        return


def check_sane(lease: DhcpLease) -> None:
    ip = IPv4Interface(lease.address).ip
    assert not any((ip.is_multicast, ip.is_loopback, ip.is_unspecified))
    assert 0 < lease.renew_seconds < lease.rebind_seconds < lease.lease_seconds
    for destination, gateway in lease.classless_routes:
        assert str(IPv4Network(destination)) == destination
        assert not IPv4Address(gateway).is_multicast
    assert all(not IPv4Address(router).is_unspecified for router in lease.routers)
    assert lease.mtu is None or lease.mtu >= 68


@given(st.binary())
def test_what_a_server_says_in_words_upsets_no_log(text: bytes) -> None:
    assert replace(OFFER, options={Option.TEXT: text}).text.isprintable()


def test_a_long_option_comes_in_parts() -> None:
    """RFC 3396; a classless route list may be longer than 255 bytes."""
    routes = b"".join(bytes((24, 10, 99, n)) + socket.inet_aton("10.77.0.9") for n in range(60))
    lease = read(message.parse(message.encode(having(CLASSLESS_ROUTES=routes))))
    assert len(lease.classless_routes) == 60
    assert lease.classless_routes[-1] == ("10.99.59.0/24", "10.77.0.9")


# --- what a server gives -------------------------------------------------------------------------------


def test_times_that_a_server_does_not_say_are_parts_of_the_lease() -> None:
    lease = read(OFFER)
    assert (lease.renew_seconds, lease.rebind_seconds) == (300, 525)


@pytest.mark.parametrize(
    ("renew", "rebind", "expected"),
    [(100, 500, (100, 500)), (500, 100, (300, 525)), (700, 800, (300, 525)), (0, 400, (300, 400))],
)
def test_times_that_make_no_sense_are_not_believed(
    renew: int, rebind: int, expected: tuple[int, int]
) -> None:
    lease = read(having(RENEWAL_TIME=renew.to_bytes(4), REBINDING_TIME=rebind.to_bytes(4)))
    assert (lease.renew_seconds, lease.rebind_seconds) == expected


@pytest.mark.parametrize(
    ("data", "routes"),
    [
        ("", ()),
        ("00 0a4d0002", (("0.0.0.0/0", "10.77.0.2"),)),
        ("18 0a6300 0a4d0002", (("10.99.0.0/24", "10.77.0.2"),)),
        ("19 0a630080 00000000", (("10.99.0.128/25", "0.0.0.0"),)),
        ("20 0a630001 0a4d0002 08 0a 0a4d0003", (("10.99.0.1/32", "10.77.0.2"), ("10.0.0.0/8", "10.77.0.3"))),
    ],
)
def test_classless_routes(data: str, routes: tuple[tuple[str, str], ...]) -> None:
    """The examples of RFC 3442, in the addresses of this test."""
    assert message.parse_classless_routes(bytes.fromhex(data)) == routes


@pytest.mark.parametrize("data", ["21 0a630001 0a4d0002", "18 0a63", "00 0a4d", "00 e0000005", "00 7f000001"])
def test_classless_routes_that_no_kernel_takes(data: str) -> None:
    with pytest.raises(ProtocolError, match="option 121"):
        message.parse_classless_routes(bytes.fromhex(data))


def test_a_point_to_point_subnet_has_two_host_addresses() -> None:
    offer = replace(having(SUBNET_MASK=b"\xff\xff\xff\xfe"), your_address="10.77.0.50")
    assert read(offer).address == "10.77.0.50/31"


def test_clouds_give_single_addresses() -> None:
    assert read(having(SUBNET_MASK=b"\xff\xff\xff\xff")).address == "10.77.0.50/32"


# --- lifetimes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "left"),
    [(1000.0, 600), (1100.5, 499), (1600.0, 0), (9999.0, 0), (500.0, 600)],
)
def test_an_address_lives_as_long_as_what_is_left_of_its_lease(now: float, left: int) -> None:
    assert seconds_left(LEASE, now) == left


def test_a_lease_for_ever_has_no_end() -> None:
    assert seconds_left(replace(LEASE, lease_seconds=FOR_EVER), 1e12) is None


# --- frames --------------------------------------------------------------------------------------------


def an_answer(payload: bytes = b"hello", *, checksum: bool = True) -> bytes:
    """As a server sends it; built from ours by turning the ports round."""
    built = bytearray(wire.build_frame(payload, SERVER_MAC, MAC, "10.77.0.1", "10.77.0.50"))
    built[34:38] = struct.pack("!HH", 67, 68)  # the sum of the ports stays, so the checksum does
    if not checksum:
        built[40:42] = bytes(2)
    return bytes(built)


@pytest.mark.parametrize("payload", [b"", b"a", b"hello", bytes(1472)])
def test_a_frame_carries_its_payload(payload: bytes) -> None:
    assert wire.parse_frame(an_answer(payload)) == (SERVER_MAC, payload)


def test_padding_of_a_short_frame_is_no_payload() -> None:
    assert wire.parse_frame(an_answer() + bytes(20))[1] == b"hello"


def test_a_checksum_is_not_asked_for_where_there_is_none() -> None:
    assert wire.parse_frame(an_answer(checksum=False))[1] == b"hello"


@given(st.integers(14 * 8, (14 + 28 + 5) * 8 - 1))
def test_a_flipped_bit_behind_the_ethernet_header_is_noticed(bit: int) -> None:
    data = bytearray(an_answer())
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(ProtocolError):
        wire.parse_frame(bytes(data))


def test_a_checksum_left_to_the_hardware_is_not_looked_at() -> None:
    data = bytearray(an_answer())
    data[40] ^= 1
    assert wire.parse_frame(bytes(data), has_checksum=False)[1] == b"hello"


@given(st.binary(max_size=200), st.booleans())
def test_a_hostile_frame_is_a_protocol_error(data: bytes, has_checksum: bool) -> None:
    with pytest.raises(ProtocolError):
        wire.parse_frame(data, has_checksum=has_checksum)


@given(st.integers(0, 60), st.binary(min_size=1, max_size=8))
def test_a_damaged_frame_is_a_payload_or_a_protocol_error(where: int, what: bytes) -> None:
    data = bytearray(an_answer())
    data[where : where + len(what)] = what
    try:
        wire.parse_frame(bytes(data), has_checksum=False)
    except ProtocolError:
        return


def test_a_fragment_is_refused() -> None:
    data = bytearray(an_answer())
    data[20] |= 0x20  # more fragments
    data[24:26] = bytes(2)
    data[24:26] = struct.pack("!H", wire.checksum(bytes(data[14:34])))
    with pytest.raises(ProtocolError, match="a part of one"):
        wire.parse_frame(bytes(data))


def test_the_checksum_of_rfc_1071() -> None:
    assert wire.checksum(bytes.fromhex("0001f203f4f5f6f7")) == ~0xDDF2 & 0xFFFF
