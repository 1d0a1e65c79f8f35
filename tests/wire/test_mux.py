"""The trunk's frames: cut anywhere, hostile or lost. Real socket pairs; nothing is mocked."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import ProtocolError
from dranet.wire import (
    FIRST_FRAME_BYTES,
    MAX_FRAME_PAYLOAD_BYTES,
    ConnectionLost,
    DeadlineExceeded,
    Mux,
    MuxDecoder,
    encode_message,
)

HEADER = struct.Struct(">II")


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a trunk."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def frame(stream: int, payload: bytes) -> bytes:
    return HEADER.pack(stream, len(payload)) + payload


def streams(decoder: MuxDecoder, pieces: list[bytes]) -> dict[int, bytes]:
    """Everything that the decoder gives for these pieces, by stream."""
    result: dict[int, bytes] = {}
    for piece in pieces:
        for chunk in decoder.feed(piece):
            result[chunk.stream] = result.get(chunk.stream, b"") + chunk.data
    return result


def parse_frames(data: bytes) -> list[tuple[int, bytes]]:
    """An independent reading of trunk bytes."""
    frames = []
    while data:
        stream, length = HEADER.unpack(data[:8])
        frames.append((stream, data[8 : 8 + length]))
        assert len(frames[-1][1]) == length
        data = data[8 + length :]
    return frames


def test_frames_of_two_streams_survive_a_cut_at_every_byte() -> None:
    data = frame(1, b"hello ") + frame(2, b"") + frame(2, b"other") + frame(1, b"world")
    for cut in range(len(data) + 1):
        assert streams(MuxDecoder(), [data[:cut], data[cut:]]) == {1: b"hello world", 2: b"other"}


def test_frames_survive_being_fed_byte_by_byte() -> None:
    data = frame(1, b"hello ") + frame(7, b"dropped by whoever does not know 7") + frame(1, b"world")
    assert streams(MuxDecoder(), [bytes([byte]) for byte in data])[1] == b"hello world"


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_hostile_bytes_give_no_more_than_they_hold_or_a_protocol_error(pieces: list[bytes]) -> None:
    try:
        given_back = streams(MuxDecoder(), pieces)
    except ProtocolError:
        return
    assert sum(map(len, given_back.values())) <= sum(map(len, pieces))


def test_a_frame_longer_than_any_runtime_sends_is_a_protocol_error() -> None:
    MuxDecoder().feed(HEADER.pack(1, MAX_FRAME_PAYLOAD_BYTES))
    with pytest.raises(ProtocolError, match="frame of 4294967295 bytes"):
        MuxDecoder().feed(b"\xff" * 8)


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 4096, 100_000, 4 * 1024 * 1024 + 10])
def test_a_message_starts_in_a_frame_of_4096_bytes_and_the_rest_is_one_frame(size: int) -> None:
    message = bytes(range(256)) * (size // 256 + 1)
    message = message[:size]
    frames = parse_frames(encode_message(2, message))
    assert len(frames) == (1 if size <= FIRST_FRAME_BYTES - HEADER.size else 2)
    assert len(frames[0][1]) + HEADER.size <= 4096
    assert b"".join(payload for _, payload in frames) == message
    assert {stream for stream, _ in frames} == {2}


def test_a_message_arrives_on_its_stream(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = Mux(sockets[0]), Mux(sockets[1])
    message = b"x" * 20_000
    sender.send(1, message)
    received = b""
    while len(received) < len(message):
        received += b"".join(chunk.data for chunk in receiver.receive() if chunk.stream == 1)
    assert received == message


def test_the_end_of_the_connection_is_named(sockets: tuple[socket.socket, socket.socket]) -> None:
    sockets[1].close()
    with pytest.raises(ConnectionLost, match="closed the connection"):
        Mux(sockets[0]).receive()
    with pytest.raises(ConnectionLost, match="Broken pipe"):
        Mux(sockets[0]).send(1, b"x")


def test_waiting_for_a_silent_peer_ends_at_the_deadline(sockets: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(DeadlineExceeded):
        Mux(sockets[0]).receive(timeout_seconds=0.01)


def test_a_peer_that_talks_without_end_does_not_move_the_deadline(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    sockets[1].sendall(frame(1, b"x"))
    with pytest.raises(DeadlineExceeded):
        Mux(sockets[0]).receive(timeout_seconds=0)


def test_a_peer_that_does_not_read_is_lost_after_the_send_timeout(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 20_000))
    with pytest.raises(ConnectionLost, match="writing to the peer failed"):
        Mux(sockets[0]).send(1, b"x" * 4_000_000)


def test_another_thread_can_end_the_wait(sockets: tuple[socket.socket, socket.socket]) -> None:
    mux = Mux(sockets[0])
    ended = threading.Event()

    def read() -> None:
        with pytest.raises(ConnectionLost):
            mux.receive()
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    mux.stop_reading()
    assert ended.wait(10)
    thread.join()


def test_a_request_that_arrived_before_the_reading_stopped_can_still_be_answered(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    mux = Mux(sockets[0])
    sockets[1].sendall(frame(1, b"request"))
    mux.stop_reading()
    assert mux.receive() == [(1, b"request")]
    mux.send(1, b"answer")
    assert sockets[1].recv(100) == frame(1, b"answer")
    with pytest.raises(ConnectionLost):
        mux.receive()


def test_stopping_twice_or_after_the_peer_left_is_fine(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    mux = Mux(sockets[0])
    sockets[1].close()
    mux.stop_reading()
    mux.stop_reading()
