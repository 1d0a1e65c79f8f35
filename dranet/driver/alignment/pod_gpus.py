"""The GPUs of each pod, from all that is known now. In memory; may be asked on any thread.

The sources are claims of this driver and devices of other drivers in the same claims (from the store), other
claims of the pod (from the API server), what its containers showed at the runtime, and the kubelet. What is
learned of a pod is kept as it was reported, so that later slices or facts improve the answer. After a restart
it is learned again.

A GPU that a container got is named there (variable, mount, CDI device, an id at the kubelet), and its device
node is in the container. Names take precedence over nodes, because a privileged container has the nodes of
all GPUs. Nodes take precedence over indices, because the container's toolkit may count in another order.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.cluster.nodes import Key, NodeDevice, NodeDevices
from dranet.driver.publish import View
from dranet.model.claim import AllocationResult, Container
from dranet.model.device import (
    GPU_VARIABLES,
    HABANA,
    NVIDIA,
    SHARED_GPU_NODES,
    Device,
    DeviceKind,
    Doubt,
    GpusOfPod,
    GpuSource,
    PodGpu,
    find_mount_name,
    may_be_gpu_node,
    names_gpus,
    parse_cdi_name,
    split_names,
)
from dranet.model.facts import Gpu, NodeFacts
from dranet.model.plan import PreparedClaim

MAX_OBSERVED = 256
"""For each kind, for one container."""
MAX_SHOWN = 80
"""Characters of an unknown name in messages."""
MAX_NAME = 128
"""Characters of a name; no GPU has a longer one."""
_NOTHING = frozenset({"", "void", "none"})
_REPLICA = "::"
"""Separates the id of a GPU from the number of a share of it (time slicing, MPS)."""
_INDEX = re.compile(r"([0-9]{1,3})(?::[0-9]+)?")
"""Index of a GPU, or of a GPU and the MIG device on it."""
_MIG_OF_GPU = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/.*")
"""The older names of MIG devices contain that of the GPU."""


class GpuName(NamedTuple):
    source: GpuSource
    vendor: str
    name: str


class ContainerObservation(Struct, frozen=True):
    container: str
    names: tuple[GpuName, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()
    """Major and minor numbers of its character devices."""


class FoundGpu(NamedTuple):
    pci_address: str
    source: GpuSource


class GpuMatch(Struct, frozen=True):
    """The GPUs that a container's observation, or the kubelet's answer, refers to."""

    found: tuple[FoundGpu, ...] = ()
    unclear: tuple[str, ...] = ()
    """What may be GPUs and cannot be identified, a clause each. The kubelet may know more."""


def observe_container(container: Container) -> ContainerObservation:
    numbers = ((node.major, node.minor) for node in container.devices if may_be_gpu_node(node.path))
    # Cut off: a pod chooses what its containers show, and it is kept for the pod's life.
    names = (name._replace(name=name.name[:MAX_NAME]) for name in _find_names(container))
    return ContainerObservation(
        container.name,
        tuple(dict.fromkeys(names))[:MAX_OBSERVED],
        tuple(dict.fromkeys(numbers))[:MAX_OBSERVED],
    )


def _find_names(container: Container) -> Iterator[GpuName]:
    for name in container.cdi_devices:
        if (parsed := parse_cdi_name(name)) is not None:
            yield GpuName(GpuSource.CDI, *parsed)
    for name, value in container.env.items():
        if name in GPU_VARIABLES and value.strip().lower() not in _NOTHING:
            yield from (
                GpuName(GpuSource.ENVIRONMENT, GPU_VARIABLES[name], part) for part in split_names(value)
            )
    for mount in container.mounts:
        if names_gpus(mount.destination):
            yield GpuName(GpuSource.MOUNTS, NVIDIA, find_mount_name(mount.destination))


def match_container(seen: ContainerObservation, facts: NodeFacts) -> GpuMatch:
    reading = _match(seen, facts)
    unclear = (f"container {seen.container}: {text}" for text in reading.unclear)
    return replace(reading, unclear=tuple(unclear))


def _match(seen: ContainerObservation, facts: NodeFacts) -> GpuMatch:
    gpus = facts.gpus
    by_name = match_names(seen.names, facts, _match_name)
    nodes = set(seen.nodes)
    by_node = tuple(FoundGpu(g.pci_address, GpuSource.DEVICE_NODES) for g in gpus if _own_nodes(g) & nodes)
    has_every_node = 0 < len(by_node) == len([gpu for gpu in gpus if _own_nodes(gpu)])
    if by_name.found and not by_name.unclear:
        return by_name
    if by_node and not has_every_node:
        known = {found.pci_address for found in by_name.found}
        return GpuMatch((*by_name.found, *(found for found in by_node if found.pci_address not in known)))
    counted = match_names(seen.names, facts, _match_name_or_index)
    if counted.found or not has_every_node:
        return counted
    whose = f"all {len(by_node)} GPUs" if len(by_node) > 1 else "the only GPU"
    text = f"it has the device nodes of {whose} of the node, as a privileged one has"
    return GpuMatch(unclear=(*counted.unclear, text))


_Match = Callable[[GpuName, Sequence[Gpu]], str]


def match_ids(names: Iterable[GpuName], facts: NodeFacts) -> GpuMatch:
    return match_names(names, facts, _match_name_or_index)


def match_names(names: Iterable[GpuName], facts: NodeFacts, match: _Match) -> GpuMatch:
    """Return the GPUs with these names, each once, with the source of the first name that matches."""
    found: dict[str, FoundGpu] = {}
    unclear: list[str] = []
    for name in names:
        mine = sorted((gpu for gpu in facts.gpus if gpu.vendor == name.vendor), key=attrgetter("pci_address"))
        address = match(name, mine)
        if address:
            found.setdefault(address, FoundGpu(address, name.source))
        else:
            unclear.append(f"{name.source.meaning} has {name.name[:MAX_SHOWN]!r}")
    return GpuMatch(tuple(found.values()), tuple(dict.fromkeys(unclear)))


def _match_name(name: GpuName, gpus: Sequence[Gpu]) -> str:
    """Return the PCI address; empty if it is unclear. ``all`` is: an image may set it in a container that
    gets none."""
    text = name.name.partition(_REPLICA)[0]
    part = _MIG_OF_GPU.fullmatch(text)
    wanted = (part[1] if part else text).lower()
    return next((gpu.pci_address for gpu in gpus if wanted in _names_of(gpu)), "")


def _match_name_or_index(name: GpuName, gpus: Sequence[Gpu]) -> str:
    """Vendors' tools count in the order of PCI addresses and skip GPUs without their driver (those of virtual
    machines); Habana's index is the number of the node."""
    known = _match_name(name, gpus)
    index = _INDEX.fullmatch(name.name.partition(_REPLICA)[0])
    if known or index is None:
        return known
    if name.vendor == HABANA:
        return _match_name(name._replace(name=f"accel{index[1]}"), gpus)
    counted = [gpu.pci_address for gpu in gpus if _own_nodes(gpu)]
    return counted[int(index[1])] if int(index[1]) < len(counted) else ""


