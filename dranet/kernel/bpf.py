"""bpf(2) through libc: list programs, tell one's type and name, ask what is attached to a hook of a link.

Commands, types and layouts are those of ``linux/bpf.h``. Program ids are the whole kernel's; an ifindex is
looked up in the calling thread's network namespace. Every call wants ``CAP_SYS_ADMIN`` or the like.
"""

from __future__ import annotations

import ctypes
import errno as errno_numbers
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from dranet.errors import KernelError
from dranet.kernel.netlink import kernel_error

# enum bpf_cmd, bpf_prog_type, bpf_attach_type
BPF_PROG_GET_NEXT_ID, BPF_PROG_GET_FD_BY_ID = 11, 13
BPF_OBJ_GET_INFO_BY_FD, BPF_PROG_QUERY = 15, 16
BPF_PROG_TYPE_SCHED_CLS = 3
BPF_TCX_INGRESS, BPF_TCX_EGRESS = 46, 47

_SYSCALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
_SYSCALL_NUMBER = _SYSCALL_NUMBERS.get(os.uname().machine) if struct.calcsize("P") == 8 else None

_INFO = struct.Struct("=I60x16s")
"""``struct bpf_prog_info`` up to ``name`` (Linux 4.15): the type, much that is not read, the name."""

_QUERY = struct.Struct("=IIIIQI36x")
"""The ``query`` member of ``union bpf_attr`` up to ``revision``: the kernel writes that one unasked."""

_MOST_PROGRAMS = 64
"""``BPF_MPROG_MAX``: no hook of a link holds more."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Program:
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
        raise kernel_error(ctypes.get_errno(), "", operation)
    return int(result), buffer.raw


def iter_program_ids() -> Iterator[int]:
    """Yield the ids of all programs of the kernel, in rising order.

    Raises:
        KernelError: EPERM without the capability.
    """
    last = 0
    while True:
        try:
            _, answer = call_bpf(BPF_PROG_GET_NEXT_ID, struct.pack("=III", last, 0, 0), "list BPF programs")
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
        return parse_program(program_id, _read_info(fd))
    finally:
        os.close(fd)


def _read_info(fd: int) -> bytes:
    info = ctypes.create_string_buffer(_INFO.size)
    attributes = struct.pack("=IIQ", fd, _INFO.size, ctypes.addressof(info))
    call_bpf(BPF_OBJ_GET_INFO_BY_FD, attributes, "read BPF program")
    return info.raw


def parse_program(program_id: int, info: bytes) -> Program:
    """Parse ``struct bpf_prog_info``; bytes that are no UTF-8 are replaced."""
    kind, name = _INFO.unpack(info)
    return Program(program_id, kind, name.partition(b"\0")[0].decode(errors="replace"))


def query_programs(ifindex: int, attach_type: int) -> tuple[int, ...]:
    """Ids of the programs on one hook of a link of the calling thread's namespace, in their order.

    Raises:
        KernelError: ENODEV when there is no such link, EINVAL when the kernel has no such hook.
    """
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    attributes = _QUERY.pack(ifindex, attach_type, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS)
    _, answer = call_bpf(BPF_PROG_QUERY, attributes, f"read BPF programs of link {ifindex}")
    return tuple(ids[: _QUERY.unpack(answer)[5]])
