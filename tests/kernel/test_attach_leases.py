"""How long a leased address lives in the pod: what is left of the lease, however late it is attached."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from dranet.errors import KernelError, Reason
from dranet.model.facts import Address
from dranet.model.plan import AddAddress, AttachPlan, DhcpLease, SetUp
from tests.kernel.plans import attach_from, detach_to, move_plan, unchanged
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

LEASED = "172.16.0.9/24"
FOR_EVER = 0xFFFFFFFF


def leased_plan(node: Namespace, age: float, lease_seconds: int = 1200) -> AttachPlan:
    """As Prepare made it ``age`` seconds ago: the step has the whole time of the lease."""
    lease = DhcpLease(
        LEASED,
        "172.16.0.1",
        "02:00:00:00:00:99",
        "02:00:00:00:00:01",
        time.time() - age,
        lease_seconds,
        lease_seconds // 2,
        lease_seconds // 4 * 3,
    )
    steps = (
        AddAddress(Address("192.168.7.7/24")),
        AddAddress(Address(LEASED, valid_seconds=1200, preferred_seconds=1200)),
        SetUp(),
    )
    return replace(move_plan(node, "eth1", "net1", *steps), lease=lease)


def lifetimes(pod: Namespace) -> dict[str, tuple[int, int]]:
    (link,) = pod.read_raw("-4", "addr", "show", "dev", "net1")
    return {
        info["local"]: (info["valid_life_time"], info["preferred_life_time"]) for info in link["addr_info"]
    }


def test_an_address_lives_as_long_as_its_lease_is_still_good(node: Namespace, pod: Namespace) -> None:
    plan = leased_plan(node, age=500)
    for _ in range(2):  # a repeated attach gives it no more
        attach_from(node, pod, plan)
        shown = lifetimes(pod)
        assert 600 < shown["172.16.0.9"][0] <= 700
        assert 600 < shown["172.16.0.9"][1] <= 700
        assert shown["192.168.7.7"] == (FOR_EVER, FOR_EVER)
    detach_to(node, pod, plan)


def test_a_repeated_attach_follows_a_renewal(node: Namespace, pod: Namespace) -> None:
    plan = leased_plan(node, age=1100)
    attach_from(node, pod, plan)
    assert plan.lease is not None
    renewed = replace(plan, lease=replace(plan.lease, obtained_at=time.time()))
    attach_from(node, pod, renewed)
    assert lifetimes(pod)["172.16.0.9"][0] > 1100
    detach_to(node, pod, plan)


def test_a_lease_for_ever_makes_an_address_for_ever(node: Namespace, pod: Namespace) -> None:
    plan = leased_plan(node, age=5000, lease_seconds=FOR_EVER)
    attach_from(node, pod, plan)
    assert lifetimes(pod)["172.16.0.9"] == (FOR_EVER, FOR_EVER)
    detach_to(node, pod, plan)


def test_a_lease_that_has_ended_is_not_attached_and_says_so(node: Namespace, pod: Namespace) -> None:
    """Somebody else may have the address by now."""
    plan = leased_plan(node, age=1300)
    with unchanged(node, pod), pytest.raises(KernelError) as caught:
        attach_from(node, pod, plan)
    assert caught.value.reason is Reason.DHCP_LEASE_EXPIRED
    assert LEASED in str(caught.value)
    assert "dev-eth1" in str(caught.value)
