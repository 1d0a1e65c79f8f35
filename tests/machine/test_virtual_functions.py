"""Rules for virtual functions on real SR-IOV (igb): made, given defaults, kept, removed; and administered for
a pod through the physical function. ``ip`` and sysfs are the judges."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dranet import failpoints
from dranet.claims.plan.device import plan_device
from dranet.driver.instances.members import WorkLocks
from dranet.driver.publish import Inventory
from dranet.driver.virtual_functions import NodeState, VirtualFunctions
from dranet.errors import DeviceError, KernelError
from dranet.failpoints import Failpoint
from dranet.inventory.build import build_devices
from dranet.inventory.policy import Policy
from dranet.inventory.virtual_functions import PfTarget, VfRules, parse_vf_rules, plan_virtual_functions
from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.detach import detach
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.attachment.virtual_function import read_vf
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.virtual_functions import open_writer
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AttachPlan, MoveLink, PreparedDevice, SetUp, SetVf
from dranet.model.virtual_functions import VfSettings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from testbed.machine.hardware import MACHINE
from tests.driver.bench import Bench, Told, sandbox
from tests.machine import kernel_view
from tests.support.namespaces import Namespace

pytestmark = [pytest.mark.machine, pytest.mark.timeout(300)]

PF = MACHINE.function("igb0")
HCA = Path("/sys/kernel/vnode_hca")
RDMA, RDMA_FUNCTION = "mlx5_1", MACHINE.function("igb0/0").address
"""A stand-in of the machine (``testbed/machine/modules``), which does not outlive its function."""
FOLDER = kernel_view.SYS_PCI / PF.address
DEFAULTS = {"spoofCheck": False, "vlan": 100, "qos": 3, "maxTxRate": 0}


@pytest.fixture(scope="module", autouse=True)
def as_made() -> Iterator[None]:
    """The RDMA device is removed before its function ends, and made again with the functions."""
    (HCA / "del").write_text(RDMA)
    yield
    write_count(0)
    write_count(PF.num_vfs)
    kernel_view.settle()
    (HCA / "add").write_text(f"{RDMA} {RDMA_FUNCTION} eth")


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


def write_count(count: int) -> None:
    (FOLDER / "sriov_numvfs").write_text(str(count))


def rules(count: int, **more: object) -> VfRules:
    match = f'device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == "{PF.address}"'
    entry = {"match": match, "count": count, "defaults": DEFAULTS, "macPrefix": "02:5a:10", **more}
    found, problems = parse_vf_rules({"virtualFunctions": [entry]}, "dra.net")
    assert problems == ()
    return found


def plan(wanted: VfRules, prepared: Mapping[str, str] | None = None) -> PfTarget:
    facts = NodeScanner(Path("/sys"), Path("/proc")).read()
    devices = build_devices(facts, {})
    (target,), warnings = plan_virtual_functions(facts, devices, wanted, prepared or {}, "node")
    assert warnings == ()
    return target


def write(target: PfTarget) -> None:
    """As the driver does in one round."""
    with open_writer() as writer:
        if target.changes_count:
            writer.write_count(target.address, target.count, autoprobe=target.autoprobe)


def complete(target: PfTarget) -> tuple[int, list[str]]:
    with open_writer() as writer:
        functions = {f.address: (f.index, f.settings) for f in target.functions}
        return writer.complete(target.address, functions, autoprobe=target.autoprobe)


def vfs() -> list[dict[str, Any]]:
    (entry,) = kernel_view.ip("link", "show", "dev", kernel_view.ifname(PF.address))
    found: list[dict[str, Any]] = entry.get("vfinfo_list", [])
    return found


def count() -> int:
    return int((FOLDER / "sriov_numvfs").read_text())


def autoprobe() -> str:
    return (FOLDER / "sriov_drivers_autoprobe").read_text().strip()


def make(number: int) -> PfTarget:
    write_count(0)
    write(plan(rules(number)))
    target = plan(rules(number))
    assert complete(target)[1] == []
    kernel_view.raise_links()
    return plan(rules(number))


def test_functions_are_made_from_none_and_have_their_defaults_before_their_drivers() -> None:
    write_count(0)
    target = plan(rules(2))
    assert (target.count, target.observed, target.waits_for) == (2, 0, "")
    write(target)
    assert (count(), autoprobe()) == (2, "0")
    between = plan(rules(2))
    assert [f.index for f in between.functions] == [0, 1]
    assert not any((kernel_view.SYS_PCI / f.address / "driver").exists() for f in between.functions)

    changed, problems = complete(between)  # also what the next process does after a kill
    assert (changed, problems) == (4, [])
    assert autoprobe() == "1"
    for f, seen in zip(between.functions, vfs(), strict=True):
        assert seen["address"] == f.settings.mac
        assert seen["spoofchk"] is False
        assert (seen["vlan_list"][0]["vlan"], seen["vlan_list"][0]["qos"]) == (100, 3)
        kernel_view.raise_links()
        (link,) = kernel_view.ip("link", "show", "dev", kernel_view.ifname(f.address))
        assert link["address"] == f.settings.mac, "the driver started with the address that the rule gives"
    assert complete(plan(rules(2))) == (0, []), "a second round, as after a restart, changes nothing"


def test_what_another_program_changed_is_set_again() -> None:
    target = make(2)
    kernel_view.run("ip", "link", "set", kernel_view.ifname(PF.address), "vf", "1", "vlan", "7")
    assert complete(target) == (1, [])
    assert [vf["vlan_list"][0]["vlan"] for vf in vfs()] == [100, 100]


def test_a_function_in_a_pod_or_with_an_address_keeps_the_number(pod: Namespace) -> None:
    target = make(2)
    vf = target.functions[1].address
    name = kernel_view.ifname(vf)
    kernel_view.run("ip", "link", "set", name, "netns", pod.name)
    waiting = plan(rules(3))
    assert "no interface on the node" in waiting.waits_for
    assert [f.index for f in waiting.functions] == [0], "the one in the pod is left alone"
    write(waiting)
    assert count() == 2
    pod.ip("link", "set", name, "netns", "1")
    kernel_view.raise_links()
    name = kernel_view.ifname(vf)
    kernel_view.run("ip", "address", "add", "192.0.2.9/24", "dev", name)
    assert "has an address" in plan(rules(3)).waits_for
    kernel_view.run("ip", "address", "flush", "dev", name)
    assert plan(rules(3)).changes_count
    held = target.devices[-1]
    assert f"{held} is prepared for pod a/b" in plan(rules(3), {held: "a/b"}).waits_for


def test_an_unused_number_is_changed_and_removed() -> None:
    make(2)
    write(plan(rules(3)))
    assert count() == 3
    write(plan(rules(0)))
    assert count() == 0
    assert plan(rules(9)).waits_for.startswith("it has at most 7")


def test_without_autoprobe_functions_have_defaults_and_no_driver() -> None:
    wanted = rules(1, driversAutoprobe=False)
    write_count(0)
    write(plan(wanted))
    assert complete(plan(wanted))[1] == []
    (function,) = plan(wanted).functions
    assert not (kernel_view.SYS_PCI / function.address / "driver").exists()
    assert vfs()[0]["vlan_list"][0]["vlan"] == 100
    assert complete(plan(rules(1)))[1] == []
    assert (kernel_view.SYS_PCI / function.address / "driver").exists()


SETTINGS = VfSettings(trust=True, spoof_check=True, vlan=42, qos=5)


def pod_plan(function: str, index: int, settings: VfSettings = SETTINGS) -> AttachPlan:
    state = read_link_state(kernel_view.ifname(function))
    with NetlinkSocket.open() as netlink:
        before = read_vf(netlink, Path("/sys"), PF.address, index).restricted_to(settings)
    steps = (MoveLink("net1"), SetVf(PF.address, index, settings), SetUp())
    return AttachPlan("vf", steps, "net1", state, vf=before)


def test_a_function_is_administered_for_its_pod_and_restored(pod: Namespace) -> None:
    target = make(2)
    wanted = pod_plan(target.functions[1].address, 1)
    before = vfs()[1]
    attach([wanted], pod.netns)
    seen = vfs()[1]
    assert (seen["trust"], seen["spoofchk"]) == (True, True)
    assert (seen["vlan_list"][0]["vlan"], seen["vlan_list"][0]["qos"]) == (42, 5)
    attach([wanted], pod.netns)  # again, as after a kill
    report = detach([wanted], pod.netns)
    assert report.problems == ()
    assert vfs()[1] == before


def test_what_the_driver_does_not_take_undoes_the_attach(pod: Namespace) -> None:
    target = make(1)
    wanted = pod_plan(
        target.functions[0].address, 0, VfSettings(vlan=9, qos=0, min_tx_rate=10, max_tx_rate=20)
    )
    before = vfs()
    with pytest.raises(KernelError) as refused:
        attach([wanted], pod.netns)
    assert "minTxRate" in str(refused.value)
    assert vfs() == before
    assert kernel_view.ifname(target.functions[0].address)


def test_a_physical_function_that_is_elsewhere_is_named(
    pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    target = make(1)
    wanted = pod_plan(target.functions[0].address, 0)
    name = kernel_view.ifname(PF.address)
    other = make_namespace()
    kernel_view.run("ip", "link", "set", name, "netns", other.name)
    with pytest.raises((DeviceError, KernelError)) as refused:
        attach([wanted], pod.netns)
    other.ip("link", "set", name, "netns", "1")
    assert "is the physical function in a pod" in str(refused.value)


def test_a_function_without_its_link_is_restored_as_well(pod: Namespace) -> None:
    """Its driver was unbound while the pod had it; the next one to have it must not be trusted."""
    target = make(1)
    wanted, before = pod_plan(target.functions[0].address, 0), vfs()[0]
    attach([wanted], pod.netns)
    driver = kernel_view.SYS_PCI / target.functions[0].address / "driver"
    (driver / "unbind").write_text(target.functions[0].address)
    assert vfs()[0]["trust"] is True
    assert detach([wanted], pod.netns).missing == ("vf",)
    assert vfs()[0] == before


# --- a driver that is killed ----------------------------------------------------------------------------


def die_at(point: str, work: Callable[[], object]) -> None:
    """Do the work in another process, which kills itself (SIGKILL) when it reaches the failpoint for the n-th
    time: ``attach:steps-applied:2``."""
    step, _, times = point.rpartition(":")
    left = int(times)

    def count(reached: Failpoint) -> None:
        nonlocal left
        left -= reached == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            failpoints.listen(count)
            work()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), f"{point} was not reached: {status}"
    assert os.WTERMSIG(status) == signal.SIGKILL


def keep_functions(folder: Path, wanted: VfRules) -> None:
    """The driver's loop over the machine, until it changes nothing any more."""
    store, metrics = ClaimStore(folder / "claims"), Metrics()
    store.open()
    inventory = Inventory(
        NodeScanner(Path("/sys"), Path("/proc")), lambda: Policy(virtual_functions=wanted), store, metrics
    )
    changes = [True]
    functions = VirtualFunctions(
        NodeState("node", folder / "virtual-functions.json", "boot"),
        inventory,
        store,
        WorkLocks(store.folder),
        Told(),
        metrics,
        lambda: changes.append(True),
    )

    async def run() -> None:
        while changes:
            changes.clear()
            inventory.scan()
            await functions.reconcile()

    try:
        asyncio.run(run())
        assert [state.problem for state in functions.states] == [""]
    finally:
        store.close()


