"""What a move leaves on a NIC: BPF programs, the CPUs of its queues, and what its driver keeps in the card. A
tenant with ``NET_ADMIN`` would leave all of it to the next one."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment.links import Side, find_step
from dranet.kernel.discovery import programs as bpf
from dranet.kernel.ethtool import settings as ethtool
from dranet.kernel.ethtool.messages import PARTS
from dranet.kernel.ethtool.steering import Nic, read_steering, restore_steering, steering_difference
from dranet.kernel.namespaces.netns import open_sysfs
from dranet.kernel.netlink import tc
from dranet.kernel.netlink.rtnl import IFLA_XDP, decode, get_link_request, link_header, set_link_request, u32
from dranet.kernel.netlink.socket import attribute, attribute_u32, nested, parse_attributes, report_unreadable
from dranet.kernel.netlink.tc import dcb_difference, read_dcb, restore_dcb
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.model.cpus import format_cpu_list, format_cpu_mask, parse_cpu_list, parse_cpu_mask
from dranet.model.facts import Link
from dranet.model.plan import AttachPlan, CpuState, DcbState, EthtoolState, SetCpuLocality

# --- BPF programs ---------------------------------------------------------------------------------------
# A move removes TC filters from a link; TCX and XDP programs stay on it. Read are the traffic hooks (filters
# of clsact or ingress, and TCX) and XDP in each of its modes. The clsact qdisc itself stays, as with DraNet:
# it does nothing, and the pod's rate limit may use it. So do pins of programs and of BPF links (below
# ``/sys/fs/bpf``): what they name stays loaded, but is on no hook of this link any more.

# linux/if_link.h
_IFLA_XDP_FD, _IFLA_XDP_FLAGS = 1, 3
_XDP_MODES = {5: 1 << 2, 6: 1 << 1, 7: 1 << 3}
"""Attribute with a mode's program -> the mode's flag: driver, generic, hardware."""
_NO_PROGRAM = b"\xff\xff\xff\xff"

_TCX_HOOKS = {bpf.BPF_TCX_INGRESS: "ingress", bpf.BPF_TCX_EGRESS: "egress"}

_NOT_THERE = frozenset({errno.ENOENT, errno.EINVAL})
"""The filter or its whole qdisc was removed meanwhile; a second read shows it."""


class _OnHooks(Struct, frozen=True):
    filters: tuple[tc.Filter, ...]
    tcx: tuple[tuple[int, bpf.Attached], ...]
    """With the number of the hook."""
    xdp: tuple[tuple[int, int], ...]
    """Flag of the mode, program."""

    def __bool__(self) -> bool:
        return bool(self.filters or self.tcx or self.xdp)


def read_program_names(side: Side, ifindex: int) -> tuple[str, ...]:
    """The programs on a link: ``tc ingress prog.o:[tc]``, ``tcx egress to_pod``, ``xdp program 42`` (one
    without a name). TCX programs are left out where we may not ask for them."""
    return _name_all(_read(side, ifindex, passed_over=(errno.EPERM, errno.ENOSYS)))


def remove_programs(pod: Side, ifindex: int, pod_ifname: str) -> None:
    """Remove every program from a link that is in the pod, whatever process attached or holds it; a
    ``KernelError`` where one is on the link still (``AttachFailed``)."""
    try:
        _remove_all(pod, ifindex, pod_ifname)
    except KernelError as error:
        raise KernelError(
            f"remove BPF programs from {pod_ifname}: {error.message}",
            errno=error.errno,
            operation="remove-programs",
            link=pod_ifname,
            hint=error.hint,
            reason=Reason.ATTACH_FAILED,
        ) from error


def _remove_all(pod: Side, ifindex: int, pod_ifname: str) -> None:
    found = _read(pod, ifindex)
    if not found:
        return
    _remove_filters(pod, found, ifindex, pod_ifname)
    pod.run(lambda: _remove_tcx(found, ifindex))
    _remove_xdp(pod, found, ifindex, pod_ifname)
    left = _read(pod, ifindex)
    if left:
        raise KernelError(f"still there: {', '.join(_name_all(left))}", errno=errno.EBUSY)


def _read(side: Side, ifindex: int, *, passed_over: Collection[int] = ()) -> _OnHooks:
    hooks = (tc.CLSACT_INGRESS, tc.CLSACT_EGRESS)
    filters = (found for hook in hooks for found in tc.read_hook_filters(side.rtnl, ifindex, hook))
    return _OnHooks(
        tuple(found for found in filters if found.program_name is not None),
        side.run(lambda: _read_tcx(ifindex, passed_over)),
        decode(_parse_xdp, side.rtnl.request(get_link_request(ifindex))[0].payload),
    )


def _read_tcx(ifindex: int, passed_over: Collection[int]) -> tuple[tuple[int, bpf.Attached], ...]:
    try:
        return tuple((hook, on_it) for hook in _TCX_HOOKS for on_it in bpf.query_attached(ifindex, hook))
    except KernelError as error:
        # EINVAL, before Linux 6.6: there is no such hook, so nothing is on it.
        if error.errno == errno.EINVAL or error.errno in passed_over:
            return ()
        raise


def _parse_xdp(payload: bytes) -> tuple[tuple[int, int], ...]:
    xdp = parse_attributes(payload, len(link_header()), frozenset({IFLA_XDP})).get(IFLA_XDP, b"")
    found = parse_attributes(xdp, 0, frozenset(_XDP_MODES))
    return tuple((flag, u32(found, mode)) for mode, flag in _XDP_MODES.items() if u32(found, mode))


def _name_all(found: _OnHooks) -> tuple[str, ...]:
    filters = [f"tc {tc.format_handle(f.parent)} {f.program_name or 'without a name'}" for f in found.filters]
    tcx = [f"tcx {_TCX_HOOKS[hook]} {_name(attached.program_id)}" for hook, attached in found.tcx]
    return (*filters, *tcx, *(f"xdp {_name(program_id)}" for _, program_id in found.xdp))


def _name(program_id: int) -> str:
    try:
        program = bpf.read_program(program_id)
    except KernelError:
        program = None  # not permitted: the number identifies it
    return program.name if program and program.name else f"program {program_id}"


def _remove_filters(pod: Side, found: _OnHooks, ifindex: int, pod_ifname: str) -> None:
    requests = [tc.delete_filter_request(ifindex, each, pod_ifname) for each in found.filters]
    for outcome in pod.rtnl.batch(requests):
        if isinstance(outcome, KernelError) and outcome.errno not in _NOT_THERE:
            raise outcome


def _remove_tcx(found: _OnHooks, ifindex: int) -> None:
    for hook, attached in found.tcx:
        try:
            if attached.link_id:
                bpf.detach_link(attached.link_id)
            else:
                bpf.detach_program(ifindex, hook, attached.program_id)
        except KernelError as error:
            if error.errno not in _NOT_THERE:
                raise


def _remove_xdp(pod: Side, found: _OnHooks, ifindex: int, pod_ifname: str) -> None:
    requests = []
    for flag, _ in found.xdp:
        xdp = nested(IFLA_XDP, attribute(_IFLA_XDP_FD, _NO_PROGRAM), attribute_u32(_IFLA_XDP_FLAGS, flag))
        requests.append(set_link_request(ifindex, xdp, operation="remove XDP program of", link=pod_ifname))
    for (_, program_id), outcome in zip(found.xdp, pod.rtnl.batch(requests), strict=True):
        if not isinstance(outcome, KernelError):
            continue
        if outcome.errno != errno.EBUSY:
            raise outcome
        _detach_xdp_link(ifindex, program_id)


def _detach_xdp_link(ifindex: int, program_id: int) -> None:
    """A BPF link holds the program. It has index and program, not the namespace: if they do not identify it,
    nothing is detached, because it may belong to another pod's interface."""
    links = (bpf.read_link(link_id) for link_id in bpf.iter_link_ids())
    wanted = (bpf.BPF_LINK_TYPE_XDP, program_id, ifindex)
    holders = [link for link in links if link and (link.type, link.program_id, link.ifindex) == wanted]
    if len(holders) > 1:
        raise KernelError(
            f"XDP program {_name(program_id)} is held by one of {len(holders)} BPF links, on interfaces of "
            "the same index in several namespaces",
            errno=errno.EBUSY,
        )
    for holder in holders:
        bpf.detach_link(holder.id)


