"""What is prepared and attached on this node: the store's records, and whether the kernel agrees.

Reads only, alongside a running driver or without one.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from dranet import files
from dranet.driver.start_gate import StartGate
from dranet.errors import DranetError, Reason, StoreError
from dranet.kernel.attachment.linkstate import read_link
from dranet.kernel.attachment.locate import Side, find_link, open_host_side, open_pod_side
from dranet.kernel.namespaces.netns import open_netns
from dranet.model.plan import RECORD_VERSION, AttachPlan, PreparedClaim, PreparedDevice
from dranet.store.record_folder import (
    RecordFolder,
    Row,
    Rows,
    UnreadableRecord,
    decode_row,
    read_row_version,
)
from dranet.store.record_json import RecordError


class State(StrEnum):
    """What became of a prepared claim."""

    ATTACHED = "attached"
    """Every link is in its pod."""
    PREPARED = "prepared"
    """Nothing of it moves into the pod."""
    WAITING = "waiting"
    """For the sandbox of its pod."""
    INCOMPLETE = "incomplete"
    """Its pod's namespace is there, and not every link is in it."""
    ORPHANED = "orphaned"
    """Its pod's namespace is gone."""
    PLACED = "placed"
    """In a namespace that could not be looked into."""
    EARLIER_BOOT = "earlier boot"
    """Nothing of it is left in the kernel; the driver forgets it when it starts."""


class Place(StrEnum):
    """Where a link is now."""

    POD = "pod"
    HOST = "host"
    GONE = "gone"
    UNKNOWN = "unknown"
    NONE = ""
    """The device has no link that the pod gets."""


class SeenDevice(Struct, frozen=True):
    """A device of a claim."""

    prepared: PreparedDevice
    place: Place

    @property
    def host_ifname(self) -> str:
        plan = self.prepared.plan
        return plan.host.ifname if plan is not None and plan.host is not None else self.prepared.device.ifname

    @property
    def pod_ifname(self) -> str:
        return self.prepared.plan.pod_ifname if self.prepared.plan is not None else ""


class SeenClaim(Struct, frozen=True):
    """A claim, as store and kernel have it."""

    record: PreparedClaim
    state: State
    devices: tuple[SeenDevice, ...]
    gate_open: bool
    """Whether its containers may start."""
    trouble: str = ""
    """Why the kernel could not be asked."""


class Node(Struct, frozen=True):
    """The store of a node."""

    claims: tuple[SeenClaim, ...]
    quarantine: tuple[UnreadableRecord, ...]


def look(state_dir: Path, boot_id: str) -> Node:
    """Read the store and ask the kernel.

    Raises:
        StoreError: there is no store, it may not be read, or it has records of a newer driver.
    """
    path = state_dir / "claims"
    rows, aside = _read_store(path)
    gate = StartGate(state_dir)
    claims, bad = [], []
    for claim_uid, row in rows.items():
        try:
            claims.append(_see(_decode(path, claim_uid, row), boot_id, gate))
        except RecordError as error:
            bad.append(UnreadableRecord(claim_uid, row.text, str(error)))
    claims.sort(key=lambda seen: (seen.record.claim.namespace, seen.record.claim.name, seen.record.claim.uid))
    return Node(tuple(claims), (*aside, *bad))


def _read_store(path: Path) -> tuple[Rows, list[UnreadableRecord]]:
    folder = RecordFolder(path)
    try:
        files.check_folder(path)
        _, rows = folder.read({})
        return rows, folder.read_unreadable()
    except FileNotFoundError as error:
        raise StoreError(
            f"there is no store {path}: no driver has run here, or with another folder",
            hint="--state-dir names the folder; on the node, or in the driver's pod",
        ) from error
    except OSError as error:
        hint = files.hint_for(error, otherwise="run it as root, or in the driver's pod")
        raise StoreError(f"store {path}: {error.strerror}", hint=hint) from error


def _decode(path: Path, claim_uid: str, row: Row) -> PreparedClaim:
    if row.failure:
        raise RecordError(row.failure)
    version = read_row_version(row.text)
    if version > RECORD_VERSION:
        raise StoreError(
            f"store {path} has records of version {version}, this dranet knows {RECORD_VERSION}",
            hint="use the dranet of the driver that wrote them",
            reason=Reason.STORE_NEWER,
        )
    return decode_row(claim_uid, row.text)


def _see(record: PreparedClaim, boot_id: str, gate: StartGate) -> SeenClaim:
    is_open = gate.is_open(record.claim.uid)
    if record.boot_id != boot_id:
        return SeenClaim(record, State.EARLIER_BOOT, _placed(record, Place.UNKNOWN), is_open)
    if not record.plans:
        return SeenClaim(record, State.PREPARED, _placed(record, Place.NONE), is_open)
    try:
        state, devices = _ask_kernel(record)
    except (DranetError, OSError) as error:
        return SeenClaim(record, State.PLACED, _placed(record, Place.UNKNOWN), is_open, str(error))
    return SeenClaim(record, state, devices, is_open)


def _placed(record: PreparedClaim, place: Place) -> tuple[SeenDevice, ...]:
    return tuple(
        SeenDevice(device, place if device.plan is not None and device.plan.pod_ifname else Place.NONE)
        for device in record.devices
    )


def _ask_kernel(record: PreparedClaim) -> tuple[State, tuple[SeenDevice, ...]]:
    with ExitStack() as stack:
        home = stack.enter_context(open_host_side())
        netns = open_netns(record.netns_path, record.netns_id)
        pod = None
        if netns is not None:
            pod = stack.enter_context(open_pod_side(stack.enter_context(netns)))
        devices = tuple(SeenDevice(device, _find(device.plan, home, pod)) for device in record.devices)
    if not record.netns_path:
        return State.WAITING, devices
    if pod is None:
        return State.ORPHANED, devices
    is_whole = all(seen.place in (Place.POD, Place.NONE) for seen in devices)
    return State.ATTACHED if is_whole else State.INCOMPLETE, devices


def _find(plan: AttachPlan | None, home: Side, pod: Side | None) -> Place:
    if plan is None or not plan.pod_ifname:
        return Place.NONE
    if plan.host is None:  # a link on top of one that stays
        found = read_link(pod.rtnl, ifname=plan.pod_ifname) if pod is not None else None
        return Place.POD if found is not None else Place.GONE
    seen = find_link(plan, plan.host, home, pod)
    if seen is None:
        return Place.GONE
    return Place.HOST if seen.side is home else Place.POD
