"""The health of each published device, for the kubelet's ``NodeWatchResources`` stream.

From the last scan alone: an RDMA port that is not active, or a link that is up without a carrier, is
unhealthy. What the scan cannot see (a link inside a pod, without an RDMA port) is unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

from dranet.driver.publish import Inventory, View
from dranet.kubelet.health import DeviceHealthFact
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Link, RdmaDevice


class InventoryHealth:
    """Implements ``kubelet.health.HealthSource``."""

    def __init__(self, inventory: Inventory, pool: str) -> None:
        self._inventory = inventory
        self._pool = pool

    def snapshot(self) -> Sequence[DeviceHealthFact]:
        """One fact for each published device."""
        view = self._inventory.view
        return [self._fact(device, view) for device in view.offered.values()]

    def _fact(self, device: Device, view: View) -> DeviceHealthFact:
        healthy, message = judge_health(
            device, view.links.get(device.ifname), view.rdma_devices.get(device.rdma_device)
        )
        return DeviceHealthFact(pool=self._pool, device=device.name, healthy=healthy, message=message)


def judge_health(device: Device, link: Link | None, rdma: RdmaDevice | None) -> tuple[bool | None, str]:
    """Healthy, unhealthy or unknown (``None``), and why."""
    if device.kind is DeviceKind.GPU:
        return None, "GPU health is not monitored by this driver"
    if rdma is not None and rdma.ports:
        down = [port for port in rdma.ports if port.state != "ACTIVE"]
        if down:
            return False, f"{rdma.name} port {down[0].number} is {down[0].state or 'in an unknown state'}"
        return True, ""
    if link is None:
        return None, "the link is in a pod's network namespace"
    if not link.is_up:
        return None, f"{link.ifname} is administratively down"
    return (True, "") if link.carrier else (False, f"{link.ifname} has no carrier")
