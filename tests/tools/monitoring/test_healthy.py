"""No alert fires on a node that is well: at rest, at a start, while an update rolls through, when drained."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.prometheus import Promtool
from tests.tools.monitoring import evaluation
from tests.tools.monitoring.cases import POD, labels
from tests.tools.monitoring.evaluation import expect, with_target
from tools.monitoring import list_alerts, list_recordings

MINUTES = 150
HALF = 60
"""When something happens."""

_HOOKS = "dranet_driver_nri_plugin_requests_latency_seconds"
_RUN = 'method="RunPodSandbox",status="success"'

GAUGES: dict[str, float] = {
    'dranet_device_wrong_rail{device="net-1"}': 0,
    "up": 1,
    "dranet_build_info": 1,
    **{
        f'dranet_ready{{part="{part}"}}': 1 for part in ("driver", "instance", "runtime", "kubelet", "slices")
    },
    "dranet_instances": 1,
    'dranet_instance_state{state="on-duty"}': 1,
    **{f'dranet_instance_state{{state="{state}"}}': 0 for state in ("waiting", "aside", "retired")},
    "process_start_time_seconds": 1000,
    "process_resident_memory_bytes": 70e6,
    "process_open_fds": 60,
    "process_max_fds": 1024,
    "dranet_event_loop_lag_seconds": 0.003,
    "dranet_scrape_unread_pods": 0,
    "dranet_scrape_stuck_reads": 0,
    'dranet_reports_oldest_age_seconds{kind="event"}': 0,
    'dranet_slice_fields_missing{gate="DRADeviceTaints"}': 0,
    "dranet_certificate_ok": 1,
    'dranet_certificate_not_before_timestamp_seconds{setting="metrics_tls_cert"}': -8e6,
    'dranet_certificate_not_after_timestamp_seconds{setting="metrics_tls_cert"}': 2e6,
    "dranet_store_writable": 1,
    'dranet_webhook_up{url="http://127.0.0.1:8081"}': 1,
    "dranet_store_quarantined_records": 0,
    "dranet_inventory_attributes_file_ok": 1,
    "dranet_inventory_filter_failed_devices": 0,
    'dranet_inventory_gpus{state="unknown"}': 0,
    'dranet_inventory_gpus{state="left"}': 8,
    "dranet_alignment_devices_worse_than_possible": 0,
}
PODS: dict[str, float] = {
    f"dranet_pod_device_info{{{labels(POD)}}}": 1,
    f"dranet_pod_device_worse_than_possible{{{labels(POD)}}}": 0,
    'dranet_alignment_devices{level="PIX"}': 1,
}
COUNTERS: dict[str, float] = {
    "dranet_address_conflicts_total": 0,
    'dranet_claim_prepare_seconds_count{status="success"}': 2,
    **{f'dranet_claim_prepare_seconds_bucket{{status="success",le="{le}"}}': 2 for le in ("0.1", "+Inf")},
    **{f'{_HOOKS}_bucket{{{_RUN},le="{le}"}}': 2 for le in ("0.1", "1.0", "+Inf")},
    f"{_HOOKS}_count{{{_RUN}}}": 2,
    'dranet_attach_step_seconds_bucket{step="move-link",le="0.001"}': 2,
    'dranet_attach_step_seconds_bucket{step="move-link",le="+Inf"}': 2,
    'dranet_claim_errors_total{phase="prepare",reason="ClaimNotFound"}': 0.1,
    'dranet_api_requests_total{verb="patch",resource="resourceclaims/status",code="200"}': 2,
    'dranet_api_requests_total{verb="patch",resource="resourceclaims/status",code="409"}': 1,
    'dranet_api_errors_total{reason="APIConflict"}': 1,
    'dranet_reports_dropped_total{kind="event"}': 0,
    "dranet_hook_deadline_misses_total": 0,
    "dranet_host_state_not_restored_total": 0,
    'dranet_reconcile_actions_total{action="adopted",reason="pod-runs"}': 0,
    'dranet_dhcp_renewals_total{outcome="renewed"}': 0.2,
    'dranet_dhcp_renewals_total{outcome="expired"}': 0,
}
OF_DEVICE: dict[str, float] = {  # not of the driver: they go on while it does not
    f'dranet_{name}_total{{device="net-1"{port}}}': rate
    for port, names in {
        "": {"device_receive_bytes": 1e9, "device_transmit_bytes": 1e9},
        ',port="1"': {
            "rdma_receive_bytes": 1e9,
            "rdma_transmit_bytes": 1e9,
            "rdma_receive_packets": 1e6,
            "rdma_transmit_packets": 1e6,
            "rdma_receive_errors": 0,
            "rdma_receive_discards": 1,
            "rdma_retransmits": 10,
            "rdma_retries_exceeded": 0.1,
        },
    }.items()
    for name, rate in names.items()
}
OF_POD: dict[str, float] = {
    f"dranet_pod_{kind}_{way}_bytes_total{{{labels(POD)}}}": 1e9
    for kind in ("network", "rdma")
    for way in ("receive", "transmit")
}
FAULT = {'dranet_device_fault{device="net-2",fault="link-down"}': "_x40 1x3 0x107"}
"""A cable that was pulled for three minutes, of a NIC that nobody has."""

Values = dict[str, str]


def at_rest() -> Values:
    return {
        **{name: f"{value:g}x{MINUTES}" for name, value in (GAUGES | PODS).items()},
        **{name: f"0+{rate:g}x{MINUTES}" for name, rate in (COUNTERS | OF_DEVICE | OF_POD).items()},
        **FAULT,
    }


def at_a_start() -> Values:
    """A node that joins: a minute without an answer, two until all parts are there."""
    late = {name: f"_x{HALF} {value:g}x90" for name, value in GAUGES.items()}
    late |= {name: f"_x{HALF} 0+{rate:g}x90" for name, rate in (COUNTERS | OF_DEVICE).items()}
    parts = [name for name in GAUGES if name.startswith("dranet_ready")]
    return late | {"up": f"_x{HALF} 0 1x90"} | dict.fromkeys(parts, f"_x{HALF} 0x2 1x88")


def _counters_begin_anew(pause: int) -> Values:
    before, after = HALF, MINUTES - HALF - pause
    gap = f" _x{pause - 1}" if pause else ""
    return {name: f"0+{rate:g}x{before}{gap} 0+{rate:g}x{after}" for name, rate in COUNTERS.items()}


def in_an_update_that_overlaps() -> Values:
    return {
        **at_rest(),
        **_counters_begin_anew(0),
        "process_start_time_seconds": f"1000x{HALF} 5000x90",
        "dranet_instances": f"1x{HALF} 2x3 1x86",
        'dranet_instance_state{state="waiting"}': f"0x{HALF} 1 0x90",
        'dranet_ready{part="driver"}': f"1x{HALF} 0x1 1x88",
    }


def in_an_update_without() -> Values:
    """Five minutes until the new image is there, two until it is ready."""
    silent = {name: f"{value:g}x{HALF} _x4 {value:g}x85" for name, value in (GAUGES | PODS).items()}
    parts = [name for name in GAUGES if name.startswith("dranet_ready")]
    return {
        **at_rest(),
        **silent,
        **_counters_begin_anew(5),
        **dict.fromkeys(parts, f"1x{HALF} _x4 0x2 1x83"),
        "up": f"1x{HALF} 0x5 1x84",
        "process_start_time_seconds": f"1000x{HALF} _x4 5000x85",
    }


def when_drained() -> Values:
    """The pods are gone, and nothing is prepared any more; the driver of a drained node runs on."""
    gone = {name: f"{value:g}x{HALF} stale" for name, value in PODS.items()}
    gone |= {name: f"0+{rate:g}x{HALF} stale" for name, rate in OF_POD.items()}
    still = {name: f"0+{rate:g}x{HALF} {HALF * rate:g}x90" for name, rate in (COUNTERS | OF_DEVICE).items()}
    return at_rest() | gone | still


SCENARIOS: list[Callable[[], Values]] = [
    at_rest,
    at_a_start,
    in_an_update_that_overlaps,
    in_an_update_without,
    when_drained,
]


@pytest.mark.process
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: str(one.__name__))
def test_nothing_fires(scenario: Callable[[], Values], promtool: Promtool, tmp_path: Path) -> None:
    """Beside a node that is well all the time, as there is in each cluster."""
    neighbour = with_target(at_rest(), 'job="dranet",instance="10.0.0.2:9177",node="gpu-2"')
    moments = (1, 31, *range(HALF, HALF + 12, 2), 76, 91, 121, MINUTES - 1)
    checks = [expect(alert, minute) for alert in list_alerts() for minute in moments]
    group = evaluation.group(
        scenario.__name__, {**with_target(scenario()), **neighbour}, alert_rule_test=checks
    )
    evaluation.run(promtool, tmp_path, [group])


def test_a_healthy_node_has_every_series_that_an_alert_asks_for() -> None:
    recorded = {one.name: one.expr for one in list_recordings()}
    asked = " ".join(alert.expr for alert in list_alerts())
    asked += " ".join(expr for name, expr in recorded.items() if name in asked)
    names = set(re.findall(r"(?<![:\w])(?:dranet|process)_[a-z_]+\b(?!:)", asked))
    assert names - {name.partition("{")[0] for name in at_rest()} == set()
