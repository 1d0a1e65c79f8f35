"""A private process tree that the kernel removes whole, however it ends.

What this module is for: the testbed moves links, mounts file systems and starts daemons. It does so as
the child of an *init* process in namespaces of its own (mount, network, pid, ipc, uts, and user when the
caller is not root). The last reference to each namespace is held by that tree, and the death of its init
kills the tree, so that a crash, ``SIGKILL`` or Ctrl-C leaves no process, mount, link, file or namespace.
It talks to the kernel alone and knows nothing of hardware, pods or the driver.

    caller        forwards signals, waits, returns the exit code
     \\- keeper    unshares the namespaces and waits   (dies with the caller: PR_SET_PDEATHSIG)
         \\- init  pid 1 of the tree: mounts, reaps    (dies with the keeper, and takes the tree with it)
             \\- main()

Sources: ``namespaces(7)``, ``pid_namespaces(7)``, ``user_namespaces(7)``, ``prctl(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from dranet.errors import KernelError, Reason

WORK_DIR = Path("/run/dranet-testbed")
"""The tree's own folder, on a private tmpfs; short, because a UNIX socket's path has 107 bytes."""

_TREE_NAME = "dranet-testbed"
"""The source of that tmpfs, by which one who is in the tree knows it."""

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_libc = ctypes.CDLL(None, use_errno=True)


class IsolationRefused(KernelError):
    """This machine does not let the caller make the namespaces; ``hint`` is the remedy."""

    default_reason = Reason.MISSING_FEATURE
    default_retryable = False


@dataclass(frozen=True, slots=True)
class Confinement:
    """The kernel's settings about making namespaces here; ``None`` where it has no such setting."""

    user_id: int
    has_user_namespaces: bool
    unprivileged_userns_clone: int | None
    """``kernel.unprivileged_userns_clone``: Debian's switch."""
    max_user_namespaces: int | None
    """``user.max_user_namespaces``."""
    apparmor_restricts: int | None
    """``kernel.apparmor_restrict_unprivileged_userns``: Ubuntu's switch."""
    seccomp_mode: int
    """``Seccomp`` of ``/proc/self/status``; 2 is a filter, as in a container."""
    capabilities: int
    """``CapEff``."""

    @property
    def needs_user_namespace(self) -> bool:
        """Whether the caller lacks the two capabilities that the other namespaces and links want."""
        wanted = 1 << _CAP_SYS_ADMIN | 1 << _CAP_NET_ADMIN
        return self.capabilities & wanted != wanted


def read_confinement(procfs_root: Path = Path("/proc")) -> Confinement:
    """Read the state from ``/proc``; an absent setting is ``None``."""
    status = _read_status(procfs_root / "self/status")
    kernel = procfs_root / "sys/kernel"
    return Confinement(
        user_id=os.geteuid(),
        has_user_namespaces=(procfs_root / "self/ns/user").exists(),
        unprivileged_userns_clone=_read_number(kernel / "unprivileged_userns_clone"),
        max_user_namespaces=_read_number(procfs_root / "sys/user/max_user_namespaces"),
        apparmor_restricts=_read_number(kernel / "apparmor_restrict_unprivileged_userns"),
        seccomp_mode=int(status.get("Seccomp", "0")),
        capabilities=int(status.get("CapEff", "0"), 16),
    )


def explain_refusal(step: str, number: int, state: Confinement) -> IsolationRefused:
    """Turn a refused step into what is missing and how to fix it (pure)."""
    user = "root" if state.user_id == 0 else f"user {state.user_id}"
    cause, hint = _find_cause(step, number, state)
    return IsolationRefused(
        f"cannot isolate the testbed as {user}: {step}: {os.strerror(number)}: {cause}",
        errno=number,
        operation=step,
        hint=hint,
    )


def run_isolated(main: Callable[[], int]) -> int:
    """Run ``main`` in a private tree and return its exit code (128 + n when signal n ended it).

    The first SIGINT, SIGTERM, SIGHUP or SIGQUIT is forwarded to ``main``; a second one ends the tree at
    once, which is safe: the kernel cleans up. Call it from the main thread, before any other thread runs.

    Raises:
        IsolationRefused: with the reason and the remedy.
    """
    if threading.active_count() > 1:
        raise RuntimeError("run_isolated forks; call it before the first thread starts")
    _check_survives_covering([Path(sys.prefix), Path(sys.base_prefix), Path(__file__)])
    state = read_confinement()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        refusals, report = os.pipe()
        with _ParentPipe() as parent:
            keeper = os.fork()
            if keeper == 0:
                os.close(refusals)
                _exit_with(lambda: _keep(main, state, report, parent))
            os.close(report)
            code = _supervise(keeper, impatient=True)
        with os.fdopen(refusals) as lines:
            refusal = lines.read()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    if refusal:
        step, _, number = refusal.rpartition("=")
        raise explain_refusal(step, int(number), state)
    return code


def require_isolation() -> None:
    """What changes links and mounts asks first, so that a mistake never changes the machine's own.

    Raises:
        IsolationRefused: the caller is not in the tree of :func:`run_isolated`.
    """
    run = str(WORK_DIR.parent)
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    if (_TREE_NAME, run) not in ((source, place) for source, place, *_ in mounts):
        raise IsolationRefused(
            "not in a private tree: this would change the links and mounts of the machine itself",
            hint="call it inside run_isolated (of tests: pytest.mark.private_tree)",
        )


