"""What became of an allocated device: the attached link and the conditions of ``status.devices``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from dranet.errors import Reason
from dranet.model.facts import TABLE_MAIN
from dranet.model.plan import AddRule


class ConditionType(StrEnum):
    """Condition types on ``status.devices[].conditions``, at most eight; the first three are DraNet's."""

    READY = "Ready"
    """The sum of what follows."""
    NETWORK_READY = "NetworkReady"
    RDMA_LINK_READY = "RDMALinkReady"
    PREPARED = "Prepared"
    ATTACHED = "Attached"
    """In the pod's namespace, verified there."""
    CONFIGURED = "Configured"
    """All that the claim asked of it is set, and was read back."""
    ALIGNED = "TopologyAligned"
    """Whether the pod's GPUs, from any driver, are as near as possible on this node."""
    RELEASED = "Released"
    """Returned to the node: True with its state restored, False with what could not be restored."""


class ConditionReason(StrEnum):
    """Reasons of conditions that no error explains. The first two are DraNet's."""

    NETWORK_DEVICE_READY = "NetworkDeviceReady"
    RDMA_ONLY_DEVICE_READY = "RDMAOnlyDeviceReady"
    DEVICE_READY = "DeviceReady"
    RDMA_LINK_READY = "RDMALinkReady"
    DEVICE_PREPARED = "DevicePrepared"
    DEVICE_ATTACHED = "DeviceAttached"
    DEVICE_CONFIGURED = "DeviceConfigured"
    WAITING_FOR_POD = "WaitingForPod"
    SAME_PCIE_ROOT = "SamePCIeRoot"
    SAME_NUMA_NODE = "SameNUMANode"
    SAME_PCIE_SWITCH = "SamePCIeSwitch"
    NEAREST_POSSIBLE = "NearestPossible"
    WORSE_THAN_POSSIBLE = "WorseThanPossible"
    PLACE_UNKNOWN = "PlaceUnknown"
    OTHER_DRIVERS_DEVICES = "DevicesOfAnotherDriver"
    GPUS_UNCLEAR = "GPUsUnclear"
    DEVICE_RELEASED = "DeviceReleased"
    HOST_STATE_NOT_RESTORED = "HostStateNotRestored"


FAILING = (ConditionType.PREPARED, ConditionType.ATTACHED, ConditionType.CONFIGURED, ConditionType.READY)
"""The first of these that is False names the cause; the later ones follow from it."""


class Condition(Struct, frozen=True):
    """A ``metav1.Condition`` without its time, which is set when it is written."""

    type: ConditionType
    status: bool | None
    """``None`` is written as ``Unknown``."""
    reason: str
    message: str = ""

    @classmethod
    def failed(cls, condition_type: ConditionType, reason: Reason, message: str) -> Condition:
        return cls(condition_type, False, str(reason), message)


class AttachedRoute(Struct, frozen=True):
    destination: str
    gateways: tuple[str, ...] = ()
    """Several where it is multipath; none where its neighbours are reached directly."""
    table: int = TABLE_MAIN


class AttachedLink(Struct, frozen=True):
    """A link as read back from the pod's namespace after the attach."""

    device: str
    """Name of the device of the link itself, or of the one that it was made on."""
    pod_ifname: str
    mac: str
    mtu: int
    addresses: tuple[str, ...] = ()
    """Interface addresses in canonical CIDR form, without the kernel's own IPv6 link-local ones."""
    rdma_device: str = ""
    """As the pod sees it; empty where the link has none."""
    gids: tuple[str, ...] = ()
    """GIDs of the RDMA device's ports as read after the attach, zero entries left out."""
    routes: tuple[AttachedRoute, ...] = ()
    """Those through the link, without what the kernel makes by itself; read where the plan has any."""
    rules: tuple[AddRule, ...] = ()
    """Those of the plan that the pod has."""


class DeviceStatus(Struct, frozen=True):
    """One entry of ``ResourceClaim.status.devices``."""

    driver: str
    pool: str
    device: str
    conditions: tuple[Condition, ...]
    share_id: str | None = None
    interface_name: str = ""
    hardware_address: str = ""
    ips: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


class EventReason(StrEnum):
    """An Event that is about an error of another kind has that error's ``Reason``.

    The first three are DraNet's: alerts on them keep working.
    """

    CLAIM_PREPARE_FAILED = "ClaimPrepareFailed"
    NETWORK_DEVICE_ATTACH_FAILED = "NetworkDeviceAttachFailed"
    RDMA_DEVICE_ATTACH_FAILED = "RDMADeviceAttachFailed"
    HOST_STATE_NOT_RESTORED = "HostStateNotRestored"
    DEVICE_UNHEALTHY = "NetworkDeviceUnhealthy"
    DEVICE_HEALTHY = "NetworkDeviceHealthy"
    VIRTUAL_FUNCTIONS = "VirtualFunctionsNotReady"
    CLAIM_STATUS_REFUSED = "ClaimStatusRefused"
    RUNS_WITHOUT_DEVICES = "RunsWithoutDevices"
    MISALIGNED_TOPOLOGY = "MisalignedTopology"
