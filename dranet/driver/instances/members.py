"""Which instances of the driver live on this node, and the lock that they share on its devices.

Each instance has one locked file in a common folder. The kernel drops the lock of a process however it ends,
so a file without one belongs to a dead instance, whose sockets are no longer served. The folder is also where
one instance leaves word for another: a watcher (``kubelet.folder.FolderWatch``) is woken when an instance
comes, goes or asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from pathlib import Path

from dranet import files
from dranet.errors import DranetError, HookDeadlineError, KernelError, Reason, SettingsError, StoreError
from dranet.failpoints import Failpoint, reached
from dranet.files import FileLock, NamedLocks, is_lock_held
from dranet.kubelet.plugin import ClaimLocks
from dranet.kubelet.sockets import OwnerLock, remove_dead_socket

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long the end of the driver waits for a hook that is left behind in the kernel."""


class NodeLock:
    """Repeatable within a thread. A process that ends, however it ends, no longer blocks others."""

    def __init__(self, path: Path) -> None:
        self._threads = threading.RLock()
        self._depth = 0
        """How often the thread that has the lock has taken it."""
        self._processes = FileLock(path)
        """Belongs to the thread that has ``_threads``."""

    @contextmanager
    def hold(self, timeout_seconds: float, reason: Reason | None) -> Iterator[None]:
        """Acquire the lock, waiting up to ``timeout_seconds``.

        Raises:
            KernelError: another thread or process has it for longer; with ``reason``.
            StoreError: the lock's file cannot be opened.
        """
        deadline = time.monotonic() + timeout_seconds
        if not self._threads.acquire(timeout=max(0.0, timeout_seconds)):
            is_ours = self._depth > 0  # else the thread that has it also waits for another process
            raise _busy(timeout_seconds, reason, "" if is_ours else self._processes.describe_holder())
        try:
            if self._depth == 0 and not self._processes.acquire(deadline):
                raise _busy(timeout_seconds, reason, self._processes.describe_holder())
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._processes.release()
        finally:
            self._threads.release()

    @contextmanager
    def close(self) -> Iterator[bool]:
        """Hold off the threads of this process, then let the file go. Whether that could be: a thread that
        hangs in the kernel keeps all, and ends with the process."""
        if not self._threads.acquire(timeout=CLOSE_SECONDS):
            yield False
            return
        try:
            yield True
            self._processes.close()
        finally:
            self._threads.release()


def _busy(seconds: float, reason: Reason | None, holder: str = "") -> KernelError:
    where = holder and f", in {holder}"
    kind = HookDeadlineError if reason is Reason.HOOK_DEADLINE_EXCEEDED else KernelError
    return kind(
        f"another attach or release on this node took longer than {seconds:.3g} s{where}",
        operation="wait for the node's devices",
        reason=reason,
    )


LOCK_FILE = "work.lock"
"""Next to the store: instances that share the store share the locks."""
WAIT_SECONDS = 20.0
"""For another instance. Less than the kubelet's caller is given (``kubelet.plugin.ANSWER_SECONDS``), so that
the pod's Events name what it waits for."""


class Work(StrEnum):
    """Kinds of names; the same name of two kinds is two locks."""

    CLAIM = "claim"
    DEVICE = "device"
    LINK = "link"
    ENDING_LEASES = "ending leases of claim"
    """The claim's leases are being released, and its record follows them."""


