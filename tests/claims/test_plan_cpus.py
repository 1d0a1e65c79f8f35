"""Near CPUs in a plan: which, in which order, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.config import SelectedResult, decode_configs
from dranet.claims.plan.device import plan_device
from dranet.errors import ClaimError, Reason
from dranet.model.claim import AllocationResult, ConfigSource, OpaqueConfig
from dranet.model.cpus import CpuLayout, CpuSurroundings
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NumaNode
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AttachPlan, CpuState, LinkState, SetCpuLocality, SetUp

LAYOUT = CpuLayout(tuple(range(8)), (4,), (NumaNode(0, "0-3", (10, 21)), NumaNode(1, "4-7", (21, 10))))
FOUND = CpuSurroundings(LAYOUT, {"30": "0-7", "31": "0-7"}, {"tx-0/xps_cpus": "0"})
NIC = Device("pci-0000-81-00-0", DeviceKind.NIC, ifname="eth1", pci_address="0000:81:00.0", numa_node=1)
RDMA = replace(NIC, kind=DeviceKind.RDMA, ifname="", rdma_device="mlx5_2")
LINK = LinkState(7, "eth1", "02:00:00:00:00:01", 1500, up=True, version=4)


def plan(
    cpus: CpuSurroundings | None = FOUND, device: Device = NIC, host: LinkState | None = LINK, **asked: Any
) -> AttachPlan:
    config = NetworkConfig.model_validate({"cpuLocality": asked})
    return plan_device(device, host, config, rdma_exclusive=False, cpus=cpus)


def step_of(planned: AttachPlan) -> SetCpuLocality:
    (step,) = (step for step in planned.steps if isinstance(step, SetCpuLocality))
    return step


def test_a_plan_has_the_near_cpus_and_what_the_host_gets_back() -> None:
    planned = plan(irq=True, xps=True)
    step = step_of(planned)
    assert sorted(step.cpus) == [5, 6, 7]
    assert (step.pci_address, step.irq, step.xps, step.rps) == ("0000:81:00.0", True, True, False)
    assert planned.cpus == CpuState(FOUND.irqs, FOUND.queues)
    kinds = [type(step) for step in planned.steps]
    assert kinds.index(SetUp) + 1 == kinds.index(SetCpuLocality), "once the driver has placed its interrupts"


def test_devices_begin_with_different_cpus() -> None:
    firsts = {step_of(plan(device=replace(NIC, name=f"vf-{n}"), irq=True)).cpus[0] for n in range(40)}
    assert firsts == {5, 6, 7}


@pytest.mark.parametrize("asked", [{}, {"irq": False, "xps": False, "rps": False}])
def test_who_does_not_ask_gets_no_step(asked: dict[str, Any]) -> None:
    planned = plan(**asked)
    assert planned.cpus is None
    assert not any(isinstance(step, SetCpuLocality) for step in planned.steps)


def test_an_rdma_only_device_has_interrupts_and_no_queues() -> None:
    assert step_of(plan(device=RDMA, host=None, irq=True)).irq
    with pytest.raises(ClaimError, match=r"RDMA-only.*\(cpuLocality.xps\)"):
        plan(device=RDMA, host=None, irq=True, xps=True)


def test_what_an_rdma_only_device_is_not_to_have_it_need_not_have() -> None:
    """A DeviceClass may say it for all of its devices."""
    assert step_of(plan(device=RDMA, host=None, irq=True, xps=False, rps=False)).irq


@pytest.mark.parametrize(
    ("given", "device", "why"),
    [
        ({"irqs": {}}, NIC, r"cpuLocality.irq: 0000:81:00.0 has no interrupts of its own \(MSI\)"),
        ({}, replace(NIC, pci_address=""), "cpuLocality.irq: the device is no PCI function"),
        ({"balancer": "irqbalance (process 7) places"}, NIC, "cpuLocality.irq: irqbalance"),
        (
            {},
            replace(NIC, numa_node=None),
            "cpuLocality: the node does not report to which of its",
        ),
        ({"layout": replace(LAYOUT, kept_free=(4, 5, 6, 7))}, NIC, "cpuLocality: all CPUs of NUMA node 1"),
    ],
)
def test_what_this_node_cannot_fulfil_is_refused_by_its_field(
    given: dict[str, Any], device: Device, why: str
) -> None:
    with pytest.raises(ClaimError, match=why) as refused:
        plan(replace(FOUND, **given), device, irq=True)
    assert refused.value.reason is Reason.INVALID_CONFIG


def test_a_link_that_is_down_may_have_no_interrupts_yet() -> None:
    assert step_of(plan(replace(FOUND, irqs={}), host=replace(LINK, up=False), irq=True)).irq


def test_irqbalance_does_not_mind_queues() -> None:
    assert step_of(plan(replace(FOUND, balancer="irqbalance"), xps=True, rps=True)).rps


def test_a_link_on_top_of_a_device_has_no_cpus_of_its_own() -> None:
    with pytest.raises(ValueError, match="must not be true with type: macvlan"):
        NetworkConfig.model_validate({"interface": {"type": "macvlan"}, "cpuLocality": {"xps": True}})
    config = NetworkConfig.model_validate({"interface": {"type": "macvlan"}, "cpuLocality": {"xps": False}})
    assert config.cpu_locality.asked == ()


# --- who says what --------------------------------------------------------------------------------------


def merged(*configs: tuple[ConfigSource, dict[str, Any]]) -> NetworkConfig:
    """Of one NIC, as Prepare merges them."""
    opaque = tuple(OpaqueConfig(source, "dra.net", parameters) for source, parameters in configs)
    result = AllocationResult("nic", "dra.net", "pool", NIC.name)
    selection = SelectedResult(result, opaque, tuple(range(len(opaque))), "fast", "default")
    (config,) = decode_configs([(selection, DeviceKind.NIC)])
    return config


def test_class_and_claim_go_together_wish_by_wish_and_the_claim_wins() -> None:
    near = (ConfigSource.CLASS, {"cpuLocality": {"irq": True, "xps": True}})
    claim = (ConfigSource.CLAIM, {"cpuLocality": {"xps": False, "rps": True}})
    assert merged(near, claim).cpu_locality.asked == ("irq", "rps")
    nothings: list[dict[str, Any]] = [{}, {"cpuLocality": {}}, {"cpuLocality": None}]
    for nothing in (*nothings, {"cpuLocality": {"irq": None}}):
        assert merged(near, (ConfigSource.CLAIM, nothing)).cpu_locality.asked == ("irq", "xps")


@pytest.mark.parametrize("policy", [{"lock": ["cpuLocality"]}, {"allow": ["interface"]}])
def test_a_class_may_keep_interrupts_from_claims(policy: dict[str, Any]) -> None:
    near = (ConfigSource.CLASS, {"policy": policy, "cpuLocality": {"xps": True}})
    assert merged(near).cpu_locality.asked == ("xps",)
    with pytest.raises(ClaimError, match=r"cpuLocality.irq: must not be set by a claim: DeviceClass fast"):
        merged(near, (ConfigSource.CLAIM, {"cpuLocality": {"irq": True}}))
