"""The soak (``make soak``) in its short form: each fault at least once, and all as before at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.survival.__main__ import REFUSED
from tests.survival.environment import REPOSITORY
from tests.survival.soak import RUNTIMES
from tests.survival.soak_faults import OF_DRIVER, OF_PEERS
from tests.survival.soak_pods import Kind
from tests.survival.soak_signs import BOUNDS, Measure, find_growth
from tests.survival.table import TABLE, load

SEED = 20261122
SECONDS = 20
"""One round of faults takes that long; the longest pod and a busy machine add to it."""


def _soak(runtime: str, report: Path) -> subprocess.CompletedProcess[str]:
    options = ["--seconds", str(SECONDS), "--runtime", runtime, "--seed", str(SEED), "--json", str(report)]
    return subprocess.run(
        [sys.executable, "-m", "tests.survival", *options],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=230,
    )


@pytest.mark.testbed
@pytest.mark.timeout(240)
def test_random_pods_under_each_fault_leave_the_node_as_it_was(tmp_path: Path) -> None:
    """On the real runtime, where it can be had."""
    told = ""
    for runtime in RUNTIMES:
        done = _soak(runtime, tmp_path / "report.json")
        told += done.stdout
        if done.returncode != REFUSED:
            break
    else:
        pytest.skip(told.strip().splitlines()[-1])
    assert done.returncode == 0, told
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    TABLE.add(*load([report["row"]]))
    assert report["wrong"] == []
    assert report["faults"].keys() == {*OF_PEERS, *OF_DRIVER}, told
    assert report["pods"].keys() == {*Kind}, told
    assert report["measures"]


def test_a_driver_that_grows_is_told_from_one_that_breathes() -> None:
    def measure(number: int) -> Measure:
        breath = 500 * (number % 2)
        return Measure(80_000 + breath, 40_000 + breath, 30 + number % 2, 14)

    flat = [measure(number) for number in range(9)]
    assert find_growth(flat) == []
    leaking = [
        Measure(m.rss_kib + 1000 * n, m.pss_kib, m.descriptors + n, m.threads) for n, m in enumerate(flat)
    ]
    assert [line.partition(":")[0] for line in find_growth(leaking)] == ["rss_kib", "descriptors"]
    late = [*flat[:6], *(Measure(80_000, 40_000, 30, 14 + BOUNDS.threads + 1) for _ in range(3))]
    assert [line.partition(":")[0] for line in find_growth(late)] == ["threads"]
