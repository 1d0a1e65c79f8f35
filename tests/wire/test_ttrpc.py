"""ttrpc over real socket pairs: framing, status codes, limits, deadlines and hostile peers."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dranet.errors import DeviceError, ProtocolError
from dranet.pb import ttrpc_pb2
from dranet.wire import (
    MAX_SEND_BYTES,
    Code,
    ConnectionLost,
    DeadlineExceeded,
    Frame,
    FrameDecoder,
    FrameType,
    Handler,
    Mux,
    TtrpcConnection,
    TtrpcError,
    encode_frame,
    encode_message,
)

HEADER = struct.Struct(">IIBB")
SERVER_STREAM, CLIENT_STREAM = 1, 2
"""The served end's two streams; the calling end has them the other way round."""


def raw_frame(stream_id: int, kind: int, data: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(len(data), stream_id, kind, flags) + data


def request_bytes(method: str = "Echo", payload: bytes = b"") -> bytes:
    return ttrpc_pb2.Request(service="test", method=method, payload=payload).SerializeToString()


def handle(service: str, method: str, payload: bytes) -> bytes:
    """The service of these tests."""
    assert service == "test"
    if method == "Echo":
        return payload
    if method == "Busy":
        raise DeviceError("mlx5_0 is busy", hint="wait")
    if method == "Bug":
        raise KeyError("oops")
    if method == "Huge":
        return b"x" * (MAX_SEND_BYTES + 1)
    raise TtrpcError(Code.UNIMPLEMENTED, f"no {method}")


class Peer:
    """The far end as raw bytes, read with an independent reassembly."""

    def __init__(self, trunk: socket.socket) -> None:
        self.trunk = trunk
        self.trunk.settimeout(10)

    def send(self, data: bytes, stream: int = SERVER_STREAM) -> None:
        self.trunk.sendall(encode_message(stream, data))

    def read_frame(self) -> tuple[int, int, bytes]:
        """Stream id, type and data of the next message."""
        length, stream_id, kind, _ = HEADER.unpack(self._read_mux(10))
        return stream_id, kind, self._read_mux(length)

    def read_response(self) -> tuple[int, ttrpc_pb2.Response]:
        stream_id, kind, data = self.read_frame()
        assert kind == FrameType.RESPONSE
        return stream_id, ttrpc_pb2.Response.FromString(data)

    _buffer = b""

    def _read_mux(self, count: int) -> bytes:
        while len(self._buffer) < count:
            _, length = struct.unpack(">II", self._read_raw(8))
            self._buffer += self._read_raw(length)
        result, self._buffer = self._buffer[:count], self._buffer[count:]
        return result

    def _read_raw(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.trunk.recv(count - len(data))
            assert piece, "the connection under test ended"
            data += piece
        return data


def process_for_ever(connection: TtrpcConnection) -> NoReturn:
    while True:
        connection.process(timeout_seconds=30)


@contextmanager
def served(handler: Handler = handle) -> Iterator[socket.socket]:
    """A connection that serves in a thread until its peer leaves; gives the peer's socket."""
    ours, theirs = socket.socketpair()
    connection = TtrpcConnection(
        Mux(ours), serve_stream=SERVER_STREAM, call_stream=CLIENT_STREAM, handle=handler
    )

    def run() -> None:
        with pytest.raises(ConnectionLost):
            process_for_ever(connection)

    thread = threading.Thread(target=run)
    thread.start()
    with ours, ExitStack() as stack:
        stack.callback(thread.join, 10)
        stack.enter_context(closing(theirs))
        yield theirs
    assert not thread.is_alive()


@pytest.fixture
def peer() -> Iterator[Peer]:
    with served() as trunk:
        yield Peer(trunk)


@pytest.fixture
def client() -> Iterator[TtrpcConnection]:
    with served() as trunk:
        yield calling(trunk)


def calling(trunk: socket.socket) -> TtrpcConnection:
    return TtrpcConnection(Mux(trunk), serve_stream=CLIENT_STREAM, call_stream=SERVER_STREAM, handle=handle)


def test_frames_survive_a_cut_at_every_byte() -> None:
    data = raw_frame(1, 1, b"one") + raw_frame(3, 2, b"") + raw_frame(5, 1, b"three")
    expected = [Frame(1, 1, 0, b"one"), Frame(3, 2, 0, b""), Frame(5, 1, 0, b"three")]
    for cut in range(len(data) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == expected


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_hostile_bytes_never_make_the_decoder_hold_more_than_it_was_given(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(max_bytes=32)
    total = 0
    for piece in pieces:
        total += len(piece)
        for frame in decoder.feed(piece):
            assert len(frame.data) <= 32
    assert len(decoder._body) <= min(total, 32)


def test_a_message_over_the_limit_is_skipped_and_the_next_one_read() -> None:
    decoder = FrameDecoder(max_bytes=4)
    frames = decoder.feed(raw_frame(1, 1, b"12345") + raw_frame(3, 1, b"1234"))
    assert frames == [Frame(1, 1, 0, b"", oversize=True), Frame(3, 1, 0, b"1234")]


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["trunk", "requests", "answers"]))
def test_hostile_bytes_end_a_connection_cleanly(data: bytes, where: str) -> None:
    ours, theirs = socket.socketpair()
    connection = TtrpcConnection(
        Mux(ours), serve_stream=SERVER_STREAM, call_stream=CLIENT_STREAM, handle=handle
    )
    stream = SERVER_STREAM if where == "requests" else CLIENT_STREAM
    with ours, theirs:
        theirs.sendall(data if where == "trunk" else encode_message(stream, data))
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ProtocolError):
            process_for_ever(connection)


def test_a_request_cut_at_every_byte_is_answered(peer: Peer) -> None:
    data = encode_message(SERVER_STREAM, raw_frame(1, 1, request_bytes(payload=b"hi")))
    peer.trunk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for byte in data:
        peer.trunk.sendall(bytes([byte]))
    assert peer.read_response() == (1, ttrpc_pb2.Response(payload=b"hi"))


def test_a_request_in_many_small_mux_frames_is_answered(peer: Peer) -> None:
    for byte in raw_frame(1, 1, request_bytes(payload=b"hi")):
        peer.trunk.sendall(
            struct.pack(">II", 7, 3) + b"xyz" + struct.pack(">II", SERVER_STREAM, 1) + bytes([byte])
        )
    assert peer.read_response()[1].payload == b"hi"


def test_calls_have_odd_increasing_stream_ids_and_say_their_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection, far = calling(ours), Peer(theirs)
        for expected in (1, 3, 5):
            connection.start_call("test", "Echo", b"x", timeout_seconds=1.5)
            stream_id, kind, data = far.read_frame()
            assert (stream_id, kind) == (expected, FrameType.REQUEST)
            assert ttrpc_pb2.Request.FromString(data).timeout_nano == 1_500_000_000


def test_a_call_gives_the_payload(client: TtrpcConnection) -> None:
    assert client.call("test", "Echo", b"hello", 10) == b"hello"
    assert client.call("test", "Echo", b"", 10) == b""


def test_an_unknown_method_is_unimplemented(client: TtrpcConnection) -> None:
    with pytest.raises(TtrpcError, match="no Nothing") as caught:
        client.call("test", "Nothing", b"", 10)
    assert caught.value.code == Code.UNIMPLEMENTED


def test_an_error_with_a_name_reaches_the_caller_with_its_text_and_the_connection_stays(
    client: TtrpcConnection,
) -> None:
    with pytest.raises(TtrpcError, match=r"^mlx5_0 is busy \(wait\)$") as caught:
        client.call("test", "Busy", b"", 10)
    assert caught.value.code == Code.UNKNOWN
    assert client.call("test", "Echo", b"still here", 10) == b"still here"


def test_a_bug_in_a_handler_is_an_internal_error_with_a_traceback_in_the_log(
    client: TtrpcConnection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(TtrpcError, match="KeyError") as caught:
        client.call("test", "Bug", b"", 10)
    assert caught.value.code == Code.INTERNAL
    assert caplog.records[0].exc_info is not None
    assert client.call("test", "Echo", b"still here", 10) == b"still here"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (raw_frame(2, 1, request_bytes()), Code.INVALID_ARGUMENT),
        (raw_frame(1, 1, b"\xff\xff"), Code.INVALID_ARGUMENT),
        (raw_frame(1, 3, b"data of no stream"), Code.INVALID_ARGUMENT),
        (raw_frame(1, 1, request_bytes(), flags=2), Code.UNIMPLEMENTED),
    ],
    ids=["even stream id", "not protobuf", "data frame", "streaming call"],
)
def test_a_frame_that_is_no_unary_request_is_refused_and_the_next_one_served(
    peer: Peer, frame: bytes, code: Code
) -> None:
    peer.send(frame)
    assert peer.read_response()[1].status.code == code
    peer.send(raw_frame(9, 1, request_bytes(payload=b"ok")))
    assert peer.read_response() == (9, ttrpc_pb2.Response(payload=b"ok"))


