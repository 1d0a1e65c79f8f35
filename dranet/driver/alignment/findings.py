"""GPUs of one pod as they are found, one teller after the other, and what tells a GPU at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dranet.cluster.node_slices import NodeDevice
from dranet.model.device import DeviceKind
from dranet.model.plan import PreparedClaim
from dranet.model.pod_gpu import Doubt, GpusOfPod, GpuSource, PodGpu


class Findings:
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
