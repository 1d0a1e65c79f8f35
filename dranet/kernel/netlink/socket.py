"""Raw netlink sockets: framing, attributes, dumps, pipelined requests; and why the kernel refuses
(``KernelError`` with its errno). Written for bulk: attributes are decoded flat and only those that were asked
for, and several requests go out in one ``send``."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

from dranet.errors import KernelError

log = logging.getLogger(__name__)

# linux/netlink.h
NETLINK_ROUTE, NETLINK_GENERIC, NETLINK_RDMA = 0, 16, 20
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR = 0x01, 0x04, 0x10
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_DUMP = 0x300
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLMSGERR_ATTR_MSG = 1
NLA_F_NESTED, NLA_TYPE_MASK = 0x8000, 0x3FFF
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP, NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 1, 10, 11, 12

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")

_RECEIVE_BYTES = 64 * 1024
"""The kernel fills dump buffers up to 32 KiB; a single message without VF details is far below that."""

_REQUESTS_PER_SEND = 16
"""Answers are queued before ``send`` returns: so many, of 8 KiB each, fit the default receive buffer. A link
with a dozen alternative names needs that; a batch of 64 such links would never be answered."""

_DUMP_ATTEMPTS = 10
"""A dump that overlaps a change is read again; partial data never passes for the whole."""

_ANSWER_TIMEOUT = struct.pack("@ll", 5, 0)
"""``SO_RCVTIMEO``. The kernel answers within ``send``; this only keeps a lost answer from hanging us."""


class Request(Struct, frozen=True):
    """One netlink request: message type, flags beyond REQUEST and ACK, and the body after the header.
    ``operation`` and ``link`` are for the error text: ``set mtu`` of ``eth1``."""

    type: int
    body: bytes
    flags: int = 0
    operation: str = ""
    link: str = ""


class Message(Struct, frozen=True):
    type: int
    payload: bytes


Outcome = tuple[Message, ...] | KernelError
"""What became of one request of a batch: the kernel's answers (none for most writes) or its refusal."""


def attribute(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return _ATTRIBUTE.pack(size, kind) + payload + bytes(-size % 4)


def attribute_u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=B", value))


def attribute_u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


def attribute_u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def attribute_text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | NLA_F_NESTED, b"".join(attributes))


def iter_attributes(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, payload) of each attribute; a ``KernelError`` for one that does not fit its message."""
    end = len(data)
    while end - offset >= 4:
        size, kind = _ATTRIBUTE.unpack_from(data, offset)
        if size < 4 or offset + size > end:
            raise KernelError(f"malformed netlink attribute: length {size} at byte {offset} of {end}")
        yield kind & NLA_TYPE_MASK, data[offset + 4 : offset + size]
        offset += (size + 3) & ~3


def parse_attributes(data: bytes, offset: int, wanted: frozenset[int]) -> dict[int, bytes]:
    """Collect the wanted attributes; the last one of a kind wins. The loop of :func:`iter_attributes` written
    flat: a scan of 1,000 links passes here 50,000 times."""
    found: dict[int, bytes] = {}
    end = len(data)
    unpack = _ATTRIBUTE.unpack_from
    while end - offset >= 4:
        size, kind = unpack(data, offset)
        if size < 4 or offset + size > end:
            raise KernelError(f"malformed netlink attribute: length {size} at byte {offset} of {end}")
        kind &= NLA_TYPE_MASK
        if kind in wanted:
            found[kind] = data[offset + 4 : offset + size]
        offset += (size + 3) & ~3
    return found


def parse_messages(chunk: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Split one datagram into (type, flags, sequence, payload); a ``KernelError`` where one does not fit
    it."""
    offset, end = 0, len(chunk)
    while end - offset >= 16:
        size, kind, flags, sequence, _ = _HEADER.unpack_from(chunk, offset)
        if size < 16 or offset + size > end:
            raise KernelError(f"malformed netlink message: length {size} at byte {offset} of {end}")
        yield kind, flags, sequence, chunk[offset + 16 : offset + size]
        offset += (size + 3) & ~3


