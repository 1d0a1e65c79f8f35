"""Sets of CPUs as the kernel writes them, and the ones near a device."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dranet.model.cpus import (
    MOST_CPUS,
    CpuLayout,
    find_local_cpus,
    format_cpu_list,
    format_cpu_mask,
    mask_to_cpus,
    parse_cpu_list,
    parse_cpu_mask,
)
from dranet.model.facts import NumaNode

CPUS = st.frozensets(st.integers(0, MOST_CPUS - 1), max_size=200)


@given(CPUS)
def test_a_list_says_the_cpus_that_it_was_made_from(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


@given(CPUS)
def test_a_mask_says_the_cpus_that_it_was_made_from(cpus: frozenset[int]) -> None:
    mask = parse_cpu_mask(format_cpu_mask(cpus))
    assert mask is not None
    assert mask_to_cpus(mask) == tuple(sorted(cpus))


@given(st.text(max_size=40))
@example("0-4294967295")
@example("99999-99999")
@example("3-1")
def test_whatever_stands_in_a_file_gives_cpus_or_none(text: str) -> None:
    assert all(0 <= cpu < MOST_CPUS for cpu in parse_cpu_list(text))
    assert (parse_cpu_mask(text) or 0) >= 0


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,8", (0, 1, 2, 8)), ("5", (5,)), ("", ()), ("(null)", ()), ("0-2,x", ()), (" 1, 3-4 ", (1, 3, 4))],
)
def test_lists_of_the_kernel(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


def test_masks_of_the_kernel() -> None:
    assert format_cpu_mask([0, 1, 32]) == "1,00000003"
    assert format_cpu_mask([]) == "0"
    assert parse_cpu_mask("00000001,00000003") == parse_cpu_mask("1,00000003") == 0x1_0000_0003
    assert parse_cpu_mask("") is None


TWO = (NumaNode(0, "0-3,8-11", (10, 21)), NumaNode(1, "4-7,12-15", (21, 10)))
GRACE = (
    NumaNode(0, "0-71", (10, 40, 80)),
    NumaNode(1, "72-143", (40, 10, 80)),
    NumaNode(2, "", (80, 45, 10)),
)


def layout(*nodes: NumaNode, kept_free: str = "", online: str = "0-143") -> CpuLayout:
    return CpuLayout(parse_cpu_list(online), parse_cpu_list(kept_free), nodes)


def test_near_are_the_cpus_of_the_devices_numa_node_that_are_online_and_not_isolated() -> None:
    assert find_local_cpus(layout(*TWO, kept_free="4-5,12", online="0-14"), 1) == (6, 7, 13, 14)


def test_a_numa_node_of_memory_alone_has_the_cpus_of_its_nearest_neighbour() -> None:
    assert find_local_cpus(layout(*GRACE), 2) == tuple(range(72, 144))


def test_on_a_machine_of_one_numa_node_all_cpus_are_near_to_a_device_that_names_none() -> None:
    assert find_local_cpus(layout(NumaNode(0, "0-3"), online="0-3"), None) == (0, 1, 2, 3)
    assert find_local_cpus(layout(online="0-1"), None) == (0, 1)


@pytest.mark.parametrize(
    ("given_layout", "numa_node", "why"),
    [
        (layout(*TWO), None, "does not report to which of its NUMA nodes"),
        (
            layout(*TWO, kept_free="4-15"),
            1,
            r"all CPUs of NUMA node 1 \(4-7,12-15\) are isolated or kept free of interrupts",
        ),
        (layout(*TWO, online="0-3"), 1, "no CPU that is online"),
        (layout(*TWO), 7, "no CPU that is online"),
        (layout(NumaNode(0, "0-1"), kept_free="0-1", online="0-1"), None, "all CPUs of the node"),
    ],
)
def test_where_no_cpu_is_near_the_reason_is_told(
    given_layout: CpuLayout, numa_node: int | None, why: str
) -> None:
    with pytest.raises(LookupError, match=why):
        find_local_cpus(given_layout, numa_node)
