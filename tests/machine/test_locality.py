"""Interrupts and queues of real drivers: placed near the device, kept by the kernel, given back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dranet.claims.plan.device import plan_device
from dranet.driver.node_reader import NodeReader
from dranet.errors import ClaimError, KernelError, Reason
from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AttachPlan, LinkState
from testbed.machine.hardware import MACHINE, Function
from tests.kernel.plans import shell
from tests.machine import kernel_view
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.machine

READER = NodeReader(Path("/sys"), Path("/proc"))
IRQ = Path("/proc/irq")
ALL = {"irq": True, "xps": True, "rps": True}


def interrupts_of(function: Function) -> dict[str, str]:
    """By number, where the kernel says that each goes."""
    numbers = sorted((kernel_view.SYS_PCI / function.address / "msi_irqs").iterdir())
    files = (IRQ / number.name / "smp_affinity_list" for number in numbers)
    return {file.parent.name: file.read_text().strip() for file in files if file.exists()}


def names_of(function: Function) -> set[str]:
    """What the driver calls the interrupts that it has."""
    return {
        entry.name for irq in interrupts_of(function) for entry in (IRQ / irq).iterdir() if entry.is_dir()
    }


def queues_of(ifname: str, namespace: Namespace | None = None) -> Mapping[str, str]:
    """What ``grep`` finds below the link's queues, in a sysfs of the namespace."""
    script = f"cd /sys/class/net/{ifname}/queues && grep -sH . */xps_cpus */rps_cpus; true"
    text = shell(namespace, "sh", "-c", script) if namespace else kernel_view.run("sh", "-c", script)
    return {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}


def plan_for(function: Function, state: LinkState | None = None, **asked: Any) -> AttachPlan:
    """As Prepare makes it, of the machine's own facts."""
    ifname = kernel_view.ifname(function.address)
    device = Device(
        f"dev-{function.name}",
        DeviceKind.NIC,
        ifname=ifname,
        pci_address=function.address,
        numa_node=function.numa_node,
    )
    config = NetworkConfig.model_validate({"interface": {"name": "net1"}, "cpuLocality": ALL, **asked})
    cpus = READER.read_cpu_surroundings(function.address, ifname, config.cpu_locality.asked)
    host = state or read_link_state(ifname)
    return plan_device(device, host, config, rdma_exclusive=False, cpus=cpus)


@pytest.fixture(params=["igb1", "switched", "igb1/1", "virtio0"])
def function(request: pytest.FixtureRequest) -> Iterator[Function]:
    function = MACHINE.function(request.param)
    ifname = kernel_view.ifname(function.address)
    kernel_view.run("ip", "link", "set", ifname, "up")
    wait_until(lambda: bool(interrupts_of(function)), f"{ifname} has interrupts")
    yield function
    kernel_view.run("ip", "link", "set", ifname, "up")


def test_a_real_nic_has_near_cpus_in_the_pod_and_its_own_afterwards(
    function: Function, pod: Namespace
) -> None:
    ifname = kernel_view.ifname(function.address)
    first = min(interrupts_of(function), key=int)
    (IRQ / first / "smp_affinity_list").write_text("0" if function.numa_node else "1")  # the far one
    before, queues = interrupts_of(function), queues_of(ifname)
    plan = plan_for(function)
    attach([plan], pod.netns)
    assert set(interrupts_of(function).values()) == {str(function.numa_node)}, "each node has one CPU"
    assert set(interrupts_of(function)) == set(before)
    inside = queues_of("net1", pod)
    assert inside
    assert {int(value, 16) for value in inside.values()} == {1 << (function.numa_node or 0)}
    assert detach([plan], pod.netns) == DetachReport(restored=(f"dev-{function.name}",))
    assert interrupts_of(function) == before
    assert queues_of(ifname) == queues