@pytest.mark.parametrize("step", [s for s in Failpoint if s.walk == "functions"])
def test_functions_that_a_killed_driver_left_are_completed_by_the_next(tmp_path: Path, step: str) -> None:
    write_count(0)
    write_count(1)
    die_at(f"{step}:1", lambda: keep_functions(tmp_path, rules(2)))
    made = count()
    assert made == (0 if step == Failpoint.FUNCTIONS_REMOVED else 2)
    if step == Failpoint.FUNCTIONS_MADE:
        assert not any(vf["vlan_list"][0].get("vlan") for vf in vfs()), "they have no defaults yet"
    keep_functions(tmp_path, rules(2))
    assert (count(), autoprobe()) == (2, "1")
    for function, seen in zip(plan(rules(2)).functions, vfs(), strict=True):
        assert (seen["address"], seen["spoofchk"]) == (function.settings.mac, False)
        assert (seen["vlan_list"][0]["vlan"], seen["vlan_list"][0]["qos"]) == (100, 3)
        assert kernel_view.ifname(function.address), "it has its driver"


@pytest.fixture
def node() -> Iterator[Namespace]:
    """The machine's own namespace."""
    kernel_view.run("ip", "netns", "attach", "machine", str(os.getpid()))
    with NetworkNamespace.open("/run/netns/machine") as here:
        yield Namespace("machine", here)
    kernel_view.run("ip", "netns", "del", "machine")


