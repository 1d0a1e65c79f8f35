"""Which entry of the GID tables stands for the pod's address, where a program must be told one for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_interface

from msgspec import Struct

from dranet.claims.nccl.devices import PodNic
from dranet.model.workload import GidSlot

ROCE_V2 = "RoCE v2"


class GidChoice(Struct, frozen=True):
    """``index`` is ``None`` where there is none that is right for all devices; ``why`` says so."""

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
        told = ", ".join(f"{name} {index}" for name, index in found.items())
        return GidChoice(None, f"the devices have it at different places: {told}")
    return GidChoice(indexes.pop(), "the RoCE v2 GID of the pod's address")


def _find(addresses: Iterable[str], slots: Sequence[GidSlot]) -> int | None:
    v2 = {slot.gid: slot.index for slot in reversed(slots) if slot.type == ROCE_V2}
    ordered = sorted(addresses, key=lambda address: ":" in address)
    return next((v2[gid] for gid in map(as_gid, ordered) if gid in v2), None)


def as_gid(address: str) -> str:
    """The GID of an address in CIDR form; an IPv4 one is mapped into IPv6."""
    ip = ip_interface(address).ip
    return ip_interface(f"::ffff:{ip}" if ip.version == 4 else ip).ip.exploded
