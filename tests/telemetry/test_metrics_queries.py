"""The queries of the page: read, and evaluated, by Prometheus' own ``promtool``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dranet.telemetry.recorder import Kind
from testbed.debian.packages import Unavailable, cache_folder
from testbed.prometheus import Promtool, fetch_promtool
from tools.pages.metrics import list_declared

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
QUERIES = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL)

JOIN = next(query for query in QUERIES if "group_left" in query)

SERIES = {
    'dranet_rdma_retransmits_total{instance="a",device="net-1",port="1",pod="dranet-x"}': "0+60x20",
    'dranet_rdma_retransmits_total{instance="a",device="net-2",port="1",pod="dranet-x"}': "0+6x20",
    'dranet_rdma_retransmits_total{instance="b",device="net-1",port="1",pod="dranet-y"}': "0+600x20",
    'dranet_pod_device_info{instance="a",device="net-1",namespace="t",pod="one",shared="false"}': "1x20",
    'dranet_pod_device_info{instance="a",device="net-2",namespace="t",pod="one",shared="false"}': "1x20",
    'dranet_pod_device_info{instance="b",device="net-1",namespace="t",pod="two",shared="true"}': "1x20",
    'dranet_pod_device_info{instance="b",device="net-1",namespace="t",pod="three",shared="true"}': "1x20",
}


@pytest.fixture(scope="module")
def promtool() -> Promtool:
    try:
        return fetch_promtool(cache_folder("promtool"), print)
    except Unavailable as shortage:
        pytest.skip(f"promtool: {shortage}")


def test_every_query_names_metrics_that_there_are() -> None:
    exposed = set()
    for one in list_declared():
        suffixes = ("_bucket", "_sum", "_count") if one.kind is Kind.HISTOGRAM else ("",)
        exposed |= {f"{one.name}{suffix}" for suffix in suffixes}
    assert len(QUERIES) >= 8
    for text in QUERIES:
        assert set(re.findall(r"\bdranet_\w+", text)) <= exposed


@pytest.mark.process
def test_prometheus_reads_every_query(promtool: Promtool, tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}))
    done = promtool.run("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_the_join_gives_each_pod_what_its_own_devices_did(promtool: Promtool, tmp_path: Path) -> None:
    """One retransmission a second and a tenth, on two devices; links on a shared device have none of their "
    "own."""
    wanted = [{"labels": '{namespace="t", pod="one"}', "value": 1.1}]
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in SERIES.items()],
                "promql_expr_test": [{"expr": JOIN, "eval_time": "10m", "exp_samples": wanted}],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps(test))
    done = promtool.run("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
