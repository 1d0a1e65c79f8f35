"""Programs and filters on a link that comes home: what the move took off is told, what a tenant left goes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dranet.kernel.attachment.detach import DetachReport
from dranet.kernel.discovery.programs import BPF_TCX_EGRESS, BPF_TCX_INGRESS
from dranet.kernel.netlink.tc import CLSACT_EGRESS, CLSACT_INGRESS
from dranet.model.plan import SetUp
from tests.kernel.loaded import BPF_XDP, XDP, Loader, add_hook, attach_filter, ifindex_of, loader, tc
from tests.kernel.plans import attach_from, detach_to, move_plan
from tests.support.namespaces import Namespace, wait_settled, wait_unchanged

pytestmark = pytest.mark.kernel

XDP_GENERIC = 1 << 1
LOST = "removed by the kernel when the device moved; its owner has to load it again"


@pytest.fixture
def bpf_loader() -> Iterator[Loader]:
    with loader() as found:
        yield found


def has_xdp(node: Namespace, ifname: str) -> bool:
    return "prog" in json.dumps(node.read_raw("link", "show", "dev", ifname)[0].get("xdp", {}))


def test_filters_of_the_node_that_the_move_took_off_are_told(
    node: Namespace, pod: Namespace, bpf_loader: Loader
) -> None:
    add_hook(node, "eth3", "clsact")
    fd, ifindex = bpf_loader.load("guard"), ifindex_of(node, "eth3")
    attach_filter(node, fd, ifindex, CLSACT_INGRESS, b"guard.o:[in]")
    attach_filter(node, fd, ifindex, CLSACT_EGRESS, b"guard.o:[out]")
    match = ["prio", "9", "protocol", "ip", "u32", "match", "ip", "dst", "192.0.2.1/32", "flowid", "1:1"]
    tc(node, "filter", "add", "dev", "eth3", "ingress", *match)
    before = wait_settled(node)
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    report = detach_to(node, pod, plan)
    assert report.restored == ("dev-eth3",)
    assert report.problems == (
        f"dev-eth3: tc ingress guard.o:[in]: {LOST}",
        f"dev-eth3: tc egress guard.o:[out]: {LOST}",
        f"dev-eth3: u32 filter 800::800 on ingress: {LOST}",
    )
    assert tc(node, "filter", "show", "dev", "eth3", "ingress") == "", "as the report says"
    wait_unchanged(before, node)


def test_programs_that_stay_on_the_link_are_still_there_and_nothing_is_told(
    node: Namespace, pod: Namespace, bpf_loader: Loader
) -> None:
    ifindex = ifindex_of(node, "eth3")
    bpf_loader.attach_by_link(node, bpf_loader.load("of_the_node"), ifindex, BPF_TCX_INGRESS)
    bpf_loader.attach_by_link(node, bpf_loader.load("of_the_node", XDP), ifindex, BPF_XDP, XDP_GENERIC)
    plan = move_plan(node, "eth3", "net1", SetUp())
    assert plan.host is not None
    assert plan.host.programs == ("tcx ingress of_the_node", "xdp of_the_node")
    attach_from(node, pod, plan)
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth3",))
    assert has_xdp(node, "eth3")


def test_what_a_tenant_left_on_the_link_is_removed_and_told(
    node: Namespace, pod: Namespace, bpf_loader: Loader
) -> None:
    before = wait_settled(node)
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    ifindex = ifindex_of(pod, "net1")
    bpf_loader.attach_by_link(pod, bpf_loader.load("spy"), ifindex, BPF_TCX_EGRESS)
    bpf_loader.attach_to_hook(pod, bpf_loader.load("tap"), ifindex, BPF_TCX_INGRESS)
    bpf_loader.attach_by_link(pod, bpf_loader.load("thief", XDP), ifindex, BPF_XDP, XDP_GENERIC)
    add_hook(pod, "net1", "clsact")
    attach_filter(pod, bpf_loader.load("gone"), ifindex, CLSACT_INGRESS, b"goes.o:[with the move]")
    report = detach_to(node, pod, plan)
    assert report == DetachReport(
        restored=("dev-eth3",),
        problems=tuple(
            f"dev-eth3: {name}: left on the link by its tenant; it was removed"
            for name in ("tcx ingress tap", "tcx egress spy", "xdp thief")
        ),
    )
    assert not has_xdp(node, "eth3")
    wait_unchanged(before, node)
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth3",)), "told once"


def test_a_program_of_the_node_that_goes_with_a_tenants_is_told_too(
    node: Namespace, pod: Namespace, bpf_loader: Loader
) -> None:
    ifindex = ifindex_of(node, "eth3")
    bpf_loader.attach_by_link(node, bpf_loader.load("of_the_node"), ifindex, BPF_TCX_INGRESS)
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    bpf_loader.attach_by_link(pod, bpf_loader.load("spy"), ifindex_of(pod, "net1"), BPF_TCX_INGRESS)
    assert detach_to(node, pod, plan).problems == (
        "dev-eth3: tcx ingress spy: left on the link by its tenant; it was removed",
        f"dev-eth3: tcx ingress of_the_node: {LOST}",
    )


def test_a_filter_that_somebody_on_the_node_added_since_is_left_alone(
    node: Namespace, bpf_loader: Loader
) -> None:
    plan = move_plan(node, "eth3", "net1")
    add_hook(node, "eth3", "clsact")
    fd = bpf_loader.load("new")
    attach_filter(node, fd, ifindex_of(node, "eth3"), CLSACT_INGRESS, b"new.o:[tc]")
    assert detach_to(node, None, plan) == DetachReport(restored=("dev-eth3",))
    assert "new.o" in tc(node, "filter", "show", "dev", "eth3", "ingress")


def test_of_a_link_that_no_pod_had_no_loss_is_told(node: Namespace, bpf_loader: Loader) -> None:
    """Its owner unloaded the filter in the meantime."""
    add_hook(node, "eth3", "clsact")
    attach_filter(node, bpf_loader.load("old"), ifindex_of(node, "eth3"), CLSACT_INGRESS, b"old.o:[tc]")
    plan = move_plan(node, "eth3", "net1")
    assert plan.host is not None
    assert plan.host.programs == ("tc ingress old.o:[tc]",)
    tc(node, "filter", "del", "dev", "eth3", "ingress")
    assert detach_to(node, None, plan) == DetachReport(restored=("dev-eth3",))
