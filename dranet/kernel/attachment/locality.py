"""Near CPUs for a device while a pod has it, and its previous CPUs afterwards.

Interrupts belong to the node. One is restored if it is on a CPU that the driver chose, or where the kernel or
the NIC's driver puts newly requested ones; a placement that another program chose since then stays and is
reported. Which of the chosen CPUs it is does not matter: that depends on the other interrupts of the
function, which may have come and gone. Queues belong to the link, which the pod had: they are restored to
what Prepare found. Both, and the CPUs that are online, are looked up at each use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment.locate import Side
from dranet.kernel.namespaces.sysfs_mount import open_sysfs
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.model.cpus import format_cpu_list, format_cpu_mask, parse_cpu_list, parse_cpu_mask
from dranet.model.facts import Link
from dranet.model.plan import AttachPlan, CpuState, SetCpuLocality

# --- CPUs of a link's queues: XPS and RPS (``Documentation/networking/scaling.rst``) --------------------
# sysfs shows a link's queues only in a mount made in the link's network namespace, so each read makes its
# own (``namespaces.sysfs_mount``). The maps stay on a link that moves.

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

    def send_queues(self) -> list[int]:
        return self.sysfs.numbered(self.folder, "tx-")

    def receive_queues(self) -> list[int]:
        return self.sysfs.numbered(self.folder, "rx-")

    def read(self, *, xps: bool, rps: bool) -> dict[str, str]:
        """Return the contents of the files that the link has (no XPS with a single queue), by name."""
        names = [f"tx-{queue}/{name}" for queue in self.send_queues() for name in _SEND_FILES if xps]
        names += [f"rx-{queue}/{name}" for queue in self.receive_queues() for name in _RECEIVE_FILES if rps]
        texts = {name: self.read_one(name) for name in names}
        return {name: text for name, text in texts.items() if text}

    def read_one(self, name: str) -> str:
        """Empty where the link has no such queue, or the queue no such file."""
        return self.sysfs.text(f"{self.folder}/{name}")

    def write(self, name: str, value: str) -> None:
        """Write one file if it exists and has another value.

        Raises:
            KernelError: the kernel refused, or took something else.
        """
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
    """The queues of a link that is on this side.

    Raises:
        KernelError: no sysfs can be had there.
    """
    with open_sysfs(side, writable=True) as root:
        sysfs = PseudoFiles(root, [])
        online = sum(1 << cpu for cpu in parse_cpu_list(sysfs.text("devices/system/cpu/online")))
        yield Queues(root, sysfs, ifname, online or ~0)


@contextmanager
def look_at_queues(side: Side, link: Link) -> Iterator[Queues]:
    """As :func:`open_queues`, to read: through ``/sys`` where that shows this link, as on a node. To take a
    mount away waits for a grace period of RCU, some 20 ms.

    Raises:
        KernelError: no sysfs can be had there.
    """
    sysfs, folder = PseudoFiles(_SYS, []), f"class/net/{link.ifname}"
    text = sysfs.text(f"{folder}/ifindex"), sysfs.text(f"{folder}/address")
    if text == (str(link.ifindex), link.mac):
        yield Queues(_SYS, sysfs, link.ifname, ~0)
        return
    with open_queues(side, link.ifname) as queues:
        yield queues


def set_queues(queues: Queues, step: SetCpuLocality, places: Mapping[int, int]) -> None:
    """Let the CPUs of the step use the queues of the link.

    ``places`` maps a send queue whose interrupt was placed to its position in the step's CPUs; the queue
    gets this one and, where there are more CPUs than queues, its share of the others.

    Raises:
        KernelError: the kernel refused.
    """
    send_queues = queues.send_queues() if step.xps else []
    for queue in send_queues:
        queues.write(f"tx-{queue}/xps_rxqs", "0")
        share = share_of(step.cpus, queue, places.get(queue, queue), len(send_queues))
        queues.write(f"tx-{queue}/xps_cpus", format_cpu_mask(share))
    for queue in queues.receive_queues() if step.rps else []:
        queues.write(f"rx-{queue}/rps_cpus", format_cpu_mask(step.cpus))


def share_of(cpus: Sequence[int], queue: int, place: int, count: int) -> tuple[int, ...]:
    """The CPU at ``place`` and each ``count``-th after it: one of ``count`` shares of all CPUs, none of which
    has a CPU of another, while the places of the queues are consecutive."""
    start = (place - queue) % len(cpus)
    ordered = (*cpus[start:], *cpus[:start])
    return ordered[queue::count] or (ordered[queue % len(cpus)],)


def restore_queues(queues: Queues, wanted: Mapping[str, str]) -> list[str]:
    """Restore what Prepare found, whatever changed it: the pod had the link.

    Returns one line for each file that differs. Queues that the link no longer has are skipped.
    """
    problems = []
    for name, value in wanted.items():
        try:
            queues.write(name, value)
        except KernelError as error:
            problems.append(error.message)
    return problems


Cpus = tuple[int, ...]


def planned_locality(plan: AttachPlan) -> SetCpuLocality | None:
    """The step that asks for it."""
    return next((step for step in plan.steps if isinstance(step, SetCpuLocality)), None)


def set_cpu_locality(step: SetCpuLocality, pod: Side, ifname: str, interrupts: InterruptFiles) -> None:
    """Let near CPUs work for a device that is in the pod; safe to repeat.

    Raises:
        KernelError: the kernel refused; ``MissingFeature`` for interrupts that cannot be placed.
    """
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
    """Restore interrupts and queues of a device that is on the host again; returns the failures.

    ``home`` and ``ifname`` are the side and name of its link; ``None`` and empty if it has none.
    """
    step = planned_locality(plan)
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
        if irq in ours:
            yield from _restore_interrupt(
                interrupts, irq, before[irq] or next(iter(usual[irq]), ()), found[irq]
            )
        elif before[irq] and found[irq] in usual[irq]:
            yield from _restore_interrupt(interrupts, irq, before[irq], found[irq])
        elif before[irq]:
            yield (
                f"interrupt {irq}: another program has put it on CPU {format_cpu_list(found[irq])} since; "
                f"it stays there (was on {format_cpu_list(before[irq])})"
            )


def _restore_interrupt(interrupts: InterruptFiles, irq: int, to: Cpus, found: Cpus) -> Iterator[str]:
    try:
        if to and to != found:
            interrupts.place(irq, format_cpu_list(to))
    except KernelError as error:
        yield error.message
