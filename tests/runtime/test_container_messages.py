"""What a runtime says of a container, however odd: variables above all, as what is there is never set."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.model.claim import ContainerAdjustment, MemoryPolicy
from dranet.pb import nri_pb2
from dranet.runtime.containers import build_adjustment, parse_container


def parse_env(*env: str) -> dict[str, str]:
    return dict(parse_container(nri_pb2.Container(id="c", name="main", env=env)).env)


@pytest.mark.parametrize(
    ("env", "found"),
    [
        (("A=1",), {"A": "1"}),
        (("A=1", "A=2", "B="), {"A": "2", "B": ""}),
        (("NCCL_IB_HCA==mlx5_0,mlx5_1",), {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}),
        (("NCCL_IB_HCA",), {"NCCL_IB_HCA": ""}),
        (("=x", ""), {"": ""}),
        (("A=1\nNCCL_IB_HCA=mlx5_9",), {"A": "1\nNCCL_IB_HCA=mlx5_9"}),
        (("A=" + "x" * 3_000_000,), {"A": "x" * 3_000_000}),
    ],
)
def test_a_variable_is_known_by_its_name_and_the_last_of_a_name_counts(
    env: tuple[str, ...], found: dict[str, str]
) -> None:
    assert parse_env(*env) == found


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=30))
def test_no_variable_of_a_container_gets_lost(env: list[str]) -> None:
    found = parse_env(*env)
    assert found.keys() == {item.split("=", 1)[0] for item in env}
    again = ContainerAdjustment(env=tuple((name, "ours") for name in found))
    container = parse_container(nri_pb2.Container(id="c", env=env))
    assert again.without(container).env == (), "what is there is never set"


def test_memory_is_said_only_where_it_is_asked_for() -> None:
    assert not build_adjustment(ContainerAdjustment()).linux.HasField("resources")
    assert not build_adjustment(ContainerAdjustment()).linux.HasField("memory_policy")
    asked = build_adjustment(
        ContainerAdjustment(memory_nodes="0-1", memory_policy=MemoryPolicy("MPOL_INTERLEAVE", "0-1"))
    )
    assert asked.linux.resources.cpu.mems == "0-1"
    assert asked.linux.memory_policy.mode == nri_pb2.MPOL_INTERLEAVE
    assert asked.linux.memory_policy.nodes == "0-1"
