"""How the node is tuned: clock and sleep of its CPUs, memory, swap.

Sources: ``Documentation/admin-guide/pm/{cpufreq,cpuidle}.rst``, ``mm/transhuge.rst``,
``sysctl/{kernel,vm}.rst`` and ``adjtimex(2)``.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.host_facts import HugePages, IdleState, TuningFacts

_CPUS = "devices/system/cpu"
_NODES = "devices/system/node"
_THP = "kernel/mm/transparent_hugepage"
_CHOSEN = re.compile(r"\[(\w+(?:\+\w+)?)\]")
_HUGE = re.compile(r"hugepages-([0-9]{1,9})kB")
_TIME_ERROR = 5
"""What ``adjtimex(2)`` returns while nobody has set the clock by another."""
_TIMEX_BYTES = 512
"""``struct timex`` has 208 on 64-bit machines."""


def read_tuning(sysfs: PseudoFiles, procfs: PseudoFiles) -> TuningFacts:
    scaling = [f"{_CPUS}/cpufreq/{name}" for name in sysfs.entries(f"{_CPUS}/cpufreq")]
    scaling = [folder for folder in scaling if folder.rpartition("/")[2].startswith("policy")]
    return TuningFacts(
        governors=_distinct(sysfs, scaling, "scaling_governor"),
        governor_driver=sysfs.text(f"{scaling[0]}/scaling_driver") if scaling else "",
        energy_preferences=_distinct(sysfs, scaling, "energy_performance_preference"),
        idle_states=tuple(_read_idle_states(sysfs)),
        thp=_chosen(sysfs.text(f"{_THP}/enabled")),
        thp_defrag=_chosen(sysfs.text(f"{_THP}/defrag")),
        huge_pages=tuple(_read_huge_pages(sysfs)),
        numa_balancing=procfs.integer("sys/kernel/numa_balancing"),
        swappiness=procfs.integer("sys/vm/swappiness"),
        swaps=_read_swaps(procfs.whole_text("swaps")),
        clock_is_synchronised=ask_clock(),
    )


def _distinct(sysfs: PseudoFiles, folders: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(sorted({text for folder in folders if (text := sysfs.text(f"{folder}/{name}"))}))


def _chosen(text: str) -> str:
    """``always [madvise] never`` -> ``madvise``."""
    found = _CHOSEN.search(text)
    return found[1] if found else ""


def _read_idle_states(sysfs: PseudoFiles) -> Iterable[IdleState]:
    """Of the first CPU: the others have the same ones."""
    folder = f"{_CPUS}/cpu0/cpuidle"
    for number in sysfs.numbered(folder, "state"):
        state = f"{folder}/state{number}"
        yield IdleState(
            name=sysfs.text(f"{state}/name"),
            latency_us=sysfs.integer(f"{state}/latency") or 0,
            enabled=sysfs.text(f"{state}/disable") != "1",
        )


def _read_huge_pages(sysfs: PseudoFiles) -> Iterable[HugePages]:
    for node in sysfs.numbered(_NODES, "node"):
        folder = f"{_NODES}/node{node}/hugepages"
        for name in sysfs.entries(folder):
            found = _HUGE.fullmatch(name)
            if found:
                yield HugePages(node, int(found[1]), sysfs.integer(f"{folder}/{name}/nr_hugepages") or 0)


def _read_swaps(table: str) -> tuple[str, ...]:
    """The first column of ``/proc/swaps`` below its head."""
    return tuple(line.split()[0] for line in table.splitlines()[1:] if line.split())


def ask_clock() -> bool | None:
    """Whether somebody keeps the clock right; the answer of the kernel, which is the same in a container."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
