"""The benchmark of many drivers on a real API server, with few of them: it counts exactly what each asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from e2e.cluster import build
from tests.support.real_cluster import run_module

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_NODES, _PODS = 5, 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("scale") / "results.json"
    words = ("--nodes", str(_NODES), "--pods", str(_PODS), "--idle-seconds", "2", "--output", str(output))
    said = run_module("benchmarks.scale_cluster", build.choose_version(), *words)
    assert f"{_NODES} nodes" in said
    return json.loads(output.read_text())


def count(phase: Mapping[str, Any], verb: str, *codes: int) -> int:
    """Requests of a verb that were answered with one of these statuses."""
    return sum(phase["requests"].get(f"{verb} {code}", 0) for code in codes)


def test_each_driver_asks_what_the_page_on_scale_says_and_no_more(results: Any) -> None:
    start, change, idle, returned, restart = results["phases"]

    dry_runs, own = 3, 1
    assert count(start, "create resourceslices", 201, 422) == _NODES * (dry_runs + own)
    assert count(start, "get nodes", 200) == 2 * _NODES
    assert count(start, "list resourceslices", 200) == 2 * _NODES
    assert count(start, "watch resourceslices", 200) == 2 * _NODES

    assert change["requests"] == {"update resourceslices 200": _NODES}
    assert idle["requests"] == {}

    assert count(returned, "watch resourceslices", 200) >= 2 * _NODES
    assert count(restart, "create resourceslices", 201, 422) == _NODES * dry_runs
    for phase in (returned, restart):
        assert count(phase, "update resourceslices", 200, 409) == 0, "the slices are as wanted"


def test_bytes_and_processor_time_are_those_of_what_was_asked(results: Any) -> None:
    start, change, idle, *_ = results["phases"]
    slice_bytes = 15_000
    assert start["bytes_to_server"] > slice_bytes * _NODES
    assert change["bytes_from_server"] > 2 * slice_bytes * _NODES, (
        "the answer, and the event of the own watch"
    )
    assert (idle["bytes_to_server"], idle["connections"]) == (0, 0)
    assert start["processor_seconds"]["drivers"] > 0
    assert start["processor_seconds"]["kube-apiserver"] > 0
    assert start["etcd_bytes"] > slice_bytes * _NODES


def test_every_job_was_placed(results: Any) -> None:
    titles = [job["title"] for job in results["jobs"]]
    assert len(titles) == len(set(titles)) == 5
    assert all(job["pods"] == _PODS and job["seconds"] > 0 for job in results["jobs"])
