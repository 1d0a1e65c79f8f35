"""How the node is tuned. Judged only where it shows: with GPUs, RDMA, or links of 100 Gbit/s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import wraps

from dranet.desk.doctor.checks import Evaluation, Judge, Surroundings, check, fine, join, note, warning

TUNING = "tuning"

DEEP_US = 50
"""A CPU that takes longer to wake is in deep sleep (C6 of servers of today takes some 130 us)."""

_OWN_CLOCK = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Here ``powersave`` leaves the clock to the processor, by its energy preference."""
_EAGER = frozenset({"performance", "balance_performance"})
_MOST_SWAPPINESS = 10


def where_it_shows(judge: Judge) -> Judge:
    """Judge only nodes whose network is worth tuning for."""

    @wraps(judge)
    def judge_if(seen: Surroundings) -> Iterator[Evaluation]:
        return judge(seen) if seen.is_fast else iter(())

    return judge_if


@check(
    "cpu-governor",
    TUNING,
    "the governor of the CPUs' clock",
    matters="A clock that first has to rise adds latency to each message after a pause, and the threads "
    "that feed a NIC (proxies of NCCL) run at it.",
    fix="`cpupower frequency-set -g performance`, or a tuned profile (`tuned-adm profile network-latency`).",
)
@where_it_shows
def governor(seen: Surroundings) -> Iterator[Evaluation]:
    tuning = seen.host.tuning
    saving = [name for name in tuning.governors if name != "performance"]
    if not tuning.governors:
        return
    if not saving or (
        tuning.governor_driver in _OWN_CLOCK
        and tuning.energy_preferences
        and set(tuning.energy_preferences) <= _EAGER
    ):
        yield fine(f"CPU governor {join(tuning.governors)} ({tuning.governor_driver})")
    elif "powersave" in saving and tuning.governor_driver not in _OWN_CLOCK:
        yield warning(f"CPU governor powersave ({tuning.governor_driver}): the lowest clock, always")
    else:
        preference = f", {join(tuning.energy_preferences)}" if tuning.energy_preferences else ""
        yield note(f"CPU governor {join(saving)} ({tuning.governor_driver}{preference})")


@check(
    "c-states",
    TUNING,
    "how deep idle CPUs sleep",
    matters="A CPU in deep sleep answers an interrupt later by the time that the kernel states here; it "
    "is seen as latency that jumps when a job waits.",
    fix="`cpupower idle-set -D 10` now; for good `intel_idle.max_cstate=1 processor.max_cstate=1` on "
    "the kernel's command line, or tuned's network-latency. It costs power.",
)
@where_it_shows
def c_states(seen: Surroundings) -> Iterator[Evaluation]:
    states = [state for state in seen.host.tuning.idle_states if state.enabled]
    deep = [state for state in states if state.latency_us > DEEP_US]
    if deep:
        slow = (f"{state.latency_us} us from {state.name}" for state in deep)
        yield note(f"idle CPUs take long to wake: {join(slow)}")
    elif states:
        yield fine(f"idle CPUs wake within {max(state.latency_us for state in states)} us")


@check(
    "numa-balancing",
    TUNING,
    "automatic NUMA balancing",
    matters="The kernel unmaps memory to see who uses it: page faults in the middle of a job, and for "
    "memory that RDMA or a GPU has pinned there is nothing to win.",
    fix="`sysctl -w kernel.numa_balancing=0`, and a line in /etc/sysctl.d.",
)
@where_it_shows
def numa_balancing(seen: Surroundings) -> Iterator[Evaluation]:
    if len(seen.node.numa_nodes) > 1 and seen.host.tuning.numa_balancing is not None:
        is_on = seen.host.tuning.numa_balancing
        yield note("automatic NUMA balancing is on") if is_on else fine("automatic NUMA balancing is off")