def parse_error(payload: bytes, flags: int, done: bool = False) -> tuple[int, str]:
    """Read an NLMSG_ERROR or NLMSG_DONE payload: (errno or 0, the kernel's own text or "")."""
    if len(payload) < 4:
        return 0, ""
    number = -_ERROR.unpack_from(payload)[0]
    if not flags & NLM_F_ACK_TLVS:
        return number, ""
    return number, _extended_text(payload, 4 if done else _error_attributes_offset(payload, flags))


def _error_attributes_offset(payload: bytes, flags: int) -> int:
    if flags & NLM_F_CAPPED or len(payload) < 20:
        return 20
    original_size = int(_HEADER.unpack_from(payload, 4)[0])
    return 4 + ((max(original_size, 16) + 3) & ~3)


def _extended_text(payload: bytes, offset: int) -> str:
    try:
        text = parse_attributes(payload, offset, frozenset({NLMSGERR_ATTR_MSG})).get(NLMSGERR_ATTR_MSG, b"")
    except KernelError:
        return ""  # the errno still counts when its explanation is garbled
    return text.rstrip(b"\0").decode(errors="replace")


def kernel_error(
    number: int, text: str, operation: str, link: str = "", *, needs: str = "NET_ADMIN", call: str = ""
) -> KernelError:
    """Name a refusal: what was tried, on which link, the errno and the kernel's own text if it gave one; and
    what the driver lacks, where it may not do it: the capability ``needs``, or the system call itself."""
    what = f"{operation} {link}".strip()
    name = errno.errorcode.get(number, str(number))
    return KernelError(
        f"{what}: {text or os.strerror(number)} ({name})",
        errno=number,
        operation=operation,
        link=link,
        hint=explain_refusal(number, needs, call),
    )


class NetlinkSocket:
    """A netlink socket for requests. It stays in the namespace where ``sock`` was made. Not safe for threads:
    one call at a time. Close it, or use it as a context manager."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sequence = 0
        self._buffer = bytearray(_RECEIVE_BYTES)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            sock.setsockopt(SOL_NETLINK, option, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _ANSWER_TIMEOUT)

    @classmethod
    def open(cls, protocol: int = NETLINK_ROUTE) -> Self:
        """Open one in the calling thread's network namespace."""
        return cls(open_raw_socket(protocol))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def request(self, request: Request) -> tuple[Message, ...]:
        (outcome,) = self.batch([request])
        if isinstance(outcome, KernelError):
            raise outcome
        return outcome

    def batch(self, requests: Sequence[Request]) -> list[Outcome]:
        """Send requests together and return one outcome each, in order: the kernel does not stop at a
        refusal. What is raised means that the socket itself failed: the results are unknown."""
        outcomes: list[Outcome] = []
        for start in range(0, len(requests), _REQUESTS_PER_SEND):
            outcomes += self._batch_of_one_send(requests[start : start + _REQUESTS_PER_SEND])
        return outcomes

    def _batch_of_one_send(self, requests: Sequence[Request]) -> list[Outcome]:
        first = self._send(requests, NLM_F_ACK)
        answers: list[list[Message]] = [[] for _ in requests]
        outcomes: list[Outcome] = []
        while len(outcomes) < len(requests):
            for kind, flags, sequence, payload in parse_messages(self._receive()):
                position = sequence - first
                if not 0 <= position < len(requests):
                    continue
                if kind == NLMSG_ERROR:
                    outcomes.append(_outcome(requests[position], payload, flags, answers[position]))
                else:
                    answers[position].append(Message(kind, payload))
        return outcomes

    def dump(self, request: Request) -> list[bytes]:
        """Return the payload of every message of a dump. One that the kernel marks as interrupted by a change
        is read again, up to ten times (EINTR)."""
        for _ in range(_DUMP_ATTEMPTS):
            payloads, is_whole = self._dump_once(request)
            if is_whole:
                return payloads
        raise kernel_error(
            errno.EINTR, "the table kept changing while it was read", request.operation, request.link
        )

    def dump_start(self, request: Request, is_past: Callable[[bytes], bool]) -> list[bytes]:
        """Return the payloads of a dump before the first that ``is_past``; EINTR if a change interrupted it.
        The rest is never read, so the socket is of no further use: close it."""
        payloads, is_whole = self._dump_once(request, is_past)
        if not is_whole:
            raise kernel_error(errno.EINTR, "", request.operation, request.link)
        return payloads

    def _dump_once(
        self, request: Request, is_past: Callable[[bytes], bool] | None = None
    ) -> tuple[list[bytes], bool]:
        """The payloads, and whether no change has interrupted the dump."""
        sequence = self._send([request], NLM_F_DUMP)
        payloads: list[bytes] = []
        interrupted = 0
        while True:
            for kind, flags, answered, payload in parse_messages(self._receive()):
                if answered != sequence:
                    continue
                interrupted |= flags & NLM_F_DUMP_INTR
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    number, text = parse_error(payload, flags, done=kind == NLMSG_DONE)
                    if number:
                        raise kernel_error(number, text, request.operation, request.link)
                    return payloads, not interrupted
                if is_past is not None and is_past(payload):
                    return payloads, not interrupted
                payloads.append(payload)

    def _send(self, requests: Sequence[Request], flags: int) -> int:
        first = self._sequence + 1
        self._sequence += len(requests)
        frames = b"".join(
            _frame(request, flags, first + position) for position, request in enumerate(requests)
        )
        try:
            self._sock.send(frames)
        except OSError as error:
            raise kernel_error(error.errno or 0, "", "send netlink request") from error
        return first

    def _receive(self) -> bytes:
        while True:
            try:
                size, _, flags, sender = self._sock.recvmsg_into([self._buffer])
            except OSError as error:
                raise kernel_error(error.errno or 0, "", "receive netlink answer") from error
            if flags & socket.MSG_TRUNC:
                raise kernel_error(errno.EMSGSIZE, "", "receive netlink answer")
            if sender[0] == 0:  # the kernel; a process could write to our port too
                return bytes(memoryview(self._buffer)[:size])