def test_a_request_whose_sender_closed_its_half_is_served(peer: Peer) -> None:
    peer.send(raw_frame(1, 1, request_bytes(payload=b"ok"), flags=1))
    assert peer.read_response()[1].payload == b"ok"


@pytest.mark.parametrize("reused", [7, 5, 1])
def test_a_stream_id_that_does_not_increase_is_an_invalid_argument(peer: Peer, reused: int) -> None:
    peer.send(raw_frame(7, 1, request_bytes()))
    peer.read_response()
    peer.send(raw_frame(reused, 1, request_bytes()))
    stream_id, response = peer.read_response()
    assert (stream_id, response.status.code) == (reused, Code.INVALID_ARGUMENT)


def test_types_of_a_later_ttrpc_and_stray_responses_are_ignored(peer: Peer) -> None:
    peer.send(raw_frame(1, 9, b"?") + raw_frame(1, 2, b"?"))
    peer.send(raw_frame(1, 2, b"an answer to nothing"), stream=CLIENT_STREAM)
    peer.send(raw_frame(3, 1, request_bytes(payload=b"ok")))
    assert peer.read_response() == (3, ttrpc_pb2.Response(payload=b"ok"))


def test_a_request_of_more_than_4_mib_is_taken() -> None:
    seen: list[int] = []

    def measure(_service: str, _method: str, payload: bytes) -> bytes:
        seen.append(len(payload))
        return b""

    with served(measure) as trunk:
        far = Peer(trunk)
        far.send(raw_frame(1, 1, request_bytes(payload=b"x" * 6_000_000)))
        assert far.read_response()[1].status.code == Code.OK
    assert seen == [6_000_000]