class WorkLocks:
    def __init__(self, folder: Path) -> None:
        self._here = ClaimLocks()
        """Tasks of this process wait in turn, and without asking the kernel again and again."""
        self._across = NamedLocks(folder / LOCK_FILE)
        self._folder = folder

    @asynccontextmanager
    async def hold(self, work: Work, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold all of them.

        Raises:
            KernelError: another instance has one of them for longer than :data:`WAIT_SECONDS`.
            StoreError: the lock file cannot be used.
        """
        keys = [f"{work} {name}" for name in names]
        async with self._here.hold(keys), AsyncExitStack() as held:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await held.enter_async_context(self._across.hold(keys))
            except TimeoutError:
                raise self._busy(keys) from None
            yield

    def _busy(self, keys: Iterable[str]) -> KernelError:
        living = ", ".join(list_living(self._folder / FOLDER)) or "none"
        return KernelError(
            f"another instance of the driver works on {', '.join(keys)}, for over {WAIT_SECONDS:g} s now",
            operation="wait for another instance",
            hint=f"does it hang, or is it stopped? Pods of the driver that live here: {living}",
        )

    def is_held(self, work: Work, name: str) -> bool:
        """Whether it is held, in this process or another.

        Raises:
            StoreError: the lock file cannot be used.
        """
        return self._across.is_held(f"{work} {name}")


FOLDER = "instances"
"""In the state folder."""
_OWNER = "driver.lock"
"""Next to that folder: names the owner of the state folder."""
_TIDYING = "tidying.lock"
"""In the same folder: held while the files of dead instances are removed."""
_LOCK = ".lock"
_REQUEST = ".wants-duties"
_GOODBYE = ".is-leaving"
_ALONE = "(alone)"
"""An instance without a pod UID; no UID has parentheses."""
_JOIN_SECONDS = 2.0
"""Others look whether we live by taking our lock for a moment; longer it is held by a namesake only."""


class Members:
    """The living instances, by pod UID; ``sockets_of`` names the sockets that one of them would have. All
    are of the driver ``driver_name``."""

    def __init__(
        self, folder: Path, pod_uid: str, sockets_of: Callable[[str], Iterable[Path]], driver_name: str = ""
    ) -> None:
        self.folder = folder
        self._own = pod_uid or _ALONE
        self._sockets_of = sockets_of
        self._lock = FileLock(self._path(self._own))
        self._owner = OwnerLock(
            folder.parent / _OWNER,
            shared=bool(pod_uid),
            identity=f"the name {driver_name}" if driver_name else "",
        )

    def join(self) -> None:
        """Be one of them, and tidy up behind those that are dead. Blocks for a moment.

        Raises:
            SettingsError: a process with our pod UID lives, or a driver of another name has the state folder.
            StoreError: the folder cannot be used.
        """
        try:
            files.make_folder(self.folder.parent, is_setting=True)
            files.make_folder(self.folder)
        except OSError as error:
            raise SettingsError(
                f"cannot use folder {self.folder}: {error.strerror}",
                hint=files.hint_for(error, "check --state-dir"),
            ) from error
        self._owner.acquire()
        if not self._lock.acquire(time.monotonic() + _JOIN_SECONDS):
            pid = self._lock.read_holder()
            holder = f" (pid {pid})" if pid else ""
            raise SettingsError(
                f"another driver{holder} has the same pod UID, {self._own}",
                hint="set --pod-uid to metadata.uid of the driver's own pod",
            )
        self._withdraw_words(self._own)  # of a dead process: a container that restarts has the same UID
        self._remove_dead()
        reached(Failpoint.HANDOVER_JOINED)

    def stay(self) -> None:
        """Restore our file if it was removed: others would take us for dead. Repeatable."""
        if self._lock.is_in_place():
            return
        if self._lock.held:
            log.warning("%s was removed while this instance lives: making it again", self._lock.path)
        self._lock.close()
        try:
            files.make_folder(self.folder)
            self._lock.try_acquire()
        except (OSError, StoreError) as error:
            log.debug("cannot make %s again: %s", self._lock.path, error)

    def leave(self) -> None:
        """Be gone for the others; repeatable. The last thing that an instance does."""
        if self._lock.held:
            _remove(self._lock.path)
            reached(Failpoint.HANDOVER_NAME_REMOVED)
            self._withdraw_words(self._own)  # afterwards: in between we must not look like staying
        self._lock.close()
        self._owner.release()

    def find_others(self) -> frozenset[str]:
        return frozenset(name for name in self._list_names(_LOCK) - {self._own} if self._lives(name))

    # Word for another one

    def request(self) -> None:
        """Ask the leader to hand over; repeatable."""
        self._leave_word(_REQUEST)
        reached(Failpoint.HANDOVER_REQUEST_LEFT)

    def find_askers(self) -> frozenset[str]:
        """Those that asked, also when they are dead by now."""
        return self._list_names(_REQUEST)

    def withdraw_request(self, name: str = "") -> None:
        """Ours, or that of ``name``: it is fulfilled or void. Wakes who asked. Repeatable."""
        _remove(self._path(name or self._own, _REQUEST))

    def announce_leaving(self) -> None:
        """Announce that we leave, so no instance relies on us. Holds until :meth:`leave`."""
        self._leave_word(_GOODBYE)

    def find_leaving(self) -> frozenset[str]:
        """The instances that have announced it, including dead ones."""
        return self._list_names(_GOODBYE)

    def _leave_word(self, word: str) -> None:
        try:
            files.touch(self._path(self._own, word))
        except OSError as error:
            log.debug("cannot notify the other instances: %s", error)

    def _withdraw_words(self, name: str) -> None:
        for word in (_REQUEST, _GOODBYE):
            _remove(self._path(name, word))

    # Living instances

    def _path(self, name: str, suffix: str = _LOCK) -> Path:
        return self.folder / f"{name}{suffix}"

    def _list_names(self, suffix: str) -> frozenset[str]:
        """Entries that are not files are ignored."""
        found = self.folder.glob(f"*{suffix}")
        return frozenset(path.name.removesuffix(suffix) for path in found if files.is_file(path))

    def _lives(self, name: str) -> bool:
        """A lock that cannot be asked for counts as held."""
        try:
            return is_lock_held(self._path(name))
        except DranetError as error:
            log.debug("cannot see whether instance %s lives: %s", name, error)
            return True

    def _remove_dead(self) -> None:
        """One instance at a time: a slower one would remove what a newcomer of that name has made since. An
        instance that ran alone has no file here, and we hold its lock on the plugin folder."""
        with contextlib.closing(FileLock(self.folder.parent / _TIDYING)) as turn:
            if _can_take(turn):
                for name in (self._list_names(_LOCK) | {_ALONE}) - {self._own}:
                    self._remove_leavings(name)

    def _remove_leavings(self, name: str) -> None:
        """Remove the files of a dead instance. While we share its lock, no process can start under its name,
        and none takes it for alive: it may have asked to lead."""
        with contextlib.closing(FileLock(self._path(name))) as lock:
            if not _can_take(lock, shared=True):
                return
            for path in self._sockets_of(name if name != _ALONE else ""):
                if remove_dead_socket(path):
                    log.info("removed %s, left behind by a dead instance of the driver", path)
            self._withdraw_words(name)
            _remove(self._path(name))


def _can_take(lock: FileLock, *, shared: bool = False) -> bool:
    """Whether the lock can be taken; one that cannot be opened leaves its instance's files alone."""
    try:
        return lock.try_acquire(shared=shared)
    except StoreError as error:
        log.warning("left as it is: %s", error)
        return False


def list_living(folder: Path) -> list[str]:
    """Pod UIDs of all that live, ourselves included, for messages."""
    return sorted(Members(folder, "", lambda _: ()).find_others())


def _remove(path: Path) -> None:
    """What cannot be removed, as on a disk that turned read-only, is void when its owner is dead."""
    try:
        files.remove_file(path)
    except OSError as error:
        log.debug("cannot remove %s: %s", path, error)