def _names_of(gpu: Gpu) -> Iterator[str]:
    yield gpu.pci_address
    if gpu.uuid:
        uuid = gpu.uuid.lower().removeprefix("0x")
        yield from (uuid, f"0x{uuid}", f"gpu-{uuid}")
    for node in gpu.char_devices:
        if node.path not in SHARED_GPU_NODES:
            yield node.path.rpartition("/")[2].lower()


def _own_nodes(gpu: Gpu) -> set[tuple[int, int]]:
    """Numbers of the nodes of this GPU alone; none if its kernel driver is not bound."""
    return {(node.major, node.minor) for node in gpu.char_devices if node.path not in SHARED_GPU_NODES}


MAX_CONTAINERS = 64
"""Remembered for one pod."""
UNREAD = "the pod's other claims have not been read yet"

Listener = Callable[[str], None]
"""Called with the UID of a pod whose GPUs changed, on any thread; must not block."""


class _Learned(Struct, eq=False):
    """What is known of one pod in addition to the records."""

    containers: dict[str, ContainerObservation] = field(default_factory=dict)
    has_more_containers: bool = False
    """Than are remembered."""
    devices: dict[Key, NodeDevice] = field(default_factory=dict)
    """Devices of other drivers, from their slices. Slices vanish with their driver; the pod keeps its
    devices."""
    results: tuple[AllocationResult, ...] | None = None
    """Results of claims that have none of our devices; ``None``: not read."""
    unread: str = ""
    """Why they could not be read."""
    ids: tuple[GpuName, ...] | None = None
    """What the kubelet reports; ``None``: not asked, or no answer."""
    is_kubelet_mute: bool = False
    """Whether it was asked and did not answer."""
    reported: GpusOfPod = field(default=GpusOfPod())