def test_more_than_4_mib_is_never_sent(client: TtrpcConnection) -> None:
    assert len(encode_frame(1, FrameType.REQUEST, b"x" * MAX_SEND_BYTES)) == MAX_SEND_BYTES + HEADER.size
    with pytest.raises(TtrpcError, match="over the limit") as caught:
        client.call("test", "Echo", b"x" * MAX_SEND_BYTES, 10)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert client.call("test", "Echo", b"nothing was sent", 10) == b"nothing was sent"


def test_an_answer_of_more_than_4_mib_becomes_an_error(client: TtrpcConnection) -> None:
    with pytest.raises(TtrpcError, match="over the limit") as caught:
        client.call("test", "Huge", b"", 10)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED


def test_a_long_answer_starts_in_a_frame_of_4096_bytes_on_the_wire(peer: Peer) -> None:
    peer.send(raw_frame(1, 1, request_bytes(payload=b"x" * 100_000)))
    _, first = struct.unpack(">II", peer._read_raw(8))
    assert first + 8 == 4096
    announced = HEADER.unpack(peer._read_raw(first)[:10])[0]
    _, second = struct.unpack(">II", peer._read_raw(8))
    assert first + second == announced + 10


def test_no_answer_is_an_error_at_the_deadline_and_a_late_one_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection, far = calling(ours), Peer(theirs)
        with pytest.raises(DeadlineExceeded, match=r"no answer to Echo within 0\.02 s"):
            connection.call("test", "Echo", b"", 0.02)
        far.read_frame()
        late = ttrpc_pb2.Response(payload=b"late").SerializeToString()
        good = ttrpc_pb2.Response(payload=b"good").SerializeToString()
        far.send(raw_frame(1, 2, late) + raw_frame(3, 2, good))
        assert connection.call("test", "Echo", b"", 10) == b"good"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (raw_frame(1, 2, b"\xff\xff"), Code.INTERNAL),
        (raw_frame(1, 3, b"stream"), Code.UNIMPLEMENTED),
        (
            raw_frame(
                1, 2, ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=99, message="m")).SerializeToString()
            ),
            99,
        ),
    ],
    ids=["not protobuf", "a stream", "unknown code"],
)
def test_a_bad_answer_fails_its_call(frame: bytes, code: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Peer(theirs).send(frame)
        with pytest.raises(TtrpcError) as caught:
            calling(ours).call("test", "Echo", b"", 10)
        assert caught.value.code == code


def test_a_request_is_served_while_a_call_waits_for_its_answer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection, far = calling(ours), Peer(theirs)
        answer = raw_frame(1, 2, ttrpc_pb2.Response(payload=b"answer").SerializeToString())
        far.send(raw_frame(1, 1, request_bytes(payload=b"question")), stream=CLIENT_STREAM)
        far.send(answer)
        assert connection.call("test", "Echo", b"", 10) == b"answer"
        assert far.read_frame()[1] == FrameType.REQUEST
        assert far.read_response()[1].payload == b"question"


def test_a_call_to_a_peer_that_left_is_lost() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(ConnectionLost):
        calling(ours).call("test", "Echo", b"", 10)
