"""What a containerd takes from the node and must release: mounts, cgroups and leftover processes.

Talks to the kernel only (mount(2), cgroupfs, procfs). Containers outlive their containerd by design, so
whatever is left after a fault is found here by its own marks: the cgroup of this runtime, and the socket
address that each shim carries on its command line.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.containerd.fetch import Cause, ContainerdUnavailable

CGROUP_PREFIX = "dranet-testbed-"

SHIM_SOCKETS_PARENT = Path("/run/containerd")
"""Compiled into containerd and its shims; no configuration changes it."""

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""``PROC_PID_INIT_INO`` of linux/proc_ns.h: the inode of the namespace that the kernel booted with."""

_UNIFIED_ROOT = Path("/sys/fs/cgroup")
"""A cgroup mount right here is version 2 alone; with version 1 there are folders below instead."""

_KUBELET_CONTROLLERS = frozenset({"cpu", "cpuset", "memory", "hugetlb", "pids"})

_MNT_DETACH = 2
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SHARED = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 20

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1

_STALE_SECONDS = 60.0

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of ``/proc/<pid>/mountinfo`` (proc(5)): ``root`` is the folder inside the file system."""

    device: str
    root: str
    target: str
    kind: str
    source: str


def check_rights() -> None:
    """Refuse by name where a private containerd cannot run.

    Raises:
        ContainerdUnavailable: not root, or not inside the testbed's namespaces.
    """
    check_root()
    if Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE:
        raise ContainerdUnavailable(Cause.NOT_ISOLATED, "only inside the testbed's private namespaces")


def check_root() -> None:
    """The part of :func:`check_rights` that can be checked before there are private namespaces.

    Raises:
        ContainerdUnavailable: not root, or only root of a user namespace with one user.
    """
    if os.geteuid() != 0:
        raise ContainerdUnavailable(
            Cause.NOT_ROOT, "a real containerd needs root; run it as root, or with --runtime stand-in"
        )
    if sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines()) == 1:
        raise ContainerdUnavailable(Cause.NOT_ROOT, "root of an unprivileged user namespace is not enough")


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The lines of a mountinfo file, in mount order."""
    return tuple(_parse_mount(line) for line in text.splitlines())


def read_mounts() -> tuple[Mount, ...]:
    """The mounts of our own mount namespace."""
    return parse_mountinfo(Path("/proc/self/mountinfo").read_text())


def find_source_on_node(inside: Mount, node: Iterable[Mount]) -> str:
    """Where a container's mount comes from, as a path of the node's mount namespace.

    Both see the same file system under different roots. Where the node has it nowhere (proc, a tmpfs made
    for the container) this is the mount's source text instead.
    """
    candidates = [m for m in node if m.device == inside.device and _is_below(inside.root, m.root)]
    if not candidates:
        return inside.source
    best = max(candidates, key=lambda mount: len(mount.root))
    return os.path.normpath(f"{best.target}/{inside.root[len(best.root.rstrip('/')) :]}")


def set_loopback_up() -> None:
    """As on every node; containerd's streaming server binds there, and the CRI ends when it cannot."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh14x", b"lo", _IFF_UP)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, request)


def mount_tmpfs(target: Path) -> None:
    """Mount a tmpfs; ``target`` is made when it is missing."""
    target.mkdir(parents=True, exist_ok=True)
    if _libc.mount(b"tmpfs", bytes(target), b"tmpfs", ctypes.c_ulong(0), b"mode=755") != 0:
        detail = f"mount tmpfs on {target}: {os.strerror(ctypes.get_errno())}"
        raise ContainerdUnavailable(Cause.NO_MOUNTS, detail)


def share_mount(target: Path, *, recursive: bool = False) -> None:
    """Let what is mounted below from now on be seen where this mount is mounted, too, as systemd has it."""
    flags = _MS_SHARED | (_MS_REC if recursive else 0)
    if _libc.mount(None, bytes(target), None, ctypes.c_ulong(flags), None) != 0:
        raise ContainerdUnavailable(Cause.NO_MOUNTS, f"share {target}: {os.strerror(ctypes.get_errno())}")


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Let a folder be seen at another place, too, which is made; with what is mounted in it now. Or a file
    at the place of one that is there."""
    if not source.is_file():
        target.mkdir(parents=True, exist_ok=True)
    for flags in (_MS_BIND | _MS_REC, *([_MS_BIND | _MS_REMOUNT | _MS_RDONLY] if read_only else ())):
        if _libc.mount(bytes(source), bytes(target), None, ctypes.c_ulong(flags), None) != 0:
            detail = f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}"
            raise ContainerdUnavailable(Cause.NO_MOUNTS, detail)