def open_raw_socket(protocol: int) -> socket.socket:
    """A plain AF_NETLINK socket in the calling thread's network namespace; EPROTONOSUPPORT: no such
    protocol."""
    try:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        raise kernel_error(error.errno or 0, "", f"open netlink socket {protocol}", call="socket") from error


def open_notifications(protocol: int, *groups: int) -> socket.socket:
    """A non-blocking socket for the notifications of multicast groups, otherwise as
    :func:`open_raw_socket`."""
    sock = open_raw_socket(protocol)
    try:
        sock.setblocking(False)
        sock.bind((0, 0))  # without an address of its own the kernel takes the socket for itself and skips it
        for group in groups:
            sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    except OSError as error:
        sock.close()
        raise kernel_error(error.errno or 0, "", f"listen on netlink socket {protocol}") from error
    return sock


def _frame(request: Request, flags: int, sequence: int) -> bytes:
    size = 16 + len(request.body)
    header = _HEADER.pack(size, request.type, NLM_F_REQUEST | flags | request.flags, sequence, 0)
    return header + request.body + bytes(-size % 4)


def _outcome(request: Request, payload: bytes, flags: int, answers: list[Message]) -> Outcome:
    number, text = parse_error(payload, flags)
    if number:
        return kernel_error(number, text, request.operation, request.link)
    return tuple(answers)


# --- generic netlink (``Documentation/userspace-api/netlink/intro.rst``) --------------------------------
# A family gets its message type when it is registered, so it is looked up by name. The driver uses
# ``ethtool``.

# linux/genetlink.h
GENL_ID_CTRL, CTRL_CMD_GETFAMILY = 16, 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2

GENL_HEADER_BYTES = 4
"""Where the attributes of a message begin."""

_GENL_HEADER = struct.Struct("=BBH")
_U16 = struct.Struct("=H")

