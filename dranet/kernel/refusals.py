"""Refusals of the kernel: which of root's rights this process lacks, and settings that cannot be read.

``capabilities(7)``, ``seccomp(2)``; read from ``/proc`` when something was refused, and by the doctor.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from msgspec import Struct

from dranet.errors import KernelError

CAPABILITIES = {"NET_ADMIN": 12, "NET_RAW": 13, "SYS_PTRACE": 19, "SYS_ADMIN": 21}
"""Numbers of ``linux/capability.h``; those that the driver uses."""

_REFUSED = (errno.EPERM, errno.EACCES)
_SECCOMP_FILTER = 2
_STATUS = Path("/proc/thread-self/status")


class Rights(Struct, frozen=True):
    """Rights of a thread in ``/proc/PID/status``."""

    capabilities: int
    """The effective ones, by bit."""
    is_filtered: bool
    """A seccomp profile is in force."""
    may_gain: bool
    """A program that it starts could have more rights (``no_new_privs`` is not set)."""

    def has(self, capability: str) -> bool:
        return bool(self.capabilities >> CAPABILITIES[capability] & 1)


def read_rights(status: Path = _STATUS) -> Rights:
    """
    Raises:
        OSError: procfs is not mounted.
    """
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return Rights(
        int(fields.get("CapEff", "0"), 16),
        int(fields.get("Seccomp", "0")) == _SECCOMP_FILTER,
        int(fields.get("NoNewPrivs", "0")) == 0,
    )


def explain_refusal(number: int, capability: str, call: str = "") -> str:
    """Return the fix of a refusal: the missing capability, or the seccomp profile that may block ``call``.
    Empty if neither can be the cause.

    A profile answers with ENOSYS (the driver's own) or EPERM; without one ENOSYS is an old kernel's.
    """
    if number not in (*_REFUSED, errno.ENOSYS):
        return ""
    try:
        rights = read_rights()
    except (OSError, ValueError):
        return ""
    if number in _REFUSED and not rights.has(capability):
        return f"the driver lacks CAP_{capability}: add it to the capabilities of its container"
    if call and rights.is_filtered:
        return f"its seccomp profile may not let {call} through: use the one of dranet seccomp"
    return ""


def is_refusal(number: int | None) -> bool:
    """Whether an errno means that this process is not permitted, not that the kernel does not support it."""
    if number == errno.ENOSYS:
        try:
            return read_rights().is_filtered
        except (OSError, ValueError):
            return False
    return number in _REFUSED


# --- settings that a driver fails to report -------------------------------------------------------------

log = logging.getLogger(__name__)

_reported: set[tuple[str, str]] = set()


def report_unreadable(link: str, part: str, error: KernelError) -> None:
    """Log a failed read once for each link and part. EOPNOTSUPP means a driver without such settings.

    Raises:
        KernelError: the link is gone (ENODEV).
    """
    if error.errno == errno.ENODEV:
        raise error
    if error.errno != errno.EOPNOTSUPP and (link, part) not in _reported:
        _reported.add((link, part))
        log.warning("not recorded and not restored: %s", error.message)
