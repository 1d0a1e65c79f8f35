"""The GPUs of each pod, by all that is known of it now. In memory; may be asked on any thread.

Told apart by who gave them: claims of this driver and devices of other drivers in the same claims (the store
has them), other claims of the pod (the API server), what its containers showed at the runtime, and what the
kubelet says. What was learned of a pod is kept as it was told, so that slices or facts that come later make
the answer better; after a restart it is learned again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from dranet.cluster.node_slices import NodeDevice
from dranet.dataclass import dataclass
from dranet.driver.alignment.signs import Name, Reading, Signs, match_ids, match_signs
from dranet.driver.publish import View
from dranet.model.claim import AllocationResult
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import PreparedClaim
from dranet.model.pod_gpu import Doubt, GpusOfPod, GpuSource, PodGpu

MAX_CONTAINERS = 64
"""Of one pod, of which anything is remembered."""
UNREAD = "the pod's other claims have not been read yet"

Listener = Callable[[str], None]
"""Told the UID of a pod whose GPUs read differently; on whichever thread learned it, so it must not block."""


class OtherDevices(Protocol):
    """What other drivers offer on this node (:class:`~dranet.cluster.node_slices.NodeDevices`)."""

    is_known: bool

    @property
    def is_awaited(self) -> bool: ...

    def find(self, driver: str, pool: str, device: str) -> NodeDevice | None: ...

    def get_all(self) -> tuple[NodeDevice, ...]: ...


@dataclass(slots=True, eq=False)
class _Learned:
    """Of one pod, beyond the records."""

    containers: dict[str, Signs] = field(default_factory=dict)
    results: tuple[AllocationResult, ...] | None = None
    """Of claims that are not ours; ``None``: not read."""
    unread: str = ""
    """Why they could not be read."""
    ids: tuple[Name, ...] | None = None
    """What the kubelet says; ``None``: not asked, or it does not answer."""
    is_kubelet_mute: bool = False
    """It was asked, and did not tell."""
    told: GpusOfPod = field(default=GpusOfPod())


class PodGpus:
    """Who knows the GPUs of a pod."""

    def __init__(
        self,
        read_view: Callable[[], View],
        records_of_pod: Callable[[str], Sequence[PreparedClaim]],
        others: OtherDevices,
        own_driver: str = "",
    ) -> None:
        """Devices of ``own_driver`` are known by the records, whoever else tells of them."""
        self._read_view = read_view
        self._records_of_pod = records_of_pod
        self._others = others
        self._own_driver = own_driver
        self._lock = threading.Lock()
        self._learned: dict[str, _Learned] = {}
        self._index: tuple[View, Mapping[str, Device]] | None = None
        self.listeners: list[Listener] = []

    def get(self, pod_uid: str) -> GpusOfPod:
        """What is known now, in the order of PCI addresses."""
        with self._lock:
            learned = self._learned.get(pod_uid)
            signs = tuple(learned.containers.values()) if learned is not None else ()
        records = tuple(self._records_of_pod(pod_uid))
        found = _Findings()
        for gpu in find_own(records):
            found.add(gpu)
        results = [result for record in records for result in record.others]
        for result in (*results, *((learned.results or ()) if learned is not None else ())):
            self._add_result(found, result)
        if learned is not None and learned.unread:
            found.doubts.append(Doubt(learned.unread, is_other_driver=True))
        elif found.gpus and self.lacks_claims(pod_uid):
            found.doubts.append(Doubt(UNREAD, is_other_driver=True))
        self._add_readings(found, signs, learned.ids if learned is not None else None)
        return found.conclude()

    def has_others(self, pod_uid: str) -> bool:
        """Whether claims of the pod have devices of other drivers, as far as is known."""
        with self._lock:
            learned = self._learned.get(pod_uid)
        records = self._records_of_pod(pod_uid)
        return any(record.others for record in records) or bool(learned is not None and learned.results)

    @property
    def are_served_by_others(self) -> bool:
        """Whether another DRA driver offers GPUs of this node, so that claims without any device of ours may
        have them."""
        known = self._gpu_devices()
        uuids = {gpu.uuid for gpu in self._read_view().facts.gpus if gpu.uuid}
        return any(
            device.pci_address in known or not uuids.isdisjoint(device.uuids)
            for device in self._others.get_all()
        )

    def lacks_claims(self, pod_uid: str) -> bool:
        """Whether the pod's other claims may have GPUs, and have not been looked at."""
        return not self.has_read_claims(pod_uid) and self.are_served_by_others

    def is_awaited(self, pod_uid: str) -> bool:
        """Whether somebody is still to be heard who may know of GPUs of the pod: soon after the start."""
        with self._lock:
            learned = self._learned.get(pod_uid)
        has_failed = learned is not None and bool(learned.unread)
        is_mute = learned is not None and learned.is_kubelet_mute
        return (
            self._others.is_awaited
            or (not self._others.is_known and self.has_others(pod_uid))
            or (not has_failed and self.lacks_claims(pod_uid))
            or (not is_mute and self.may_kubelet_know(pod_uid))
        )

    def has_read_claims(self, pod_uid: str) -> bool:
        """Whether the pod's other claims have been looked at."""
        with self._lock:
            learned = self._learned.get(pod_uid)
        return learned is not None and learned.results is not None

    def may_kubelet_know(self, pod_uid: str) -> bool:
        """Whether something about the containers is unclear, and the kubelet has not been heard."""
        with self._lock:
            learned = self._learned.get(pod_uid)
            if learned is None or learned.ids is not None:
                return False
            signs = tuple(learned.containers.values())
        facts = self._read_view().facts
        return any(match_signs(one, facts).unclear for one in signs)

    # --- learning ---------------------------------------------------------------------------------------

    def note_container(self, pod_uid: str, signs: Signs) -> None:
        """A container of the pod has been created, or exists. One that shows nothing, as most do, is
        remembered only in place of an earlier one of its name."""
        with self._lock:
            learned = self._learned.get(pod_uid)
            is_known = learned is not None and signs.container in learned.containers
            if not is_known and not (signs.names or signs.nodes):
                return
            containers = self._learned.setdefault(pod_uid, _Learned()).containers
            if is_known or len(containers) < MAX_CONTAINERS:
                containers[signs.container] = signs
        self.changed(pod_uid)

    def note_claims(self, pod_uid: str, results: Iterable[AllocationResult], problem: str = "") -> None:
        """What the pod's claims beside ours have, or why it is not known."""
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            learned.unread = problem
            learned.results = None if problem else tuple(results)
        self.changed(pod_uid)

    def note_kubelet(self, pod_uid: str, ids: Iterable[Name], results: Iterable[AllocationResult]) -> None:
        """What the kubelet says that the pod was given."""
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            learned.ids = tuple(ids)
            if learned.results is None:
                learned.results, learned.unread = tuple(results), ""
        self.changed(pod_uid)

    def note_mute_kubelet(self, pod_uid: str) -> None:
        """The kubelet did not tell what the pod was given."""
        with self._lock:
            self._learned.setdefault(pod_uid, _Learned()).is_kubelet_mute = True

    def changed(self, pod_uid: str) -> None:
        """Something that the answer depends on may be different: tell, if the answer is."""
        now = self.get(pod_uid)
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            is_news, learned.told = now != learned.told, now
        if is_news:
            for listener in self.listeners:
                listener(pod_uid)

    def keep_only(self, pod_uids: Collection[str]) -> None:
        """The others have ended."""
        with self._lock:
            self._learned = {uid: known for uid, known in self._learned.items() if uid in pod_uids}

    # --- putting together -------------------------------------------------------------------------------

    def _gpu_devices(self) -> Mapping[str, Device]:
        """Every GPU of the node by PCI address, published or not."""
        view = self._read_view()
        if self._index is None or self._index[0] is not view:
            held_back = (decision.device for decision in view.held_back.values())
            devices = (d for d in (*view.offered.values(), *held_back) if d.kind is DeviceKind.GPU)
            self._index = view, {device.pci_address: device for device in devices}
        return self._index[1]

    def _add_result(self, found: _Findings, result: AllocationResult) -> None:
        if result.admin_access or result.driver == self._own_driver:
            return
        name = f"device {result.device} of {result.driver}"
        other = self._others.find(result.driver, result.pool, result.device)
        if other is None:
            found.doubts.append(Doubt(f"{name}: no slice tells where it sits", is_other_driver=True))
            return
        address = self._find_address(other)
        if address in self._gpu_devices():
            found.add(
                PodGpu(self._gpu_devices()[address], GpuSource.OTHER_DRIVERS_CLAIM, f"{name}, by its slices")
            )
        elif _may_be_gpu(other, address) and address not in self._functions():
            why = f"PCI function {address} is not of this node" if address else "its slice does not say where"
            found.doubts.append(Doubt(f"{name}: {why}", is_other_driver=True))

    def _find_address(self, other: NodeDevice) -> str:
        if other.pci_address:
            return other.pci_address
        wanted = {uuid.lower() for uuid in other.uuids}
        gpus = self._read_view().facts.gpus
        return next((gpu.pci_address for gpu in gpus if gpu.uuid and gpu.uuid.lower() in wanted), "")

    def _functions(self) -> Collection[str]:
        return {function.address for function in self._read_view().facts.pci_functions}

    def _add_readings(self, found: _Findings, signs: Sequence[Signs], ids: tuple[Name, ...] | None) -> None:
        facts = self._read_view().facts
        is_given_by_claims = bool(found.gpus)
        for one in signs:
            reading = match_signs(one, facts)
            self._add_reading(found, reading, f"container {one.container}")
            if ids is None and not is_given_by_claims:
                found.doubts += map(Doubt, reading.unclear)
        if ids is not None:
            reading = match_ids(ids, facts)
            self._add_reading(found, reading, "the kubelet")
            if not found.gpus:
                found.doubts += map(Doubt, reading.unclear)

    def _add_reading(self, found: _Findings, reading: Reading, told_by: str) -> None:
        for address, source in reading.found:
            device = self._gpu_devices().get(address)
            if device is not None:
                found.add(PodGpu(device, source, told_by))


class _Findings:
    """Each GPU once, by the first who tells of it."""

    def __init__(self) -> None:
        self.gpus: dict[str, PodGpu] = {}
        self.doubts: list[Doubt] = []

    def add(self, gpu: PodGpu) -> None:
        self.gpus.setdefault(gpu.device.pci_address or gpu.name, gpu)

    def conclude(self) -> GpusOfPod:
        gpus = tuple(self.gpus[address] for address in sorted(self.gpus))
        return GpusOfPod(gpus, tuple(dict.fromkeys(self.doubts)))


def find_own(records: Iterable[PreparedClaim]) -> Iterator[PodGpu]:
    """The GPUs that a pod has from this driver by these claims, those of admin access left out."""
    for record in records:
        for prepared in record.devices:
            if prepared.device.kind is DeviceKind.GPU and not prepared.admin_access:
                yield PodGpu(prepared.device, GpuSource.CLAIM, f"claim {record.claim}")


def _may_be_gpu(other: NodeDevice, address: str) -> bool:
    """Whether a device that is not at the place of any GPU of ours may be one: CPUs and memory have neither
    an address nor a UUID, and come from drivers that do not say GPU."""
    return bool(address or other.uuids) or "gpu" in other.driver
