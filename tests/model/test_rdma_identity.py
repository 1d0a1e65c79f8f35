"""Which RDMA device a record means, when names have changed."""

from __future__ import annotations

import pytest

from dranet.model.device import NamedRdma, RdmaIdentity

A, B = "0c42:a103:0021:1000", "0c42:a103:0021:2000"
AT_A, AT_B = "0000:3b:00.0", "0000:5e:00.0"
PLACES = {"mlx5_0": AT_A, "mlx5_1": AT_B, "ibdev0": AT_A, "ibdev1": AT_B}


def refuse(name: str) -> str:
    raise AssertionError(f"the function of {name} need not be asked for")


def place(name: str) -> str:
    return PLACES[name]


@pytest.mark.parametrize("identity", [RdmaIdentity("mlx5_0", A), RdmaIdentity("mlx5_0", A, AT_A)])
def test_the_guid_decides_and_costs_no_further_look(identity: RdmaIdentity) -> None:
    assert identity.choose([NamedRdma("mlx5_0", A), NamedRdma("mlx5_1", B)], refuse) == "mlx5_0"
    assert identity.choose([NamedRdma("mlx5_0", B), NamedRdma("ibdev0", A)], refuse) == "ibdev0"


def test_without_a_guid_the_function_decides() -> None:
    identity = RdmaIdentity("mlx5_0", "", AT_A)
    assert identity.choose([NamedRdma("mlx5_1", ""), NamedRdma("ibdev0", "")], place) == "ibdev0"
    assert identity.choose([NamedRdma("mlx5_1", "")], place) == ""


def test_a_guid_that_was_assigned_since_makes_no_other_device_of_it() -> None:
    identity = RdmaIdentity("mlx5_0", A, AT_A)
    assert identity.choose([NamedRdma("mlx5_0", B)], place) == "mlx5_0"


def test_devices_with_one_guid_are_told_apart_by_function_and_then_by_name() -> None:
    both = [NamedRdma("mlx5_1", A), NamedRdma("mlx5_0", A)]
    assert RdmaIdentity("gone", A, AT_A).choose(both, place) == "mlx5_0"
    assert RdmaIdentity("mlx5_0", A).choose(both, refuse) == "mlx5_0"


def test_another_device_of_the_recorded_name_is_not_taken_for_it() -> None:
    assert RdmaIdentity("mlx5_0", A, AT_B).choose([NamedRdma("mlx5_0", B)], place) == ""
    assert RdmaIdentity("mlx5_0", A).choose([NamedRdma("mlx5_0", B)], refuse) == ""


def test_a_record_of_an_earlier_version_goes_by_the_name() -> None:
    old = RdmaIdentity("mlx5_0")
    assert old.choose([NamedRdma("mlx5_1", B), NamedRdma("mlx5_0", A)], refuse) == "mlx5_0"
    assert old.choose([NamedRdma("ibdev0", A)], refuse) == ""
