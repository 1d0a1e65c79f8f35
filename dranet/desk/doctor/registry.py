"""All checks, and all ids: what ``docs/user/doctor.md`` lists, and what ``--ignore`` takes.

A check of a subject of its own comes as a module with ``CHECKS``; its ids are tested for a fixture that
triggers each and one that does not (``tests/driver/doctor``).
"""

from __future__ import annotations

from collections.abc import Iterator

from dranet.desk.doctor import (
    gpudirect,
    kernel,
    kubelet,
    managers,
    pcie,
    rails,
    rdma,
    runtime,
    tuning,
    visibility,
)
from dranet.desk.doctor.catalogue import ENTRIES
from dranet.desk.doctor.checks import Check, Entry, Surroundings
from dranet.model.findings import Finding

CHECKS: tuple[Check, ...] = (
    *kernel.CHECKS,
    *runtime.CHECKS,
    *kubelet.CHECKS,
    *managers.CHECKS,
    *rdma.CHECKS,
    *gpudirect.CHECKS,
    *pcie.CHECKS,
    *rails.CHECKS,
    *tuning.CHECKS,
    *visibility.CHECKS,
)
"""In the order in which people read them."""


def list_entries() -> tuple[Entry, ...]:
    """Every id that a finding can have."""
    return (*ENTRIES, *(check.entry for check in CHECKS))


def run_checks(surroundings: Surroundings) -> Iterator[Finding]:
    for check in CHECKS:
        yield from check.run(surroundings)
