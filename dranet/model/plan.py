"""The outcome of Prepare: how to attach each device, and the host state to give back.

A plan is data. ``claims.plan`` builds it, ``store`` keeps it, ``kernel.attachment`` applies it in the
runtime's hook and undoes it at release, perhaps after a restart of the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device
from dranet.model.facts import Address, Neighbour, Route
from dranet.model.record import Record


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinkState(Record):
    """The state of one link on the host, as found at Prepare and as restored at release.

    ``routes`` are those through this link in any table but ``local``, without the ones that the kernel
    makes by itself from an address. ``neighbours`` are the permanent ones.
    """

    ifindex: int
    ifname: str
    mac: str
    mtu: int
    up: bool
    permanent_mac: str = ""
    alias: str = ""
    tx_queue_length: int = 0
    group: int = 0
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    parent_device: str = ""
    """``IFLA_PARENT_DEV_NAME``, the PCI address of a NIC; empty for software links and on old kernels."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MoveLink(Record):
    """Move the link into the pod's namespace; name, MTU and MAC travel in the same message."""

    pod_ifname: str
    mtu: int | None = None
    mac: str | None = None
    step: Literal["move-link"] = "move-link"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AddAddress(Record):
    """Add one address to the link, in the pod's namespace."""

    address: Address
    step: Literal["add-address"] = "add-address"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SetUp(Record):
    """Set the link administratively up, in the pod's namespace."""

    step: Literal["set-up"] = "set-up"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AddRoute(Record):
    """Add one route through the link, in the pod's namespace (``route.ifindex`` is ignored)."""

    route: Route
    step: Literal["add-route"] = "add-route"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MoveRdma(Record):
    """Move the RDMA device (exclusive namespace mode only)."""

    rdma_device: str
    step: Literal["move-rdma"] = "move-rdma"


Step = MoveLink | AddAddress | SetUp | AddRoute | MoveRdma
"""Told apart on disk by ``step``."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AttachPlan(Record):
    """Ordered steps that put one device into a pod, and what the host gets back.

    ``host`` is ``None`` for a device without a link (RDMA-only). ``pod_ifname`` is empty then too.
    """

    device: str
    steps: tuple[Step, ...] = ()
    pod_ifname: str = ""
    host: LinkState | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PreparedDevice(Record):
    """One allocated device of a claim, ready for its pod.

    ``plan`` is ``None`` where nothing moves: a GPU, or admin access to somebody else's NIC.
    """

    request: str
    """Main request name, as the kubelet wants it back."""
    pool: str
    device: Device
    """The device as published when it was prepared; its facts are out of sight while a pod has it."""
    cdi_ids: tuple[str, ...] = ()
    plan: AttachPlan | None = None
    share_id: str | None = None
    admin_access: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PreparedClaim(Record):
    """What the store keeps of one claim, keyed by ``claim.uid`` and found by ``pod.uid``.

    ``sandbox_id`` and ``netns_path`` are set (and committed) before the first step in that namespace and
    emptied after the give-back, so that a restart knows where to look; a pod may get a second sandbox.
    ``boot_id`` tells a record of an earlier boot, whose kernel state is gone.
    """

    claim: ClaimRef
    pod: PodRef
    devices: tuple[PreparedDevice, ...]
    boot_id: str
    sandbox_id: str = ""
    netns_path: str = ""

    @property
    def plans(self) -> tuple[AttachPlan, ...]:
        """The plans of the devices that move, in the order of the claim's results."""
        return tuple(d.plan for d in self.devices if d.plan is not None)
