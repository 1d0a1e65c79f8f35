"""NRI's wire, which the runtime room and the testbed share: byte streams on one trunk, and ttrpc over them.

Each frame on the trunk is ``stream id, length`` (two big-endian 32-bit words) and that many bytes of the
stream; a message may be cut anywhere. A ttrpc message is ``length, stream id, type, flags`` (10 bytes,
big-endian) and a protobuf Request or Response. NRI uses unary calls only.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from dranet.errors import DranetError, ProtocolError
from dranet.pb import ttrpc_pb2

log = logging.getLogger(__name__)

FIRST_FRAME_BYTES = 4096
"""Size limit of the frame that starts a message, its own header included.

The runtime's reader hands a whole frame to a buffered reader of 4096 bytes and closes the connection
when it does not fit (seen on containerd 1.7.24 and 2.1.9). Once the message's header is read, the reader
offers room for the whole rest, so the rest goes into one frame: many small frames would run into its
queue of 256 unread ones.
"""

MAX_FRAME_PAYLOAD_BYTES = 64 * 1024 * 1024 + 10
"""No runtime sends frames this long (16 MiB is the largest cap seen): more means that we lost our place."""

_MUX_HEADER = struct.Struct(">II")
_READ_BYTES = 64 * 1024  # a larger buffer would be mapped and unmapped again for each small request


class ConnectionLost(ProtocolError):
    default_retryable = True


class DeadlineExceeded(ProtocolError):
    """The peer did not send what was waited for in time."""

    default_retryable = True


class Chunk(NamedTuple):
    stream: int
    data: bytes


class MuxDecoder:
    """Turns trunk bytes, cut anywhere, into chunks. Holds at most one header's worth of bytes."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._missing = 0

    @property
    def is_midway(self) -> bool:
        """Part of a frame has come, and its rest has not."""
        return bool(self._header) or self._missing > 0

    def feed(self, data: bytes) -> list[Chunk]:
        """Take more bytes from the trunk; return the stream bytes among them. A frame longer than any runtime
        sends is a ``ProtocolError``."""
        chunks = []
        view = memoryview(data)
        while view:
            if self._missing:
                part = view[: self._missing]
                self._missing -= len(part)
                view = view[len(part) :]
                chunks.append(Chunk(self._stream, bytes(part)))
            else:
                view = self._take_header(view)
        return chunks

    def _take_header(self, view: memoryview) -> memoryview:
        wanted = _MUX_HEADER.size - len(self._header)
        self._header += bytes(view[:wanted])
        if len(self._header) == _MUX_HEADER.size:
            self._stream, self._missing = _MUX_HEADER.unpack(self._header)
            self._header = b""
            if self._missing > MAX_FRAME_PAYLOAD_BYTES:
                raise ProtocolError(f"NRI frame of {self._missing} bytes for stream {self._stream}")
        return view[wanted:]


def encode_message(stream: int, message: bytes) -> bytes:
    cut = FIRST_FRAME_BYTES - _MUX_HEADER.size
    first, rest = message[:cut], message[cut:]
    frames = _MUX_HEADER.pack(stream, len(first)) + first
    return frames + _MUX_HEADER.pack(stream, len(rest)) + rest if rest else frames


