"""The trunk of NRI: one UNIX stream socket that carries several byte streams.

Each frame on the trunk is ``stream id, length`` (two big-endian 32-bit words) and that many bytes of the
stream. Frames do not delimit messages: a message may be cut anywhere. There is no opening or closing of
a stream; both sides simply know which ids exist and drop what belongs to others.

:class:`MuxDecoder` knows no socket, so any cut of the bytes can be tried on it. :class:`Mux` is the
blocking socket around it.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

from dranet.errors import ProtocolError

FIRST_FRAME_BYTES = 4096
"""Size limit of the frame that starts a message, its own header included.

The runtime's reader hands a whole frame to a buffered reader of 4096 bytes and closes the connection
when it does not fit (seen on containerd 1.7.24 and 2.1.9). Once the message's header is read, the reader
offers room for the whole rest, so the rest goes into one frame: many small frames would run into its
queue of 256 unread ones.
"""

MAX_FRAME_PAYLOAD_BYTES = 64 * 1024 * 1024 + 10
"""No runtime sends frames this long (16 MiB is the largest cap seen): more means that we lost our place."""

_HEADER = struct.Struct(">II")
_READ_BYTES = 64 * 1024  # a larger buffer would be mapped and unmapped again for each small request


class ConnectionLost(ProtocolError):
    """The peer closed the connection, or the socket failed; connect again."""

    default_retryable = True


class DeadlineExceeded(ProtocolError):
    """The peer did not send what was waited for in time."""

    default_retryable = True


class Chunk(NamedTuple):
    """Some bytes of one stream, in order."""

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
        """Take more bytes from the trunk; return the stream bytes among them.

        Raises:
            ProtocolError: a frame is longer than any runtime sends.
        """
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
        wanted = _HEADER.size - len(self._header)
        self._header += bytes(view[:wanted])
        if len(self._header) == _HEADER.size:
            self._stream, self._missing = _HEADER.unpack(self._header)
            self._header = b""
            if self._missing > MAX_FRAME_PAYLOAD_BYTES:
                raise ProtocolError(f"NRI frame of {self._missing} bytes for stream {self._stream}")
        return view[wanted:]


def encode_message(stream: int, message: bytes) -> bytes:
    """The frames of one message: a first one within :data:`FIRST_FRAME_BYTES`, and one for all the rest."""
    cut = FIRST_FRAME_BYTES - _HEADER.size
    first, rest = message[:cut], message[cut:]
    frames = _HEADER.pack(stream, len(first)) + first
    return frames + _HEADER.pack(stream, len(rest)) + rest if rest else frames


class Mux:
    """A connected trunk. One thread uses it; only :meth:`stop_reading` may be called from another.

    Takes over the socket, which must be in blocking mode; a send timeout is the socket's own
    (``SO_SNDTIMEO``).
    """

    def __init__(self, trunk: socket.socket) -> None:
        self._trunk = trunk
        self._decoder = MuxDecoder()

    def receive(self, timeout_seconds: float | None = None) -> list[Chunk]:
        """Wait for bytes and return what they hold (perhaps nothing whole).

        Raises:
            ConnectionLost: end of stream or a socket error.
            DeadlineExceeded: nothing came in time, or the time is already over.
            ProtocolError: the bytes cannot be frames.
        """
        try:
            if timeout_seconds is not None:
                self._wait_readable(timeout_seconds)
            data = self._trunk.recv(_READ_BYTES)
        except OSError as error:
            raise ConnectionLost(f"reading from the peer failed: {error.strerror or error}") from error
        if not data:
            raise ConnectionLost("the peer closed the connection")
        return self._decoder.feed(data)

    @property
    def is_midway(self) -> bool:
        """Part of a frame has come, and its rest has not."""
        return self._decoder.is_midway

    def _wait_readable(self, timeout_seconds: float) -> None:
        poll = select.poll()
        poll.register(self._trunk, select.POLLIN)
        if timeout_seconds <= 0 or not poll.poll(timeout_seconds * 1000):
            raise DeadlineExceeded("the peer did not answer in time")

    def send(self, stream: int, message: bytes) -> None:
        """Send one whole message.

        Raises:
            ConnectionLost: the peer is gone, or did not take the bytes within the socket's send timeout.
        """
        try:
            self._trunk.sendall(encode_message(stream, message))
        except OSError as error:
            raise ConnectionLost(f"writing to the peer failed: {error.strerror or error}") from error

    def stop_reading(self) -> None:
        """Make :meth:`receive` end with ``ConnectionLost`` once it has read what is already there.

        A request in the making can still be answered: a runtime that saw the connection close in the
        middle of a hook would go on without us. Any thread.
        """
        with suppress(OSError):  # the peer is already gone, and receive() will report it
            self._trunk.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self._trunk.close()
