"""bpf(2) through libc: list programs, tell one's type and name, ask what is on a hook of a link, take it off.

Commands, types and layouts are those of ``linux/bpf.h``. Ids of programs and BPF links are the whole
kernel's; an ifindex is looked up in the calling thread's network namespace. Every call wants
``CAP_SYS_ADMIN`` or the like. A *BPF link* is what holds a program on its hook while somebody has it open
or pinned.
"""

from __future__ import annotations

import ctypes
import errno as errno_numbers
import os
import struct
from collections.abc import Iterator

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.netlink import kernel_error

# enum bpf_cmd, bpf_prog_type, bpf_attach_type, bpf_link_type
BPF_PROG_DETACH, BPF_PROG_GET_NEXT_ID, BPF_PROG_GET_FD_BY_ID = 9, 11, 13
BPF_OBJ_GET_INFO_BY_FD, BPF_PROG_QUERY = 15, 16
BPF_LINK_GET_FD_BY_ID, BPF_LINK_GET_NEXT_ID, BPF_LINK_DETACH = 30, 31, 34
BPF_PROG_TYPE_SCHED_CLS = 3
BPF_TCX_INGRESS, BPF_TCX_EGRESS = 46, 47
BPF_LINK_TYPE_XDP = 6

_SYSCALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
_SYSCALL_NUMBER = _SYSCALL_NUMBERS.get(os.uname().machine) if struct.calcsize("P") == 8 else None

_INFO = struct.Struct("=I60x16s")
"""``struct bpf_prog_info`` up to ``name`` (Linux 4.15): the type, much that is not read, the name."""

_QUERY = struct.Struct("=IIIIQI4xQQQ8x")
"""The ``query`` member of ``union bpf_attr``: ifindex, hook, two flags, where program ids go, their number,
where flags, link ids and flags of links go; and ``revision``, which the kernel writes unasked."""

_LINK_INFO = struct.Struct("=III4xII")
"""``struct bpf_link_info`` of a BPF link on a network link: type, id, program, ifindex, hook."""

_MOST_PROGRAMS = 64
"""``BPF_MPROG_MAX``: no hook of a link holds more."""

_libc = ctypes.CDLL(None, use_errno=True)


class Program(Struct, frozen=True):
    """A loaded program. ``name`` has at most 15 bytes and may be empty."""

    id: int
    type: int
    name: str


def call_bpf(command: int, attributes: bytes, operation: str) -> tuple[int, bytes]:
    """Do one ``bpf(2)`` command; returns its result and ``attributes`` as the kernel left them.

    Raises:
        KernelError: refused; ENOSYS on a kernel or an architecture without the call.
    """
    if _SYSCALL_NUMBER is None:
        raise kernel_error(errno_numbers.ENOSYS, "", operation)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = _libc.syscall(_SYSCALL_NUMBER, command, buffer, len(attributes))
    if result < 0:
        raise kernel_error(ctypes.get_errno(), "", operation, needs="SYS_ADMIN", call="bpf")
    return int(result), buffer.raw


def iter_program_ids() -> Iterator[int]:
    """Yield the ids of all programs of the kernel, in rising order.

    Raises:
        KernelError: EPERM without the capability.
    """
    return _iter_ids(BPF_PROG_GET_NEXT_ID, "list BPF programs")


def _iter_ids(command: int, operation: str) -> Iterator[int]:
    last = 0
    while True:
        try:
            _, answer = call_bpf(command, struct.pack("=III", last, 0, 0), operation)
        except KernelError as error:
            if error.errno == errno_numbers.ENOENT:
                return
            raise
        last = struct.unpack_from("=I", answer, 4)[0]
        yield last


def open_program(program_id: int) -> int:
    """A descriptor of the program, for the caller to close.

    Raises:
        KernelError: ENOENT when the program is gone.
    """
    return call_bpf(
        BPF_PROG_GET_FD_BY_ID, struct.pack("=III", program_id, 0, 0), f"open BPF program {program_id}"
    )[0]


def read_program(program_id: int) -> Program | None:
    """Type and name of a program; ``None`` when it is gone.

    Raises:
        KernelError: the kernel refused for another reason.
    """
    try:
        fd = open_program(program_id)
    except KernelError as error:
        if error.errno == errno_numbers.ENOENT:
            return None
        raise
    try:
        return parse_program(program_id, _read_info(fd, _INFO.size, "read BPF program"))
    finally:
        os.close(fd)


