"""What somebody who has taken over the driver's process would try first, for a Python in its container.

Writes a line for each attempt that was not refused; with the argument ``left`` it makes those that are let
through by docs/guides/security.md. Sources: ``asm/unistd.h``, ``mount(2)``, ``setns(2)``, ``bpf(2)``,
``fsopen(2)``, ``proc(5)``.
"""

import ctypes
import errno
import os
import platform
import socket
import stat
import sys
from collections.abc import Callable
from functools import partial

NUMBERS = {
    # name: (x86-64, arm64), and arguments that do harm to nobody where they are let through
    "init_module": (175, 105, 0, 0, 0),
    "finit_module": (313, 273, -1, 0, 0),
    "open_by_handle_at": (304, 265, -1, 0, 0),
    "ptrace": (101, 117, 0, 0, 0),
    "process_vm_readv": (310, 270, 1, 0, 0),
    "pidfd_getfd": (438, 438, -1, 0, 0),
    "perf_event_open": (298, 241, 0, 0, 0),
    "io_uring_setup": (425, 425, 1, 0, 0),
    "userfaultfd": (323, 282, 0, 0, 0),
    "keyctl": (250, 219, 0, 0, 0),
    "open_tree": (428, 428, -1, 0, 0),
    "move_mount": (429, 429, -1, 0, -1),
    "mount_setattr": (442, 442, -1, 0, 0),
    "pivot_root": (155, 41, 0, 0, 0),
    "chroot": (161, 51, 0, 0, 0),
    "unshare mounts": (272, 97, 0x00020000, 0, 0),
    "unshare users": (272, 97, 0x10000000, 0, 0),
    "bpf: load a program": (321, 280, 5, 0, 0),
    "bpf: make a map": (321, 280, 0, 0, 0),
    "fsconfig: name a source": (431, 431, -1, 1, 0),
}
SOCKETS = {
    "vsock": (40, socket.SOCK_STREAM, 0),
    "kernel crypto": (38, socket.SOCK_SEQPACKET, 0),
    "audit": (socket.AF_NETLINK, socket.SOCK_RAW, 9),
    "netfilter": (socket.AF_NETLINK, socket.SOCK_RAW, 12),
}
FILES = ("/etc/passwd", "/usr/bin/dranet", "/proc/sys/kernel/core_pattern")
REFUSALS = (errno.EPERM, errno.ENOSYS, errno.EROFS, errno.EACCES)

libc = ctypes.CDLL(None, use_errno=True)


def try_number(name: str) -> None:
    x86_64, arm64, *arguments = NUMBERS[name]
    number = arm64 if platform.machine() == "aarch64" else x86_64
    check(libc.syscall(number, *map(ctypes.c_long, arguments)))


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def mount() -> None:
    check(libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, None))


def enter_mounts() -> None:
    check(libc.setns(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0))


def make_device() -> None:
    os.mknod("/dev/shm/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0))


ATTEMPTS: dict[str, Callable[[], object]] = {
    "mount": mount,
    "enter a mount namespace": enter_mounts,
    "make a device": make_device,
    **{name: partial(try_number, name) for name in NUMBERS},
    **{f"socket: {name}": partial(socket.socket, *kind) for name, kind in SOCKETS.items()},
    **{f"write {path}": partial(os.open, path, os.O_WRONLY | os.O_CREAT) for path in FILES},
}


def open_own_procfs() -> None:
    """Made with the calls by which the driver opens a pod's sysfs; nothing is written."""
    fsopen, fsconfig, fsmount, create = 430, 431, 432, 6
    context = libc.syscall(fsopen, b"proc", 0)
    check(context)
    check(libc.syscall(fsconfig, context, create, None, None, 0))
    mount = libc.syscall(fsmount, context, 0, 0)
    check(mount)
    os.open("sys/kernel/core_pattern", os.O_WRONLY, dir_fd=mount)


LEFT: dict[str, Callable[[], object]] = {
    "all of /proc/sys": open_own_procfs,
    "files of the node": partial(os.open, "/host/proc/1/root/etc/passwd", os.O_RDWR),
    "memory of its processes": partial(os.open, "/host/proc/1/root/proc/1/mem", os.O_RDWR),
}

if __name__ == "__main__":
    for name, attempt in (LEFT if sys.argv[1:] == ["left"] else ATTEMPTS).items():
        try:
            attempt()
        except OSError as error:
            if error.errno not in REFUSALS:
                sys.stdout.write(f"{name}: {error}\n")
        else:
            sys.stdout.write(f"{name}: done\n")
