"""BPF programs on the traffic hooks of links: TC filters on clsact or ingress, and TCX. Links are queried as
rarely as possible; XDP is in the link message itself."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Collection, Container, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.netlink.rtnl import decode_all, text
from dranet.kernel.netlink.socket import NetlinkSocket, is_refusal, kernel_error, parse_attributes
from dranet.kernel.netlink.tc import (
    HOOKS,
    TCA_KIND,
    TCMSG,
    dump_filters_request,
    dump_qdiscs_request,
    parse_filter,
)
from dranet.kernel.sysfs.files import closing_fd

_PROGRAMS_WORTH_OPENING = 32
"""About 17 us each, as much as four questions for what is on a hook."""


class LinkPrograms(Struct, frozen=True):
    """Names of the programs on one link, sorted, each once; ``None`` where they could not be read. A program
    without a name is the empty string: it is there all the same."""

    tc_filters: tuple[str, ...] | None
    tcx_programs: tuple[str, ...] | None


_NOTHING = LinkPrograms((), ())


def read_link_programs(
    rtnl: NetlinkSocket, ifindexes: Collection[int], warnings: list[str]
) -> dict[int, LinkPrograms]:
    if not ifindexes:
        return {}
    possible = _may_have_classifier(len(ifindexes), warnings)
    if possible is False:
        return dict.fromkeys(ifindexes, _NOTHING)
    filters = _read_tc_filters(rtnl, ifindexes, warnings)
    tcx = _read_tcx_programs(ifindexes, warnings) if possible else {}
    return {ifindex: LinkPrograms(filters.get(ifindex), tcx.get(ifindex)) for ifindex in ifindexes}


def _may_have_classifier(links: int, warnings: list[str]) -> bool | None:
    """Whether any program could be on a traffic hook; ``None``: not allowed to know, or no bpf(2) here. Every
    container has a program for its devices: where there are many, the answer is yes, unseen."""
    most = max(_PROGRAMS_WORTH_OPENING, links // 4)
    try:
        ids = list(islice(iter_program_ids(), most + 1))
        programs = (read_program(program_id) for program_id in ids)
        return len(ids) > most or any(found and found.type == BPF_PROG_TYPE_SCHED_CLS for found in programs)
    except KernelError as error:
        if is_refusal(error.errno):
            why = error.hint or "it takes CAP_BPF or CAP_SYS_ADMIN"
            warnings.append(f"{error.message}: TCX programs are not shown; {why}")
        elif error.errno != errno.ENOSYS:
            warnings.append(error.message)
        return None


def _read_tc_filters(
    rtnl: NetlinkSocket, ifindexes: Collection[int], warnings: list[str]
) -> dict[int, tuple[str, ...]]:
    try:
        payloads = rtnl.dump(dump_qdiscs_request())
    except KernelError as error:
        warnings.append(error.message)
        return {}
    found: dict[int, tuple[str, ...]] = dict.fromkeys(ifindexes, ())
    for ifindex, kind in decode_all(partial(parse_hook_qdisc, wanted=found), payloads, warnings):
        try:
            found[ifindex] = _read_filters_of(rtnl, ifindex, kind, warnings)
        except KernelError as error:
            found.pop(ifindex, None)
            warnings.append(error.message)
    return found


def _read_filters_of(rtnl: NetlinkSocket, ifindex: int, kind: str, warnings: list[str]) -> tuple[str, ...]:
    names: set[str] = set()
    for parent in HOOKS[kind]:
        payloads = rtnl.dump(dump_filters_request(ifindex, parent))
        names.update(decode_all(parse_bpf_filter, payloads, warnings))
    return tuple(sorted(names))


def parse_hook_qdisc(payload: bytes, wanted: Container[int]) -> tuple[int, str] | None:
    """(ifindex, kind) of a qdisc that is a traffic hook; ``None`` for one that queues or of another link."""
    ifindex = TCMSG.unpack_from(payload)[1]
    if ifindex not in wanted:
        return None
    kind = text(parse_attributes(payload, TCMSG.size, frozenset({TCA_KIND})).get(TCA_KIND, b""))
    return (ifindex, kind) if kind in HOOKS else None


def parse_bpf_filter(payload: bytes) -> str | None:
    """The name of a filter that is a BPF program (``prog.o:[section]`` as ``tc`` gives it), maybe empty.
    ``None`` for another kind, for the message that only announces a priority, and for classic BPF."""
    found = parse_filter(payload)
    return found.program_name if found else None


def _read_tcx_programs(ifindexes: Collection[int], warnings: list[str]) -> dict[int, tuple[str, ...]]:
    attached: dict[int, set[int]] = {}
    try:
        for ifindex in ifindexes:
            attached |= _query_tcx(ifindex)
        programs = (read_program(program_id) for program_id in set().union(*attached.values()))
        names = {program.id: program.name for program in programs if program}
    except KernelError as error:
        if error.errno == errno.EINVAL:  # before Linux 6.6: there is no such hook, so nothing is on it
            return dict.fromkeys(ifindexes, ())
        warnings.append(error.message)
        return {}
    return {
        ifindex: tuple(sorted({names[program_id] for program_id in ids if program_id in names}))
        for ifindex, ids in attached.items()
    }


def _query_tcx(ifindex: int) -> dict[int, set[int]]:
    """Ids of the programs on both hooks; nothing for a link that is gone."""
    hooks = (BPF_TCX_INGRESS, BPF_TCX_EGRESS)
    try:
        return {ifindex: {found.program_id for hook in hooks for found in query_attached(ifindex, hook)}}
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return {}
        raise


# --- bpf(2) through libc: list programs, read type and name, query and detach what is on a hook ---------
#
# Commands, types and layouts are those of ``linux/bpf.h``. Ids of programs and BPF links are the whole
# kernel's; an ifindex is looked up in the calling thread's network namespace. Every call wants
# ``CAP_SYS_ADMIN`` or the like. A *BPF link* holds a program on its hook while a process has it open
# or pinned.

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


class BpfProgram(Struct, frozen=True):
    """A loaded program. ``name`` has at most 15 bytes and may be empty."""

    id: int
    type: int
    name: str


def call_bpf(command: int, attributes: bytes, operation: str) -> tuple[int, bytes]:
    """Do one ``bpf(2)`` command; returns its result and ``attributes`` as the kernel left them. It refuses
    with ENOSYS on a kernel or an architecture without the call."""
    if _SYSCALL_NUMBER is None:
        raise kernel_error(errno.ENOSYS, "", operation)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = _libc.syscall(_SYSCALL_NUMBER, command, buffer, len(attributes))
    if result < 0:
        raise kernel_error(ctypes.get_errno(), "", operation, needs="SYS_ADMIN", call="bpf")
    return int(result), buffer.raw


def iter_program_ids() -> Iterator[int]:
    return _iter_ids(BPF_PROG_GET_NEXT_ID, "list BPF programs")


def _iter_ids(command: int, operation: str) -> Iterator[int]:
    last = 0
    while True:
        try:
            _, answer = call_bpf(command, struct.pack("=III", last, 0, 0), operation)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        last = struct.unpack_from("=I", answer, 4)[0]
        yield last


def _opened(command: int, number: int, what: str) -> AbstractContextManager[int]:
    fd, _ = call_bpf(command, struct.pack("=III", number, 0, 0), f"open BPF {what} {number}")
    return closing_fd(fd)


def read_program(program_id: int) -> BpfProgram | None:
    info = _read_info(BPF_PROG_GET_FD_BY_ID, program_id, "program", _INFO.size)
    return parse_program(program_id, info) if info is not None else None


def _read_info(command: int, number: int, what: str, size: int) -> bytes | None:
    """What the kernel reports of a program or a BPF link; ``None`` when it is gone."""
    info = ctypes.create_string_buffer(size)
    try:
        with _opened(command, number, what) as fd:
            request = struct.pack("=IIQ", fd, size, ctypes.addressof(info))
            call_bpf(BPF_OBJ_GET_INFO_BY_FD, request, f"read BPF {what}")
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return info.raw


def parse_program(program_id: int, info: bytes) -> BpfProgram:
    """Parse ``struct bpf_prog_info``; bytes that are no UTF-8 are replaced."""
    kind, name = _INFO.unpack(info)
    return BpfProgram(program_id, kind, name.partition(b"\0")[0].decode(errors="replace"))


class Attached(Struct, frozen=True):
    """A program on a hook, and the BPF link that holds it there; 0 without one."""

    program_id: int
    link_id: int = 0


def query_attached(ifindex: int, attach_type: int) -> tuple[Attached, ...]:
    """What is on one hook of a link of the calling thread's namespace, in its order; ENODEV when there is no
    such link, EINVAL when the kernel has no such hook."""
    programs, links = (ctypes.c_uint32 * _MOST_PROGRAMS)(), (ctypes.c_uint32 * _MOST_PROGRAMS)()
    places = (ctypes.addressof(programs), _MOST_PROGRAMS, 0, ctypes.addressof(links), 0)
    attributes = _QUERY.pack(ifindex, attach_type, 0, 0, *places)
    _, answer = call_bpf(BPF_PROG_QUERY, attributes, f"read BPF programs of link {ifindex}")
    count = _QUERY.unpack(answer)[5]
    return tuple(Attached(*pair) for pair in zip(programs[:count], links[:count], strict=True))


def detach_program(ifindex: int, attach_type: int, program_id: int) -> None:
    """Take a program that no BPF link holds off a hook of a link of the calling thread's namespace; ENOENT
    when it is not there, EBUSY when a BPF link holds it."""
    with _opened(BPF_PROG_GET_FD_BY_ID, program_id, "program") as fd:
        attributes = struct.pack("=IIIIIIQ", ifindex, fd, attach_type, 0, 0, 0, 0)
        call_bpf(BPF_PROG_DETACH, attributes, f"detach BPF program {program_id}")


class BpfLink(Struct, frozen=True):
    """A BPF link. ``ifindex`` is 0 after it was detached and has no meaning for types that are not on a
    network link; the kernel does not report its namespace."""

    id: int
    type: int
    program_id: int
    ifindex: int


def iter_link_ids() -> Iterator[int]:
    """EINVAL before Linux 5.8."""
    return _iter_ids(BPF_LINK_GET_NEXT_ID, "list BPF links")


def read_link(link_id: int) -> BpfLink | None:
    info = _read_info(BPF_LINK_GET_FD_BY_ID, link_id, "link", _LINK_INFO.size)
    if info is None:
        return None
    kind, number, program_id, ifindex, _ = _LINK_INFO.unpack(info)
    return BpfLink(number, kind, program_id, ifindex)


def detach_link(link_id: int) -> None:
    """Detach the program of a BPF link from its hook; processes that have the link open keep an empty one.
    ENOENT when it is gone, EOPNOTSUPP for a type that cannot be detached."""
    with _opened(BPF_LINK_GET_FD_BY_ID, link_id, "link") as fd:
        call_bpf(BPF_LINK_DETACH, struct.pack("=I", fd), f"detach BPF link {link_id}")
