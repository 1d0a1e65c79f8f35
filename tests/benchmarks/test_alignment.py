"""The benchmark of aligned jobs, with few nodes: every pod has the nearest NIC that the cluster can give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.cluster import build
from tests.support.real_cluster import run_module

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_NODES = 6
_FULL, _MIXED, _HALF_TAKEN, _TWO_PAIRS = "1", "3", "4", "6"


def test_each_job_gets_the_best_distances_that_the_cluster_has(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    words = ("--nodes", str(_NODES), "--rounds", "1", "--output", str(output))
    scenes = (_FULL, _MIXED, _HALF_TAKEN, _TWO_PAIRS)
    said = run_module("benchmarks.alignment", build.choose_version(), *words, "--scenes", *scenes)
    assert f"{_NODES} nodes" in said

    full, mixed, half_taken, two_pairs = json.loads(output.read_text())["scenes"]
    assert full["pods"] == mixed["pods"] == 4 * _NODES
    assert full["possible"] == f"{4 * _NODES} NODE"
    assert 0 < half_taken["pods"] < 4 * _NODES
    assert two_pairs["possible"] == f"{2 * two_pairs['pods']} NODE"
    for scene in (full, mixed, half_taken, two_pairs):
        assert scene["aligned"] == [scene["possible"]], scene["title"]
        assert scene["share"] == 1
        assert scene["ratio"] > 0
    assert "SYS" in full["plain"][0]