def _read_info(fd: int, size: int, operation: str) -> bytes:
    info = ctypes.create_string_buffer(size)
    call_bpf(BPF_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, size, ctypes.addressof(info)), operation)
    return info.raw


def parse_program(program_id: int, info: bytes) -> Program:
    """Parse ``struct bpf_prog_info``; bytes that are no UTF-8 are replaced."""
    kind, name = _INFO.unpack(info)
    return Program(program_id, kind, name.partition(b"\0")[0].decode(errors="replace"))


class Attached(Struct, frozen=True):
    """A program on a hook, and the BPF link that holds it there; 0 without one."""

    program_id: int
    link_id: int = 0


def query_programs(ifindex: int, attach_type: int) -> tuple[int, ...]:
    """Ids of the programs on one hook of a link of the calling thread's namespace, in their order.

    Raises:
        KernelError: ENODEV when there is no such link, EINVAL when the kernel has no such hook.
    """
    return tuple(attached.program_id for attached in query_attached(ifindex, attach_type))


def query_attached(ifindex: int, attach_type: int) -> tuple[Attached, ...]:
    """As :func:`query_programs`, with what holds them."""
    programs, links = (ctypes.c_uint32 * _MOST_PROGRAMS)(), (ctypes.c_uint32 * _MOST_PROGRAMS)()
    places = (ctypes.addressof(programs), _MOST_PROGRAMS, 0, ctypes.addressof(links), 0)
    attributes = _QUERY.pack(ifindex, attach_type, 0, 0, *places)
    _, answer = call_bpf(BPF_PROG_QUERY, attributes, f"read BPF programs of link {ifindex}")
    count = _QUERY.unpack(answer)[5]
    return tuple(Attached(*pair) for pair in zip(programs[:count], links[:count], strict=True))


def detach_program(ifindex: int, attach_type: int, program_id: int) -> None:
    """Take a program that no BPF link holds off a hook of a link of the calling thread's namespace.

    Raises:
        KernelError: ENOENT when it is not there, EBUSY when a BPF link holds it.
    """
    fd = open_program(program_id)
    try:
        attributes = struct.pack("=IIIIIIQ", ifindex, fd, attach_type, 0, 0, 0, 0)
        call_bpf(BPF_PROG_DETACH, attributes, f"detach BPF program {program_id}")
    finally:
        os.close(fd)


class BpfLink(Struct, frozen=True):
    """What holds a program on a hook. ``ifindex`` is 0 after it was detached and means nothing for types that
    are not on a network link; the kernel does not tell of which namespace it is."""

    id: int
    type: int
    program_id: int
    ifindex: int


def iter_link_ids() -> Iterator[int]:
    """Yield the ids of all BPF links of the kernel, in rising order.

    Raises:
        KernelError: EPERM without the capability, EINVAL before Linux 5.8.
    """
    return _iter_ids(BPF_LINK_GET_NEXT_ID, "list BPF links")


def read_link(link_id: int) -> BpfLink | None:
    """Describe a BPF link; ``None`` when it is gone.

    Raises:
        KernelError: the kernel refused for another reason.
    """
    try:
        fd = _open_link(link_id)
    except KernelError as error:
        if error.errno == errno_numbers.ENOENT:
            return None
        raise
    try:
        kind, number, program_id, ifindex, _ = _LINK_INFO.unpack(
            _read_info(fd, _LINK_INFO.size, "read BPF link")
        )
        return BpfLink(number, kind, program_id, ifindex)
    finally:
        os.close(fd)


def detach_link(link_id: int) -> None:
    """Take the program of a BPF link off its hook; whoever has the link open keeps an empty one.

    Raises:
        KernelError: ENOENT when it is gone, EOPNOTSUPP for a type that cannot be detached.
    """
    fd = _open_link(link_id)
    try:
        call_bpf(BPF_LINK_DETACH, struct.pack("=I", fd), f"detach BPF link {link_id}")
    finally:
        os.close(fd)


def _open_link(link_id: int) -> int:
    attributes = struct.pack("=III", link_id, 0, 0)
    return call_bpf(BPF_LINK_GET_FD_BY_ID, attributes, f"open BPF link {link_id}")[0]
