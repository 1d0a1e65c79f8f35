"""What a scrape reads of RDMA devices on a stock kernel: on the node by sysfs, in a pod by its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dranet.driver.metrics.reading import CounterReader, Readings
from dranet.kernel.counters import PORT_COUNTERS, read_port_counters
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.rdma import attach_rdma, detach_rdma
from dranet.model.device import Device, DeviceKind, RdmaIdentity
from tests.driver.metrics_node import Node
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.machine

SYS = Path("/sys")
MOVED = "mlx5_2"


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Iterator[Namespace]:
    """One that has the InfiniBand device mlx5_2, in exclusive mode."""
    made = make_namespace()
    with NetworkNamespace.current() as here:
        assert attach_rdma(RdmaIdentity(MOVED), made.netns)
        yield made
        detach_rdma(RdmaIdentity(MOVED), here, made.netns)


@pytest.mark.parametrize("name", ["mlx5_0", "mlx5_1", "rxe0"])
def test_a_ports_counters_are_those_of_its_files(name: str) -> None:
    (port,) = read_port_counters(SYS, name)
    folder = SYS / "class/infiniband" / name / "ports" / "1"
    shown = {file.name for sub in ("counters", "hw_counters") for file in folder.glob(f"{sub}/*")}
    counted = {word for word, names in PORT_COUNTERS.items() if shown & set(names)}
    assert port.counters.keys() == counted
    assert bool(counted) == (name == "rxe0"), "siw counts nothing, rxe does"
    assert port.state in (folder / "state").read_text()
    assert port.rate == (folder / "rate").read_text().strip()


def test_the_ports_of_a_device_in_a_pod_are_read_in_its_namespace(pod: Namespace) -> None:
    assert read_port_counters(SYS, MOVED) == (), "sysfs does not show what is in a pod"
    device = Device("hca", DeviceKind.RDMA, rdma_device=MOVED)
    node = Node([device], exclusive=True)
    record = node.add_pod("worker", [device])
    node.namespaces[record.pod.uid] = pod.netns
    snapshot, readings = node.take(), Readings()
    thread = threading.Thread(target=CounterReader(SYS).read, args=(snapshot, readings))
    thread.start()
    thread.join()
    snapshot.close()
    (port,) = readings.ports["hca"]
    assert (port.number, bool(port.state), bool(port.rate)) == (1, True, True)
    assert readings.done_pods == {record.pod.uid}
