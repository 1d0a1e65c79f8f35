"""Random valid configs on real links: after attach and detach, or a failure in between, all is as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.driver.node_reader import NodeReader
from dranet.kernel.attachment.checks import verify
from dranet.kernel.attachment.restore import read_link_state
from dranet.model.cpus import CpuLayout, CpuSurroundings
from dranet.model.device import Device, DeviceKind
from tests.claims.configs import valid_configs
from tests.kernel.plans import attach_from, detach_to, steady_picture
from tests.kernel.test_attach_failures import NODE_STATE, Fault, attempt
from tests.support.namespaces import Namespace, wait_settled, wait_unchanged

pytestmark = pytest.mark.kernel

LACKING = ("interface.vrf",)
"""What this machine's kernel may lack is in tests/machine/test_attach.py, with ipvlan and VLAN."""

# Each example takes a second, and the next one finds the same namespaces: no shrinking of what spoilt them.
quick = settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
DEVICE = Device(name="dev-eth1", kind=DeviceKind.NIC, ifname="eth1")
POLICY_ROUTING = """
addr add 10.1.7.2/24 dev eth1 valid_lft 7200 preferred_lft 3600
route add default via 10.1.0.1 dev eth1 table 70001
route add 10.1.0.0/24 dev eth1 proto kernel scope link table 70001
route add default via 2001:db8:1::1 dev eth1 table 70001
neigh add 2001:db8:1::9 lladdr 02:00:00:00:99:98 dev eth1 nud permanent
rule add from 10.1.0.0/24 lookup 70001 priority 500
rule add from 10.1.0.2 to 10.60.0.0/16 lookup main priority 501
rule add iif eth1 lookup 70001 priority 502
"""
QUEUES = ("xps", "rps")
"""Interrupts are of functions, which no link here has."""


@quick
@given(data=st.data())
def test_what_is_attached_comes_back_whatever_the_config(
    node: Namespace, pod: Namespace, data: st.DataObject
) -> None:
    prepare(node, pod)
    before, pod_before = wait_settled(node), wait_settled(pod)
    host, rules = node.run(lambda: (read_link_state("eth1"), NodeReader(Path("/sys")).read_rules()))
    types = ("passthrough", "macvlan")
    config = data.draw(valid_configs(host, without=LACKING, types=types, cpus=QUEUES))
    cpus = read_cpus(node)
    plan = plan_device(DEVICE, host, config, rdma_exclusive=False, cpus=cpus, host_rules=rules)
    (attached,) = attach_from(node, pod, plan)
    assert node.run(lambda: verify([plan], pod.netns)) == ()
    inside = steady_picture(pod)
    assert attach_from(node, pod, plan) == (attached,)
    wait_unchanged(inside, pod)
    report = detach_to(node, pod, plan)
    assert (report.restored, report.problems) == (("dev-eth1",), ())
    wait_unchanged(before, node)
    wait_unchanged(pod_before, pod)
    assert read_cpus(node) == cpus


@quick
@given(data=st.data(), request_number=st.integers(0, 60))
def test_a_failure_anywhere_leaves_no_trace_whatever_the_config(
    node: Namespace,
    pod: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    data: st.DataObject,
    request_number: int,
) -> None:
    prepare(node, pod)
    before, pod_before = wait_settled(node), wait_settled(pod)
    host, rules = node.run(lambda: (read_link_state("eth1"), NodeReader(Path("/sys")).read_rules()))
    types = ("passthrough", "macvlan")
    config = data.draw(valid_configs(host, without=LACKING, types=types, cpus=QUEUES))
    cpus = read_cpus(node)
    plan = plan_device(DEVICE, host, config, rdma_exclusive=False, cpus=cpus, host_rules=rules)
    assert attempt(node, pod, monkeypatch, Fault(request_number), plan) == []
    wait_unchanged(before, node)
    wait_unchanged(pod_before, pod)
    assert read_cpus(node) == cpus


def read_cpus(node: Namespace) -> CpuSurroundings:
    """All CPUs of the machine, as near: a link in a namespace is on none of its NUMA nodes."""
    found = node.run(lambda: NodeReader(Path("/sys")).read_cpu_surroundings("", "eth1", QUEUES))
    return replace(found, layout=CpuLayout(found.layout.online))


def prepare(node: Namespace, pod: Namespace) -> None:
    """Give the node's link a state and take the pod's default route, once for all examples of a test."""
    if any(route["dst"] == "default" for route in pod.read("route")):
        pod.ip("route", "del", "default")
        node.ip_lines(NODE_STATE + POLICY_ROUTING)
        node.ip("-6", "rule", "add", "from", "2001:db8:1::/64", "lookup", "70001", "priority", "500")