# --- CPUs of a link's queues: XPS and RPS (``Documentation/networking/scaling.rst``) --------------------
# sysfs shows a link's queues only in a mount made in the link's network namespace, so each read makes its
# own (``namespaces.netns``). The maps stay on a link that moves.

_SEND_FILES = ("xps_cpus", "xps_rxqs")
"""The second has precedence where it is not empty."""
_RECEIVE_FILES = ("rps_cpus", "rps_flow_cnt")
_OPERATION = "set queues"
_SYS = Path("/sys")


class Queues(Struct, frozen=True):
    """The files of one link's queues, below a sysfs that shows it."""

    root: Path
    sysfs: PseudoFiles
    ifname: str
    online: int
    """The CPUs that count when two masks are compared: the kernel drops others from a mask."""

    @property
    def folder(self) -> str:
        return f"class/net/{self.ifname}/queues"

    def numbers(self, prefix: str) -> list[int]:
        return self.sysfs.numbered(self.folder, prefix)

    def read(self, *, xps: bool, rps: bool) -> dict[str, str]:
        """Return the contents of the files that the link has (no XPS with a single queue), by name."""
        names = [f"tx-{queue}/{name}" for queue in self.numbers("tx-") for name in _SEND_FILES if xps]
        names += [f"rx-{queue}/{name}" for queue in self.numbers("rx-") for name in _RECEIVE_FILES if rps]
        texts = {name: self.read_one(name) for name in names}
        return {name: text for name, text in texts.items() if text}

    def read_one(self, name: str) -> str:
        """Empty where the link has no such queue, or the queue no such file."""
        return self.sysfs.text(f"{self.folder}/{name}")

    def write(self, name: str, value: str) -> None:
        """Write one file if it exists and has another value; the kernel must not take something else."""
        before = self.read_one(name)
        if not before or self._is_same(name, before, value):
            return
        try:
            Path(self.root, self.folder, name).write_text(value)
        except OSError as error:
            raise KernelError(
                f"{self.ifname} {name} to {value}: {error.strerror}",
                errno=error.errno or 0,
                operation=_OPERATION,
                link=self.ifname,
            ) from error
        found = self.read_one(name)
        if not self._is_same(name, found, value):
            text = f"{self.ifname} {name}: wanted {value}, found {found or 'nothing'}"
            raise KernelError(text, operation=_OPERATION, link=self.ifname)

    def _is_same(self, name: str, one: str, other: str) -> bool:
        return _is_same_mask(one, other, self.online if name.endswith("_cpus") else ~0)


