"""What containers see of claims below the state folder: the start gate's ready files, and folders of files.

A container whose NIC is not verified in its namespace does not start: its CDI device mounts a *ready file*, a
link to the namespace of the sandbox where the claim was verified. So the OCI runtime can mount it only while
that sandbox lives, also where the runtime has skipped our hook. The file of a claim from a template, which
belongs to one pod, stays while the sandbox exists. Any pod may name another claim: its file is there only
while a container of the right pod is being started (:class:`StartWindows`; decision 003).
"""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet import files
from dranet.errors import ProtocolError, StoreError
from dranet.failpoints import Failpoint, reached
from dranet.files import FileLock
from dranet.kernel.sysfs.files import find_path_of_process
from dranet.model.claim import Mount
from dranet.model.plan import PreparedClaim
from dranet.runtime.containers import is_name

log = logging.getLogger(__name__)

CONTAINER_FOLDER = "/var/run/dranet/claims"
"""Where a container sees the ready files of its claims."""
WINDOW_SECONDS = 60.0
"""A container that was not started within this time is not going to start: the runtime is at work as soon as
it has our answer."""
LOCK_SECONDS = 0.5
"""How long one waits for the other instance of a rolling update, which holds the lock for small writes."""
_LOCK = ".lock"
_TEMPORARY = ".new"


class StartGate:
    """The ready files below ``<state_dir>/ready``, and the notes of what is attached below
    ``<state_dir>/attached``; all are links to namespaces. Methods may be repeated. They raise
    :class:`StoreError` where the disk refuses, and :class:`ProtocolError` for a UID that cannot be part of a
    path."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "ready"
        self._notes = state_dir / "attached"

    def mount_for(self, claim_uid: str) -> Mount:
        """The mount that holds a container back until the claim is attached."""
        return Mount(source=str(self._folder / claim_uid), destination=f"{CONTAINER_FOLDER}/{claim_uid}")

    def find_claim(self, source: str) -> str | None:
        """UID of the claim whose ready file this source of a mount is; ``None`` for any other. Quick: a
        Synchronize asks it of each mount of the node."""
        folder, _, name = source.rpartition("/")
        return name if folder == str(self._folder) else None

    def is_attached(self, claim_uid: str) -> bool:
        """Whether the claim was verified in a sandbox that lives."""
        return _leads_somewhere(self._notes / claim_uid)

    def read_attached_at(self, claim_uid: str) -> float | None:
        """Since when (unix seconds), from the file's own timestamp."""
        try:
            return (self._notes / claim_uid).lstat().st_mtime
        except OSError:
            return None

    def is_open(self, claim_uid: str) -> bool:
        """Whether a container of the claim could start now."""
        return _leads_somewhere(self._folder / claim_uid)

    def note_attached(self, claim_uid: str, netns_path: str) -> None:
        """The claim is verified in the sandbox with this network namespace; its containers wait."""
        _put_link(self._notes, claim_uid, netns_path)

    def open(self, claim_uid: str, netns_path: str) -> None:
        _put_link(self._folder, claim_uid, netns_path)

    def open_again(self, claim_uid: str) -> None:
        """The same, for the sandbox in which the claim was verified. Where it was not: StoreError."""
        try:
            netns_path = (self._notes / _checked(claim_uid)).readlink()
        except OSError as error:
            raise _unwritable(self._notes / claim_uid, error) from error
        self.open(claim_uid, str(netns_path))

    def shut(self, claim_uid: str) -> None:
        """Hold the claim's containers back; it stays attached. After an error containers may still start."""
        _take_link(self._folder, claim_uid)

    def close(self, claim_uid: str) -> None:
        """Hold the claim's containers back; it is attached nowhere. After an error they may still start."""
        self.shut(claim_uid)
        _take_link(self._notes, claim_uid)

    def list_claims(self) -> frozenset[str]:
        """UIDs of claims that have files here, also where the sandbox has ended since."""
        return frozenset(_list_links(self._folder)) | frozenset(_list_links(self._notes))


