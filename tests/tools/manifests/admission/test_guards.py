"""Who writes slices and statuses: what the driver's own account may, and who else writes in its name."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cel_expr_python", reason="the CEL engine is not installed")

from testbed.apiserver.admission import Admission, judge
from tools.manifests.admission import CONTROL_PLANE, Driver, build_policies, build_slice_owners

Json = dict[str, Any]
OWNER = Driver()
POLICY = build_slice_owners(admins=("alice",))[0]
SLICES, STATUS = (one for one in build_policies() if one["kind"] == "ValidatingAdmissionPolicy")
NODE = "authentication.kubernetes.io/node-name"
HERE = {"username": OWNER.user_name, "extra": {NODE: ["here"]}}


def said(user: str, before: Json | None, after: Json | None, groups: tuple[str, ...] = ()) -> str:
    operation = "DELETE" if after is None else "CREATE" if before is None else "UPDATE"
    who = {"username": user, "groups": list(groups)}
    found = judge(
        POLICY, Admission(operation, "resource.k8s.io", "v1", "resourceslices", "", "s", who, before, after)
    )
    return found[1] if found else ""


def a_slice(driver: str = "dra.net", **fields: Any) -> Json:
    return {"metadata": {"name": "s"}, "spec": {"driver": driver, **fields}}


@pytest.mark.parametrize("user", [OWNER.user_name, "alice", *CONTROL_PLANE])
def test_those_who_are_named_write_slices_of_the_driver(user: str) -> None:
    assert said(user, None, a_slice()) == ""
    assert said(user, a_slice(), a_slice(nodeName="n")) == ""
    assert said(user, a_slice(), None) == ""


def test_nobody_else_does() -> None:
    for before, after in ((None, a_slice()), (a_slice(), a_slice(nodeName="n")), (a_slice(), None)):
        assert said("mallory", before, after).startswith("only the driver writes slices of dra.net")


def test_nor_turns_anothers_slice_into_one_of_the_driver_or_the_other_way_round() -> None:
    assert said("mallory", a_slice("other.x"), a_slice()) != ""
    assert said("mallory", a_slice(), a_slice("other.x")) != ""


def test_other_drivers_are_not_spoken_of() -> None:
    assert said("mallory", None, a_slice("other.x")) == ""


def test_a_kubelet_may_wipe_slices_and_not_write_them() -> None:
    groups = ("system:nodes",)
    assert said("system:node:n", a_slice(), None, groups) == ""
    assert said("system:node:n", None, a_slice(), groups) != ""


def test_the_guards_are_about_the_names_that_they_are_given() -> None:
    slices = build_policies("nic.example.com", "networking", "nics")[0]
    (condition,) = slices["spec"]["matchConditions"]
    assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:networking:nics'"
    assert "nic.example.com" in str(slices["spec"]["validations"])
    assert "dra.net'" not in str(slices)


def guarded(before: Json | None, after: Json | None, user: Json = HERE, policy: Json = SLICES) -> str:
    """What a guard of the driver's account says."""
    operation = "DELETE" if after is None else "CREATE" if before is None else "UPDATE"
    resource = "resourceslices" if policy is SLICES else "resourceclaims/status"
    found = judge(
        policy, Admission(operation, "resource.k8s.io", "v1", resource, "", "s", user, before, after)
    )
    assert found is None or found[0] == "Forbidden"
    return found[1] if found else ""


def slice_of(node: str = "here", pool: str = "here", driver: str = "dra.net", **fields: Any) -> Json:
    return a_slice(driver, nodeName=node, pool={"name": pool}, **fields)


@pytest.mark.parametrize("pool", ["here", "here/rail-0"])
def test_the_driver_makes_changes_and_removes_slices_of_its_node(pool: str) -> None:
    mine = slice_of(pool=pool)
    assert guarded(None, mine) == guarded(mine, slice_of(pool=pool, devices=[])) == guarded(mine, None) == ""


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (slice_of("there"), "only slices of the node that it runs on"),
        (slice_of(driver="other.x"), "only slices of dra.net"),
        (a_slice(allNodes=True, pool={"name": "here"}), "only slices of the node that it runs on"),
        (a_slice(nodeSelector={}, pool={"name": "here"}), "only slices of the node that it runs on"),
        (a_slice(perDeviceNodeSelection=True, pool={"name": "here"}), "only slices of the node"),
    ],
)
def test_and_no_other_ones(odd: Json, why: str) -> None:
    for before, after in ((None, odd), (odd, odd), (odd, None)):
        assert why in guarded(before, after)


@pytest.mark.parametrize("pool", ["there", "hereabouts", "there/here"])
def test_a_slice_of_another_pool_can_only_be_deleted(pool: str) -> None:
    """Somebody has made it in the driver's name: while it is there the scheduler gives its devices away."""
    odd = slice_of(pool=pool)
    for before in (None, odd):
        assert "only pools named after the node" in guarded(before, odd)
    assert guarded(odd, None) == ""


@pytest.mark.parametrize("extra", [{}, {"extra": {}}, {"extra": {NODE: []}}, {"extra": {NODE: [""]}}])
def test_a_token_that_names_no_node_writes_nothing(extra: Json) -> None:
    user = {"username": OWNER.user_name, **extra}
    assert "must be bound to a pod" in guarded(None, slice_of("", ""), user)
    assert "must be bound to a pod" in guarded(a_claim(), a_claim(), user, STATUS)


@pytest.mark.parametrize("user", [{"username": "alice"}, {"username": "system:node:here"}])
def test_the_guards_bind_nobody_but_the_driver(user: Json) -> None:
    assert guarded(slice_of("there"), None, user) == ""
    assert guarded(a_claim(entry("other.x")), a_claim(), user, STATUS) == ""


def a_claim(*entries: Json, **status: Any) -> Json:
    return {"metadata": {"name": "c"}, "spec": {}, "status": {"devices": list(entries), **status}}


def entry(driver: str = "dra.net", pool: str = "here", **fields: Any) -> Json:
    return {"driver": driver, "pool": pool, "device": "d", **fields}


def test_the_driver_writes_its_own_entries_beside_those_of_others() -> None:
    others = [entry("other.x", data={"a": 1}), entry(pool="there")]
    mine = [entry(pool="here/rail-0"), entry(data={"a": 1})]
    assert guarded(a_claim(*others), a_claim(*mine, *others), policy=STATUS) == ""
    assert guarded(a_claim(*mine, *others), a_claim(*others), policy=STATUS) == ""
    no_status = {"metadata": {"name": "c"}, "spec": {}}
    assert guarded(no_status, a_claim(*mine), policy=STATUS) == ""


@pytest.mark.parametrize("theirs", [entry("other.x"), entry(pool="there"), entry(pool="hereabouts")])
def test_it_neither_makes_nor_changes_nor_removes_entries_of_another_driver_or_node(theirs: Json) -> None:
    changed = {**theirs, "data": {"forged": True}}
    for before, after in (([], [theirs]), ([theirs], [changed]), ([theirs], [])):
        said = guarded(a_claim(entry(), *before), a_claim(entry(), *after), policy=STATUS)
        assert said == "the driver may write only the device entries of dra.net on the node that it runs on"


@pytest.mark.parametrize("name", ["allocation", "reservedFor"])
def test_it_does_not_say_who_has_a_claim(name: str) -> None:
    """Neither at first nor when it is said already."""
    for before, after in (({}, {name: [1]}), ({name: [1]}, {name: [2]}), ({name: [1]}, {})):
        said = guarded(a_claim(**before), a_claim(entry(), **after), policy=STATUS)
        assert said == "the driver may not change the allocation or the consumers of a claim"
