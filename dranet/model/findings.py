"""Findings about the driver's surroundings, worded so that a reader knows whether to act.

``/readyz?verbose`` prints findings in one line each, ``dranet doctor`` with why they matter and how to fix
them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

API, KUBELET, RUNTIME, GPUS = "api", "kubelet", "runtime", "gpus"

API_FIELD, GPU_OFFER = "api-field", "gpu-offer"
REGISTRATION, DRA_SERVICE, KUBELET_HEALTH = "kubelet-registration", "kubelet-dra-service", "kubelet-health"
RUNTIME_NRI, PATIENCE, RUNTIME_CDI = "runtime-nri", "runtime-patience", "runtime-cdi"
"""Ids of findings; the docs know them from ``desk/doctor/catalogue.py``."""

DEFAULT_REQUEST_TIMEOUT_SECONDS = 2.0
"""Seconds that a runtime waits for a hook by default (``plugin_request_timeout``)."""


class Severity(StrEnum):
    """How much a finding asks for."""

    OK = "ok"
    NOTE = "note"
    """Not there, or not known, and nothing that is wanted fails for it."""
    WARNING = "warning"
    """Something that the settings ask for, or that people count on, does not work."""
    PROBLEM = "problem"
    """Pods do not get their NICs."""


WORST_FIRST = tuple(reversed(Severity))


class Finding(Struct, frozen=True):
    """One thing that was looked at. ``matters`` and ``mend`` are empty where there is nothing to do."""

    part: str
    """Whom it is about: ``api``, ``kubelet``, ``runtime``, ``permissions``, ``places``, ..."""
    severity: Severity
    seen: str
    matters: str = ""
    fix: str = ""
    id: str = ""
    """What was looked at, by a name that never changes: ``acs-redirect``; docs/user/doctor.md has all."""

    @property
    def line(self) -> str:
        """``[+] api: device taints kept``, as ``/readyz`` lists its parts."""
        return f"[{'+' if self.severity is Severity.OK else '-'}] {self.part}: {self.seen}"

    def to_json(self) -> dict[str, str]:
        return structs.asdict(self)


def ok(part: str, seen: str, id_: str = "") -> Finding:
    return Finding(part, Severity.OK, seen, id=id_)


def find_worst(findings: Iterable[Finding]) -> Severity:
    """The highest severity; OK where there are no findings."""
    found = {finding.severity for finding in findings}
    return next((severity for severity in WORST_FIRST if severity in found), Severity.OK)


def parse_finding(data: Mapping[str, Any]) -> Finding:
    """The inverse of :meth:`Finding.to_json`, for one that came from another process.

    Raises:
        ValueError: it is no finding.
    """
    texts = [data.get(name, "") for name in ("part", "seen", "matters", "fix", "id")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"no finding: {data!r}")
    part, seen, matters, fix, id_ = texts
    return Finding(part, Severity(str(data.get("severity"))), seen, matters, fix, id_)