def _check_survives_covering(places: Sequence[Path]) -> None:
    """A tmpfs will cover ``/run``: what the program still has to load must not lie there."""
    for place in places:
        if place.resolve().is_relative_to(WORK_DIR.parent):
            raise IsolationRefused(
                f"{place} is below {WORK_DIR.parent}, which the private tree covers",
                hint="install Python and dranet elsewhere",
            )


class _ParentPipe:
    """A pipe whose end means that the forking process is gone: PR_SET_PDEATHSIG alone misses a parent
    that died before the call."""

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        os.close(self._write)

    def hold(self) -> None:
        """In the child: die with the parent from here on."""
        os.close(self._write)
        _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
        gone, _, _ = select.select([self._read], [], [], 0)
        os.close(self._read)
        if gone:
            os._exit(128 + signal.SIGKILL)


def _keep(main: Callable[[], int], state: Confinement, report: int, parent: _ParentPipe) -> int:
    os.setsid()  # Ctrl-C reaches the caller alone, which forwards it: exactly once
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    if state.needs_user_namespace:
        flags |= CLONE_NEWUSER
    try:
        _check(_libc.unshare(flags), "unshare")
        if flags & CLONE_NEWUSER:
            _map_to_root(user, group)
        parent.hold()  # after unshare: a change of credentials forgets the parent-death signal
        with _ParentPipe() as inner:
            init = os.fork()
            if init == 0:
                _exit_with(lambda: _init(main, report, inner))
            os.close(report)
            return _supervise(init)
    except _Refused as refused:
        return refused.send(report)


def _init(main: Callable[[], int], report: int, parent: _ParentPipe) -> int:
    try:
        parent.hold()
        _mount_private_tree()
    except _Refused as refused:
        return refused.send(report)
    os.close(report)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        _exit_with(main)
    return _supervise(child, reap_all=True)


def _map_to_root(user: int, group: int) -> None:
    """The caller becomes uid 0 of the new user namespace, which has no other user."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        try:
            Path("/proc/self", name).write_text(text)
        except OSError as error:
            raise _Refused(f"write {name}", error.errno or errno.EPERM) from error


def _mount_private_tree() -> None:
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount(_TREE_NAME, str(WORK_DIR.parent), "tmpfs", _MS_NOSUID, "mode=755")
    scratch = WORK_DIR / "tmp"
    scratch.mkdir(parents=True)
    os.environ["TMPDIR"] = str(scratch)
    socket.sethostname("testbed-node")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount {kind or 'private'} on {target}",
    )


class _Refused(Exception):
    """A step of the set-up failed; travels to the caller as ``step=errno`` over the report pipe."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(step, number)
        self.step = step
        self.number = number

    def send(self, report: int) -> int:
        os.write(report, f"{self.step}={self.number}".encode())
        return 1


def _check(result: int, step: str) -> None:
    if result != 0:
        raise _Refused(step, ctypes.get_errno())


def _supervise(child: int, *, reap_all: bool = False, impatient: bool = False) -> int:
    """Forward signals to ``child`` and wait for it; ``reap_all`` also buries orphans, as an init must."""
    previous = {number: signal.getsignal(number) for number in _FORWARDED}
    received = 0

    def forward(number: int, _frame: object) -> None:
        nonlocal received
        received += 1
        os.kill(child, signal.SIGKILL if impatient and received > 1 else number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    try:
        ended = -1
        while ended != child:
            ended, status = os.waitpid(-1 if reap_all else child, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # the child's number may be taken again
        for number, handler in previous.items():
            signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _exit_with(main: Callable[[], int]) -> NoReturn:
    """Run ``main`` in a forked child and never come back into the caller's code."""
    code = 1
    try:
        code = main()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    finally:
        if unexpected := sys.exception():  # the last line of this process: what is not printed is lost
            traceback.print_exception(unexpected)
        _flush()
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # the reader went away; the exit code still counts


def _find_cause(step: str, number: int, state: Confinement) -> tuple[str, str]:
    run_as_root = "or run it as root"
    if step == "mount proc on /proc" and number == errno.EPERM:
        return (
            "parts of /proc are hidden here, as in a container, so the kernel refuses a fresh one",
            "run it outside the container, or in a privileged one",
        )
    if not state.has_user_namespaces:
        return "this kernel has no user namespaces", "run it as root"
    if state.max_user_namespaces == 0:
        return (
            "user.max_user_namespaces is 0",
            f"sysctl -w user.max_user_namespaces=15000, {run_as_root}",
        )
    if state.unprivileged_userns_clone == 0:
        return (
            "kernel.unprivileged_userns_clone is 0",
            f"sysctl -w kernel.unprivileged_userns_clone=1, {run_as_root}",
        )
    if state.apparmor_restricts == 1:
        return (
            "kernel.apparmor_restrict_unprivileged_userns is 1: an ordinary user gets no rights in them",
            f"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, {run_as_root}",
        )
    if state.seccomp_mode == 2:
        return (
            "a seccomp filter is in force, as in a container",
            "run it outside the container, or in a privileged one",
        )
    if number == errno.ENOSPC:
        return "a limit on namespaces is reached", "raise the limits under /proc/sys/user, or end some"
    return "the kernel or its security module refuses", "run it as root, outside a container"


def _read_status(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return {key: value.strip() for key, _, value in lines}


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
