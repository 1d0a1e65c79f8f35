"""What the claims that have an allocation leave for others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dranet.cel import CelError
from dranet.cel.scalars import parse_quantity
from dranet.desk.allocation.capacity import Amounts, qualify
from dranet.desk.allocation.nodes import JsonObject
from dranet.desk.allocation.taints import DeviceId


@dataclass(frozen=True, slots=True)
class InUse:
    """The devices of all allocated claims. Admin access takes nothing away."""

    devices: frozenset[DeviceId] = frozenset()
    """Those that one claim has for itself."""
    shares: Mapping[DeviceId, Amounts] = field(default_factory=dict)
    """Shared ones, and how much of each capacity is gone, in billionths by qualified name."""
    holders: Mapping[DeviceId, tuple[str, ...]] = field(default_factory=dict)
    """The claims, as ``namespace/name``."""

    def holds(self, device: DeviceId) -> bool:
        """Whether somebody has the device or a share of it."""
        return device in self.devices or device in self.shares


def read_devices_in_use(claims: Iterable[JsonObject]) -> InUse:
    """From the status of all claims of the cluster. A result without a share has the device alone, whatever
    its driver says of it by now."""
    devices: set[DeviceId] = set()
    shares: dict[DeviceId, dict[str, int]] = defaultdict(dict)
    holders: dict[DeviceId, list[str]] = defaultdict(list)
    for claim, result in _iter_results(claims):
        device = (result["driver"], result["pool"], result["device"])
        metadata = claim.get("metadata") or {}
        holders[device].append(f"{metadata.get('namespace', '')}/{metadata.get('name', '')}")
        if not result.get("shareID"):
            devices.add(device)
            continue
        used = shares[device]
        for name, text in (result.get("consumedCapacity") or {}).items():
            key = qualify(name, result["driver"])
            used[key] = used.get(key, 0) + _read(text)
    return InUse(frozenset(devices), dict(shares), {key: tuple(names) for key, names in holders.items()})


def _iter_results(claims: Iterable[JsonObject]) -> Iterator[tuple[JsonObject, JsonObject]]:
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if not result.get("adminAccess"):
                yield claim, result


def _read(text: object) -> int:
    """A server stores nothing else than quantities; what a file has instead takes nothing."""
    try:
        return parse_quantity(str(text))
    except CelError:
        return 0