def _is_same_mask(one: str, other: str, counting: int = ~0) -> bool:
    first, second = parse_cpu_mask(one), parse_cpu_mask(other)
    if one == other or first is None or second is None:
        return one == other
    return not (first ^ second) & counting


def queue_difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return one line for each file that differs; queues that the link no longer has do not count."""
    return [
        f"{name}: wanted {value}, found {found[name]}"
        for name, value in wanted.items()
        if found.get(name) and not _is_same_mask(found[name], value)
    ]


@contextmanager
def open_queues(side: Side, ifname: str) -> Iterator[Queues]:
    with open_sysfs(side, writable=True) as root:
        sysfs = PseudoFiles(root, [])
        online = sum(1 << cpu for cpu in parse_cpu_list(sysfs.text("devices/system/cpu/online")))
        yield Queues(root, sysfs, ifname, online or ~0)


@contextmanager
def look_at_queues(side: Side, link: Link) -> Iterator[Queues]:
    """As :func:`open_queues`, to read: through ``/sys`` where that shows this link, as on a node. To take a
    mount away waits for a grace period of RCU, some 20 ms."""
    sysfs, folder = PseudoFiles(_SYS, []), f"class/net/{link.ifname}"
    text = sysfs.text(f"{folder}/ifindex"), sysfs.text(f"{folder}/address")
    if text == (str(link.ifindex), link.mac):
        yield Queues(_SYS, sysfs, link.ifname, ~0)
        return
    with open_queues(side, link.ifname) as queues:
        yield queues


def set_queues(queues: Queues, step: SetCpuLocality, places: Mapping[int, int]) -> None:
    """Let the CPUs of the step use the queues of the link. ``places`` maps a send queue whose interrupt was
    placed to its position in the step's CPUs; the queue gets this one and its share of any beyond."""
    send_queues = queues.numbers("tx-") if step.xps else []
    for queue in send_queues:
        queues.write(f"tx-{queue}/xps_rxqs", "0")
        share = share_of(step.cpus, queue, places.get(queue, queue), len(send_queues))
        queues.write(f"tx-{queue}/xps_cpus", format_cpu_mask(share))
    for queue in queues.numbers("rx-") if step.rps else []:
        queues.write(f"rx-{queue}/rps_cpus", format_cpu_mask(step.cpus))