_families: dict[str, int] = {}
"""What was resolved before. Two threads that ask at once both get the kernel's answer, which is the same."""


def genl_body(command: int, *attributes: bytes, version: int = 1) -> bytes:
    return _GENL_HEADER.pack(command, version, 0) + b"".join(attributes)


def resolve_family(genl: NetlinkSocket, name: str) -> int:
    """The message type of a family, or ENOENT; the kernel is asked once in the life of the process."""
    known = _families.get(name)
    if known is not None:
        return known
    body = genl_body(CTRL_CMD_GETFAMILY, attribute_text(CTRL_ATTR_FAMILY_NAME, name))
    answers = genl.request(Request(GENL_ID_CTRL, body, operation=f"find netlink family {name}"))
    found = parse_family(answers[0].payload if answers else b"", name)
    _families[name] = found
    return found


def parse_family(payload: bytes, name: str) -> int:
    wanted = frozenset({CTRL_ATTR_FAMILY_ID})
    family = parse_attributes(payload, GENL_HEADER_BYTES, wanted).get(CTRL_ATTR_FAMILY_ID, b"")
    if len(family) != _U16.size:
        raise KernelError(f"the kernel's answer about netlink family {name} has no number")
    return int(_U16.unpack(family)[0])


# --- refusals: which of root's rights this process lacks -----------------------------------------------
# ``capabilities(7)``, ``seccomp(2)``; read from ``/proc`` when something was refused, and by the doctor.

CAPABILITIES = {"NET_ADMIN": 12, "NET_RAW": 13, "SYS_PTRACE": 19, "SYS_ADMIN": 21}
"""Numbers of ``linux/capability.h``; those that the driver uses."""

_REFUSED = (errno.EPERM, errno.EACCES)
_SECCOMP_FILTER = 2
_STATUS = Path("/proc/thread-self/status")


class Rights(Struct, frozen=True):
    capabilities: int
    """The effective ones, by bit."""
    is_filtered: bool
    """A seccomp profile is in force."""
    may_gain: bool
    """A program that it starts could have more rights (``no_new_privs`` is not set)."""

    def has(self, capability: str) -> bool:
        return bool(self.capabilities >> CAPABILITIES[capability] & 1)


def read_rights(status: Path = _STATUS) -> Rights:
    """An ``OSError`` means that procfs is not mounted."""
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return Rights(
        int(fields.get("CapEff", "0"), 16),
        int(fields.get("Seccomp", "0")) == _SECCOMP_FILTER,
        int(fields.get("NoNewPrivs", "0")) == 0,
    )


def explain_refusal(number: int, capability: str, call: str = "") -> str:
    """The fix of a refusal: the missing capability, or the seccomp profile that may block ``call`` (it
    answers with the driver's ENOSYS, or EPERM); empty if neither can be the cause."""
    if number not in (*_REFUSED, errno.ENOSYS):
        return ""
    try:
        rights = read_rights()
    except (OSError, ValueError):
        return ""
    if number in _REFUSED and not rights.has(capability):
        return f"the driver lacks CAP_{capability}: add it to the capabilities of its container"
    if call and rights.is_filtered:
        return f"its seccomp profile may not let {call} through: use the one of dranet seccomp"
    return ""


def is_refusal(number: int | None) -> bool:
    """Whether an errno means that this process is not permitted, not that the kernel does not support it."""
    if number == errno.ENOSYS:
        try:
            return read_rights().is_filtered
        except (OSError, ValueError):
            return False
    return number in _REFUSED


# --- settings that a driver fails to report -------------------------------------------------------------

_reported: set[tuple[str, str]] = set()


def report_unreadable(link: str, part: str, error: KernelError) -> None:
    """Log a failed read once for each link and part. EOPNOTSUPP means a driver without such settings; ENODEV,
    that the link is gone, is raised."""
    if error.errno == errno.ENODEV:
        raise error
    if error.errno != errno.EOPNOTSUPP and (link, part) not in _reported:
        _reported.add((link, part))
        log.warning("not recorded and not restored: %s", error.message)