def unmount_below(folder: Path) -> None:
    """Detach ``folder`` and every mount under it, the latest first. Repeatable."""
    for mount in reversed(read_mounts()):
        if _is_below(mount.target, str(folder)):
            _libc.umount2(os.fsencode(mount.target), _MNT_DETACH)


def make_cgroups(name: str) -> None:
    """Make the parent cgroup of all pods in every hierarchy, and sweep what a killed testbed left there.

    Raises:
        ContainerdUnavailable: no cgroup file system, a read-only one (an unprivileged container), or one
            without the controllers.
    """
    roots = _read_cgroup_roots()
    if not roots:
        raise ContainerdUnavailable(Cause.NO_CGROUPS, "no cgroup file system is mounted")
    _sweep_stale_cgroups(roots)
    for root in roots:
        _check_controllers(root)
        try:
            (root / name).mkdir()
        except OSError as error:
            remove_cgroups(name)
            raise ContainerdUnavailable(Cause.NO_CGROUPS, f"mkdir in {root}: {error.strerror}") from error


def enable_controllers() -> None:
    """Enable the cgroup v2 controllers that a kubelet expects, as runc would with the first container."""
    with contextlib.suppress(FileNotFoundError):
        offered = (_UNIFIED_ROOT / "cgroup.controllers").read_text().split()
        for controller in _KUBELET_CONTROLLERS.intersection(offered):
            (_UNIFIED_ROOT / "cgroup.subtree_control").write_text(f"+{controller}")


def remove_cgroups(name: str) -> None:
    """Remove the cgroup and its children from every hierarchy; they must be empty of processes."""
    for root in _read_cgroup_roots():
        _remove_cgroup(root / name)


def find_cgroup_processes(name: str) -> set[int]:
    """Pids of everything that runs in the pods of this runtime."""
    return {pid for root in _read_cgroup_roots() for pid in _read_processes(root / name)}


def find_shims(address: Path) -> set[int]:
    """Pids of the shims that were started by the containerd of this socket."""
    wanted = os.fsencode(address)
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if arguments[0].endswith(b"containerd-shim-runc-v2") and wanted in arguments:
                found.add(int(folder.name))
    return found


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL, ignoring processes that have ended, and reap our own orphans."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _parse_mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    left, right = before.split(), after.split()
    root, target, source = (_unescape(text) for text in (left[3], left[4], right[1]))
    return Mount(left[2], root, target, right[0], source)


def _unescape(text: str) -> str:
    """Blanks and backslashes are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _is_below(path: str, folder: str) -> bool:
    folder = folder.rstrip("/")
    return path == folder or path.startswith(f"{folder}/")


def _read_cgroup_roots() -> list[Path]:
    return [Path(m.target) for m in read_mounts() if m.kind in {"cgroup", "cgroup2"}]


def _check_controllers(root: Path) -> None:
    """Where there is version 2 alone, runc needs its ``cpu``; next to version 1 it does not matter."""
    if root == _UNIFIED_ROOT and "cpu" not in (root / "cgroup.controllers").read_text().split():
        raise ContainerdUnavailable(Cause.NO_CGROUPS, f"the cgroup at {root} has no cpu controller")


def _sweep_stale_cgroups(roots: Iterable[Path]) -> None:
    """A testbed that was killed cannot remove its cgroups: they are in no namespace."""
    oldest = time.time() - _STALE_SECONDS
    for root in roots:
        for folder in root.glob(f"{CGROUP_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):  # its owner was quicker
                if folder.stat().st_mtime < oldest and not set(_read_processes(folder)):
                    _remove_cgroup(folder)


def _read_processes(folder: Path) -> Iterator[int]:
    for path, _, _ in os.walk(folder):  # it bears that folders go meanwhile, as those of dying pods do
        with contextlib.suppress(OSError):
            # 0 stands for a process outside our pid namespace, and kill(2) takes it for our own group.
            yield from (pid for text in Path(path, "cgroup.procs").read_text().split() if (pid := int(text)))


def _remove_cgroup(folder: Path) -> None:
    """Deepest first; rmdir(2) is the only way, the files in a cgroup cannot be unlinked."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(path).rmdir()
