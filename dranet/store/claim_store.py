"""Prepared claims on disk, keyed by claim UID: what the driver promised before it answered the kubelet.

One file for each claim, replaced atomically and synced: a record that :meth:`ClaimStore.put` has written
survives a kill at any point and a power cut. The content is mirrored in memory, so that the runtime's hook
reads no disk. A caller that reads a record to write it back holds the node's devices meanwhile
(``driver.attachments``): nothing here keeps another instance, which may share the folder, from doing the
same. A disk that refuses writes or damages a record fails Prepare and nothing else (docs/decisions/031, 052).
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet import files
from dranet.errors import Reason, StoreError
from dranet.failpoints import Failpoint, reached
from dranet.files import FileLock
from dranet.model.plan import RECORD_VERSION, PreparedClaim
from dranet.store.mirror import Claims, Mirror
from dranet.store.record_folder import RecordFolder, decode_partially, encode_record, encode_row

log = logging.getLogger(__name__)

BUSY_SECONDS = 5.0
"""How long a write waits for another process's, at most: a write takes milliseconds."""
REOPEN_SECONDS = 1.0
"""How often a folder that could not be opened is tried again, at most."""


class ClaimStore:
    """Durable map of claim UID to :class:`PreparedClaim`; safe to call from any thread.

    Reading raises nothing: where the disk fails, memory shows what was read last. All else raises StoreError:
    ``STORE_UNWRITABLE`` when the disk refuses what must be durable; the memory then still shows what was
    before. ``STORE_NEWER`` when a newer driver has written records into the folder, before or since.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_foreign_change: Callable[[], None] = lambda: None,
        on_trouble: Callable[[Reason, str], None] = lambda *_: None,
        on_write: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._path = path
        """The folder of the records; its lock file is next to it."""
        self._lock = threading.RLock()
        """Held while the disk works; readers do not take it."""
        self._file_lock = FileLock(path.with_name(f"{path.name}.lock"))
        """Held while this process writes, inside ``_lock``."""
        self._is_open = False
        self._next_try = 0.0
        """When to try again to open a folder that could not be (``time.monotonic()``)."""
        self._folder = RecordFolder(path)
        self._mirror = Mirror(self._folder, on_foreign_change)
        self.trouble: StoreError | None = None
        """Why the last write, or the opening, was refused; ``None`` while the disk takes writes."""
        self.quarantined: tuple[str, ...] = ()
        """Claim UIDs whose records could not be decoded and were set aside by this process last."""
        self._on_trouble = on_trouble
        """Called, on any thread, once for each thing that people should know: the disk began to refuse
        writes, records were set aside. Must be quick."""
        self._on_write = on_write
        """Called after each write, on its thread, with its duration in seconds. Must be quick."""

    @property
    def folder(self) -> Path:
        """The state folder, which instances that share the store have in common."""
        return self._path.parent

    @property
    def size_bytes(self) -> int:
        return self._folder.size_bytes

    # --- opening and closing ----------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the folder and read every record. One bad record never blocks another. Where the
        disk refuses writes, memory shows what is there, and the folder is opened later."""
        try:
            files.make_folder(self._path.parent, is_setting=True)
        except OSError as error:
            hint = files.hint_for(error, "is the state folder a writable mount?")
            raise StoreError(f"store {self._path}: {error.strerror}", hint=hint) from error
        with self._lock:
            self._open_folder()
            self._is_open = True

    def _open_folder(self) -> None:
        with self._alone() as is_alone:
            refused = self._make_folder()
            if refused is None:
                reached(Failpoint.MIGRATE_OPENED)
            self._load()
            if refused is None and is_alone:
                refused = self._tidy_up()
        if refused is None:
            self._note_success(0)
        else:
            self._next_try = time.monotonic() + REOPEN_SECONDS
            self._note_refusal(refused)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        is_alone = False
        try:
            is_alone = self._file_lock.acquire(time.monotonic() + BUSY_SECONDS)
        except StoreError as error:
            log.info("store %s: opened without a lock: %s", self._path, error)
        try:
            yield is_alone
        finally:
            self._file_lock.release()

    def _make_folder(self) -> StoreError | None:
        try:
            self._folder.open()
        except files.NotOurs as error:
            raise StoreError(f"store {self._path}: {error.strerror}") from error
        except OSError as error:
            return self._refusal("open", error)
        return None

    def _load(self) -> None:
        try:
            self._mirror.load()
        except FileNotFoundError:
            return  # the disk has refused to make it
        except OSError as error:
            raise StoreError(f"store {self._path}: cannot read: {error.strerror}") from error
        self._check_newer()

    def _tidy_up(self) -> StoreError | None:
        """Returns why the disk refuses to, so that people hear of it before a pod waits."""
        try:
            self._folder.tidy_up()
            self._set_aside()
            self._folder.try_to_write()
        except OSError as error:
            if error.errno == errno.EROFS:
                self._folder.close()
            return self._refusal("write", error)
        return None

    def _set_aside(self) -> None:
        """Rename records that cannot be decoded to where they block nothing."""
        bad = self._mirror.bad.items()
        moved = tuple(uid for uid, record in bad if self._folder.set_aside(uid, record.text))
        if moved:
            self.quarantined = moved
            reached(Failpoint.MIGRATE_SET_ASIDE)
            self._mirror.load()
            claims = ", ".join(moved)
            self._report(
                Reason.STORE_CORRUPT, f"store {self._path}: records of claims {claims} cannot be read"
            )

    def close(self) -> None:
        """Write what is pending if the disk allows it, and close the folder; the memory stays readable."""
        if self.unwritten:
            self.flush_pending()
        with self._lock:
            self._is_open = False
            self._folder.close()
            self._file_lock.close()

    # --- reading ----------------------------------------------------------------------------------------

    @property
    def is_newer(self) -> bool:
        """Whether a newer driver has written records since this one opened the folder. This one then reads
        what was before, can write nothing, and should leave the node to the other instance."""
        self._mirror.refresh()
        return self._mirror.newer_version > 0

    @property
    def is_writable(self) -> bool:
        return self.trouble is None

    @property
    def unwritten(self) -> tuple[str, ...]:
        """UIDs of claims of which memory knows more than the disk: where their devices are, or that they were
        restored. A driver that is killed now finds out again."""
        return tuple(self._mirror.pending)

    @property
    def quarantine_size(self) -> int:
        """Number of records in the folder that cannot be decoded, whenever they were found."""
        try:
            return self._folder.count_unreadable() + len(self._mirror.bad)
        except FileNotFoundError:
            return len(self._mirror.bad)
        except OSError as error:
            self._mirror.complain(error)
            return len(self.quarantined)

    def check_version(self) -> None:
        """Return if this driver knows every record in the folder, and memory shows them. ``STORE_NEWER`` is
        retryable: the newer driver will answer."""
        self._try_to_open()
        self._look()
        self._check_newer()

    def _check_newer(self) -> None:
        if self._mirror.newer_version:
            raise StoreError(
                f"store {self._path} has records of version {self._mirror.newer_version}, this driver knows "
                f"{RECORD_VERSION}",
                hint="run the newer driver that wrote it; once the node is drained, an older one may follow",
                reason=Reason.STORE_NEWER,
                retryable=True,
            )

    def _try_to_open(self) -> None:
        if not self._folder.is_open and self._is_open and self._lock.acquire(blocking=False):
            try:
                self._open_again()
            finally:
                self._lock.release()

    def _open_again(self) -> None:
        if time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + REOPEN_SECONDS
        try:
            self._open_folder()
        except StoreError as error:
            if error.reason is Reason.STORE_NEWER:
                raise
            self._note_refusal(error)

    def _look(self) -> Claims:
        """For callers that act on an absent record: they must not take a failed look for an answer. It fails
        only where another process has written, and the disk does not let us read it."""
        try:
            return self._mirror.look()
        except OSError as error:
            raise self._refusal("read", error) from error

    def get(self, claim_uid: str) -> PreparedClaim | None:
        return self._mirror.refresh().get(claim_uid)

    def get_by_pod(self, pod_uid: str) -> tuple[PreparedClaim, ...]:
        """The claims prepared for one pod, in a fixed order (claim name, then UID)."""
        mine = [c for c in self._mirror.refresh().values() if c.pod.uid == pod_uid]
        return tuple(sorted(mine, key=lambda c: (c.claim.name, c.claim.uid)))

    def get_all(self) -> tuple[PreparedClaim, ...]:
        return tuple(self._mirror.refresh().values())

    def get_set_aside(self, claim_uid: str) -> PreparedClaim | None:
        """Return the readable part of a damaged record, if it suffices to restore the devices; never to be
        used to attach."""
        texts = [self._mirror.bad[claim_uid].text] if claim_uid in self._mirror.bad else []
        try:
            texts += [record.text for record in self._folder.read_unreadable(claim_uid)]
        except FileNotFoundError:
            pass
        except OSError as error:
            self._mirror.complain(error)
        return next(filter(None, map(decode_partially, texts)), None)

    def has_set_aside(self, claim_uid: str) -> bool:
        """Whether the folder has a record of the claim that cannot be decoded."""
        try:
            return claim_uid in self._mirror.bad or bool(self._folder.read_unreadable(claim_uid))
        except FileNotFoundError:
            return False
        except OSError as error:
            self._mirror.complain(error)
            return True

    # --- writing ----------------------------------------------------------------------------------------

    def put(self, record: PreparedClaim) -> None:
        """Write one record; when this returns, it survives a kill and a power cut."""
        self.put_all((record,))

    def put_all(
        self, records: Iterable[PreparedClaim], *, durable: bool = True, deadline: float | None = None
    ) -> None:
        """Write several records in one step: all or none, except that a kill may come between them.

        Args:
            records: their new state.
            durable: sync, and fail where the disk refuses. Otherwise keep them in memory until it takes them,
                and survive a kill, but not always a power cut: right for what the kernel, the runtime and the
                API server show again, wrong for a plan.
            deadline: ``time.monotonic()``; limits the wait for other processes' writes.
        """
        wanted = {record.claim.uid: record for record in records}
        texts = {uid: self._encode(record) for uid, record in wanted.items()}
        try:
            self._write(wanted, texts, deadline, durable=durable)
        except StoreError as error:
            if durable or not self._may_keep(error):
                raise
            self._mirror.keep(wanted)

    def delete(self, claim_uid: str) -> None:
        """Forget a claim; an unknown one is fine. Where the disk refuses, memory forgets it first. A power
        cut may bring the record back; it is then of an earlier boot, and the driver forgets it."""
        is_aside = self._folder.is_open and self.get_set_aside(claim_uid) is not None
        if claim_uid not in self._look() and not is_aside:
            return
        try:
            self._write({claim_uid: None}, {}, None, durable=False)
        except StoreError as error:
            if not self._may_keep(error):
                raise
            self._mirror.keep({claim_uid: None})

    def flush_pending(self) -> bool:
        """Write what the disk has refused. Returns whether memory and disk agree; raises nothing."""
        if self.is_writable and not self._mirror.pending and not self._mirror.bad:
            return True
        with suppress(StoreError), self._writing(None):
            self._folder.try_to_write()
            self._note_success(self._write_all({}, {}, durable=True))
            self._mirror.load()
            self._set_aside()
        return self.is_writable and not self._mirror.pending

    def _may_keep(self, error: StoreError) -> bool:
        return self._is_open and error.reason is Reason.STORE_UNWRITABLE

    def _encode(self, record: PreparedClaim) -> str:
        try:
            return encode_row(encode_record(record))
        except ValueError as error:
            raise StoreError(
                f"store {self._path}: the record of claim {record.claim} cannot be written: {error}"
            ) from error

    def _write(
        self,
        wanted: Mapping[str, PreparedClaim | None],
        texts: Mapping[str, str],
        deadline: float | None,
        *,
        durable: bool,
    ) -> None:
        """Write ``wanted`` (``None``: delete) and everything that is pending, in one step."""
        start = time.perf_counter()
        with self._writing(deadline):
            late = self._write_all(wanted, texts, durable=durable)
        if texts:  # a full disk lets files be removed
            self._note_success(late)
        self._on_write(time.perf_counter() - start)

    def _write_all(
        self, wanted: Mapping[str, PreparedClaim | None], texts: Mapping[str, str], *, durable: bool
    ) -> int:
        """Returns how many of the changes had been refused before."""
        pending = self._mirror.pending
        if any(record is not None and uid not in self._mirror.filed for uid, record in wanted.items()):
            self._check_in_place()
        late = {uid: change.after for uid, change in pending.items() if uid not in wanted}
        written = {**late, **wanted}
        rows = {uid: self._encode(record) for uid, record in late.items() if record is not None}
        rows.update(texts)
        gone = [uid for uid, record in written.items() if record is None]
        if not written:
            return 0
        with self._mirror.writing():
            generation, stamps = self._folder.write(rows, gone, durable=durable)
            reached(Failpoint.MIGRATE_COMMITTED)
            for claim_uid in gone:
                self._forget_set_aside(claim_uid)
            self._mirror.adopt(written, stamps, generation, pending)
        return len(late)

    def _forget_set_aside(self, claim_uid: str) -> None:
        """Remove the damaged records by which a claim was restored. Others stay for people to look at."""
        for record in self._folder.read_unreadable(claim_uid):
            if record.file is not None and decode_partially(record.text) is not None:
                files.remove_file(record.file)

    def _check_in_place(self) -> None:
        """Refuse to promise what no restart would find: the folder or a record was removed, not by a driver.
        Claims that are known are served from memory."""
        if self._folder.find_removed(self._mirror.filed):
            raise StoreError(
                f"store {self._path} was removed or replaced while the driver runs: what it knows of earlier "
                "claims is in its memory alone",
                hint="drain the node, so that their devices are restored, then restart the driver",
            )

    @contextmanager
    def _writing(self, deadline: float | None) -> Iterator[None]:
        """Let no other thread or process write meanwhile, and have memory show the current records."""
        seconds = BUSY_SECONDS if deadline is None else deadline - time.monotonic()
        seconds = min(max(seconds, 0.0), BUSY_SECONDS)
        if not self._lock.acquire(timeout=-1 if deadline is None else seconds):
            raise self._note_refusal(StoreError(f"store {self._path}: the disk hangs", retryable=True))
        try:
            self._need_folder()
            self._lock_file(time.monotonic() + seconds)
            self._mirror.look()
            self._check_newer()
            yield
        except files.NotOurs as error:
            raise self._refusal("write", error) from error
        except OSError as error:
            if error.errno == errno.EROFS:
                self._folder.close()  # so that it is opened again once it can be written to
            raise self._note_refusal(self._refusal("write", error)) from error
        finally:
            self._file_lock.release()
            self._lock.release()

    def _lock_file(self, give_up: float) -> None:
        try:
            if self._file_lock.acquire(give_up):
                return
        except StoreError as error:
            raise self._note_refusal(error) from error
        holder = self._file_lock.describe_holder() or "another process"
        raise self._note_refusal(
            StoreError(
                f"store {self._path}: cannot write: {holder} is writing to it all the time",
                hint="look for a disk that hangs",
                retryable=True,
            )
        )

    def _need_folder(self) -> None:
        if not self._is_open:
            raise StoreError(f"store {self._path} is closed")
        if not self._folder.is_open:
            self._open_again()
        if not self._folder.is_open:
            raise self.trouble or StoreError(f"store {self._path} cannot be opened")

    def _refusal(self, operation: str, error: OSError) -> StoreError:
        if isinstance(error, files.NotOurs):
            return StoreError(f"store {self._path}: {error.strerror}")
        return StoreError(
            f"store {self._path}: cannot {operation}: {error.strerror}",
            hint="is the state folder a writable mount with free space?",
        )

    def _note_refusal(self, error: StoreError) -> StoreError:
        """Report it once, until the disk takes a write again."""
        is_news = self.trouble is None
        self.trouble = error
        if is_news:
            self._report(error.reason, f"{error}; no claim is prepared meanwhile, all else goes on")
        return error

    def _note_success(self, late: int) -> None:
        if self.trouble is not None:
            log.info("store %s: the disk takes writes again, %d changes late", self._path, late)
        self.trouble = None

    def _report(self, reason: Reason, note: str) -> None:
        log.error("%s", note)
        self._on_trouble(reason, note)
