"""The GPUs of a pod, whoever gave them: each with its place on this node and who told of it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from dranet.model.device import Device


class GpuSource(StrEnum):
    """Where it is known from that a pod has a GPU; the first of several counts."""

    CLAIM = "Claim"
    OTHER_DRIVERS_CLAIM = "OtherDriversClaim"
    CDI = "CDI"
    ENVIRONMENT = "Environment"
    MOUNTS = "Mounts"
    DEVICE_NODES = "DeviceNodes"
    POD_RESOURCES = "PodResources"

    @property
    def meaning(self) -> str:
        """What it is, for a legend."""
        return _MEANINGS[self]


_MEANINGS = {
    GpuSource.CLAIM: "a device of this driver in one of the pod's claims",
    GpuSource.OTHER_DRIVERS_CLAIM: "a device of another driver in one of the pod's claims, found in the "
    "slices of that driver",
    GpuSource.CDI: "a CDI device that the container was given",
    GpuSource.ENVIRONMENT: "an environment variable by which device plugins name GPUs",
    GpuSource.MOUNTS: "a mount by which a device plugin names GPUs",
    GpuSource.DEVICE_NODES: "a device node in the container",
    GpuSource.POD_RESOURCES: "the kubelet's pod resources socket",
}


class PodGpu(Struct, frozen=True):
    """One GPU of a pod. It is :class:`~dranet.model.distance.Placed`."""

    device: Device
    """As this driver knows it, published or not."""
    source: GpuSource
    told_by: str = ""
    """The claim or the container, where it helps: ``claim train/gpus``, ``container main``."""

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def pci_path(self) -> tuple[str, ...]:
        return self.device.pci_path

    @property
    def pcie_root(self) -> str:
        return self.device.pcie_root

    @property
    def numa_node(self) -> int | None:
        return self.device.numa_node


class Doubt(Struct, frozen=True):
    """A GPU, or what may be one, that nobody can place on this node: a clause that reads after the pod."""

    text: str
    is_other_driver: bool = False
    """A device of another driver, of which no slice says where it sits."""


class GpusOfPod(Struct, frozen=True):
    """All that is known of a pod's GPUs, in the order of PCI addresses."""

    gpus: tuple[PodGpu, ...] = ()
    doubts: tuple[Doubt, ...] = ()
