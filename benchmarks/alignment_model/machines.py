"""The layouts with GPUs, as far as the model needs them: which NICs are how far from which GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.alignment_model.figures import BANDWIDTHS, Bandwidth
from dranet.claims.alignment import level, pair
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.model.capture import decode_capture
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance

DATA = Path(__file__).parents[2] / "tests" / "data"

TITLES = {
    "aws-p5": "AWS p5 (H100, EFA)",
    "azure-gb300": "Azure GB300",
    "azure-nd-h100-v5": "Azure ND H100 v5",
    "dgx-a100": "DGX A100",
    "dgx-h100": "DGX H100",
    "gb200-nvl72": "GB200 NVL72 tray",
    "hgx-b200": "HGX B200",
    "infiniband-only": "8 GPUs, InfiniBand",
    "mi300x": "MI300X",
    "oci-gb200": "OCI GB200",
}

_NEAR_ON_ONE_NUMA_NODE = ("mi300x",)
"""The published figures distinguish NUMA nodes, not switches."""
_NICS_PER_GPU = {"aws-p5": 4}


@dataclass(frozen=True)
class Machine:
    """One layout. GPUs and NICs are known by their place in these tuples."""

    name: str
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    """Those that are for the GPUs: RDMA, on offer, and as near to some GPU as any NIC is."""
    nics_per_gpu: int
    near: Distance
    """What is no farther counts as aligned: the nearest that there is on this machine."""
    bandwidth: Bandwidth
    _pairs: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Distance | None, ...]] = field(
        default_factory=dict
    )

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def most_gpus(self) -> int:
        """That a job can have with their NICs."""
        return min(len(self.gpus), len(self.nics) // self.nics_per_gpu)

    def distances(self, gpus: tuple[int, ...], nics: tuple[int, ...]) -> tuple[Distance | None, ...]:
        """The distance from each NIC of a job to its GPU in the best pairing, as NCCL would use them."""
        key = tuple(sorted(gpus)), tuple(sorted(nics))
        if key not in self._pairs:
            chosen = pair([self.nics[i] for i in key[1]], [self.gpus[i] for i in key[0]])
            self._pairs[key] = tuple(chosen.distances)
        return self._pairs[key]

    def is_near(self, distance: Distance | None) -> bool:
        return level(distance) <= self.near


def read_machines() -> tuple[Machine, ...]:
    """Every layout that has a title, by it."""
    return tuple(read_machine(name) for name in TITLES)


def read_machine(name: str) -> Machine:
    capture = decode_capture((DATA / name / "capture.json").read_text(encoding="utf-8"))
    offered = [d.device for d in take_inventory(capture.facts, {}, Policy()) if d.published]
    gpus = tuple(device for device in offered if device.kind is DeviceKind.GPU)
    nics = [device for device in offered if device.rdma_device and not device.physical_function]
    nearest = {nic.name: min(level(pair([nic], [gpu]).distances[0]) for gpu in gpus) for nic in nics}
    best = Distance(min(nearest.values()))
    near = Distance.NODE if name in _NEAR_ON_ONE_NUMA_NODE else best
    chosen = tuple(nic for nic in nics if nearest[nic.name] == best)
    return Machine(name, gpus, chosen, _NICS_PER_GPU.get(name, 1), near, BANDWIDTHS[name])
