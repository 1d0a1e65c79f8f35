"""The network devices of a pod as communication libraries see them, in the order of the pod's GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_interface

from msgspec import Struct

from dranet.claims.metadata import pod_rdma_device
from dranet.claims.pairing import Pair, level, pair
from dranet.model.device import Device
from dranet.model.distance import Distance
from dranet.model.plan import AddAddress, AttachPlan, PreparedClaim, PreparedDevice
from dranet.model.workload import GidSlot, WorkloadSettings

_FIRST_PORT = (1,)


class PodNic(Struct, frozen=True):
    """One network device of a pod."""

    device: Device
    ifname: str = ""
    """In the pod; empty for a device without a link."""
    rdma_device: str = ""
    """The RDMA device that the pod's containers can use, or empty."""
    ports: tuple[int, ...] = _FIRST_PORT
    """Ports of the RDMA device."""
    addresses: tuple[str, ...] = ()
    """In CIDR form, as the plan has them."""
    gpu: Device | None = None
    """The GPU that it is for; ``None`` where none is known."""
    distance: Distance | None = None
    """From that GPU."""

    @property
    def name(self) -> str:
        """By which libraries know it."""
        return self.rdma_device or self.ifname


def list_nics(
    records: Iterable[PreparedClaim],
    gpus: Sequence[Device],
    ports: Mapping[str, tuple[int, ...]],
    is_for: Callable[[WorkloadSettings], bool] = lambda _: True,
) -> tuple[PodNic, ...]:
    """The pod's own network devices: those of the first GPU first, of one GPU the nearest first.

    Args:
        records: those of all claims of the pod. gpus: in the order in which the pod counts them. ports: the
        ports of RDMA devices; one port where it is not known. is_for: whether a device counts, decided by its
        parameters. A NIC for storage is not for NCCL, and takes no
            GPU from those that are.
    """
    prepared = sorted(
        (one for one in _iter_devices(records) if is_for(one.workload)),
        key=lambda one: (one.device.pci_address, one.device.name),
    )
    pairs = pair([one.device for one in prepared], gpus).pairs
    places = sorted(range(len(prepared)), key=lambda i: (_rank(pairs[i], len(gpus)), i))
    return tuple(_describe(prepared[i], pairs[i], gpus, ports) for i in places)


def _rank(pairing: Pair, last: int) -> tuple[int, int]:
    return last if pairing.gpu is None else pairing.gpu, level(pairing.distance)


def _describe(
    prepared: PreparedDevice, pairing: Pair, gpus: Sequence[Device], ports: Mapping[str, tuple[int, ...]]
) -> PodNic:
    name = pod_rdma_device(prepared)
    plan = prepared.plan or AttachPlan(prepared.device.name)
    return PodNic(
        prepared.device,
        plan.pod_ifname,
        name,
        ports.get(name) or _FIRST_PORT,
        tuple(step.address.cidr for step in plan.steps if isinstance(step, AddAddress)),
        None if pairing.gpu is None else gpus[pairing.gpu],
        pairing.distance,
    )


def _iter_devices(records: Iterable[PreparedClaim]) -> Iterator[PreparedDevice]:
    for record in records:
        for prepared in record.devices:
            if prepared.plan is not None and not prepared.admin_access:
                yield prepared


ROCE_V2 = "RoCE v2"


class GidChoice(Struct, frozen=True):
    """``index`` is ``None`` when no index is right for all devices; ``why`` is the reason."""

    index: int | None
    why: str


def choose_gid_index(nics: Iterable[PodNic], tables: Mapping[str, Sequence[GidSlot]]) -> GidChoice:
    """One index for all RDMA devices of a pod.

    It is that of the RoCE v2 GID that is the pod's address (IBTA annex A17), of an IPv4 address first, as
    NCCL does. ``tables`` are by RDMA device.
    """
    found: dict[str, int | None] = {}
    for nic in nics:
        if nic.rdma_device:
            found[nic.rdma_device] = _find(nic.addresses, tables.get(nic.rdma_device, ()))
    lacking = [name for name, index in found.items() if index is None]
    if not found or lacking:
        what = ", ".join(lacking) or "the pod's devices"
        return GidChoice(None, f"no RoCE v2 GID of the pod's address on {what}")
    indexes = set(found.values())
    if len(indexes) > 1:
        places = ", ".join(f"{name} {index}" for name, index in found.items())
        return GidChoice(None, f"the devices have it at different places: {places}")
    return GidChoice(indexes.pop(), "the RoCE v2 GID of the pod's address")


def _find(addresses: Iterable[str], slots: Sequence[GidSlot]) -> int | None:
    v2 = {slot.gid: slot.index for slot in reversed(slots) if slot.type == ROCE_V2}
    ordered = sorted(addresses, key=lambda address: ":" in address)
    return next((v2[gid] for gid in map(as_gid, ordered) if gid in v2), None)


def as_gid(address: str) -> str:
    """The GID of an address in CIDR form; an IPv4 one is mapped into IPv6."""
    ip = ip_interface(address).ip
    return ip_interface(f"::ffff:{ip}" if ip.version == 4 else ip).ip.exploded