def _leads_somewhere(path: Path) -> bool:
    """Whether the namespace is there that a file links to. That of a process (``/proc/PID/ns/net``) is one of
    the node's processes, which our own ``/proc`` may not show."""
    if not path.is_symlink():
        return path.exists()
    return Path(find_path_of_process(str(path.readlink()))).exists()


def _checked(name: str) -> str:
    if not is_name(name):
        raise ProtocolError(f"{name!r} cannot be part of a path")
    return name


def _put_link(folder: Path, claim_uid: str, target: str) -> None:
    """Replaces an older one at once; one that leads there already needs no disk that takes anything."""
    path, fresh = folder / _checked(claim_uid), folder / f".{claim_uid}"
    try:
        if path.is_symlink() and str(path.readlink()) == target:
            return
        files.make_folder(folder)
        _remove_link(fresh)
        _check_link(path)
        fresh.symlink_to(target)
        reached(Failpoint.ATTACH_GATE_STAGED)
        fresh.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _take_link(folder: Path, claim_uid: str) -> None:
    path = folder / _checked(claim_uid)
    try:
        files.check_folder(folder)
        _remove_link(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(path, error) from error


def _list_links(folder: Path) -> list[str]:
    try:
        files.check_folder(folder)
        # What a crash left of one begins with a dot, and does not count.
        return [entry.name for entry in folder.iterdir() if is_name(entry.name) and entry.is_symlink()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unwritable(folder, error) from error


def _remove_link(path: Path) -> None:
    _check_link(path)
    if path.is_symlink():  # a read-only disk also refuses to remove what does not exist
        path.unlink(missing_ok=True)


def _check_link(path: Path) -> None:
    """Anything else would let the containers start, or belongs to another program."""
    if not path.is_symlink() and path.exists():
        raise files.NotOurs("no link to a network namespace", path)


def _unwritable(path: Path, error: OSError) -> StoreError:
    on_disk = "is the state folder a writable mount with free space?"
    return StoreError(f"ready file {path}: {error.strerror}", hint=files.hint_for(error, on_disk))


def may_be_shared(claim: PreparedClaim) -> bool:
    return not claim.pod_claim_name


class StartWindows:
    """Containers between two events of the runtime; called on the NRI thread, except :meth:`sweep`. One lock:
    a sweep that has seen no container must not shut what one is given just then."""

    def __init__(self, gate: StartGate, now: Callable[[], float] = time.monotonic) -> None:
        self._gate = gate
        self._now = now
        self._lock = threading.Lock()
        self._starting: dict[str, dict[str, float]] = {}
        """By pod UID and container ID: since when."""

    def begin(self, pod_uid: str, container_id: str, claims: Iterable[PreparedClaim]) -> None:
        """The pod's devices were verified for this container: it may start. After an error it must not."""
        with self._lock:
            for claim in claims:
                if may_be_shared(claim) or not self._gate.is_open(claim.claim.uid):
                    self._gate.open_again(claim.claim.uid)
            self._starting.setdefault(pod_uid, {})[container_id] = self._now()

    def end(self, pod_uid: str, container_id: str, claims: Iterable[PreparedClaim]) -> None:
        """The container has its mounts."""
        with self._lock:
            self._starting.get(pod_uid, {}).pop(container_id, None)
            self._shut(pod_uid, claims)

    def sweep(self, pod_uid: str, claims: Iterable[PreparedClaim]) -> None:
        """Shut what a container that never came, or a driver that was killed, has left open."""
        with self._lock:
            self._shut(pod_uid, claims)

    def forget(self, pod_uid: str) -> None:
        """The pod's sandbox has ended, and its gates with it. Waits for no disk: one that hangs delays no
        pod's end."""
        self._starting.pop(pod_uid, None)

    def _shut(self, pod_uid: str, claims: Iterable[PreparedClaim]) -> None:
        starting = self._starting.get(pod_uid, {})
        oldest = self._now() - WINDOW_SECONDS
        if any(since > oldest for since in starting.values()):
            return
        self._starting.pop(pod_uid, None)
        for claim in claims:
            if may_be_shared(claim):
                self._gate.shut(claim.claim.uid)


FILE_MODE, FOLDER_MODE = 0o644, 0o755
"""Modes of what a container sees."""


class ClaimFolders:
    """The folders ``<state_dir>/<kind>/<claim uid>/<name>/`` of one kind; two instances may work on them.

    A container sees the last folder, read-only. A rename replaces a file, so that a reader finds the old one
    or the new one. Every user of a container may read it; the folders above are for the driver alone. No file
    is synced to the disk, so that the runtime's hook can write one: after a power cut all are written again.
    ``names`` are those of all files that may be in one; ``noun`` names them, ``hint`` what helps
    where the folder cannot be written. A name that cannot be part of a path is a :class:`ProtocolError`."""

    def __init__(self, root: Path, names: Collection[str], noun: str, hint: str = "") -> None:
        self._root = root
        self._names = names
        self._noun = noun
        self._hint = hint

    def folder_of(self, claim_uid: str, name: str) -> Path:
        return self._root / _checked(claim_uid) / _checked(name)

    @contextmanager
    def open_for_writing(self, claim_uid: str, name: str) -> Iterator[Path]:
        """The folder, made if it is not there; meanwhile no other thread or process writes for this claim.
        Raises StoreError, also for an OSError of the block."""
        folder = self.folder_of(claim_uid, name)
        try:
            files.make_folder(self._root, is_setting=not self._root.parent.exists())
            files.make_folder(folder.parent)
            files.make_folder(folder, FOLDER_MODE)
            with self._locked(claim_uid):
                yield folder
        except OSError as error:
            raise self._unwritable(folder, error) from error

    def replace(self, path: Path, content: bytes) -> None:
        folder = path.parent
        files.replace_file(path, folder.parent / f".{folder.name}{_TEMPORARY}", content, FILE_MODE)

    def remove(self, claim_uid: str) -> None:
        """Remove all folders of a claim; containers that still run lose their files. What the driver did not
        make there stays. What cannot be removed holds up no pod's end: it is harmless, and the next start
        tries again."""
        folder = self._root / _checked(claim_uid)
        try:
            files.check_folder(self._root)
            files.check_folder(folder)
            for path in folder.iterdir():
                with suppress(FileNotFoundError):  # the other instance also removes them
                    self._remove_own(path)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("left behind: %s", self._unwritable(folder, error))

    def _remove_own(self, path: Path) -> None:
        if stat.S_ISDIR(path.lstat().st_mode):
            for name in self._names:
                files.remove_file(path / name)
            path.rmdir()
        elif path.name == _LOCK or path.name.endswith(_TEMPORARY):
            files.remove_file(path)

    def list_claims(self) -> frozenset[str]:
        """UIDs of the claims that have a folder here, for the sweep at start; none if it cannot be read."""
        try:
            files.check_folder(self._root)
            return frozenset(entry.name for entry in self._root.iterdir() if is_name(entry.name))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            log.warning("not swept: %s", self._unwritable(self._root, error))
            return frozenset()

    @contextmanager
    def _locked(self, claim_uid: str) -> Iterator[None]:
        """Opened each time, so that threads exclude each other as well."""
        lock = FileLock(self._root / claim_uid / _LOCK)
        try:
            if not lock.acquire(time.monotonic() + LOCK_SECONDS):
                raise StoreError(
                    f"{self._noun} of claim {claim_uid}: process {lock.read_holder()} writes there longer "
                    f"than {LOCK_SECONDS} s",
                    retryable=True,
                )
            yield
        finally:
            lock.close()

    def _unwritable(self, path: Path, error: OSError) -> StoreError:
        hint = f"make {self._root} writable, with free space{self._hint}"
        return StoreError(
            f"{self._noun} {path}: {error.strerror}", hint=files.hint_for(error, hint), retryable=True
        )
