"""Changes of records that the disk has refused, kept in memory on top of the records on disk. Pure.

Only two kinds of change are kept this way: where a claim's devices are, and that the claim is over. The
kernel, the runtime and the API server show both again: a driver that is killed before the disk takes them
finds the earlier record, and ``driver.reconcile`` corrects it. The plan and the host's state exist nowhere
else and are never kept this way (docs/decisions/031).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from dranet.model.plan import PreparedClaim

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
    """Return the records with the changes applied."""
    if not changes:
        return claims
    after = {uid: record for uid, record in claims.items() if uid not in changes}
    return after | {uid: change.after for uid, change in changes.items() if change.after is not None}


def add_changes(changes: Changes, filed: Claims, wanted: Mapping[str, PreparedClaim | None]) -> Changes:
    """Add ``wanted``, except what the disk has already."""
    made = {uid: Pending(_base_of(uid, changes, filed), after) for uid, after in wanted.items()}
    return {uid: change for uid, change in {**changes, **made}.items() if change.after != change.base}


def _base_of(uid: str, changes: Changes, filed: Claims) -> PreparedClaim | None:
    return changes[uid].base if uid in changes else filed.get(uid)


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
