"""The seccomp profile of the driver's container: which system calls it may make, each group with its reason.

Everything else is answered with ENOSYS, as by a kernel that has it not: libc and Python go on in an older way
then, where EPERM is an error to them. So a newer C library needs no newer profile for what it merely prefers,
under runc and crun alike. The format is that of the OCI runtime specification, which containerd and CRI-O
take from a file below the kubelet's ``seccomp`` folder. Numbers are those of ``linux/*.h``, the same on both
architectures. Names that an architecture does not have are skipped there.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from msgspec import Struct

ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")

_ENOSYS = 38

_NEW_NAMESPACES = 0x7E020000
"""``CLONE_NEW*`` of ``linux/sched.h``, all of them."""
_CLONE_NEWNET = 0x40000000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _AF_PACKET = 1, 2, 10, 16, 17
_NETLINK_ROUTE, _NETLINK_KOBJECT_UEVENT, _NETLINK_GENERIC, _NETLINK_RDMA = 0, 15, 16, 20

_BPF_COMMANDS = (9, 11, 13, 15, 16, 30, 31, 34)
"""Take off (9, 34), list (11, 31), open by number (13, 30), describe (15), ask a hook (16); nothing loads."""
_FSCONFIG_COMMANDS = (0, 6, 7)
"""Set a flag, create, change. Not the ones that name a source: no disk and no folder can be mounted."""


class Argument(Struct, frozen=True):
    """What one argument must be; with a mask, what the masked bits must be."""

    index: int
    value: int
    mask: int = 0

    def build(self) -> dict[str, Any]:
        if self.mask:
            return {
                "index": self.index,
                "value": self.mask,
                "valueTwo": self.value,
                "op": "SCMP_CMP_MASKED_EQ",
            }
        return {"index": self.index, "value": self.value, "op": "SCMP_CMP_EQ"}


class SyscallRule(Struct, frozen=True):
    """A group of system calls that are let through, or answered with ``errno``. ``cases``: sets of conditions
    on the arguments, of which one must hold; without any it always does."""

    name: str
    calls: tuple[str, ...]
    why: str
    without: str = ""
    """What fails; empty for what every program needs."""
    cases: tuple[tuple[Argument, ...], ...] = ()
    errno: int = 0
    needs: tuple[str, ...] = ()
    """Capabilities without which it is refused all the same."""
    feature: str = ""
    """What one may do without, and leave the rule out then."""

    def build(self) -> list[dict[str, Any]]:
        """As the profile has it: one entry for each set of conditions."""
        entry: dict[str, Any] = {"names": sorted(self.calls), "action": "SCMP_ACT_ALLOW"}
        if self.errno:
            entry |= {"action": "SCMP_ACT_ERRNO", "errnoRet": self.errno}
        return [
            {**entry, "args": [argument.build() for argument in case]} if case else entry
            for case in self.cases or ((),)
        ]


def _each(index: int, values: tuple[int, ...]) -> tuple[tuple[Argument, ...], ...]:
    return tuple((Argument(index, value),) for value in values)


_NETLINK = tuple(
    (Argument(0, _AF_NETLINK), Argument(2, protocol))
    for protocol in (_NETLINK_ROUTE, _NETLINK_KOBJECT_UEVENT, _NETLINK_GENERIC, _NETLINK_RDMA)
)

EVERYDAY = (
    SyscallRule("memory", ("mmap", "mprotect", "munmap"), "memory of Python and its libraries"),
    SyscallRule(
        "threads",
        ("exit_group", "futex", "sched_getparam", "sched_getscheduler"),
        "threads of Python and gRPC, and their end",
    ),
    SyscallRule(
        "clone",
        ("clone",),
        "new threads; no namespaces",
        cases=((Argument(0, 0, _NEW_NAMESPACES),),),
    ),
    SyscallRule(
        "clone3",
        ("clone3",),
        "a filter cannot see its flags: libc goes on with `clone`",
        errno=_ENOSYS,
    ),
    SyscallRule(
        "signals",
        ("rt_sigaction", "rt_sigprocmask", "rt_sigtimedwait", "tgkill"),
        "SIGTERM, and the end in time",
    ),
    SyscallRule(
        "process",
        (
            "arch_prctl", "execve", "geteuid", "getpid", "umask", "uname",
        ),
        "start of the program, and information about itself",
    ),
    SyscallRule(
        "files",
        (
            "access", "chmod", "close", "fchmod", "fcntl", "flock", "fstatfs", "fsync",
            "getdents64", "mkdir", "newfstatat", "openat", "pread64", "pwrite64",
            "read", "readlink", "readlinkat", "rename", "rmdir", "statfs", "symlink", "unlink", "write",
        ),
        "its programs, its state, sysfs and procfs",
    ),
    SyscallRule(
        "waiting",
        ("epoll_create1", "epoll_ctl", "epoll_wait", "poll", "ppoll"),
        "the event loop and gRPC",
    ),
    SyscallRule("ioctl", ("ioctl",), "questions to sockets, terminals and namespaces"),
    SyscallRule(
        "sockets",
        (
            "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
            "recvmsg", "sendmsg", "sendto", "setsockopt", "shutdown", "socketpair",
        ),
        "API server, kubelet, runtime, netlink, probes",
    ),
)  # fmt: skip
"""What the driver is seen to need on x86-64 with the C library of Debian."""

FALLBACKS = (
    SyscallRule(
        "unmissed",
        (
            "brk", "clock_nanosleep", "eventfd2", "exit", "ftruncate", "getcwd", "getrandom", "gettid",
            "inotify_add_watch", "inotify_init1", "lseek", "madvise", "mremap", "prctl", "prlimit64", "rseq",
            "rt_sigreturn", "set_robust_list", "set_tid_address", "stat", "sysinfo", "truncate",
        ),
        "made, and done without at a price: folders looked at by time, memory not returned, threads that "
        "spin instead of ending",
    ),
    SyscallRule(
        "other-forms",
        (
            "accept", "close_range", "dup", "dup2", "dup3", "epoll_pwait", "epoll_pwait2", "eventfd",
            "faccessat", "faccessat2", "fadvise64", "fallocate", "fchmodat", "fchmodat2", "fchown",
            "fchownat", "fstat", "getrlimit", "inotify_rm_watch", "link", "linkat", "lstat", "mkdirat",
            "open", "pipe", "pipe2", "pselect6", "readv", "recvmmsg", "renameat", "renameat2", "select",
            "sendmmsg", "statx", "symlinkat", "unlinkat", "utimensat", "writev",
        ),
        "forms of the calls above that arm64, or another version of the C library, takes instead",
    ),
    SyscallRule(
        "without-vdso",
        ("clock_getres", "clock_gettime", "getcpu", "gettimeofday", "nanosleep", "restart_syscall"),
        "the time and the CPU, where the kernel does not provide them without a call (some virtual machines)",
    ),
    SyscallRule(
        "of-the-runtime",
        ("getppid", "kill", "sched_yield", "sigaltstack", "wait4"),
        "what runc does between taking on the profile and starting the program, or an `exec`",
    ),
    SyscallRule(
        "seldom",
        (
            "get_robust_list", "getegid", "getgid", "getrusage", "getuid", "memfd_create",
            "sched_getaffinity",
        ),
        "the report of a crash, a client certificate in a kubeconfig, how many CPUs there are",
    ),
    SyscallRule(
        "plugins",
        ("setsid", "vfork"),
        "start an IPAM plugin of CNI in a session of its own, so that it can be ended with its children, and "
        "without the handlers that gRPC has for a fork",
    ),
)  # fmt: skip
"""Not taken on every machine; each is harmless, and its refusal would be hard to find."""

CHOSEN = (
    SyscallRule(
        "socket-plain",
        ("socket",),
        "sockets of UNIX and IP",
        "the driver reaches neither the kubelet nor the API server",
        cases=_each(0, (_AF_UNIX, _AF_INET, _AF_INET6)),
    ),
    SyscallRule(
        "socket-netlink",
        ("socket",),
        "the kernel's tables of links, routes, RDMA devices; ethtool; notifications and uevents",
        "the driver does not start: it cannot read the node's links",
        cases=_NETLINK,
    ),
    SyscallRule(
        "socket-packet",
        ("socket",),
        "DHCP, before a NIC has an address; probes for addresses in use; LLDP with `lldp: listen`",
        "claims with `dhcp: true` are refused at Prepare, `address_conflicts` finds nothing, and "
        "`lldp: listen` hears no switch",
        cases=_each(0, (_AF_PACKET,)),
        needs=("NET_RAW",),
        feature="`dhcp: true`, `address_conflicts` and `lldp: listen`",
    ),
    SyscallRule(
        "setns",
        ("setns",),
        "enter the network namespace of a pod, and no other kind of namespace",
        "no claim is prepared: the network namespace of a pod could not be entered",
        cases=_each(1, (_CLONE_NEWNET,)),
        needs=("SYS_ADMIN",),
    ),
    SyscallRule(
        "bpf",
        ("bpf",),
        "see BPF programs on a NIC and take one off; not load any",
        "slices do not show which TCX programs are on a NIC, what a pod leaves there stays, and claims with "
        "`disableEbpfPrograms` are refused",
        cases=_each(0, _BPF_COMMANDS),
        needs=("SYS_ADMIN",),
        feature="BPF programs on NICs",
    ),
    SyscallRule(
        "mount-sysfs",
        ("fsmount", "fsopen", "fspick"),
        "open the sysfs of a pod's namespace on a file descriptor: queues and RDMA devices of a NIC in a pod"
        "; the node's configfs likewise: defaults of `rdma_cm`",
        "claims with `cpuLocality.xps` or `rps` are refused; no virtual functions are made; `rdma_cm` "
        "forgets its defaults in a move",
        needs=("SYS_ADMIN",),
        feature="`cpuLocality`, RDMA devices in pods, and `virtualFunctions`",
    ),
    SyscallRule(
        "mount-options",
        ("fsconfig",),
        "the same; commands that name a source are not among them",
        "claims with `cpuLocality.xps` or `rps` are refused; no virtual functions are made",
        cases=_each(1, _FSCONFIG_COMMANDS),
        needs=("SYS_ADMIN",),
        feature="`cpuLocality`, RDMA devices in pods, and `virtualFunctions`",
    ),
)
"""Calls whose arguments are looked at."""

RULES = (*EVERYDAY, *CHOSEN, *FALLBACKS)


def build_seccomp_profile(rules: tuple[SyscallRule, ...] = RULES) -> dict[str, Any]:
    """The profile as a JSON document."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "architectures": list(ARCHITECTURES),
        "syscalls": [entry for rule in rules for entry in rule.build()],
    }


def render_seccomp_profile() -> str:
    """The file's text; the same for the same rules."""
    return json.dumps(build_seccomp_profile(), indent=1) + "\n"


SECCOMP_NAME = f"dranet-{hashlib.sha256(render_seccomp_profile().encode()).hexdigest()[:12]}.json"
"""Named by its content, because profiles of two versions coexist while one replaces the other."""
