"""The folders and sockets that the driver shares with kubelet and runtime: are they there, and usable?

For ``dranet doctor``, which must run where the driver runs: in its pod, or on the node with its mounts.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dranet.model.findings import Finding, Severity, ok
from dranet.settings import Settings
from dranet.store.record_folder import RecordFolder

PLACES = "places"
_NOT_OURS = "may not be used by this user"
PLACE = "place"
"""The id of its findings."""

LEAST_FREE_BYTES = 16 << 20
"""Records and spec files are a few kilobytes each; less than this is a disk that is full."""


def judge_places(settings: Settings) -> list[Finding]:
    """One finding for each place; reads only."""
    return list(_iter_findings(settings))


def _iter_findings(settings: Settings) -> Iterator[Finding]:
    registry = settings.kubelet_root / "plugins_registry"
    root = "is --kubelet-root the kubelet's --root-dir, mounted into the pod at the same path?"
    yield _judge_folder(registry, "the kubelet cannot find the driver", root, may_be_made=False)
    yield _judge_folder(settings.plugin_dir, "the kubelet cannot call the driver", root)
    yield _judge_folder(
        settings.state_dir,
        "no claim can be prepared: what is promised must be on disk first",
        "mount a folder of the node's own disk there (--state-dir)",
    )
    yield from _judge_damaged_records(settings.state_dir)
    yield _judge_folder(
        settings.cdi_dir,
        "the runtime does not learn what a container of a claim gets",
        "mount the folder that the runtime reads CDI specs from (--cdi-dir)",
    )
    yield _judge_nri_socket(settings.nri_socket)
    yield _judge_folder(
        settings.sysfs_root / "class" / "net",
        "devices of the node are not found",
        "mount the node's sysfs (--sysfs-root)",
        may_be_made=False,
        must_be_writable=False,
    )


def _judge_damaged_records(state_dir: Path) -> Iterator[Finding]:
    try:
        damaged = RecordFolder(state_dir / "claims").read_unreadable()
    except OSError:
        return  # the state folder itself has been checked, and a driver that never ran has no records
    for record in damaged:
        yield Finding(
            PLACES,
            Severity.WARNING,
            f"{record.file}: the record of claim {record.claim_uid} cannot be read: {record.why}",
            "a NIC whose record was lost comes back from its pod as the pod had it",
            "look at the disk and at dranet claims, then remove the file",
            "store-damaged",
        )


def _judge_folder(
    folder: Path, matters: str, fix: str, *, may_be_made: bool = True, must_be_writable: bool = True
) -> Finding:
    try:
        return _look_at(folder, matters, fix, may_be_made=may_be_made, must_be_writable=must_be_writable)
    except OSError as error:
        if error.errno == errno.EACCES and not is_like_driver():
            return _hidden(str(folder))
        return _unfit(f"{folder}: {error.strerror}", matters, fix)


def _look_at(folder: Path, matters: str, fix: str, *, may_be_made: bool, must_be_writable: bool) -> Finding:
    """
    Raises:
        OSError: the folder cannot even be looked at.
    """
    if not folder.exists():
        nearest = next(parent for parent in folder.parents if parent.exists())
        may_make = os.access(nearest, os.W_OK) or not is_like_driver()
        if may_be_made and nearest.is_dir() and may_make:
            return Finding(
                PLACES, Severity.NOTE, f"{folder} does not exist yet; the driver makes it", id=PLACE
            )
        return _unfit(f"{folder} does not exist", matters, fix)
    if not folder.is_dir():
        return _unfit(f"{folder} is not a folder", matters, fix)
    if must_be_writable and is_like_driver() and not os.access(folder, os.W_OK):
        return _unfit(f"{folder} cannot be written", matters, fix)
    shortage = _find_shortage(os.statvfs(folder)) if must_be_writable else ""
    if shortage:
        return _unfit(f"{folder} has {shortage}", matters, "make room there")
    return ok(PLACES, str(folder), PLACE)


def _find_shortage(free: os.statvfs_result) -> str:
    if free.f_bavail * free.f_frsize < LEAST_FREE_BYTES:
        return f"{free.f_bavail * free.f_frsize >> 20} MiB left"
    return "no room for another file (inodes)" if free.f_files and not free.f_favail else ""


def _judge_nri_socket(path: Path) -> Finding:
    enable = (
        "enable NRI in the runtime (containerd 2.0 has it on, CRI-O by enable_nri), or correct --nri-socket"
    )
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
        trouble = _probe_socket(path) if is_socket else "is not a socket"
    except OSError as error:
        if error.errno == errno.EACCES and not is_like_driver():
            return _hidden(f"the NRI socket {path}")
        return _no_nri(f"the NRI socket {path}: {error.strerror}", enable)
    if trouble == _NOT_OURS and not is_like_driver():
        return _hidden(f"the NRI socket {path}")
    if not trouble:
        return ok(PLACES, str(path), PLACE)
    return _no_nri(f"the NRI socket {path} {trouble}", enable)


def _probe_socket(path: Path) -> str:
    """What is wrong with a socket; empty if a program listens on it.

    The program does not notice: it uses a stream socket, so the kernel refuses our datagram socket
    (EPROTOTYPE) before it reaches the program, and with another error where no program listens.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(bytes(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return "is left over: no program listens on it"
            if error.errno in (errno.EACCES, errno.EPERM):
                return _NOT_OURS
    return ""


def is_like_driver() -> bool:
    """Whether we are root, as the driver is: what other users may not see or write does not matter to the
    driver."""
    return os.geteuid() == 0


def _hidden(what: str) -> Finding:
    return Finding(
        PLACES,
        Severity.NOTE,
        f"{what} cannot be looked at by this user",
        "it is not judged",
        "run the doctor as root",
        PLACE,
    )


def _no_nri(seen: str, fix: str) -> Finding:
    return _unfit(seen, "no NIC can be attached, so no claim with a NIC is prepared", fix)


def _unfit(seen: str, matters: str, fix: str) -> Finding:
    return Finding(PLACES, Severity.PROBLEM, seen, matters, fix, PLACE)