class Mux:
    """A connected trunk. One thread uses it; only :meth:`stop_reading` may be called from another. Takes over
    the socket, which must be in blocking mode; a send timeout is the socket's own (``SO_SNDTIMEO``)."""

    def __init__(self, trunk: socket.socket) -> None:
        self._trunk = trunk
        self.decoder = MuxDecoder()

    def receive(self, timeout_seconds: float | None = None) -> list[Chunk]:
        """Wait for bytes and return what they hold (perhaps nothing whole). ``DeadlineExceeded`` also where
        the time is already over."""
        try:
            if timeout_seconds is not None:
                self._wait_readable(timeout_seconds)
            data = self._trunk.recv(_READ_BYTES)
        except OSError as error:
            raise ConnectionLost(f"reading from the peer failed: {error.strerror or error}") from error
        if not data:
            raise ConnectionLost("the peer closed the connection")
        return self.decoder.feed(data)

    def _wait_readable(self, timeout_seconds: float) -> None:
        poll = select.poll()
        poll.register(self._trunk, select.POLLIN)
        if timeout_seconds <= 0 or not poll.poll(timeout_seconds * 1000):
            raise DeadlineExceeded("the peer did not answer in time")

    def send(self, stream: int, message: bytes) -> None:
        """Send one whole message. ``ConnectionLost``: the peer is gone, or did not take the bytes in the
        socket's send timeout."""
        try:
            self._trunk.sendall(encode_message(stream, message))
        except OSError as error:
            raise ConnectionLost(f"writing to the peer failed: {error.strerror or error}") from error

    def stop_reading(self) -> None:
        """Make :meth:`receive` end with ``ConnectionLost`` once it has read what is already there: a runtime
        that saw the connection close in the middle of a hook would go on without us. Any thread."""
        with suppress(OSError):  # the peer is already gone, and receive() will report it
            self._trunk.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self._trunk.close()


MAX_SEND_BYTES = 4 * 1024 * 1024
"""A Go receiver discards a longer message."""

MAX_RECEIVE_BYTES = 64 * 1024 * 1024
"""Runtimes before containerd 1.7.26 send without a limit (6 MB seen), so we take much more than we send."""

STALL_SECONDS = 10.0
"""How long a message may take from its first byte to its last. Silence between messages is normal; a peer
that stops within one is stuck, or has lost its place, and waits for nothing of ours any more."""

_HEADER = struct.Struct(">IIBB")
_REMOTE_OPEN = 2
"""A frame's flag: more of a streaming call follows. A unary call has none."""
_SHORTEST_WAIT_SECONDS = 0.001
_NANOSECONDS = 1_000_000_000

Handler = Callable[[str, str, bytes], bytes]
"""``(service, method, payload) -> response payload``; raises :class:`TtrpcError` to choose the code."""


class Code(IntEnum):
    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13


