"""Tables of what real schedulers align, on the versions whose programs are here."""

from __future__ import annotations

import pytest

from tests.support.real_cluster import run_module

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
def test_pods_of_a_full_node_get_the_best_distances_whoever_publishes_the_gpus(version: str) -> None:
    words = ("--versions", version, "--layouts", "azure-gb300", "dgx-h100")
    rows = run_module("tests.desk.scheduler.alignment", version, *words).splitlines()
    got = {
        tuple(cell.strip() for cell in row.split("|")[4:8]) for row in rows if row.startswith("| azure-gb300")
    }
    assert ("2 groups, else any", "4 NODE", "4 NODE", "4 NODE") in got
    assert any("match pcieRoot | 8 PIX | 8 PIX | 8 PIX" in row for row in rows)


def test_each_form_works_where_the_page_says_so() -> None:
    rows = run_module("tests.desk.scheduler.forms", "1.37", "--versions", "1.37").splitlines()
    outcomes = {form: columns for form, *columns in (row.strip("| ").split(" | ") for row in rows)}
    everywhere, never = ["4 of 4 near"] * 3, ["no pod"] * 3
    with_lists = ["refused", "4 of 4 near", "4 of 4 near"]
    assert outcomes["no constraint"] == ["0 of 4 near"] * 3
    assert outcomes["groups of alternatives, kept apart by pciBusID"] == everywhere
    assert outcomes["match pcieRoot, each below its own root"] == never
    assert outcomes["match pcieRoot, NICs with lists"] == with_lists
    assert (
        outcomes["match a derived list: the GPUs that the NIC names, the address of the GPU"][2]
        == "4 of 4 near"
    )
