"""The rights of the driver's process, or of another one in its container: are they what it needs?

Against ``dranet.security.context``: capabilities, system calls (tried where they change nothing) and, in a
pod, the folders of the node. For ``dranet doctor``, which must run where the driver runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dranet.desk.doctor.catalogue import CALL, CAPABILITY, FOLDER, GAIN, NO_NEW_PRIVILEGES, RIGHTS
from dranet.kernel.host_checks.rights_trials import try_calls
from dranet.kernel.refusals import Rights, read_rights
from dranet.model.findings import Finding, Severity, ok
from dranet.security.context import (
    CAPABILITIES,
    HOST_PROC,
    MOUNTS,
    Mount,
    resolve_path,
)
from dranet.security.seccomp import RULES
from dranet.settings import Settings

_OWN_PROC = Path("/proc")


def judge_rights(settings: Settings) -> list[Finding]:
    """One finding for each missing right, or a single one if none is missing; reads only."""
    if os.geteuid() != 0:
        seen = "not judged: this is not root, as the driver is"
        return [Finding(RIGHTS, Severity.NOTE, seen, fix="run it where the driver runs", id=CAPABILITY)]
    rights, status = read_rights(), _OWN_PROC / "self/mountinfo"
    mounts = status.read_text(errors="replace") if settings.procfs_root != _OWN_PROC else ""
    missing = [
        *_judge_capabilities(rights),
        *_judge_calls(rights, try_calls()),
        *(_judge_mounts(settings, parse_mount_points(mounts)) if mounts else ()),
        *(_judge_gain(rights) if mounts else ()),
    ]
    return missing or [ok(RIGHTS, "all that the driver needs", CAPABILITY)]


def rights_elsewhere() -> Finding:
    """A finding for another container than the driver's, whose rights are not the driver's."""
    seen = "not judged: this is not the driver's container"
    return Finding(RIGHTS, Severity.NOTE, seen, fix="run it where the driver runs", id=CAPABILITY)


def _judge_capabilities(rights: Rights) -> Iterator[Finding]:
    for capability in CAPABILITIES:
        if not rights.has(capability.name):
            severity = Severity.WARNING if capability.feature else Severity.PROBLEM
            seen = f"CAP_{capability.name} lacks"
            fix = f"add {capability.name} to the capabilities of the driver's container"
            yield Finding(RIGHTS, severity, seen, capability.without, fix, CAPABILITY)


def _judge_calls(rights: Rights, refused: Mapping[str, str]) -> Iterator[Finding]:
    """Judge refused calls; a missing capability that explains one has been reported already."""
    for rule in RULES:
        if rule.name in refused and all(map(rights.has, rule.needs)):
            severity = Severity.WARNING if rule.feature else Severity.PROBLEM
            seen = f"the kernel or a seccomp profile refuses {', '.join(rule.calls)}: {refused[rule.name]}"
            fix = "use the profile that `dranet seccomp` prints, or add this to yours"
            yield Finding(RIGHTS, severity, seen, rule.without, fix, CALL)


def _judge_gain(rights: Rights) -> Iterator[Finding]:
    if rights.may_gain:
        seen = "a program that the driver starts could gain rights"
        yield Finding(RIGHTS, Severity.NOTE, seen, NO_NEW_PRIVILEGES.matters, NO_NEW_PRIVILEGES.fix, GAIN)


def _judge_mounts(settings: Settings, points: Mapping[str, bool]) -> Iterator[Finding]:
    places = {
        "kubelet_root": str(settings.kubelet_root),
        "state_dir": str(settings.state_dir),
        "cdi_dir": str(settings.cdi_dir),
        "nri_dir": str(settings.nri_socket.parent),
        "driver_name": settings.driver_name,
    }
    for mount in MOUNTS:
        path = os.path.realpath(
            resolve_path(mount.path, places).replace(HOST_PROC, str(settings.procfs_root), 1)
        )
        if fault := _find_fault(mount, path, points):
            severity = Severity.NOTE if mount.feature else Severity.PROBLEM
            folder = resolve_path(mount.host_path, places)
            fix = f"mount the node's {folder} at {path}{'' if mount.read_only else ', writable'}"
            if mount.propagation != "None":
                fix += f", with mountPropagation: {mount.propagation}"
            yield Finding(RIGHTS, severity, f"{path} {fault}", mount.without, fix, FOLDER)


def _find_fault(mount: Mount, path: str, points: Mapping[str, bool]) -> str:
    """What is wrong with a folder; empty where nothing is."""
    nearest = next((str(p) for p in (Path(path), *Path(path).parents) if str(p) in points), "/")
    is_within = mount.path.startswith(f"{HOST_PROC}/") and nearest != path
    if nearest == "/" or is_within:
        return "is not mounted from the node"
    if not mount.read_only and os.statvfs(path).f_flag & os.ST_RDONLY:
        return "is mounted read-only"
    if mount.propagation != "None" and not points[nearest]:
        return "does not show what the node mounts there later"
    return ""


def parse_mount_points(mountinfo: str) -> dict[str, bool]:
    """Where something is mounted, and whether later mounts of the node also appear there.

    ``proc_pid_mountinfo(5)``.
    """
    points = {}
    for line in mountinfo.splitlines():
        before, _, _ = line.partition(" - ")
        fields = before.split()
        if len(fields) >= 6:
            points[fields[4]] = any(tag.startswith(("master:", "shared:")) for tag in fields[6:])
    return points