def a_claim(function: str, index: int) -> PreparedDevice:
    """As Prepare leaves it, of a class with ``interface.vf``."""
    ifname = kernel_view.ifname(function)
    device = Device(
        "vf",
        DeviceKind.NIC,
        ifname=ifname,
        pci_address=function,
        physical_function=PF.address,
        vf_index=index,
    )
    vf = {"trust": True, "spoofCheck": True, "vlan": 42, "qos": 5}
    config = NetworkConfig.model_validate({"interface": {"name": "net1", "vf": vf}})
    with NetlinkSocket.open() as netlink:
        before = read_vf(netlink, Path("/sys"), PF.address, index)
    plan = plan_device(device, read_link_state(ifname), config, rdma_exclusive=False, vf=before)
    return PreparedDevice(request="nic", pool="node", device=device, plan=plan)


@pytest.mark.parametrize(
    ("point", "stays"),
    [("attach:steps-applied:2", False), ("attach:steps-applied:2", True), ("release:link-home:1", False)],
    ids=["pod-is-gone", "pod-stays", "pod-was-leaving"],
)
def test_a_function_that_a_killed_driver_administered_is_restored(
    tmp_path: Path, node: Namespace, pod: Namespace, point: str, stays: bool
) -> None:
    target = make(2)
    function, before, here = target.functions[1].address, vfs()[1], sandbox(pod)
    bench = Bench(tmp_path, node)
    bench.put(a_claim(function, 1))
    bench.close()

    def give_and_take() -> None:
        bench = Bench(tmp_path, node)
        bench.run_sandbox(here)
        bench.stop_sandbox(here)

    die_at(point, give_and_take)
    assert vfs()[1]["trust"] is True, "the claim's settings are in force"
    bench = Bench(tmp_path, node)
    if stays:  # the runtime asks again, and the pod ends later
        assert bench.run_sandbox(here)
        assert (vfs()[1]["trust"], vfs()[1]["vlan_list"][0]["vlan"]) == (True, 42)
        assert bench.stop_sandbox(here)
    else:
        bench.reconcile()
    bench.close()
    assert vfs()[1] == before
    assert kernel_view.ifname(function)