def share_of(cpus: Sequence[int], queue: int, place: int, count: int) -> tuple[int, ...]:
    """The CPU at ``place`` and each ``count``-th after it: one of ``count`` shares of all CPUs, none of which
    has a CPU of another, while the places of the queues are consecutive."""
    start = (place - queue) % len(cpus)
    ordered = (*cpus[start:], *cpus[:start])
    return ordered[queue::count] or (ordered[queue % len(cpus)],)


def restore_queues(queues: Queues, wanted: Mapping[str, str]) -> list[str]:
    """Restore what Prepare found, whatever changed it: the pod had the link. Returns one line for each file
    that differs; queues that the link no longer has are skipped."""
    problems = []
    for name, value in wanted.items():
        try:
            queues.write(name, value)
        except KernelError as error:
            problems.append(error.message)
    return problems


# --- near CPUs while a pod has the device ---------------------------------------------------------------
# Interrupts belong to the node. One is restored if it is on a CPU that the driver chose, or where the kernel
# or the NIC's driver puts newly requested ones; a placement that another program chose since then stays and
# is reported. Which of the chosen CPUs it is does not matter: that depends on the other interrupts of the
# function, which may have come and gone. Queues belong to the link, which the pod had: they are restored to
# what Prepare found. Both, and the CPUs that are online, are looked up at each use.


def set_cpu_locality(step: SetCpuLocality, pod: Side, ifname: str, interrupts: InterruptFiles) -> None:
    """Let near CPUs work for a device that is in the pod; safe to repeat. ``MissingFeature``: its interrupts
    cannot be placed."""
    step = replace(step, cpus=interrupts.choose_online(step.cpus))
    found = interrupts.read(step.pci_address) if step.irq else {}
    wanted = {irq: index % len(step.cpus) for index, irq in enumerate(found)}  # in turn, by its number
    if step.irq and not found:
        raise KernelError(
            f"{step.pci_address} has no interrupts of its own",
            operation=step.step,
            hint="leave cpuLocality.irq out for this device",
            reason=Reason.MISSING_FEATURE,
        )
    for irq, place in wanted.items():
        if found[irq] != (step.cpus[place],):
            interrupts.place(irq, str(step.cpus[place]))
    if step.xps or step.rps:
        of_queues = interrupts.find_send_queues(tuple(wanted))
        with open_queues(pod, ifname) as queues:
            set_queues(queues, step, {queue: wanted[irq] for queue, irq in of_queues.items()})


def restore_cpus(plan: AttachPlan, interrupts: InterruptFiles, home: Side | None, ifname: str) -> list[str]:
    """Restore interrupts and queues of a device that is on the host again; returns the failures. ``home`` and
    ``ifname`` are the side and name of its link; ``None`` and empty if it has none."""
    step = find_step(plan, SetCpuLocality)
    if step is None or plan.cpus is None:
        return []
    problems = list(_restore_interrupts(step, plan.cpus, interrupts)) if step.irq else []
    if home is not None and plan.cpus.queues:
        try:
            with open_queues(home, ifname) as queues:
                problems += restore_queues(queues, plan.cpus.queues)
        except KernelError as error:
            problems.append(error.message)
    return problems


def _restore_interrupts(step: SetCpuLocality, state: CpuState, interrupts: InterruptFiles) -> Iterator[str]:
    found = interrupts.read(step.pci_address)
    before = {irq: parse_cpu_list(state.irqs.get(str(irq), "")) for irq in found}
    ours = {irq for irq, cpus in found.items() if len(cpus) == 1 and cpus[0] in step.cpus}
    changed = [irq for irq, cpus in found.items() if cpus != before[irq]]
    usual = interrupts.read_usual([irq for irq in changed if not before[irq] or irq not in ours])
    for irq in changed:
        to = before[irq]
        if irq in ours:
            to = to or next(iter(usual[irq]), ())
        elif to and found[irq] not in usual[irq]:
            yield (
                f"interrupt {irq}: another program has put it on CPU {format_cpu_list(found[irq])} since; "
                f"it stays there (was on {format_cpu_list(to)})"
            )
            continue
        try:
            if to and to != found[irq]:
                interrupts.place(irq, format_cpu_list(to))
        except KernelError as error:
            yield error.message