class PodGpus:
    def __init__(
        self,
        read_view: Callable[[], View],
        records_of_pod: Callable[[str], Sequence[PreparedClaim]],
        others: NodeDevices,
        own_driver: str = "",
    ) -> None:
        """``own_driver``: its devices are taken from the records, even if other sources report them."""
        self._read_view = read_view
        self._records_of_pod = records_of_pod
        self._others = others
        self._own_driver = own_driver
        self._lock = threading.Lock()
        self._learned: dict[str, _Learned] = {}
        self._index: tuple[View, Mapping[str, Device]] | None = None
        self.listeners: list[Listener] = []

    def get(self, pod_uid: str) -> GpusOfPod:
        """Return what is known now, in the order of PCI addresses."""
        found, learned = self._find_claimed(pod_uid), self._get_learned(pod_uid)
        if learned.unread:
            found.doubts.append(Doubt(learned.unread, is_other_driver=True))
        elif found.gpus and self.is_missing_claims(pod_uid):
            found.doubts.append(Doubt(UNREAD, is_other_driver=True))
        self._add_readings(found, learned)
        return found.conclude()

    def _get_learned(self, pod_uid: str) -> _Learned:
        """Return a copy; what another thread learns meanwhile is not in it."""
        with self._lock:
            learned = self._learned.get(pod_uid, _Learned())
            return replace(learned, containers=dict(learned.containers), devices=dict(learned.devices))

    def _find_claimed(self, pod_uid: str) -> FoundGpus:
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
            elif result.device not in recorded:  # of a claim that pods share, in the record of another one
                for device in self._gpu_devices().values():
                    if device.name == result.device:
                        found.add(PodGpu(device, GpuSource.CLAIM))
        return found

    def _find_device(self, pod_uid: str, result: AllocationResult) -> NodeDevice | None:
        """Return the device from its slice, or as it was remembered."""
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
        """Whether another DRA driver offers GPUs of this node, so that claims without our devices may have
        some."""
        known = self._gpu_devices()
        uuids = {gpu.uuid for gpu in self._read_view().facts.gpus if gpu.uuid}
        return any(
            device.pci_address in known or not uuids.isdisjoint(device.uuids)
            for device in self._others.get_all()
        )

    def is_missing_claims(self, pod_uid: str) -> bool:
        """Whether the pod's other claims may have GPUs and have not been read."""
        return not self.has_read_claims(pod_uid) and self.are_served_by_others

    def is_awaited(self, pod_uid: str) -> bool:
        """Whether a source that may know of GPUs of the pod has not answered yet, as soon after the start."""
        learned = self._get_learned(pod_uid)
        return (
            self._others.is_awaited
            or (not self._others.is_known and self.has_others(pod_uid))
            or (not learned.unread and self.is_missing_claims(pod_uid))
            or (not learned.is_kubelet_mute and self.may_kubelet_know(pod_uid))
        )

    def may_learn(self, pod_uid: str) -> bool:
        """Whether a source may know more, including one that failed and is asked again."""
        return self.is_awaited(pod_uid) or self.is_missing_claims(pod_uid) or self.may_kubelet_know(pod_uid)

    def has_read_claims(self, pod_uid: str) -> bool:
        return self._get_learned(pod_uid).results is not None

    def may_kubelet_know(self, pod_uid: str) -> bool:
        """Whether something about the containers is unclear that no claim explains, and the kubelet has not
        answered."""
        learned, facts = self._get_learned(pod_uid), self._read_view().facts
        if learned.ids is not None or (not learned.unread and self._find_claimed(pod_uid).gpus):
            return False
        return any(match_container(one, facts).unclear for one in learned.containers.values())

    # --- learning ---------------------------------------------------------------------------------------

    def note_container(self, pod_uid: str, seen: ContainerObservation) -> None:
        """Note a container of the pod. One that shows nothing, as most do, is only remembered in place of an
        earlier one with the same name."""
        with self._lock:
            learned = self._learned.get(pod_uid)
            is_known = learned is not None and seen.container in learned.containers
            if not is_known and not (seen.names or seen.nodes):
                return
            learned = self._learned.setdefault(pod_uid, _Learned())
            if is_known or len(learned.containers) < MAX_CONTAINERS:
                learned.containers[seen.container] = seen
            else:
                learned.has_more_containers = True
        self.changed(pod_uid)

    def note_claims(self, pod_uid: str, results: Iterable[AllocationResult], problem: str = "") -> None:
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            learned.unread = problem
            learned.results = None if problem else tuple(results)
        self.changed(pod_uid)

    def note_kubelet(self, pod_uid: str, ids: Iterable[GpuName], results: Iterable[AllocationResult]) -> None:
        """Note what the kubelet reports for the pod. If it reports no device of any claim it does not report
        claims at all (a feature gate), because the pod has devices of ours."""
        found = tuple(results)
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            learned.ids = tuple(ids)
            if learned.results is None and found:
                learned.results, learned.unread = found, ""
        self.changed(pod_uid)

    def note_mute_kubelet(self, pod_uid: str) -> None:
        with self._lock:
            self._learned.setdefault(pod_uid, _Learned()).is_kubelet_mute = True

    def changed(self, pod_uid: str) -> None:
        """Notify the listeners if the answer has changed."""
        now = self.get(pod_uid)
        with self._lock:
            learned = self._learned.setdefault(pod_uid, _Learned())
            is_news, learned.reported = now != learned.reported, now
        if is_news:
            self.notify(pod_uid)

    def notify(self, pod_uid: str) -> None:
        for listener in self.listeners:
            listener(pod_uid)

    def keep_only(self, pod_uids: Collection[str]) -> None:
        with self._lock:
            self._learned = {uid: known for uid, known in self._learned.items() if uid in pod_uids}

    # --- putting together -------------------------------------------------------------------------------

    def _gpu_devices(self) -> Mapping[str, Device]:
        """Return every GPU of the node by PCI address, published or not."""
        view = self._read_view()
        if self._index is None or self._index[0] is not view:
            not_offered = (decision.device for decision in view.not_offered.values())
            devices = (d for d in (*view.offered.values(), *not_offered) if d.kind is DeviceKind.GPU)
            self._index = view, {device.pci_address: device for device in devices}
        return self._index[1]

    def _add_result(self, found: FoundGpus, result: AllocationResult, other: NodeDevice | None) -> None:
        name = f"device {result.device} of {result.driver}"
        if other is None:
            found.doubts.append(Doubt(f"{name}: no slice contains its place", is_other_driver=True))
            return
        address = self._find_address(other)
        if address in self._gpu_devices():
            device = self._gpu_devices()[address]
            found.add(PodGpu(device, GpuSource.OTHER_DRIVERS_CLAIM, f"{name}, by its slices"))
        elif may_be_gpu(other, address) and address not in {
            function.address for function in self._read_view().facts.pci_functions
        }:
            elsewhere = f"PCI function {address} is not of this node"
            why = elsewhere if address else "its slice does not contain its place"
            found.doubts.append(Doubt(f"{name}: {why}", is_other_driver=True))

    def _find_address(self, other: NodeDevice) -> str:
        if other.pci_address:
            return other.pci_address
        wanted = {uuid.lower() for uuid in other.uuids}
        gpus = self._read_view().facts.gpus
        return next((gpu.pci_address for gpu in gpus if gpu.uuid and gpu.uuid.lower() in wanted), "")

    def _add_readings(self, found: FoundGpus, learned: _Learned) -> None:
        """Add what containers and the kubelet report. An image may set ``all`` in containers that got
        nothing, so that raises no doubt where a claim or the kubelet knows better."""
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

    def _add_reading(self, found: FoundGpus, reading: GpuMatch, holder: str) -> None:
        for address, source in reading.found:
            device = self._gpu_devices().get(address)
            if device is not None:
                found.add(PodGpu(device, source, holder))


class FoundGpus:
    """Collects the GPUs of one pod, each from the first source that reports it."""

    def __init__(self) -> None:
        self.gpus: dict[str, PodGpu] = {}
        self.doubts: list[Doubt] = []

    def add(self, gpu: PodGpu) -> None:
        self.gpus.setdefault(gpu.device.pci_address or gpu.name, gpu)

    def conclude(self) -> GpusOfPod:
        gpus = tuple(self.gpus[address] for address in sorted(self.gpus))
        return GpusOfPod(gpus, tuple(dict.fromkeys(self.doubts)))


def find_own(records: Iterable[PreparedClaim]) -> Iterator[PodGpu]:
    """Return the GPUs of this driver in these claims, without those of admin access."""
    for record in records:
        for prepared in record.devices:
            if prepared.device.kind is DeviceKind.GPU and not prepared.admin_access:
                yield PodGpu(prepared.device, GpuSource.CLAIM, f"claim {record.claim}")


def may_be_gpu(other: NodeDevice, address: str) -> bool:
    """Whether a device that matches none of our GPUs may be one. CPUs and memory have neither an address nor
    a UUID, and their drivers' names do not contain "gpu"."""
    return bool(address or other.uuids) or "gpu" in other.driver
