"""RDMA devices that are not what they were when Prepare saw them: numbers, names, IPoIB interfaces, losses.

The namespace mode is exclusive, as the machine's script left it, except in the last test. ``vnode_hca``
stands in for adapters, ``vnode_ipoib`` for the IPoIB client of the RDMA core: links that end and come with
each move.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.claims.plan.link import plan_rdma_access
from dranet.driver.node_reader import NodeReader
from dranet.errors import DeviceError, DranetError, KernelError
from dranet.inventory.build import build_devices
from dranet.inventory.offer import decide
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AttachPlan, PreparedDevice
from testbed.machine.hardware import MACHINE
from tests.driver.bench import Bench, sandbox
from tests.machine import kernel_view
from tests.machine.test_moves import set_rdma_mode
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.machine

HCA = Path("/sys/kernel/vnode_hca")
IGB = MACHINE.function("igb0").address
ALONE, SECOND = MACHINE.function("igb1/0").address, MACHINE.function("igb1/1").address


@pytest.fixture
def node() -> Iterator[Namespace]:
    """The machine's own namespace."""
    kernel_view.raise_links()
    kernel_view.run("ip", "netns", "attach", "machine", str(os.getpid()))
    with NetworkNamespace.open("/run/netns/machine") as here:
        yield Namespace("machine", here)
    kernel_view.run("ip", "netns", "del", "machine")


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


@pytest.fixture
def bench(tmp_path: Path, node: Namespace) -> Iterator[Bench]:
    made = Bench(tmp_path, node)
    yield made
    made.close()


def scan(address: str) -> Device:
    facts = NodeScanner(Path("/sys"), Path("/proc")).read()
    return next(device for device in build_devices(facts, {}) if device.pci_address == address)


def prepare(device: Device) -> PreparedDevice:
    """As the planner does, in exclusive mode."""
    config = NetworkConfig()
    ipoib = NodeReader(Path("/sys")).read_ipoib(device.rdma_pci_address)
    plan = plan_device(device, None, config, rdma_exclusive=True, ipoib=ipoib)
    access = plan_rdma_access(device, config, exclusive=True)
    return PreparedDevice("hca", "node", device, plan=plan, rdma=access)


def guids() -> dict[str, str]:
    return {entry["ifname"]: entry["node_guid"] for entry in kernel_view.rdma("dev", "show")}


def verbs_in(pod: Namespace, rdma_device: str) -> str:
    """The node of a device as a process of the pod sees it in sysfs: ``uverbs3 231:195``."""
    script = (
        "for v in /sys/class/infiniband_verbs/uverbs*; do read name < $v/ibdev; read dev < $v/dev; "
        f'[ "$name" = "{rdma_device}" ] && echo ${{v##*/}} $dev; done; exit 0'
    )
    return kernel_view.run("ip", "netns", "exec", pod.name, "sh", "-c", script).strip()


def given_verbs(bench: Bench, pod: Namespace) -> str:
    """The verbs node that a container gets, in the same words."""
    nodes = bench.create_container(sandbox(pod)).devices
    (verbs,) = [node for node in nodes if "uverbs" in node.path]
    return f"{Path(verbs.path).name} {verbs.major}:{verbs.minor}"


def recorded_verbs(bench: Bench) -> str:
    record = bench.store.get("claim-uid")
    assert record is not None
    (verbs,) = [node for node in record.devices[0].rdma.nodes if "uverbs" in node.path]
    return f"{Path(verbs.path).name} {verbs.major}:{verbs.minor}"


@contextmanager
def without(name: str, address: str, layer: str) -> Iterator[None]:
    """A hole in the numbers."""
    (HCA / "del").write_text(name)
    try:
        yield
    finally:
        (HCA / "add").write_text(f"{name} {address} {layer}")


@contextmanager
def one_more(name: str, address: str) -> Iterator[None]:
    (HCA / "add").write_text(f"{name} {address} ib")
    try:
        yield
    finally:
        (HCA / "del").write_text(name)


# --- numbers --------------------------------------------------------------------------------------------


def test_a_device_that_gets_another_number_with_its_move_is_given_by_the_new_one(
    bench: Bench, pod: Namespace
) -> None:
    bench.put(prepare(scan(ALONE)))
    before = recorded_verbs(bench)
    with without("mlx5_0", IGB, "eth"):
        bench.run_sandbox(sandbox(pod))
        shown = verbs_in(pod, "mlx5_2")
        assert shown != before, "the kernel filled the hole"
        assert recorded_verbs(bench) == shown
        assert given_verbs(bench, pod) == shown
        bench.stop_sandbox(sandbox(pod))
    assert bench.told.failures == []


