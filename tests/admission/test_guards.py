"""Who writes slices: the option that keeps everybody else from those in the driver's name."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cel_expr_python", reason="the CEL engine is not installed")

from dranet.manifests.admission import CONTROL_PLANE, Driver, build_policies, build_slice_owners
from dranet.testbed.apiserver.admission import Admission, judge

Json = dict[str, Any]
OWNER = Driver()
POLICY = build_slice_owners(admins=("alice",))[0]


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
