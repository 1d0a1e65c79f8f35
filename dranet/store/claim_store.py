"""Prepared claims on disk, keyed by claim UID: what the driver promised before it answered the kubelet.

SQLite in WAL mode with ``synchronous=FULL``: a commit survives a kill at any point and a power cut, and
costs about a quarter of a millisecond. The whole content is mirrored in memory, so that the runtime's
hook reads no disk. The store holds intent; what really is lies in the kernel (``driver.reconcile``).

Two instances of the driver may share the file. Each look asks SQLite, in shared memory and on a connection
that no commit keeps waiting, whether somebody else has committed since; only then is the disk read, and only
records that have changed are decoded. Who reads a record to write it back holds the node's devices meanwhile
(``driver.attachments``), for nothing here keeps the other instance from doing the same.

A disk that refuses, or has damaged the file, costs Prepare and nothing else (docs/decisions/031).

It knows no kernel, cluster or runtime; it is called from the event loop and from the NRI thread.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet import files
from dranet.errors import Reason, StoreError
from dranet.model.plan import PreparedClaim
from dranet.store.db import BUSY_SECONDS, SCHEMA_VERSION, is_read_only, newer_error, store_error
from dranet.store.loose import decode_loosely
from dranet.store.mirror import Mirror
from dranet.store.opening import StoreFile
from dranet.store.pending import Claims, apply_changes
from dranet.store.record_json import encode_record
from dranet.store.writing import Writing

__all__ = ["SCHEMA_VERSION", "ClaimStore"]

log = logging.getLogger(__name__)

REOPEN_SECONDS = 1.0
"""How often a file that could not be opened is tried again, at most."""

_KEPT_IN_MEMORY = (Reason.STORE_UNWRITABLE, Reason.STORE_CORRUPT)


class ClaimStore:
    """Durable map of claim UID to :class:`PreparedClaim`; safe to call from any thread.

    Reading raises nothing: where the disk fails, memory shows what was read last.

    Raises:
        StoreError: ``STORE_UNWRITABLE`` when the disk refuses what must be durable; the memory then still
            shows what was before. ``STORE_CORRUPT`` when the file turns out damaged while it is open.
            ``STORE_NEWER`` when a newer driver has written records into it, before or since.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_foreign_change: Callable[[], None] | None = None,
        on_trouble: Callable[[Reason, str], None] | None = None,
        on_write: Callable[[float], None] | None = None,
    ) -> None:
        self._path = path
        self._lock = threading.RLock()
        """Held while the disk works; readers do not take it."""
        self._is_open = False
        self._next_try = 0.0
        """When to try again to open a file that could not be (``time.monotonic()``)."""
        self._mirror = Mirror(path, self._tell_change)
        self._file = StoreFile(path, self._mirror, self._tell)
        self.trouble: StoreError | None = None
        """Why the last write, or the opening, was refused; ``None`` when the disk takes what it is given."""
        self._on_foreign_change = on_foreign_change
        """Called after a look, on its thread, that found records of somebody else's. Must be quick."""
        self._on_trouble = on_trouble
        """Called, on any thread, once for each thing that people should know: the disk began to refuse, the
        file was damaged, records were set aside. Must be quick."""
        self._on_write = on_write
        """Told of each transaction that the disk took, in seconds, on its thread. Must be quick."""

    @property
    def folder(self) -> Path:
        """Where the file lies; who shares the one shares the other."""
        return self._path.parent

    @property
    def size_bytes(self) -> int:
        """Of the file and its write-ahead log, as they are on the disk."""
        size = 0
        for path in (self._path, self._path.with_name(f"{self._path.name}-wal")):
            with suppress(OSError):  # the log comes and goes
                size += path.stat().st_size
        return size

    @property
    def _db(self) -> sqlite3.Connection | None:
        return self._file.db

    # --- opening and closing ----------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the file and read every record. One bad record never blocks another.

        A damaged file is set aside and replaced by what can be read of it. Where the disk refuses, memory
        shows what the file says, and it is opened later.

        Raises:
            StoreError: there is no folder, something else has the name of the file, or a newer driver's
                records are in it.
        """
        try:
            files.make_folder(self._path.parent, is_setting=True)
        except OSError as error:
            hint = files.hint_for(error, "is the state folder a writable mount?")
            raise StoreError(f"store {self._path}: {error.strerror}", hint=hint) from error
        with self._lock:
            self._open_file()
            self._is_open = True

    def _open_file(self) -> None:
        refused = self._file.open()
        if refused is None:
            self._note_success(0)
        else:
            self._next_try = time.monotonic() + REOPEN_SECONDS
            self._note_refusal(refused)

    def close(self) -> None:
        """Write down what is pending if the disk lets us, and close the file; the memory stays readable."""
        if self.unwritten:
            self.flush_pending()
        with self._lock:
            self._is_open = False
            self._file.close()

    # --- reading ----------------------------------------------------------------------------------------

    @property
    def is_newer(self) -> bool:
        """A newer driver has written records since this one opened the file. What is read here then is what
        was before, nothing can be written, and this instance had better leave the node to the other."""
        self._mirror.refresh()
        return self._mirror.newer_version > 0

    @property
    def is_writable(self) -> bool:
        """Whether the disk took what it was given last."""
        return self.trouble is None

    @property
    def unwritten(self) -> tuple[str, ...]:
        """UIDs of claims of which memory knows more than the disk: where their devices are, or that they are
        given back. A driver that is killed now finds out again."""
        return tuple(self._mirror.pending)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Claim UIDs whose records could not be read at the last look; this process set them aside."""
        return self._file.quarantined

    @property
    def quarantine_size(self) -> int:
        """Records that lie in the file and cannot be read, since whenever."""
        try:
            if self._mirror.is_open:
                return self._mirror.count_quarantined()
            return len(self._file.content.quarantine)
        except sqlite3.Error as error:
            self._mirror.complain(error)
            return len(self.quarantined)

    def check_version(self) -> None:
        """Pass while this driver knows every record of the file, and memory shows what is in it.

        Raises:
            StoreError: ``STORE_NEWER``, retryable: the newer driver will answer. Or others have committed
                what the disk does not let us see.
        """
        self._try_to_open()
        self._look()
        if self._mirror.newer_version:
            raise newer_error(self._path, self._mirror.newer_version)

    def _try_to_open(self) -> None:
        """Once the disk takes writes again."""
        if self._db is None and self._is_open and self._lock.acquire(blocking=False):
            try:
                self._open_again()
            finally:
                self._lock.release()

    def _open_again(self) -> None:
        if time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + REOPEN_SECONDS
        try:
            self._open_file()
        except StoreError as error:
            if error.reason is Reason.STORE_NEWER:
                raise
            self._note_refusal(error)

    def _look(self) -> Claims:
        """For who acts on what is not there: a look that fails is no answer. It fails only where somebody
        else has committed, and the disk does not let us see what."""
        try:
            return self._mirror.look()
        except sqlite3.DatabaseError as error:
            raise store_error(self._path, "read", error) from error

    def get(self, claim_uid: str) -> PreparedClaim | None:
        return self._mirror.refresh().get(claim_uid)

    def get_by_pod(self, pod_uid: str) -> tuple[PreparedClaim, ...]:
        """The claims prepared for one pod, in a fixed order (claim name, then UID)."""
        mine = [c for c in self._mirror.refresh().values() if c.pod.uid == pod_uid]
        return tuple(sorted(mine, key=lambda c: (c.claim.name, c.claim.uid)))

    def get_all(self) -> tuple[PreparedClaim, ...]:
        return tuple(self._mirror.refresh().values())

    def get_set_aside(self, claim_uid: str) -> PreparedClaim | None:
        """What a give-back needs of a record that cannot be read whole: of a claim that a pod has, without
        the parts that are damaged. Never to be attached. ``None``: nothing of use."""
        with self._lock:
            texts = self._file.read_set_aside(claim_uid)
        return next(filter(None, map(decode_loosely, texts)), None)

    def _tell_change(self) -> None:
        if self._on_foreign_change is not None:
            self._on_foreign_change()

    # --- writing ----------------------------------------------------------------------------------------

    def put(self, record: PreparedClaim) -> None:
        """Commit one record; when this returns, it survives a kill and a power cut."""
        self.put_all((record,))

    def put_all(
        self, records: Iterable[PreparedClaim], *, durable: bool = True, deadline: float | None = None
    ) -> None:
        """Commit several records in one transaction: all or none.

        Args:
            records: what they are now.
            durable: fail where the disk refuses. Else keep them in memory until it takes them: right for what
                the kernel, the runtime and the API server show again, wrong for a plan.
            deadline: ``time.monotonic()``; ends the wait for others' transactions sooner.
        """
        wanted = {record.claim.uid: record for record in records}
        texts = {uid: self._encode(record) for uid, record in wanted.items()}
        try:
            self._commit(wanted, texts, deadline)
        except StoreError as error:
            if durable or not self._may_keep(error):
                raise
            self._mirror.keep(wanted)

    def delete(self, claim_uid: str) -> None:
        """Forget a claim; an unknown one is fine. Where the disk refuses, memory forgets it first."""
        is_aside = self._db is not None and self.get_set_aside(claim_uid) is not None
        if claim_uid not in self._look() and not is_aside:
            return
        try:
            self._commit({claim_uid: None}, {}, None)
        except StoreError as error:
            if not self._may_keep(error):
                raise
            self._mirror.keep({claim_uid: None})

    def flush_pending(self) -> bool:
        """Write down what the disk has refused, if it takes it by now; does nothing where there is nothing.
        Returns whether memory and disk agree. Raises nothing."""
        if self.is_writable and not self._mirror.pending and not self._mirror.bad:
            return True
        with suppress(StoreError):
            self._commit({}, {}, None)
            with self._lock:
                if self._mirror.bad:
                    self._file.set_aside()
        return self.is_writable and not self._mirror.pending

    def _may_keep(self, error: StoreError) -> bool:
        return self._is_open and error.reason in _KEPT_IN_MEMORY

    def _encode(self, record: PreparedClaim) -> str:
        try:
            return encode_record(record)
        except ValueError as error:
            raise StoreError(
                f"store {self._path}: the record of claim {record.claim} cannot be written down: {error}"
            ) from error

    def _commit(
        self,
        wanted: Mapping[str, PreparedClaim | None],
        texts: Mapping[str, str],
        deadline: float | None,
    ) -> None:
        """Write ``wanted`` (``None``: delete) and everything that is pending, in one transaction."""
        start = time.perf_counter()
        with self._writing(deadline) as writing:
            before, pending = writing.before, self._mirror.pending
            if any(uid not in before and record is not None for uid, record in wanted.items()):
                self._file.check_in_place()
            left = {uid: change for uid, change in pending.items() if uid not in wanted}
            late = {uid: self._encode(c.after) for uid, c in left.items() if c.after is not None}
            gone = [uid for uid, record in wanted.items() if record is None]
            gone += [uid for uid, change in left.items() if change.after is None]
            after = {uid: record for uid, record in {**before, **wanted}.items() if record is not None}
            after = dict(apply_changes(after, left))
            writing.write(gone, {**late, **texts}, is_empty=not after)
            writing.commit(after, {**late, **texts}, pending)
        self._note_success(len(left))
        if self._on_write is not None:
            self._on_write(time.perf_counter() - start)

    @contextmanager
    def _writing(self, deadline: float | None) -> Iterator[Writing]:
        """A transaction on the freshest content, with nobody else writing; rolled back unless committed."""
        seconds = BUSY_SECONDS if deadline is None else deadline - time.monotonic()
        seconds = min(max(seconds, 0.0), BUSY_SECONDS)
        if not self._lock.acquire(timeout=-1 if deadline is None else seconds):
            raise self._note_refusal(StoreError(f"store {self._path}: the disk hangs", retryable=True))
        try:
            db = self._need_db()
            db.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")
            db.execute("BEGIN IMMEDIATE")
            try:
                self._mirror.look()
                if self._mirror.newer_version:
                    raise newer_error(self._path, self._mirror.newer_version)
                yield Writing(db, self._mirror)
            finally:
                if db.in_transaction:  # SQLite has ended it by itself after some errors
                    db.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            if is_read_only(error):
                self._file.close()
            raise self._note_refusal(store_error(self._path, "write", error)) from error
        finally:
            self._lock.release()

    def _need_db(self) -> sqlite3.Connection:
        if not self._is_open:
            raise StoreError(f"store {self._path} is closed")
        if self._db is None:
            self._open_again()
        if self._db is None:
            raise self.trouble or StoreError(f"store {self._path} cannot be opened")
        return self._db

    def _note_refusal(self, error: StoreError) -> StoreError:
        """Said once, until the disk takes something again."""
        is_news = self.trouble is None
        self.trouble = error
        if is_news:
            self._tell(error.reason, f"{error}; no claim is prepared meanwhile, all else goes on")
        return error

    def _note_success(self, late: int) -> None:
        if self.trouble is not None:
            log.info("store %s: the disk takes writes again, %d changes late", self._path, late)
        self.trouble = None

    def _tell(self, reason: Reason, note: str) -> None:
        log.error("%s", note)
        if self._on_trouble is not None:
            self._on_trouble(reason, note)
