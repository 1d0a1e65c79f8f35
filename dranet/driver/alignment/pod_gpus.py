"""The GPUs of each pod, by all that is known of it now. In memory; may be asked on any thread.

Told apart by who gave them: claims of this driver and devices of other drivers in the same claims (the store
has them), other claims of the pod (the API server), what its containers showed at the runtime, and what the
kubelet says. What was learned of a pod is kept as it was told, so that slices or facts that come later make
the answer better; after a restart it is learned again.

GPUs of one pod as they are found, one teller after the other, and what tells a GPU at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.cluster.node_slices import Key, NodeDevice, NodeDevices
from dranet.driver.alignment.observations import (
    ContainerObservation,
    GpuMatch,
    GpuName,
    match_container,
    match_ids,
)
from dranet.driver.publish import View
from dranet.model.claim import AllocationResult
from dranet.model.device import Device, DeviceKind
from dranet.model.gpus import Doubt, GpusOfPod, GpuSource, PodGpu
from dranet.model.plan import PreparedClaim

MAX_CONTAINERS = 64
"""Of one pod, of which anything is remembered."""
UNREAD = "the pod's other claims have not been read yet"

Listener = Callable[[str], None]
"""Told the UID of a pod whose GPUs read differently; on whichever thread learned it, so it must not block."""


class _Learned(Struct, eq=False):
    """Of one pod, beyond the records."""

    containers: dict[str, ContainerObservation] = field(default_factory=dict)
    has_more_containers: bool = False
    """Than are remembered."""
    devices: dict[Key, NodeDevice] = field(default_factory=dict)
    """Of other drivers, as slices told of them. Those go and come with their driver; the pod keeps them."""
    results: tuple[AllocationResult, ...] | None = None
    """Of claims that are not ours; ``None``: not read."""
    unread: str = ""
    """Why they could not be read."""
    ids: tuple[GpuName, ...] | None = None
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
        others: NodeDevices,
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
        found, learned = self._find_claimed(pod_uid), self._get_learned(pod_uid)
        if learned.unread:
            found.doubts.append(Doubt(learned.unread, is_other_driver=True))
        elif found.gpus and self.lacks_claims(pod_uid):
            found.doubts.append(Doubt(UNREAD, is_other_driver=True))
        self._add_readings(found, learned)
        return found.conclude()

    def _get_learned(self, pod_uid: str) -> _Learned:
        """As it is now; what another thread learns meanwhile is not in it."""
        with self._lock:
            learned = self._learned.get(pod_uid, _Learned())
            return replace(learned, containers=dict(learned.containers), devices=dict(learned.devices))

    def _find_claimed(self, pod_uid: str) -> FoundGpus:
        """What the pod's claims have."""
        records = tuple(self._records_of_pod(pod_uid))
        found = FoundGpus()
        for gpu in find_own(records):
            found.add(gpu)
        recorded = {prepared.device.name for record in records for prepared in record.devices}
        others = [result for record in records for result in record.others]
        for result in (*others, *(self._get_learned(pod_uid).results or ())):
            if result.admin_access:
                continue
            if result.driver != self._own_driver:
                self._add_result(found, result, self._find_device(pod_uid, result))
            elif result.device not in recorded:
                self._add_shared(found, result)
        return found

    def _add_shared(self, found: FoundGpus, result: AllocationResult) -> None:
        """A device of ours in a claim that several pods have: another of them is in its record."""
        for device in self._gpu_devices().values():
            if device.name == result.device:
                found.add(PodGpu(device, GpuSource.CLAIM))

    def _find_device(self, pod_uid: str, result: AllocationResult) -> NodeDevice | None:
        """As its slice tells, or told."""
        key = result.driver, result.pool, result.device
        device = self._others.find(*key)
        with self._lock:
            if device is not None:
                self._learned.setdefault(pod_uid, _Learned()).devices[key] = device
                return device
            return self._learned.get(pod_uid, _Learned()).devices.get(key)

    def has_others(self, pod_uid: str) -> bool:
        """Whether claims of the pod have devices of other drivers, as far as is known."""
        records = self._records_of_pod(pod_uid)
        return any(record.others for record in records) or bool(self._get_learned(pod_uid).results)

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
        learned = self._get_learned(pod_uid)
        return (
            self._others.is_awaited
            or (not self._others.is_known and self.has_others(pod_uid))
            or (not learned.unread and self.lacks_claims(pod_uid))
            or (not learned.is_kubelet_mute and self.may_kubelet_know(pod_uid))
        )

    def may_learn(self, pod_uid: str) -> bool:
        """Whether somebody may know more, be it that he has failed to answer: he is asked again."""
        return self.is_awaited(pod_uid) or self.lacks_claims(pod_uid) or self.may_kubelet_know(pod_uid)

    def has_read_claims(self, pod_uid: str) -> bool:
        """Whether the pod's other claims have been looked at."""
        return self._get_learned(pod_uid).results is not None

    def may_kubelet_know(self, pod_uid: str) -> bool:
        """Whether something about the containers is unclear that no claim explains, and the kubelet has not
        been heard."""
        learned, facts = self._get_learned(pod_uid), self._read_view().facts
        if learned.ids is not None or (not learned.unread and self._find_claimed(pod_uid).gpus):
            return False
        return any(match_container(one, facts).unclear for one in learned.containers.values())

    # --- learning ---------------------------------------------------------------------------------------

    def note_container(self, pod_uid: str, signs: ContainerObservation) -> None:
        """A container of the pod has been created, or exists. One that shows nothing, as most do, is
        remembered only in place of an earlier one of its name."""
        with self._lock:
            learned = self._learned.get(pod_uid)
            is_known = learned is not None and signs.container in learned.containers
            if not is_known and not (signs.names or signs.nodes):
                return
            learned = self._learned.setdefault(pod_uid, _Learned())
            if is_known or len(learned.containers) < MAX_CONTAINERS:
                learned.containers[signs.container] = signs
            else:
                learned.has_more_containers = True
        self.changed(pod_uid)

    def note_claims(self, pod_uid: str, results: Iterable[AllocationResult], problem: str = "") -> None:
        """What the pod's claims beside ours have, or why it is not known."""
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            learned.unread = problem
            learned.results = None if problem else tuple(results)
        self.changed(pod_uid)

    def note_kubelet(self, pod_uid: str, ids: Iterable[GpuName], results: Iterable[AllocationResult]) -> None:
        """What the kubelet says that the pod was given. One that tells of no device of any claim does not
        tell of claims at all (a feature gate), as the pod has devices of ours."""
        told = tuple(results)
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            learned.ids = tuple(ids)
            if learned.results is None and told:
                learned.results, learned.unread = told, ""
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
            self.notify(pod_uid)

    def notify(self, pod_uid: str) -> None:
        """Call the listeners: the pod has its devices now."""
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

    def _add_result(self, found: FoundGpus, result: AllocationResult, other: NodeDevice | None) -> None:
        name = f"device {result.device} of {result.driver}"
        if other is None:
            found.doubts.append(Doubt(f"{name}: no slice tells where it sits", is_other_driver=True))
            return
        address = self._find_address(other)
        if address in self._gpu_devices():
            found.add(
                PodGpu(self._gpu_devices()[address], GpuSource.OTHER_DRIVERS_CLAIM, f"{name}, by its slices")
            )
        elif may_be_gpu(other, address) and address not in self._functions():
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

    def _add_readings(self, found: FoundGpus, learned: _Learned) -> None:
        """What containers show, and what the kubelet says of them: an image says ``all`` of containers that
        were given nothing, so that its word counts for no doubt where a claim or the kubelet knows."""
        facts = self._read_view().facts
        is_explained = bool(found.gpus) or learned.ids is not None
        clear: set[str] = set()
        for one in learned.containers.values():
            reading = match_container(one, facts)
            self._add_reading(found, reading, f"container {one.container}")
            if not reading.unclear:
                clear |= {name.name for name in one.names}
            elif not is_explained:
                found.doubts += map(Doubt, reading.unclear)
        if learned.has_more_containers:
            found.doubts.append(Doubt(f"it has more than {MAX_CONTAINERS} containers that may have GPUs"))
        reading = match_ids((name for name in learned.ids or () if name.name not in clear), facts)
        self._add_reading(found, reading, "the kubelet")
        found.doubts += map(Doubt, reading.unclear)

    def _add_reading(self, found: FoundGpus, reading: GpuMatch, told_by: str) -> None:
        for address, source in reading.found:
            device = self._gpu_devices().get(address)
            if device is not None:
                found.add(PodGpu(device, source, told_by))


class FoundGpus:
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


def may_be_gpu(other: NodeDevice, address: str) -> bool:
    """Whether a device that is not at the place of any GPU of ours may be one: CPUs and memory have neither
    an address nor a UUID, and come from drivers that do not say GPU."""
    return bool(address or other.uuids) or "gpu" in other.driver