def test_interrupts_that_a_tenant_had_the_driver_ask_for_anew_are_as_they_were(pod: Namespace) -> None:
    """``ethtool -L`` makes igb give back its vectors and take others, perhaps of the same numbers."""
    function = MACHINE.function("igb1")
    kernel_view.run("ip", "link", "set", kernel_view.ifname(function.address), "up")
    first = min(interrupts_of(function), key=int)
    (IRQ / first / "smp_affinity_list").write_text("0")
    before = interrupts_of(function)
    plan = plan_for(function)
    attach([plan], pod.netns)
    names = names_of(function)
    shell(pod, "ethtool", "-L", "net1", "combined", "1")
    assert names_of(function) != names
    assert detach([plan], pod.netns) == DetachReport(restored=("dev-igb1",))
    assert interrupts_of(function) == before


def test_a_nic_that_came_home_by_itself_has_its_own_cpus_again(pod: Namespace) -> None:
    """The pod's namespace has ended without a word; the kernel gives hardware back as the pod had it."""
    function = MACHINE.function("igb1")
    ifname = kernel_view.ifname(function.address)
    kernel_view.run("ip", "link", "set", ifname, "up")
    before, queues = interrupts_of(function), queues_of(ifname)
    plan = plan_for(function)
    attach([plan], pod.netns)
    assert interrupts_of(function) != before
    pod.delete()
    wait_until(lambda: bool(kernel_view.ifname(function.address)), "the NIC is back")
    assert detach([plan], None) == DetachReport(restored=("dev-igb1",))
    assert (interrupts_of(function), queues_of(ifname)) == (before, queues)


def test_interrupts_that_went_while_others_stayed_do_not_confuse_those(pod: Namespace) -> None:
    """A link that is down in the pod, and up again with fewer queues, when it is given back."""
    function = MACHINE.function("igb1")
    kernel_view.run("ip", "link", "set", kernel_view.ifname(function.address), "up")
    before = interrupts_of(function)
    plan = plan_for(function)
    attach([plan], pod.netns)
    shell(pod, "ip", "link", "set", "net1", "down")
    shell(pod, "ethtool", "-L", "net1", "combined", "1")
    shell(pod, "ip", "link", "set", "net1", "up")
    attach([plan], pod.netns)
    assert set(interrupts_of(function).values()) == {"1"}, "near again"
    assert detach([plan], pod.netns) == DetachReport(restored=("dev-igb1",))
    assert interrupts_of(function) == before


def test_fewer_queues_and_near_cpus_go_together(pod: Namespace) -> None:
    function = MACHINE.function("igb1")
    kernel_view.run("ip", "link", "set", kernel_view.ifname(function.address), "up")
    before = interrupts_of(function)
    plan = plan_for(function, ethtool={"channels": {"combined": 1}})
    attach([plan], pod.netns)
    assert set(interrupts_of(function).values()) == {"1"}
    assert detach([plan], pod.netns) == DetachReport(restored=("dev-igb1",))
    assert sorted(interrupts_of(function).values()) == sorted(before.values())


def test_a_nic_that_names_no_numa_node_is_refused() -> None:
    with pytest.raises(ClaimError, match="does not report to which of its NUMA nodes"):
        plan_for(MACHINE.function("chipset"))


def test_an_interrupt_that_nobody_may_place_is_a_missing_feature() -> None:
    with pytest.raises(KernelError, match="the kernel places it by itself") as refused:
        InterruptFiles().place(0, "0")  # the timer's
    assert refused.value.reason is Reason.MISSING_FEATURE


def test_irqbalance_is_seen_by_its_name(tmp_path: Path) -> None:
    program = tmp_path / "irqbalance"
    shutil.copy("/usr/bin/sleep", program)
    function = MACHINE.function("igb1")
    with subprocess.Popen([program, "600"]) as process:
        try:
            comm = Path(f"/proc/{process.pid}/comm")
            wait_until(lambda: comm.read_text().strip() == "irqbalance", "it runs")
            with pytest.raises(ClaimError, match=rf"irqbalance \(process {process.pid}\).*--banmod=igb, or"):
                plan_for(function)
        finally:
            process.kill()
    assert plan_for(function).cpus is not None