class FrameType(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class TtrpcError(ProtocolError):
    """A call failed with a status. ``code`` is the number on the wire, perhaps one not in :class:`Code`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Frame(NamedTuple):
    """One message. ``oversize`` means that its data was longer than allowed and is not kept."""

    stream_id: int
    type: int
    flags: int
    data: bytes
    oversize: bool = False


class FrameDecoder:
    """Turns one stream's bytes, cut anywhere, into frames. Holds what has arrived of one frame, never more
    than the limit, whatever the header promises."""

    def __init__(self, max_bytes: int = MAX_RECEIVE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._header = b""
        self._length = 0
        self._received = 0
        self._body = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        frames = []
        view = memoryview(data)
        while view:
            view = self._take_body(view) if self._has_header else self._take_header(view)
            if self._has_header and self._received == self._length:
                frames.append(self._finish())
        return frames

    @property
    def is_midway(self) -> bool:
        return bool(self._header)

    @property
    def _has_header(self) -> bool:
        return len(self._header) == _HEADER.size

    def _take_header(self, view: memoryview) -> memoryview:
        wanted = _HEADER.size - len(self._header)
        self._header += bytes(view[:wanted])
        if self._has_header:
            self._length = _HEADER.unpack(self._header)[0]
        return view[wanted:]

    def _take_body(self, view: memoryview) -> memoryview:
        part = view[: self._length - self._received]
        self._received += len(part)
        if self._length <= self._max_bytes:
            self._body += part
        return view[len(part) :]

    def _finish(self) -> Frame:
        _, stream_id, kind, flags = _HEADER.unpack(self._header)
        frame = Frame(stream_id, kind, flags, bytes(self._body), self._length > self._max_bytes)
        self._header, self._length, self._received, self._body = b"", 0, 0, bytearray()
        return frame


def encode_frame(stream_id: int, kind: FrameType, data: bytes, max_bytes: int = MAX_SEND_BYTES) -> bytes:
    """One unary message; RESOURCE_EXHAUSTED for more than ``max_bytes`` of data."""
    if len(data) > max_bytes:
        raise TtrpcError(
            Code.RESOURCE_EXHAUSTED, f"message of {len(data)} bytes is over the limit of {max_bytes}"
        )
    return _HEADER.pack(len(data), stream_id, kind, 0) + data


def _parse_answer(frame: Frame) -> bytes:
    if frame.oversize:
        raise TtrpcError(
            Code.RESOURCE_EXHAUSTED, f"the answer is over the limit of {MAX_RECEIVE_BYTES} bytes"
        )
    if frame.type != FrameType.RESPONSE:
        raise TtrpcError(Code.UNIMPLEMENTED, "the peer answered a unary call with a stream")
    try:
        response = ttrpc_pb2.Response.FromString(frame.data)
    except DecodeError as error:
        raise TtrpcError(Code.INTERNAL, f"unreadable answer: {error}") from error
    if response.status.code != Code.OK:
        raise TtrpcError(response.status.code, response.status.message)
    return response.payload


class TtrpcConnection:
    """Serve on one stream of a trunk, call on another, in one thread.

    The caller that waits, for the next request or for the answer to a call, reads the trunk and handles
    whatever comes. So requests are never handled concurrently, and an answer may arrive before or after a
    request that belongs to the same handshake.

    ``handle`` runs inline. What it raises is answered as a status: a :class:`TtrpcError` with its code, any
    other ``DranetError`` as UNKNOWN with its text (as Go peers do), anything else, which is our bug, as
    INTERNAL and with a traceback in the log. The connection lives on in each case. ``max_request_bytes`` is
    for a stand-in of a peer that sends longer ones.
    """

    def __init__(
        self,
        mux: Mux,
        *,
        serve_stream: int,
        call_stream: int,
        handle: Handler,
        max_request_bytes: int = MAX_SEND_BYTES,
    ) -> None:
        self._mux = mux
        self._serve_stream = serve_stream
        self._call_stream = call_stream
        self._handle = handle
        self._max_request_bytes = max_request_bytes
        self._requests = FrameDecoder()
        self._answers = FrameDecoder()
        self._pending: dict[int, Future[bytes]] = {}
        self._next_stream_id = 1
        self._last_request_id = 0
        self._midway_since: float | None = None

    def process(self, timeout_seconds: float | None = None) -> None:
        """Read the trunk once; handle every request and take every answer that became whole.
        ``ConnectionLost`` also where the peer stopped in the middle of a message."""
        handled = 0
        for chunk in self._receive(timeout_seconds):
            if chunk.stream == self._serve_stream:
                for frame in self._requests.feed(chunk.data):
                    self._serve(frame)
                    handled += 1
            elif chunk.stream == self._call_stream:
                for frame in self._answers.feed(chunk.data):
                    self._settle(frame)
                    handled += 1
        self._note_progress(handled)

    def _receive(self, timeout_seconds: float | None) -> list[Chunk]:
        if self._midway_since is None:
            return self._mux.receive(timeout_seconds)
        # Not less: after a stop of the whole process the rest may lie there already.
        patience = max(self._midway_since + STALL_SECONDS - time.monotonic(), _SHORTEST_WAIT_SECONDS)
        if timeout_seconds is not None and timeout_seconds <= patience:
            return self._mux.receive(timeout_seconds)
        try:
            return self._mux.receive(patience)
        except DeadlineExceeded as error:
            raise _stalled() from error

    def _note_progress(self, handled: int) -> None:
        if not (self._mux.decoder.is_midway or self._requests.is_midway or self._answers.is_midway):
            self._midway_since = None
        elif handled or self._midway_since is None:
            self._midway_since = time.monotonic()
        elif time.monotonic() > self._midway_since + STALL_SECONDS:
            raise _stalled()

    def call(self, service: str, method: str, payload: bytes, timeout_seconds: float) -> bytes:
        """Call and wait for the answer's payload, handling what comes in between. ``TtrpcError``: the peer
        answered with a status, or with something unreadable. An answer after ``DeadlineExceeded`` is
        dropped."""
        deadline = time.monotonic() + timeout_seconds
        stream_id = self._next_stream_id
        answer = self.start_call(service, method, payload, timeout_seconds)
        try:
            while not answer.done():
                self.process(deadline - time.monotonic())
        except DeadlineExceeded as error:
            self._pending.pop(stream_id, None)
            raise DeadlineExceeded(f"no answer to {method} within {timeout_seconds:g} s") from error
        return answer.result()

    def start_call(self, service: str, method: str, payload: bytes, timeout_seconds: float) -> Future[bytes]:
        """Send a request; :meth:`process` takes its answer when it comes, or a ``TtrpcError`` in its place.
        One that is too long is not sent (RESOURCE_EXHAUSTED)."""
        stream_id = self._next_stream_id
        request = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout_seconds * _NANOSECONDS)
        )
        data = request.SerializeToString()
        frame = encode_frame(stream_id, FrameType.REQUEST, data, self._max_request_bytes)
        answer = self._pending[stream_id] = Future[bytes]()
        self._next_stream_id += 2
        self._mux.send(self._call_stream, frame)
        return answer

    def _settle(self, frame: Frame) -> None:
        # No entry: an answer that came after its deadline, or one to nothing we asked.
        answer = self._pending.pop(frame.stream_id, None)
        if answer is None:
            return
        try:
            answer.set_result(_parse_answer(frame))
        except TtrpcError as error:
            answer.set_exception(error)

    def _serve(self, frame: Frame) -> None:
        refusal = self._refusal(frame)
        if refusal:
            self._answer(frame.stream_id, _failure(*refusal))
        elif frame.type == FrameType.REQUEST:
            self._last_request_id = frame.stream_id
            self._answer(frame.stream_id, self._respond(frame))
        # Other types must be ignored: a later version of ttrpc may add some.

    def _refusal(self, frame: Frame) -> tuple[Code, str] | None:
        if frame.oversize:
            return Code.RESOURCE_EXHAUSTED, f"request is over the limit of {MAX_RECEIVE_BYTES} bytes"
        if frame.stream_id % 2 == 0:
            return Code.INVALID_ARGUMENT, "a client's stream ids are odd"
        if frame.type == FrameType.DATA:
            return Code.INVALID_ARGUMENT, "no such stream is open"
        if frame.type == FrameType.REQUEST and frame.stream_id <= self._last_request_id:
            return Code.INVALID_ARGUMENT, "stream ids must increase"
        return None

    def _respond(self, frame: Frame) -> ttrpc_pb2.Response:
        if frame.flags & _REMOTE_OPEN:
            return _failure(Code.UNIMPLEMENTED, "streaming calls are not served here")
        try:
            request = ttrpc_pb2.Request.FromString(frame.data)
        except DecodeError as error:
            return _failure(Code.INVALID_ARGUMENT, f"unreadable request: {error}")
        try:
            return ttrpc_pb2.Response(payload=self._handle(request.service, request.method, request.payload))
        except TtrpcError as error:
            return _failure(error.code, str(error))
        except DranetError as error:
            return _failure(Code.UNKNOWN, str(error))
        except Exception as error:
            log.exception("bug in the handler of %s", request.method)
            return _failure(Code.INTERNAL, f"internal error in {request.method}: {error!r}")

    def _answer(self, stream_id: int, response: ttrpc_pb2.Response) -> None:
        try:
            frame = encode_frame(stream_id, FrameType.RESPONSE, response.SerializeToString())
        except TtrpcError as error:
            too_long = _failure(error.code, str(error))
            frame = encode_frame(stream_id, FrameType.RESPONSE, too_long.SerializeToString())
        self._mux.send(self._serve_stream, frame)


def _stalled() -> ConnectionLost:
    return ConnectionLost(f"the peer sent half a message, and not the rest within {STALL_SECONDS:g} s")


def _failure(code: int, message: str) -> ttrpc_pb2.Response:
    return ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=message))
