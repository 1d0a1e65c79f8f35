"""The content of the record folder in memory, with the changes that the disk has refused on top.

Only two kinds of change are kept in memory alone: where a claim's devices are, and that the claim is over.
The kernel, the runtime and the API server show both again: a driver that is killed before the disk takes them
finds the earlier record, and ``driver.reconcile`` corrects it. The plan and the host's state exist nowhere
else and are never kept this way (docs/decisions/031).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from dranet.model.plan import RECORD_VERSION, PreparedClaim
from dranet.store.record_folder import (
    RecordError,
    RecordFolder,
    Row,
    Rows,
    Stamp,
    UnreadableRecord,
    decode_row,
    read_row_version,
)

log = logging.getLogger(__name__)

Claims = Mapping[str, PreparedClaim]
"""By claim UID."""


class Pending(Struct, frozen=True):
    """A change of one record; ``None`` stands for no record."""

    base: PreparedClaim | None
    """The record on disk when the change was made."""
    after: PreparedClaim | None


Changes = Mapping[str, Pending]
"""By claim UID."""


def apply_changes(claims: Claims, changes: Changes) -> Claims:
    if not changes:
        return claims
    after = {uid: record for uid, record in claims.items() if uid not in changes}
    return after | {uid: change.after for uid, change in changes.items() if change.after is not None}


def add_changes(changes: Changes, filed: Claims, wanted: Mapping[str, PreparedClaim | None]) -> Changes:
    """Add ``wanted``, except what the disk has already."""
    bases = {uid: changes[uid].base if uid in changes else filed.get(uid) for uid in wanted}
    made = {uid: Pending(bases[uid], after) for uid, after in wanted.items()}
    return {uid: change for uid, change in {**changes, **made}.items() if change.after != change.base}


def rebase_changes(changes: Changes, filed: Claims) -> Changes:
    """Return the changes that remain after another process has written ``filed``."""
    rebased = {uid: _rebase(change, filed.get(uid)) for uid, change in changes.items()}
    return {uid: change for uid, change in rebased.items() if change.after != change.base}


def _rebase(change: Pending, filed: PreparedClaim | None) -> Pending:
    """The other process knew the record on disk, and may have known more than we do: the pod ended, or the
    claim went to the next one. Our change holds only for what it left alone."""
    base, after = change.base, change.after
    if filed == base:
        return change
    if filed is None or base is None or (filed.pod, filed.boot_id) != (base.pod, base.boot_id):
        return Pending(filed, filed)
    if after is None:
        is_in_use = bool(filed.sandbox_id) and _place(filed) != _place(base)
        return Pending(filed, filed if is_in_use else None)
    rest = filed if _without_place(filed) != _without_place(base) else after
    place = filed if _place(filed) != _place(base) else after
    merged = replace(rest, sandbox_id=place.sandbox_id, netns_path=place.netns_path, netns_id=place.netns_id)
    return Pending(filed, merged)


def _place(record: PreparedClaim) -> tuple[str, str, str]:
    return record.sandbox_id, record.netns_path, record.netns_id


def _without_place(record: PreparedClaim) -> PreparedClaim:
    return replace(record, sandbox_id="", netns_path="", netns_id="")


class NewerRecordError(Exception):
    def __init__(self, version: int) -> None:
        self.version = version


class Mirror:
    """The records as of the last look. Its lock is never held while this process writes to the disk."""

    def __init__(self, folder: RecordFolder, on_change: Callable[[], None]) -> None:
        self._folder = folder
        self._on_change = on_change
        """Called after a look that found other records, on its thread, without a lock held. Must be quick."""
        self._lock = threading.Lock()
        self._seen = -1
        """The generation of the last look."""
        self._stamps: Mapping[str, Stamp] = {}
        """Stamps of the files by claim UID, so that only changed records are read."""
        self._is_writing = False
        self._complaint = ""
        self.filed: Claims = {}
        """The records in the folder. Replaced as a whole, never changed."""
        self.pending: Changes = {}
        """Changes that the disk has refused. Replaced as a whole, never changed."""
        self.claims: Claims = {}
        """``filed`` with the pending changes. Replaced as a whole, never changed."""
        self.bad: Mapping[str, UnreadableRecord] = {}
        """Records that could not be decoded at the last look that found changes, by claim UID."""
        self.newer_version = 0
        """The version of a record that a newer driver has written; else 0. ``claims`` are then those of
        before."""

    def load(self) -> None:
        """Read the folder, whether or not its generation is known; raises OSError."""
        with self._lock:
            self._read(self._seen)

    def keep(self, wanted: Mapping[str, PreparedClaim | None]) -> None:
        """Remember what the disk has refused until it takes it: records by claim UID, ``None`` to delete."""
        with self._lock:
            self.pending = add_changes(self.pending, self.filed, wanted)
            self.claims = apply_changes(self.filed, self.pending)

    def refresh(self) -> Claims:
        """Return the current records; where the disk fails, the last known ones, with one log line."""
        try:
            return self.look()
        except OSError as error:
            self.complain(error)
            return self.claims

    def look(self) -> Claims:
        """Return the current records; raises OSError."""
        with self._lock:
            before = self.claims
            if self._folder.is_open and not self._is_writing:
                generation = self._folder.read_generation()
                if generation != self._seen or generation % 2:
                    self._read(self._seen)
                self._complaint = ""
            after = self.claims
        if after is not before:
            self._on_change()
        return after

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Show what was before while this process writes, which keeps all others from writing."""
        self._is_writing = True
        try:
            yield
        finally:
            self._is_writing = False

    def adopt(
        self,
        written: Mapping[str, PreparedClaim | None],
        stamps: Mapping[str, Stamp],
        generation: int,
        settled: Changes,
    ) -> None:
        """Take over what this process has just written, without reading it back.

        Args:
            written: records by claim UID, ``None`` where one was deleted.
            stamps: of the files of those that are not ``None``.
            generation: of the folder now.
            settled: the pending changes that are in the folder now, or are superseded.
        """
        with self._lock:
            self.pending = {u: c for u, c in self.pending.items() if c is not settled.get(u)}
            self.bad = {uid: record for uid, record in self.bad.items() if uid not in written}
            kept = {uid: stamp for uid, stamp in self._stamps.items() if uid not in written}
            after = {**self.filed, **written}
            self.filed = {uid: record for uid, record in after.items() if record is not None}
            self._stamps, self._seen = {**kept, **stamps}, generation
            self.claims = apply_changes(self.filed, self.pending)

    def _read(self, seen: int) -> None:
        known = {uid: stamp for uid, stamp in self._stamps.items() if uid not in self.bad}
        generation, rows = self._folder.read(known, seen)
        stamps = {uid: row.stamp for uid, row in rows.items()}
        try:
            if stamps != self._stamps or self.bad:
                self._show(rows, stamps)
            self.newer_version = 0
        except NewerRecordError as newer:
            self._note_newer(newer.version)
        self._seen = generation

    def _show(self, rows: Rows, stamps: Mapping[str, Stamp]) -> None:
        claims: dict[str, PreparedClaim] = {}
        bad: dict[str, UnreadableRecord] = {}
        for claim_uid, row in rows.items():
            if claim_uid in self.filed and self._stamps[claim_uid] == row.stamp:
                claims[claim_uid] = self.filed[claim_uid]
                continue
            try:
                claims[claim_uid] = _decode(claim_uid, row)
            except RecordError as error:
                bad[claim_uid] = UnreadableRecord(claim_uid, row.text, str(error))
        for claim_uid, record in bad.items():
            if self.bad.get(claim_uid) != record:
                place = self._folder.path
                log.error("store %s: the record of claim %s cannot be read: %s", place, claim_uid, record.why)
        self._stamps = stamps
        self.filed, self.bad = claims, bad
        self.pending = rebase_changes(self.pending, claims)
        self.claims = apply_changes(claims, self.pending)

    def _note_newer(self, version: int) -> None:
        if not self.newer_version:
            log.warning(
                "store %s: a newer driver has written records of version %d, this one knows %d; "
                "the node's claims are left to it",
                self._folder.path,
                version,
                RECORD_VERSION,
            )
        self.newer_version = version

    def complain(self, error: OSError) -> None:
        if str(error) != self._complaint:
            log.error("store %s: cannot be read, memory has to do: %s", self._folder.path, error)
        self._complaint = str(error)


def _decode(claim_uid: str, row: Row) -> PreparedClaim:
    """Raises RecordError, NewerRecordError."""
    if row.failure:
        raise RecordError(row.failure)
    version = read_row_version(row.text)
    if version > RECORD_VERSION:
        raise NewerRecordError(version)
    return decode_row(claim_uid, row.text)
