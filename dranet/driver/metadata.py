"""Files that describe their devices to containers: written at Prepare, completed in the pod (KEP-5304).

A file that cannot be written at Prepare fails the claim, because a mount would lack its source. Later a
failure is a warning and an Event: the earlier file remains. No device moves for a claim with admin access;
whether another pod has it in its namespace is checked after every attach and release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet import files
from dranet.claims.report import (
    LINK_IN_POD,
    READ_ONLY,
    Attributes,
    DeviceFacts,
    JsonObject,
    MetadataError,
    build_document,
    decode_stream,
    encode_stream,
    file_name,
    find_attached,
    mount_file,
    plan_metadata,
    pod_attributes,
    pod_rdma_device,
    select_gids,
)
from dranet.driver.pod_devices import read_from_rdma_devices
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import ClaimFolders
from dranet.errors import DranetError
from dranet.inventory.policy import Policy
from dranet.inventory.slices import fit_attributes
from dranet.kernel.counters import find_counter_folders
from dranet.kernel.discovery.hardware import read_gids
from dranet.model.attributes import ESSENTIAL_NAMES, MAX_ATTRIBUTES_PER_DEVICE
from dranet.model.claim import Claim, Mount
from dranet.model.device import DeviceKind
from dranet.model.plan import PreparedClaim, PreparedDevice, RequestMetadata
from dranet.model.status import AttachedLink
from dranet.runtime.containers import CdiDevice, CdiSpecs
from dranet.store.claim_store import ClaimStore

_MOST_BYTES = 8 << 20
"""Limit of one file; each device takes a few kilobytes."""

COUNTERS_FOLDER = "/var/run/dranet/counters"
"""Where a container with admin access finds ``<device>/net`` and ``<device>/infiniband``."""

Gids = Mapping[str, tuple[str, ...]]
"""By RDMA device."""


class MetadataFiles(ClaimFolders):
    """The files on the host: ``metadata/<claim uid>/<request>/<driver>-metadata.json``."""

    def __init__(self, state_dir: Path, driver_name: str) -> None:
        self.driver_name = driver_name
        self._name = file_name(driver_name)
        super().__init__(
            state_dir / "metadata", (self._name,), "device metadata", ", or set device_metadata to false"
        )

    def read(self, claim_uid: str, request: str) -> tuple[JsonObject, int] | None:
        """Return the document of a request and its generation; ``None`` if the file is missing or damaged."""
        try:
            path = self.folder_of(claim_uid, request) / self._name
            return decode_stream(files.read_file(path, _MOST_BYTES))
        except (OSError, MetadataError):
            return None

    def write(self, claim_uid: str, request: str, document: JsonObject) -> bool:
        """Write the document of a request, unless the file has the same content; return whether it was
        written. The generation is one more than that of the earlier file. Errors: :class:`ClaimFolders`."""
        with self.open_for_writing(claim_uid, request) as folder:
            before = self.read(claim_uid, request)  # the folder is locked: no write in between
            if before is not None and before[0] == document:
                return False
            content = encode_stream(document, 1 if before is None else before[1] + 1)
            self.replace(folder / self._name, content)
        return True


class _InPod(Struct, frozen=True):
    """What was read of a claim's devices in their pod."""

    links: Sequence[AttachedLink] = ()
    gids: Gids | None = None


_NOT_THERE = _InPod()


