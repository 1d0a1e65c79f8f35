"""Each alert fires when it should, says what it should, and stays silent else: Prometheus evaluates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.prometheus import Promtool
from tests.tools.monitoring import evaluation
from tests.tools.monitoring.cases import CASES, FAULT, HOOKS, NODE, Case, nodes, rdma
from tests.tools.monitoring.evaluation import Series, expect, with_target
from tools.monitoring import Alert, list_alerts

pytestmark = pytest.mark.process

ALERTS = list_alerts()
BY_NAME = {alert.name: alert for alert in ALERTS}


def targeted(case: Case, series: Series) -> Series:
    return series if case.raw else with_target(series)


def test_every_alert_has_a_case_and_a_name_of_its_own() -> None:
    assert CASES.keys() == BY_NAME.keys()
    assert len(BY_NAME) == len(ALERTS)


def test_few_alerts_wake_somebody_and_none_of_them_for_one_node() -> None:
    pages = [alert for alert in ALERTS if alert.severity == "critical"]
    assert len(pages) <= 3
    assert all(
        re.search(r"\(count by \(cluster\) .* >= 3\) > 0\.1 \* count by", alert.expr) for alert in pages
    )


def test_each_fires_with_every_word_and_not_before_its_time(promtool: Promtool, tmp_path: Path) -> None:
    """And the nearest that is as it should be does not make it fire, early or late. promtool names which."""
    groups = {}
    for name, case in CASES.items():
        alert = BY_NAME[name]
        said = [expect(alert, 1), expect(alert, case.minute, case.says, value=case.value)]
        silent = [expect(alert, minute) for minute in (5, case.minute, case.minute + 5)]
        groups[name] = [
            evaluation.group(f"{name} fires", targeted(case, case.fires), alert_rule_test=said),
            evaluation.group(f"{name} is silent", targeted(case, case.silent), alert_rule_test=silent),
        ]
    evaluation.run_alerts(promtool, tmp_path, groups)


def test_a_misaligned_pod_is_told_of_also_where_no_series_has_its_name(
    promtool: Promtool, tmp_path: Path
) -> None:
    alert: Alert = BY_NAME["DranetPodMisaligned"]
    series = with_target({"dranet_alignment_devices_worse_than_possible": "1x60"})
    wanted = evaluation.parse_labels(evaluation.TARGET)
    group = evaluation.group("without pods", series, alert_rule_test=[expect(alert, 11, wanted)])
    evaluation.run_alerts(promtool, tmp_path, {alert.name: [group]})


def in_cluster(name: str, series: Series) -> dict[str, str]:
    """Of one of several in a Prometheus; their nodes have the same names and addresses."""
    return {re.sub(r"\{", f'{{cluster="{name}",', one): values for one, values in series.items()}


def test_what_is_wrong_in_one_cluster_is_not_said_of_another_one(promtool: Promtool, tmp_path: Path) -> None:
    groups = {}
    for name, case in CASES.items():
        if name != "DranetAbsent":  # nobody knows which clusters there should be
            bad = in_cluster("east", targeted(case, case.fires))
            good = in_cluster("west", targeted(case, case.silent))
            says = {**case.says, "cluster": "east"}
            check = expect(BY_NAME[name], case.minute, says, value=case.value)
            groups[name] = [evaluation.group(name, {**bad, **good}, alert_rule_test=[check])]
    evaluation.run_alerts(promtool, tmp_path, groups)


QUIET: dict[str, Series] = {
    "DranetHooksSlow": {  # of two hooks one was slow
        f'{HOOKS}_bucket{{method="RunPodSandbox",status="success",le="1.0"}}': "5x10 6x100",
        f'{HOOKS}_count{{method="RunPodSandbox",status="success"}}': "5x10 7x100",
    },
    "DranetRdmaRetransmits": {  # one packet in a hundred, and one in a minute
        'dranet_rdma_retransmits_total{device="net-1",port="1"}': "0+1x120",
        'dranet_rdma_transmit_packets_total{device="net-1",port="1"}': "0+100x120",
    },
    "DranetRdmaErrors": {
        'dranet_rdma_receive_errors_total{device="net-1",port="1"}': "0+1x120",
        'dranet_rdma_receive_packets_total{device="net-1",port="1"}': "0+100x120",
    },
    "DranetLinksDownOnManyNodes": {  # nodes that have just joined, and lack cables
        **nodes(5, f'{FAULT}{{device="net-1",fault="link-down"}}', "_x380 1x50"),
        **nodes(5, "dranet_build_info", "_x380 1x50"),
    },
}


def test_where_little_happens_a_share_is_not_taken_for_a_rate(promtool: Promtool, tmp_path: Path) -> None:
    groups = {}
    for name, series in QUIET.items():
        is_many = name == "DranetLinksDownOnManyNodes"
        checks = [expect(BY_NAME[name], minute) for minute in ((390, 400) if is_many else (30, 40, 60))]
        scraped = series if is_many else with_target(series)
        groups[name] = [evaluation.group(name, scraped, alert_rule_test=checks)]
    evaluation.run_alerts(promtool, tmp_path, groups)


def test_discards_alone_are_bad_packets_too(promtool: Promtool, tmp_path: Path) -> None:
    series = with_target(rdma("receive_discards", "0+120x120", "receive"))
    alert = BY_NAME["DranetRdmaErrors"]
    wanted = expect(alert, 25, {**NODE, "device": "net-1"}, value="0.2%")
    group = evaluation.group("discards", series, alert_rule_test=[wanted])
    evaluation.run_alerts(promtool, tmp_path, {alert.name: [group]})
