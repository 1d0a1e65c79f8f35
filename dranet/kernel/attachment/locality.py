"""Near CPUs for a device while a pod has it, and afterwards those that it had.

Interrupts are of the node and visible to everybody. They are given back where each is on one CPU of ours, or
where kernel or driver put those that are asked for anew; what somebody else has chosen since is left there,
and is said. On which CPU of ours does not count: that goes by the other numbers of the function, and those
may have come and gone. Queues are of the link, which the pod had: they get back what Prepare found. Both are
looked up at each use, and so are the CPUs that are online.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment.locate import Side
from dranet.kernel.attachment.queues import open_queues, restore_queues, set_queues
from dranet.kernel.irq import InterruptFiles
from dranet.model.cpus import format_cpu_list, parse_cpu_list
from dranet.model.plan import AttachPlan, CpuState, SetCpuLocality

Cpus = tuple[int, ...]


def planned_locality(plan: AttachPlan) -> SetCpuLocality | None:
    """The step that asks for it."""
    return next((step for step in plan.steps if isinstance(step, SetCpuLocality)), None)


def set_cpu_locality(step: SetCpuLocality, pod: Side, ifname: str, interrupts: InterruptFiles) -> None:
    """Let near CPUs work for a device that is in the pod; safe to repeat.

    Raises:
        KernelError: the kernel refused; ``MissingFeature`` for interrupts that nobody can place.
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


def give_back_cpus(plan: AttachPlan, interrupts: InterruptFiles, home: Side | None, ifname: str) -> list[str]:
    """Interrupts and queues of a device that is on the host again; returns what could not be given back.

    ``home`` and ``ifname`` are of its link, ``None`` and empty where it has none.
    """
    step = planned_locality(plan)
    if step is None or plan.cpus is None:
        return []
    problems = list(_give_back_interrupts(step, plan.cpus, interrupts)) if step.irq else []
    if home is not None and plan.cpus.queues:
        try:
            with open_queues(home, ifname) as queues:
                problems += restore_queues(queues, plan.cpus.queues)
        except KernelError as error:
            problems.append(error.message)
    return problems


def _give_back_interrupts(step: SetCpuLocality, state: CpuState, interrupts: InterruptFiles) -> Iterator[str]:
    found = interrupts.read(step.pci_address)
    before = {irq: parse_cpu_list(state.irqs.get(str(irq), "")) for irq in found}
    ours = {irq for irq, cpus in found.items() if len(cpus) == 1 and cpus[0] in step.cpus}
    changed = [irq for irq, cpus in found.items() if cpus != before[irq]]
    usual = interrupts.read_usual([irq for irq in changed if not before[irq] or irq not in ours])
    for irq in changed:
        if irq in ours:
            yield from _give_back_one(interrupts, irq, before[irq] or next(iter(usual[irq]), ()), found[irq])
        elif before[irq] and found[irq] in usual[irq]:
            yield from _give_back_one(interrupts, irq, before[irq], found[irq])
        elif before[irq]:
            yield (
                f"interrupt {irq}: somebody has put it on CPU {format_cpu_list(found[irq])} since; it stays "
                f"there (was on {format_cpu_list(before[irq])})"
            )


def _give_back_one(interrupts: InterruptFiles, irq: int, to: Cpus, found: Cpus) -> Iterator[str]:
    try:
        if to and to != found:
            interrupts.place(irq, format_cpu_list(to))
    except KernelError as error:
        yield error.message
