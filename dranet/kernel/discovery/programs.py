"""BPF programs on the traffic hooks of links: TC filters on clsact or ingress, and TCX.

Links are asked as seldom as can be: no program of the classifier type in the whole kernel means that no link
has one; one dump of the qdiscs tells which can have TC filters at all. XDP is in the link message itself.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Container, Mapping
from functools import partial
from itertools import islice

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel import bpf
from dranet.kernel.netlink import NetlinkSocket, parse_attributes
from dranet.kernel.rights import is_refusal
from dranet.kernel.rtnl import decode_all, text
from dranet.kernel.tc import (
    CLSACT_EGRESS,
    CLSACT_INGRESS,
    TCA_KIND,
    TCMSG,
    dump_filters_request,
    dump_qdiscs_request,
    parse_filter,
)

_HOOKS: Mapping[str, tuple[int, ...]] = {
    "clsact": (CLSACT_INGRESS, CLSACT_EGRESS),
    "ingress": (CLSACT_INGRESS,),
}
"""Qdiscs whose filters may be programs on a traffic hook, and where these hang."""

_PROGRAMS_WORTH_OPENING = 32
"""About 17 us each, as much as four questions for what is on a hook."""


class LinkPrograms(Struct, frozen=True):
    """Names of the programs on one link, sorted, each once; ``None`` where they could not be read.

    A program without a name is the empty string: it is there all the same.
    """

    tc_filters: tuple[str, ...] | None
    tcx_programs: tuple[str, ...] | None


_NOTHING = LinkPrograms((), ())


def read_link_programs(
    rtnl: NetlinkSocket, ifindexes: Collection[int], warnings: list[str]
) -> dict[int, LinkPrograms]:
    """The programs of each of ``ifindexes``, links of the namespace of ``rtnl`` and of the calling thread."""
    if not ifindexes:
        return {}
    possible = _may_have_classifier(len(ifindexes), warnings)
    if possible is False:
        return dict.fromkeys(ifindexes, _NOTHING)
    filters = _read_tc_filters(rtnl, ifindexes, warnings)
    tcx = _read_tcx_programs(ifindexes, warnings) if possible else {}
    return {ifindex: LinkPrograms(filters.get(ifindex), tcx.get(ifindex)) for ifindex in ifindexes}


def _may_have_classifier(links: int, warnings: list[str]) -> bool | None:
    """Whether any program could be on a traffic hook; ``None``: not allowed to know, or no bpf(2) here.

    Every container has a program for its devices (cgroup v2). To open hundreds of those costs more than to
    ask a few links, so then the answer is yes, unseen.
    """
    most = max(_PROGRAMS_WORTH_OPENING, links // 4)
    try:
        ids = list(islice(bpf.iter_program_ids(), most + 1))
        return len(ids) > most or any(_is_classifier(program_id) for program_id in ids)
    except KernelError as error:
        if is_refusal(error.errno):
            why = error.hint or "it takes CAP_BPF or CAP_SYS_ADMIN"
            warnings.append(f"{error.message}: TCX programs are not told; {why}")
        elif error.errno != errno.ENOSYS:
            warnings.append(error.message)
        return None


def _is_classifier(program_id: int) -> bool:
    program = bpf.read_program(program_id)
    return program is not None and program.type == bpf.BPF_PROG_TYPE_SCHED_CLS


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
    for parent in _HOOKS[kind]:
        payloads = rtnl.dump(dump_filters_request(ifindex, parent))
        names.update(decode_all(parse_bpf_filter, payloads, warnings))
    return tuple(sorted(names))


def parse_hook_qdisc(payload: bytes, wanted: Container[int]) -> tuple[int, str] | None:
    """(ifindex, kind) of a qdisc that is a traffic hook; ``None`` for one that queues or of another link."""
    ifindex = TCMSG.unpack_from(payload)[1]
    if ifindex not in wanted:
        return None
    kind = text(parse_attributes(payload, TCMSG.size, frozenset({TCA_KIND})).get(TCA_KIND, b""))
    return (ifindex, kind) if kind in _HOOKS else None


def parse_bpf_filter(payload: bytes) -> str | None:
    """The name of a filter that is a BPF program (``prog.o:[section]`` as ``tc`` gives it), maybe empty.

    ``None`` for another kind, for the message that only announces a priority, and for classic BPF.
    """
    found = parse_filter(payload)
    return found.program_name if found else None


def _read_tcx_programs(ifindexes: Collection[int], warnings: list[str]) -> dict[int, tuple[str, ...]]:
    attached: dict[int, tuple[int, ...]] = {}
    try:
        for ifindex in ifindexes:
            attached.update(_query_tcx(ifindex))
        names = _read_names({program_id for ids in attached.values() for program_id in ids})
    except KernelError as error:
        if error.errno == errno.EINVAL:  # before Linux 6.6: there is no such hook, so nothing is on it
            return dict.fromkeys(ifindexes, ())
        warnings.append(error.message)
        return {}
    return {
        ifindex: tuple(sorted({names[program_id] for program_id in ids if program_id in names}))
        for ifindex, ids in attached.items()
    }


def _query_tcx(ifindex: int) -> dict[int, tuple[int, ...]]:
    """Ids of the programs on both hooks; nothing for a link that is gone."""
    try:
        ingress = bpf.query_programs(ifindex, bpf.BPF_TCX_INGRESS)
        return {ifindex: ingress + bpf.query_programs(ifindex, bpf.BPF_TCX_EGRESS)}
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return {}
        raise


def _read_names(program_ids: Collection[int]) -> dict[int, str]:
    """Names by id, each program opened once; without those that went meanwhile."""
    programs = (bpf.read_program(program_id) for program_id in program_ids)
    return {program.id: program.name for program in programs if program}