class DeviceMetadata:
    """The files of every prepared claim, and their mounts. Callable from any thread."""

    def __init__(
        self,
        store: ClaimStore,
        files: MetadataFiles,
        cdi: CdiSpecs,
        announcer: Announcer,
        policy: Callable[[], Policy],
        sysfs_root: Path,
        *,
        enabled: bool = True,
    ) -> None:
        """``enabled``: whether claims that are prepared from now on get files."""
        self._driver = files.driver_name
        self._sysfs_root = sysfs_root
        self._store = store
        self._files = files
        self.list_claims = files.list_claims
        self._cdi = cdi
        self._policy = policy
        self._announcer = announcer
        self._enabled = enabled
        self._in_pods: dict[str, _InPod] = {}
        """By claim UID. Lost with the process; the reconcile after the next start reads it again."""

    # --- Prepare and Unprepare ---------------------------------------------------------------------------

    def plan(self, claim: Claim, record: PreparedClaim) -> PreparedClaim:
        """Return the record with what the files need of the claim, before it is committed."""

        def name_device(request: str) -> str:
            return self._cdi.device_id(claim.ref.uid, _cdi_device(request))

        return plan_metadata(claim, record, self._driver, name_device if self._enabled else None)

    def prepare(self, record: PreparedClaim) -> None:
        """Make sure that each request has its file, or raise StoreError. While the pod runs the file is not
        replaced."""
        for wanted in record.metadata:
            if not record.netns_path or self._files.read(record.claim.uid, wanted.request) is None:
                self._write(record, wanted)

    def cdi_devices(self, record: PreparedClaim) -> tuple[CdiDevice, ...]:
        return tuple(
            CdiDevice(_cdi_device(wanted.request), mounts=tuple(self._mounts(record, wanted)))
            for wanted in record.metadata
        )

    def _mounts(self, record: PreparedClaim, wanted: RequestMetadata) -> Iterator[Mount]:
        folder = self._files.folder_of(record.claim.uid, wanted.request)
        yield mount_file(record, wanted, str(folder), self._driver)
        for prepared in record.devices:
            is_nic = prepared.device.kind is not DeviceKind.GPU
            if prepared.request == wanted.request and prepared.admin_access and is_nic:
                folders = find_counter_folders(self._sysfs_root, prepared.device.pci_address)
                for kind, folder in folders.items():
                    inside = f"{COUNTERS_FOLDER}/{prepared.device.name}/{kind}"
                    yield Mount(str(folder), inside, options=READ_ONLY)

    def remove(self, claim_uid: str) -> None:
        """Remove the files of an unprepared claim, as far as possible; none is fine."""
        self._in_pods.pop(claim_uid, None)
        self._files.remove(claim_uid)

    # --- when devices move --------------------------------------------------------------------------------

    def attached(
        self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink], netns_path: str
    ) -> tuple[AttachedLink, ...]:
        """Complete the files of an attached pod before a container starts, and return the links with their
        RDMA devices and GIDs. Never raises."""
        complete, _ = self._note_attached(records, links, self._read_gids(records, netns_path))
        self.devices_moved()
        return complete

    def _read_gids(self, records: Sequence[PreparedClaim], netns_path: str) -> Gids:
        return read_from_rdma_devices(self._sysfs_root, records, netns_path, read_gids)

    def _note_attached(
        self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink], gids: Gids
    ) -> tuple[tuple[AttachedLink, ...], bool]:
        """Return the completed links, and whether that is new."""
        complete = tuple(_with_rdma(link, records, gids) for link in links)
        is_news = False
        for record in records:
            self._in_pods[record.claim.uid] = _InPod(complete, gids)
            is_news |= self._update(record) or not record.metadata  # without a file it is unknown
        return complete, is_news

    def refreshed(self, records: Sequence[PreparedClaim], netns_path: str) -> tuple[AttachedLink, ...] | None:
        """Update the files before another container starts: the kernel fills GID tables in its own time.
        ``None`` where GIDs have not changed since :meth:`attached`, or another instance has updated the
        files."""
        seen = next((self._in_pods.get(record.claim.uid, _NOT_THERE) for record in records), _NOT_THERE)
        if not seen.gids:
            return None
        # A namespace that cannot be entered now does not invalidate what was seen in it.
        gids = {**seen.gids, **self._read_gids(records, netns_path)}
        if gids == seen.gids:
            return None
        links, is_news = self._note_attached(records, seen.links, gids)
        return links if is_news else None

    def links_changed(self, record: PreparedClaim, links: Sequence[AttachedLink]) -> tuple[AttachedLink, ...]:
        """Update the files after a link changed in a running pod (a lease ended). Returns the completed
        links; never raises."""
        gids = self._read_gids([record], record.netns_path)
        current = self._store.get(record.claim.uid)
        if current is None or current.sandbox_id != record.sandbox_id:  # its files are gone
            return tuple(_with_rdma(link, [record], gids) for link in links)
        complete, _ = self._note_attached([record], links, gids)
        return complete

    def released(self, claim_uid: str) -> None:
        self._in_pods.pop(claim_uid, None)
        self.devices_moved()

    def devices_moved(self) -> None:
        """Bring the files of claims with admin access up to date; never raises."""
        records = self._store.get_all()
        placed = {record.claim.uid for record in records if record.netns_path}
        for claim_uid in self._in_pods.keys() - placed:  # returned or unprepared by another instance
            self._in_pods.pop(claim_uid, None)
        for record in records:
            if any(device.admin_access for device in record.devices):
                self._update(record)

    def _update(self, record: PreparedClaim) -> bool:
        is_news = False
        for wanted in record.metadata:
            try:
                is_news |= self._write(record, wanted)
            except DranetError as error:
                self._announcer.metadata_failed(record, error)
        return is_news

    # --- content of a file --------------------------------------------------------------------------------

    def _write(self, record: PreparedClaim, wanted: RequestMetadata) -> bool:
        in_pod = self._in_pods.get(record.claim.uid, _NOT_THERE)
        document = build_document(record, wanted, self._driver, partial(self._describe, in_pod))
        return self._files.write(record.claim.uid, wanted.request, document)

    def _describe(self, in_pod: _InPod, prepared: PreparedDevice) -> DeviceFacts:
        if prepared.admin_access:
            return DeviceFacts(self._choose(prepared, {LINK_IN_POD: self._is_in_pod(prepared.device.name)}))
        link = find_attached(prepared, in_pod.links)
        found = (in_pod.gids or {}).get(pod_rdma_device(prepared), ())
        gids = link.gids if link is not None else select_gids(prepared, (), found)
        return DeviceFacts(self._choose(prepared, pod_attributes(prepared, gids)), link)

    def _choose(self, prepared: PreparedDevice, first: Attributes) -> Attributes:
        """Return what a slice would take if ``first`` came first; files have the same limit."""
        places = {**prepared.device.attributes, **dict.fromkeys(first, True)}
        kept = fit_attributes(replace(prepared.device, attributes=places), self._policy()).kept
        chosen = {**kept, **first}
        surplus = len(chosen) - MAX_ATTRIBUTES_PER_DEVICE  # one of the first had no place
        spare = [name for name in chosen if name not in first and name not in ESSENTIAL_NAMES]
        dropped = spare[-surplus:] if surplus > 0 else ()
        return {name: value for name, value in chosen.items() if name not in dropped}

    def _is_in_pod(self, name: str) -> bool:
        placed = (record for record in self._store.get_all() if record.netns_path)
        plans = (d.plan for record in placed for d in record.devices if d.device.name == name)
        return any(plan is not None and not plan.is_on_top for plan in plans)


def _cdi_device(request: str) -> str:
    """The underscore distinguishes it from devices, whose names are DNS labels."""
    return f"metadata_{request}"


def _with_rdma(link: AttachedLink, records: Iterable[PreparedClaim], gids: Gids) -> AttachedLink:
    prepared = next(
        (d for record in records for d in record.devices if find_attached(d, (link,)) is not None), None
    )
    if prepared is None or not (name := pod_rdma_device(prepared)):
        return link
    return replace(link, rdma_device=name, gids=select_gids(prepared, link.addresses, gids.get(name, ())))
