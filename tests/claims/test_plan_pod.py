"""What devices of one pod share: interface names, VRF tables, settings of the namespace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dranet.claims.plan.device import check_pod
from dranet.errors import ClaimError, Reason
from dranet.model.plan import AddRule, AttachPlan, JoinVrf, SetSysctl, Step


def plan(device: str, ifname: str, *steps: Step) -> AttachPlan:
    return AttachPlan(device, steps, ifname)


def wide(path: str, value: str) -> SetSysctl:
    return SetSysctl(path, value, early=False)


RULE = AddRule(4, 100, priority=5)

FINE = [
    [plan("a", "net0"), plan("b", "net1"), AttachPlan("rdma"), AttachPlan("gpu")],
    [plan("a", "net0", JoinVrf("blue", 7)), plan("b", "net1", JoinVrf("blue", 7))],
    [plan("a", "net0", JoinVrf("blue", 7)), plan("b", "net1", JoinVrf("red", 8))],
    [plan("a", "net0", wide("core/somaxconn", "9")), plan("b", "net1", wide("core/somaxconn", "9"))],
    [plan("a", "net0", SetSysctl("x", "1")), plan("b", "net1", SetSysctl("x", "2"))],
    [plan("a", "net0", JoinVrf("blue", 7)), plan("b", "net1", wide("ipv4/tcp_l3mdev_accept", "1"))],
    [plan("a", "net0", RULE), plan("b", "net1", RULE)],
]


@pytest.mark.parametrize("plans", FINE)
def test_what_fits_together(plans: Sequence[AttachPlan]) -> None:
    check_pod(plans)


CLASHES = [
    ([plan("a", "net0"), plan("b", "net0"), plan("c", "net1")], ["a, b would all be net0"]),
    (
        [plan("a", "net0"), plan("b", "net0"), plan("c", "net1"), plan("d", "net1")],
        ["a, b would all be net0", "c, d would all be net1"],
    ),
    ([plan("a", "net0", JoinVrf("net1", 7)), plan("b", "net1")], ["b and the VRF of a would be net1"]),
    (
        [plan("a", "net0", JoinVrf("blue", 7)), plan("b", "net1", JoinVrf("blue", 8))],
        ["interface.vrf.table: VRF blue would have the tables 7, 8"],
    ),
    (
        [plan("a", "net0", JoinVrf("blue", 7)), plan("b", "net1", JoinVrf("red", 7))],
        ["interface.vrf.table: the VRFs blue, red would share 7"],
    ),
    (
        [plan("a", "net0", wide("core/somaxconn", "9")), plan("b", "net1", wide("core/somaxconn", "8"))],
        ['sysctls["net.core.somaxconn"]: the pod has one value, and would get 9 by a, 8 by b'],
    ),
    (
        [plan("a", "net0", JoinVrf("blue", 7)), plan("b", "net1", wide("ipv4/tcp_l3mdev_accept", "0"))],
        ['sysctls["net.ipv4.tcp_l3mdev_accept"]: ', "0 by b, 1 by the VRF of a"],
    ),
]


@pytest.mark.parametrize(("plans", "complaints"), CLASHES)
def test_what_does_not(plans: Sequence[AttachPlan], complaints: Sequence[str]) -> None:
    with pytest.raises(ClaimError) as caught:
        check_pod(plans)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert [complaint for complaint in complaints if complaint not in caught.value.message] == []


def test_every_clash_is_named_at_once() -> None:
    plans = [
        plan("a", "net0", JoinVrf("blue", 7), wide("core/somaxconn", "9")),
        plan("b", "net0", JoinVrf("red", 7), wide("core/somaxconn", "8")),
    ]
    with pytest.raises(ClaimError) as caught:
        check_pod(plans)
    for word in ("net0", "blue, red", "somaxconn"):
        assert word in caught.value.message