def test_two_pods_at_once_each_get_the_node_of_their_own_device(
    tmp_path: Path, node: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    pods = (make_namespace(), make_namespace())
    with ExitStack() as stack:
        stack.enter_context(one_more("mlx5_7", SECOND))
        addresses = {"mlx5_2": ALONE, "mlx5_7": SECOND}
        benches = [Bench(tmp_path / name, node) for name in addresses]
        for bench, address in zip(benches, addresses.values(), strict=True):
            stack.callback(bench.close)
            # The second function has a link, which stays: the device is taken for one without.
            bench.put(prepare(replace(scan(address), kind=DeviceKind.RDMA)))
        stack.enter_context(without("mlx5_0", IGB, "eth"))
        with ThreadPoolExecutor(2) as threads:  # each bench has a lock of its own: the kernel orders them
            list(
                threads.map(
                    lambda pair: pair[0].run_sandbox(sandbox(pair[1])), zip(benches, pods, strict=True)
                )
            )
        shown = [verbs_in(pod, name) for pod, name in zip(pods, addresses, strict=True)]
        assert len(set(shown)) == 2
        assert [recorded_verbs(bench) for bench in benches] == shown
        assert [given_verbs(bench, pod) for bench, pod in zip(benches, pods, strict=True)] == shown
        for bench, pod in zip(benches, pods, strict=True):
            bench.stop_sandbox(sandbox(pod))
            assert bench.told.stuck == []
    assert "mlx5_2" in guids()


# --- names ----------------------------------------------------------------------------------------------


def test_a_device_that_its_tenant_renamed_is_found_and_has_its_name_again(
    bench: Bench, pod: Namespace
) -> None:
    before = guids()
    bench.put(prepare(scan(ALONE)))
    bench.run_sandbox(sandbox(pod))
    pod.run(lambda: kernel_view.run("rdma", "dev", "set", "mlx5_2", "name", "mine0"))
    assert given_verbs(bench, pod) == verbs_in(pod, "mine0")
    bench.stop_sandbox(sandbox(pod))
    assert guids() == before
    assert [report.problems for report in bench.told.reports] == [()]


def test_a_device_that_was_renamed_on_the_node_since_prepare_is_found(bench: Bench, pod: Namespace) -> None:
    before = guids()
    bench.put(prepare(scan(ALONE)))
    kernel_view.run("rdma", "dev", "set", "mlx5_2", "name", "renamed0")
    bench.run_sandbox(sandbox(pod))
    assert list(pod.run(guids)) == ["renamed0"]
    assert given_verbs(bench, pod) == verbs_in(pod, "renamed0")
    bench.stop_sandbox(sandbox(pod))
    assert guids() == before


def test_a_renamed_device_whose_namespace_died_has_its_name_again(
    tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    before = guids()
    first = Bench(tmp_path, node)
    first.put(prepare(scan(ALONE)))
    first.run_sandbox(sandbox(pod))
    pod.run(lambda: kernel_view.run("rdma", "dev", "set", "mlx5_2", "name", "mine0"))
    first.close()  # killed
    pod.delete()
    wait_until(lambda: "mine0" in guids(), "the kernel returns it", 60)
    bench = Bench(tmp_path, node)
    bench.reconcile()
    assert guids() == before
    bench.close()


# --- IPoIB ----------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["in-the-first-namespace", "in-that-of-the-device"])
def ipoib(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The node has ``storage0`` on ``mlx5_2``: connected, MTU 9000, an address, a route. The value says where
    the kernel makes the link again: before Linux 6.17 or since."""
    kernel_view.raise_links()
    kernel_view.run("modprobe", "vnode_ipoib", f"in_device_namespace={int(request.param)}")
    (link,) = ib_links()
    kernel_view.ip_lines(
        f"link set {link['ifname']} name storage0\n"
        "link set storage0 type ipoib mode connected umcast 1\n"
        "link set storage0 mtu 9000 txqueuelen 512 alias rack-7\n"
        "link set storage0 up\n"
        "addr add 10.66.0.5/24 dev storage0\n"
        "route add 10.77.0.0/16 via 10.66.0.1\n"
    )
    yield request.param
    kernel_view.run("rmmod", "vnode_ipoib")


def ib_links() -> list[dict[str, Any]]:
    return [e for e in kernel_view.ip("addr", "show") if e["link_type"] == "infiniband"]


def shown_ipoib() -> list[dict[str, object]]:
    """What ``ip`` says of the IPoIB links, without what differs for each new link."""
    kept = ("ifname", "mtu", "txqlen", "ifalias", "linkinfo")
    return [
        {
            **{key: entry.get(key) for key in kept},
            "up": "UP" in entry["flags"],
            "addresses": [info["local"] for info in entry["addr_info"] if info["family"] == "inet"],
            "routes": [route["dst"] for route in kernel_view.ip("route", "show", "dev", entry["ifname"])],
        }
        for entry in ib_links()
    ]


@pytest.mark.usefixtures("ipoib")
def test_an_adapter_with_ipoib_is_offered_as_an_rdma_device_alone() -> None:
    facts = NodeScanner(Path("/sys"), Path("/proc")).read()
    devices = build_devices(facts, {})
    (decision,) = [d for d in decide(devices, facts) if d.device.pci_address == ALONE]
    assert (decision.published, decision.device.kind) == (True, DeviceKind.RDMA)
    assert "its IPoIB interface storage0 is not offered" in decision.reason
    assert all(device.ifname != "storage0" for device in devices)


def test_the_nodes_ipoib_interface_is_as_it_was_when_its_adapter_is_back(
    bench: Bench, pod: Namespace, ipoib: bool
) -> None:
    before = shown_ipoib()
    bench.put(prepare(scan(ALONE)))
    bench.run_sandbox(sandbox(pod))
    here = [entry["ifname"] for entry in ib_links()]
    inside = [entry["ifname"] for entry in pod.run(ib_links)]
    assert (here, inside) == (([], ["ib0"]) if ipoib else (["ib0"], [])), "as the kernel makes it again"
    assert given_verbs(bench, pod) == verbs_in(pod, "mlx5_2")
    bench.stop_sandbox(sandbox(pod))
    assert shown_ipoib() == before
    assert [report.problems for report in bench.told.reports] == [()]


@pytest.mark.usefixtures("ipoib")
def test_the_nodes_ipoib_interface_is_as_it_was_after_an_attach_that_failed(
    bench: Bench, pod: Namespace
) -> None:
    before = shown_ipoib()
    bench.put(prepare(scan(ALONE)), "claim-a")
    bench.prepare(kernel_view.ifname(IGB), "net1", "claim-b", rdma_device="mlx5_0")
    pod.ip("link", "add", "net1", "type", "dummy")
    with pytest.raises(KernelError):
        bench.run_sandbox(sandbox(pod))
    assert shown_ipoib() == before


@pytest.mark.usefixtures("ipoib")
def test_the_nodes_ipoib_interface_is_as_it_was_when_the_namespace_died(
    tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    before = shown_ipoib()
    first = Bench(tmp_path, node)
    first.put(prepare(scan(ALONE)))
    first.run_sandbox(sandbox(pod))
    first.close()  # killed
    pod.delete()
    wait_until(lambda: "mlx5_2" in guids(), "the kernel returns the device", 60)
    bench = Bench(tmp_path, node)
    bench.reconcile()
    assert shown_ipoib() == before
    assert [(report.missing, report.problems) for report in bench.told.reports] == [((), ())]
    bench.close()


# --- last, because every test after it would see another mode -------------------------------------------


def test_a_device_that_ends_with_the_move_of_its_link_is_not_offered_and_not_given(
    tmp_path: Path, make_namespace: Callable[..., Namespace]
) -> None:
    """rxe does what bnxt_re did before Linux 6.3."""
    wait_until(lambda: set_rdma_mode("shared"), "earlier namespaces are gone", 30)
    try:
        kernel_view.raise_links()
        ifname = kernel_view.ifname(MACHINE.function("switched").address)
        kernel_view.run("rdma", "link", "add", "rxe9", "type", "rxe", "netdev", ifname)
        facts = NodeScanner(Path("/sys"), Path("/proc")).read()
        decisions = decide(build_devices(facts, {}), facts)
        (decision,) = [decision for decision in decisions if decision.device.ifname == ifname]
        assert not decision.published
        assert "rxe9, which ends when the interface moves: it is software RDMA" in decision.reason
        with pytest.raises(DeviceError, match=r"rxe9 .*not where the pod could use it"):
            give_to_a_pod(tmp_path, make_namespace(), decision.device)
        assert kernel_view.ifname(MACHINE.function("switched").address) == ifname
    finally:
        wait_until(lambda: set_rdma_mode("exclusive"), "the mode is as before", 30)


def give_to_a_pod(tmp_path: Path, pod: Namespace, device: Device) -> None:
    """All the way to a container. The kernel removes the device in its own time, after the link has gone."""
    kernel_view.run("ip", "netns", "attach", "machine", str(os.getpid()))
    with NetworkNamespace.open("/run/netns/machine") as here:
        bench = Bench(tmp_path, Namespace("machine", here))
        try:
            host = NodeReader(Path("/sys")).read_link(device.ifname)
            plan: AttachPlan = plan_device(device, host, NetworkConfig(), rdma_exclusive=False)
            access = plan_rdma_access(device, NetworkConfig(), exclusive=False)
            bench.put(PreparedDevice("nic", "node", device, plan=plan, rdma=access))
            bench.run_sandbox(sandbox(pod))
            wait_until(lambda: "rxe9" not in guids(), "the kernel has removed it", 10)
            bench.create_container(sandbox(pod))
        finally:
            with suppress(DranetError):
                bench.stop_sandbox(sandbox(pod))
            bench.close()
            kernel_view.run("ip", "netns", "del", "machine")
            pod.delete()
