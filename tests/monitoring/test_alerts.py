"""Each alert fires when it should, says what it should, and stays silent else: Prometheus evaluates."""

from __future__ import annotations

from pathlib import Path

from dranet.manifests.monitoring.rule import Alert, Severity
from dranet.manifests.monitoring.rules import ALERTS
from dranet.testbed.promtool import Promtool
from tests.monitoring import evaluation
from tests.monitoring.cases import CASES, Case
from tests.monitoring.evaluation import Series, expect, with_target

BY_NAME = {alert.name: alert for alert in ALERTS}


def targeted(case: Case, series: Series) -> Series:
    return series if case.raw else with_target(series)


def test_every_alert_has_a_case_and_a_name_of_its_own() -> None:
    assert CASES.keys() == BY_NAME.keys()
    assert len(BY_NAME) == len(ALERTS)


def test_few_alerts_wake_somebody_and_none_of_them_for_one_node() -> None:
    pages = [alert for alert in ALERTS if alert.severity is Severity.CRITICAL]
    assert len(pages) <= 4
    assert all("count(" in alert.expr or "absent(" in alert.expr for alert in pages)


def test_each_fires_with_every_word_and_not_before_its_time(promtool: Promtool, tmp_path: Path) -> None:
    """And the nearest that is as it should be does not make it fire, early or late. promtool names which."""
    groups = []
    for name, case in CASES.items():
        alert = BY_NAME[name]
        said = [expect(alert, 1), expect(alert, case.minute, case.says, value=case.value)]
        silent = [expect(alert, minute) for minute in (5, case.minute, case.minute + 6)]
        groups += [
            evaluation.group(f"{name} fires", targeted(case, case.fires), alert_rule_test=said),
            evaluation.group(f"{name} is silent", targeted(case, case.silent), alert_rule_test=silent),
        ]
    evaluation.run(promtool, tmp_path, groups)


def test_a_misaligned_pod_is_told_of_also_where_no_series_has_its_name(
    promtool: Promtool, tmp_path: Path
) -> None:
    alert: Alert = BY_NAME["DranetPodMisaligned"]
    series = with_target({"dranet_alignment_devices_worse_than_possible": "1x60"})
    wanted = evaluation.parse_labels(evaluation.TARGET)
    evaluation.run(
        promtool,
        tmp_path,
        [evaluation.group("without pods", series, alert_rule_test=[expect(alert, 11, wanted)])],
    )