@check(
    "swap-on",
    TUNING,
    "swap, and how eagerly it is used",
    matters="A process whose memory was swapped out stops for milliseconds, and with it its job; "
    "pinned memory stays, what is around it does not.",
    fix="`swapoff -a` and take it out of /etc/fstab, or `sysctl -w vm.swappiness=0` where pods are to swap "
    "(kubelet: memorySwap).",
)
@where_it_shows
def swap(seen: Surroundings) -> Iterator[Evaluation]:
    tuning = seen.host.tuning
    if not tuning.swaps:
        yield fine("no swap")
    elif tuning.swappiness is None or tuning.swappiness > _MOST_SWAPPINESS:
        yield note(f"swap on {join(tuning.swaps)}, swappiness {tuning.swappiness}")
    else:
        yield fine(f"swap on, swappiness {tuning.swappiness}")


@check(
    "thp-off",
    TUNING,
    "transparent huge pages",
    matters="Without them a registered gigabyte is 262,144 pages in the adapter's tables instead of 512: "
    "registering is slow, and lookups miss.",
    fix="`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`; for good "
    "`transparent_hugepage=madvise` on the kernel's command line.",
)
@where_it_shows
def thp(seen: Surroundings) -> Iterator[Evaluation]:
    if seen.host.tuning.thp:
        off = seen.host.tuning.thp == "never"
        yield (
            note("no transparent huge pages")
            if off
            else fine(f"transparent huge pages: {seen.host.tuning.thp}")
        )


@check(
    "thp-stalls",
    TUNING,
    "whether a page fault waits until the kernel has made a huge page",
    matters="With `always` in both files any program waits for compaction in a page fault, for "
    "milliseconds, when memory is in pieces.",
    fix="`echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag`.",
)
@where_it_shows
def thp_defrag(seen: Surroundings) -> Iterator[Evaluation]:
    tuning = seen.host.tuning
    if tuning.thp == "always" and tuning.thp_defrag == "always":
        yield note("transparent huge pages always, and a page fault always waits for one")


@check(
    "hugepages-uneven",
    TUNING,
    "huge pages that are kept, by NUMA node",
    matters="A pod next to a NIC of the other NUMA node finds no huge pages there: it does not start with "
    "the static memory manager, and takes far ones without it.",
    fix="Reserve them by node: `echo N > "
    "/sys/devices/system/node/nodeX/hugepages/hugepages-2048kB/nr_hugepages`, or `hugepages=0:N,1:N` on "
    "the kernel's command line.",
)
@where_it_shows
def huge_pages(seen: Surroundings) -> Iterator[Evaluation]:
    sizes: dict[int, dict[int, int]] = defaultdict(dict)
    for pages in seen.host.tuning.huge_pages:
        sizes[pages.size_kib][pages.node] = pages.count
    for size, counts in sorted(sizes.items()):
        if any(counts.values()):
            text = f"{size >> 10} MiB pages: " + join(f"{n} on node {node}" for node, n in counts.items())
            yield note(text) if not all(counts.values()) else fine(text)


@check(
    "irqbalance",
    TUNING,
    "irqbalance together with claims that place interrupts (`cpuLocality.irq`)",
    matters="It would move interrupts away again within seconds, so a claim that asks for their locality is "
    "refused while it runs; no other claim minds.",
    fix="Where claims ask for locality: `irqbalance --banmod=DRIVER` for the NICs' driver (mlx5_core), "
    "or stop it.",
)
@where_it_shows
def irqbalance(seen: Surroundings) -> Iterator[Evaluation]:
    runs = seen.process("irqbalance")
    if runs is not None:
        yield note("irqbalance runs") if runs else fine("irqbalance does not run")


@check(
    "clock-adrift",
    TUNING,
    "whether the node's clock is synchronised; not in the driver's container, whose seccomp profile "
    "keeps programs away from the clock",
    matters="Logs, Events and traces of several nodes cannot be compared, and tokens or "
    "certificates fail when the clock is minutes off.",
    fix="Run chronyd or systemd-timesyncd on the node (`timedatectl set-ntp true`).",
)
def clock(seen: Surroundings) -> Iterator[Evaluation]:
    if seen.host.tuning.clock_is_synchronised is not None:
        synchronised = seen.host.tuning.clock_is_synchronised
        yield fine("the clock is synchronised") if synchronised else note("the clock is not synchronised")


CHECKS = (
    governor,
    c_states,
    numa_balancing,
    swap,
    thp,
    thp_defrag,
    huge_pages,
    irqbalance,
    clock,
)
