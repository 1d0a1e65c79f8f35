"""What tells of health on a stock kernel: RDMA ports by sysfs and by netlink, PCIe links, counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from dranet.kernel.counters import CounterTarget, read_health_counters, read_rdma_ports
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.netlink.rdma import attach_rdma, detach_rdma, read_ports_here
from dranet.model.device import Device, RdmaIdentity
from dranet.model.facts import RdmaPort
from dranet.model.health import CARRIER_LOSSES
from testbed.machine.hardware import MACHINE
from tests.machine import kernel_view
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.machine

SYS = Path("/sys")
IGB = MACHINE.function("igb0")


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


@pytest.fixture
def moved(pod: Namespace) -> Iterator[Namespace]:
    """A pod that has the InfiniBand device mlx5_2, in exclusive mode."""
    with NetworkNamespace.current() as here:
        assert attach_rdma(RdmaIdentity("mlx5_2"), pod.netns)
        yield pod
        detach_rdma(RdmaIdentity("mlx5_2"), here, pod.netns)


@pytest.mark.parametrize("name", ["mlx5_0", "mlx5_1", "mlx5_2", "rxe0"])
def test_sysfs_and_rdma_netlink_say_the_same_of_a_port(name: str) -> None:
    by_sysfs = read_rdma_ports(SYS, name)
    assert by_sysfs
    assert read_ports_here(name) == by_sysfs


def test_the_ports_of_a_device_in_a_pod_are_read_there(moved: Namespace) -> None:
    assert read_rdma_ports(SYS, "mlx5_2") is None, "sysfs does not show what is in a pod"
    assert read_ports_here("mlx5_2") is None

    async def visit() -> Sequence[RdmaPort] | None:
        links = PodLinks(lambda _: None)
        links.follow("pod", moved.netns)
        await asyncio.sleep(0)
        try:
            return await links.visit("pod", partial(read_ports_here, "mlx5_2"))
        finally:
            links.close()

    ports = asyncio.run(visit())
    assert ports
    (told,) = [link for link in moved.run(rdma_links) if link["ifname"] == "mlx5_2"]
    assert [(port.number, port.state) for port in ports] == [(1, told["state"])]
    assert ports[0].link_layer == "InfiniBand"


def rdma_links() -> list[dict[str, object]]:
    return kernel_view.rdma("link", "show")


def test_a_card_tells_its_counters_and_no_more_of_pcie_than_the_machine_has(
    devices: dict[str, Device],
) -> None:
    (device,) = [device for device in devices.values() if device.pci_address == IGB.address]
    ifindex = int(Path("/sys/class/net", kernel_view.ifname(IGB.address), "ifindex").read_text())
    target = CounterTarget(device.name, ifindex, "mlx5_0", IGB.address, device.pci_path[0])
    health_counters = read_health_counters(SYS, [target])[device.name]
    assert {"rx_errors", "tx_errors", CARRIER_LOSSES} <= health_counters.counters.keys()
    assert health_counters.pcie is not None
    folder = SYS / "bus/pci/devices" / IGB.address
    shown = (folder / "max_link_width").read_text().strip() if (folder / "max_link_width").exists() else "0"
    assert health_counters.pcie.most_width == (int(shown) if int(shown) <= 32 else 0)