# --- settings in the card -------------------------------------------------------------------------------


class HardwarePart(Struct, frozen=True):
    """One field of ``LinkState``."""

    read: Callable[[Side, Link, Any], Any]
    """``(side, link, recorded)``: everything that the driver reports, or with a record only what that has."""
    difference: Callable[[Any, Any], list[str]]
    """``(wanted, found)``: one line for each setting that is not as recorded."""
    restore: Callable[[Side, Link, Any, Any], list[str]]
    """``(side, link, wanted, found)``: the refusals."""
    rows: tuple[tuple[str, str], ...]
    """What it is, and its limits: rows of ``docs/reference/restored.md``."""
    needs_up: bool = False
    """A driver resets it when the link comes up, so it is restored after that."""


def _read_ethtool(side: Side, link: Link, recorded: EthtoolState | None) -> EthtoolState:
    parts = tuple(part for part in PARTS if recorded is None or getattr(recorded, part))
    return ethtool.read_ethtool_state(side.genl, link.ifindex, parts, link.ifname)


def _nic(side: Side, link: Link) -> Nic:
    return Nic(side.genl, link.ifindex, link.ifname)


def _read_queues(side: Side, link: Link, recorded: Mapping[str, str] | None) -> Mapping[str, str]:
    if recorded is not None and not recorded:
        return {}
    try:
        with look_at_queues(side, link) as queues:
            if recorded is not None:
                return {name: queues.read_one(name) for name in recorded}
            found = queues.read(xps=True, rps=True)
    except KernelError as error:
        report_unreadable(link.ifname, "queues", error)
        return {}
    return {name: value for name, value in found.items() if value.strip("0,")}


def _restore_queues(
    side: Side, link: Link, wanted: Mapping[str, str], _found: Mapping[str, str]
) -> list[str]:
    if not queue_difference(wanted, _read_queues(side, link, wanted)):
        return []  # what was found is from before the link came up
    with open_queues(side, link.ifname) as queues:
        return restore_queues(queues, wanted)


HARDWARE: Mapping[str, HardwarePart] = {
    "ethtool": HardwarePart(
        _read_ethtool,
        ethtool.difference,
        lambda side, link, wanted, _: ethtool.restore_ethtool(side.genl, link.ifindex, wanted, link.ifname),
        tuple((f"{part.what} (`ethtool {part.option}`)", part.limits) for part in PARTS.values()),
    ),
    "steering": HardwarePart(
        lambda side, link, recorded: read_steering(_nic(side, link), recorded),
        steering_difference,
        lambda side, link, wanted, found: restore_steering(_nic(side, link), wanted, found),
        (
            ("RSS: table, key, hash function, input transformation (`ethtool -x`)", ""),
            ("additional RSS contexts (`ethtool -x LINK context N`)", "Linux 6.11"),
            ("fields that are hashed (`ethtool -n LINK rx-flow-hash tcp4`)", ""),
            ("flow rules, n-tuple (`ethtool -n`)", "those of a tenant are deleted"),
        ),
    ),
    "dcb": HardwarePart(
        lambda side, link, known: DcbState() if known == DcbState() else read_dcb(side.rtnl, link.ifname),
        dcb_difference,
        lambda side, link, wanted, found: restore_dcb(side.rtnl, link.ifname, wanted, found),
        (
            ("DCB: ETS, PFC, maximum rates, DCBX mode (`dcb ets`, `dcb pfc`, `dcb maxrate`, `dcb dcbx`)", ""),
            ("DCB: APP table (`dcb app`)", "the kernel drops it with every move since Linux 5.18"),
        ),
    ),
    "queues": HardwarePart(
        _read_queues,
        queue_difference,
        _restore_queues,
        (
            (
                "CPUs of the queues: XPS, RPS",
                "where some were set at Prepare; mlx5 sets its own when a link comes up",
            ),
        ),
        needs_up=True,
    ),
}
"""By field of ``LinkState``, in the order in which they are restored: tables and rules name channels."""
