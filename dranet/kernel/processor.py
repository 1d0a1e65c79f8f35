"""Of which kind the node's processors are: ``/proc/cpuinfo``, the first of them (``proc_cpuinfo(5)``)."""

from __future__ import annotations

from pathlib import Path

from dranet.kernel.sysfs import PseudoFiles, parse_number
from dranet.model.workload import Processor

_VENDOR, _FAMILY, _MODEL = "vendor_id", "cpu family", "model"


def read_processor(procfs_root: Path) -> Processor:
    """What is not told is empty: ARM has other names for it."""
    told: dict[str, str] = {}
    for line in PseudoFiles(procfs_root, []).whole_text("cpuinfo").splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.removeprefix(" "))
    return Processor(
        told.get(_VENDOR, ""), parse_number(told.get(_FAMILY, "")), parse_number(told.get(_MODEL, ""))
    )
