"""The job with a ComputeDomain on the real schedulers whose programs are here."""

from __future__ import annotations

import pytest

from tests.support.real_cluster import run_module

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
def test_each_tray_of_one_rack_has_a_pod_and_no_more(version: str) -> None:
    lines = run_module("tests.desk.scheduler.rack", version, "--version", version).splitlines()
    *placed, more, alone = (line for line in lines if line.startswith(("train-", "one-more", "channel-")))

    assert [line.partition(": ")[2] for line in placed] == ["channel-0 NODE"] * 2
    assert "2 cannot allocate all claims, 2 node(s) didn't match pod affinity rules" in more
    assert "1 cannot allocate all claims" in alone
