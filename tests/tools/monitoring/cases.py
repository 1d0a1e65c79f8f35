"""For each alert: series that make it fire, with what it then says, and the nearest that do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tools.monitoring.evaluation import TARGET, Series, parse_labels, with_target

JsonObject = dict[str, Any]

NODE = {"instance": "10.0.0.1:9177", "node": "gpu-1"}
SCRAPED = parse_labels(TARGET)
POD = {"namespace": "ml", "pod": "train-0", "claim": "nics", "device": "net-1", "interface": "net1"}


def labels(values: JsonObject) -> str:
    return ",".join(f'{name}="{value}"' for name, value in values.items())


def nodes(count: int, name: str, values: str) -> Series:
    """The same series of so many nodes."""
    return {
        series: value
        for number in range(count)
        for series, value in with_target(
            {name: values}, f'job="dranet",instance="10.0.1.{number}:9177",node="n{number}"'
        ).items()
    }


@dataclass(frozen=True)
class Case:
    """``fires`` until ``minute``, with ``says`` as labels beside the severity; ``silent`` never does."""

    fires: Series
    minute: int
    says: JsonObject
    silent: Series
    value: str = ""
    raw: bool = False
    """The series have their target in them."""


def steady(name: str, bad: str, good: str, minute: int, value: str = "", **says: str) -> Case:
    """A gauge that stays at either value."""
    series = f"{name}{{{labels(says)}}}"
    return Case({series: f"{bad}x120"}, minute, {**SCRAPED, **says}, {series: f"{good}x120"}, value)


def rising(name: str, bad: str, good: str, minute: int, keep: JsonObject | None = None, **says: str) -> Case:
    """A counter of which an increase is asked for; ``keep`` are the labels that are left of it."""
    series = f"{name}{{{labels(says)}}}"
    left = {**SCRAPED, **says} if keep is None else {**NODE, **keep}
    return Case({series: bad}, minute, left, {series: good})


HOOKS = "dranet_driver_nri_plugin_requests_latency_seconds"
FAULT = "dranet_device_fault"
WORSE = "dranet_pod_device_worse_than_possible"


def hooks(quick: str) -> Series:
    run = 'method="RunPodSandbox",status="success"'
    return {
        f'{HOOKS}_bucket{{{run},le="1.0"}}': quick,
        f"{HOOKS}_count{{{run}}}": "0+100x120",
    }


def prepares(failed: str, reason: str = "StoreUnwritable") -> Series:
    return {
        'dranet_claim_prepare_seconds_count{status="success"}': "0+10x180",
        f'dranet_claim_errors_total{{phase="prepare",reason="{reason}"}}': failed,
    }


def slow(bucket: str) -> Series:
    return {
        f'dranet_claim_prepare_seconds_bucket{{status="success",le="{le}"}}': values
        for le, values in {"10.0": bucket, "30.0": "0+10x120", "+Inf": "0+10x120"}.items()
    }


def certificate(begin: float, end: float) -> Series:
    """In days."""
    return {
        f'dranet_certificate_{bound}_timestamp_seconds{{setting="metrics_tls_cert"}}': f"{86_400 * day}x60"
        for bound, day in (("not_before", begin), ("not_after", end))
    }


def rdma(metric: str, rate: str, all_: str) -> Series:
    return {
        f'dranet_rdma_{metric}_total{{device="net-1",port="1"}}': rate,
        f'dranet_rdma_{all_}_packets_total{{device="net-1",port="1"}}': "0+60000x120",
    }


def renewals(failed: str, renewed: str) -> Series:
    by_outcome = {"failed": failed, "renewed": renewed, "rebound": "0x90", "expired": "0x90"}
    return {f'dranet_dhcp_renewals_total{{outcome="{name}"}}': values for name, values in by_outcome.items()}


CASES: dict[str, Case] = {
    # --- the driver ---
    "DranetAbsent": Case({}, 16, {"job": "dranet"}, with_target({"up": "0x120"}), raw=True),
    "DranetManyNodesDown": Case(
        {**nodes(3, "up", "0x60"), **with_target({"up": "1x60"})},
        11,
        {},
        {**nodes(3, "up", "0x5 1x60"), **with_target({"up": "0x60"})},
        "3",
        raw=True,
    ),
    "DranetDown": steady("up", "0", "1", 11),
    "DranetCrashLooping": Case(
        {"process_start_time_seconds": "100x3 200x3 300x3 400x3 500x30"},
        17,
        SCRAPED,
        {"process_start_time_seconds": "100x3 200x3 300x60"},
    ),
    "DranetNotReady": steady("dranet_ready", "0", "0x4 1", 11, part="runtime"),
    "DranetSlicesNotPublished": steady("dranet_ready", "0", "0x4 1", 11, part="slices"),
    "DranetUpdateHangs": steady("dranet_instances", "2", "2x20 1", 31, "2"),
    "DranetStandsAside": steady("dranet_instance_state", "1", "0", 16, state="aside"),
    "DranetEventLoopLags": steady("dranet_event_loop_lag_seconds", "0.7", "0.002", 11),
    "DranetMemoryHigh": steady("process_resident_memory_bytes", "314572800", "80000000", 31, "300Mi"),
    "DranetFilesRunOut": Case(
        {"process_open_fds": "900x60", "process_max_fds": "1024x60"},
        16,
        SCRAPED,
        {"process_open_fds": "100x60", "process_max_fds": "1024x60"},
    ),
    "DranetScrapeIncomplete": steady("dranet_scrape_unread_pods", "2", "0", 16, "2"),
    "DranetWebhookProviderAway": steady("dranet_webhook_up", "0", "1", 11, url="http://127.0.0.1:8081"),
    "DranetCertificateBad": steady("dranet_certificate_ok", "0", "1", 11),
    "DranetCertificateEnds": Case(  # promtool begins at 0: it is good for 90 days, of which six are left
        certificate(-84, 6),
        31,
        {**SCRAPED, "setting": "metrics_tls_cert"},
        certificate(-0.5, 0.5),  # one that is made anew each day
        "5d 23h 29m 0s",
    ),
    "DranetApiFails": Case(
        {
            'dranet_api_requests_total{verb="patch",resource="events",code="503"}': "0+6x60",
            'dranet_api_requests_total{verb="watch",resource="pods",code="200"}': "0+1x60",
        },
        25,
        NODE,
        {
            'dranet_api_requests_total{verb="patch",resource="events",code="503"}': "0+1x60",
            'dranet_api_requests_total{verb="get",resource="pods",code="404"}': "0+6x60",
        },
    ),
    "DranetApiForbids": rising(
        "dranet_api_errors_total", "0+1x60", "0+0x10 1+0x50", 20, reason="APIForbidden"
    ),
    "DranetReportsDropped": rising("dranet_reports_dropped_total", "0x10 1x30", "5x40", 13, kind="event"),
    "DranetReportsWait": steady("dranet_reports_oldest_age_seconds", "700", "30", 6, kind="status"),
    "DranetSliceFieldsMissing": steady("dranet_slice_fields_missing", "1", "0", 61, gate="DRADeviceTaints"),
    # --- claims ---
    "DranetManyNodesFailToPrepare": Case(
        {
            **nodes(3, 'dranet_claim_errors_total{phase="prepare",reason="APIForbidden"}', "0+10x60"),
            **nodes(3, 'dranet_claim_errors_total{phase="prepare",reason="InvalidConfig"}', "0+15x60"),
            **nodes(3, 'dranet_claim_prepare_seconds_count{status="success"}', "0x60"),
            **nodes(3, 'dranet_claim_prepare_seconds_count{status="failed"}', "0+25x60"),
            **nodes(12, "dranet_build_info", "1x60"),
        },
        20,
        {},
        {
            **nodes(3, 'dranet_claim_errors_total{phase="prepare",reason="InvalidConfig"}', "0+10x60"),
            **nodes(3, 'dranet_claim_prepare_seconds_count{status="success"}', "0x60"),
            **nodes(3, 'dranet_claim_prepare_seconds_count{status="failed"}', "0+10x60"),
            **nodes(12, "dranet_build_info", "1x60"),
        },
        "3",
        raw=True,
    ),
    "DranetClaimsFail": Case(
        {'dranet_claim_errors_total{phase="attach",reason="AttachFailed"}': "0+1x60"},
        22,
        {**NODE, "phase": "attach", "reason": "AttachFailed"},
        {
            'dranet_claim_errors_total{phase="attach",reason="AttachFailed"}': "0x5 8x55",  # a pod's, once
            'dranet_claim_errors_total{phase="prepare",reason="InvalidConfig"}': "0+1x60",
            'dranet_claim_errors_total{phase="prepare",reason="Draining"}': "0+1x60",
        },
    ),
    "DranetClaimsRefused": Case(
        {'dranet_claim_errors_total{phase="prepare",reason="InvalidConfig"}': "0+1x90"},
        50,
        {**NODE, "phase": "prepare", "reason": "InvalidConfig"},
        {'dranet_claim_errors_total{phase="prepare",reason="InvalidConfig"}': "0x5 12x90"},
    ),
    "DranetPrepareBudgetBurns": Case(prepares("0+2.5x180"), 70, {}, prepares("0+1x180"), "20%"),
    "DranetPrepareSlow": Case(slow("0x120"), 25, NODE, slow("0+10x120"), "29.8s"),
    "DranetHooksMissDeadline": rising("dranet_hook_deadline_misses_total", "0x10 1x30", "5x40", 13),
    "DranetHooksSlow": Case(hooks("0+90x120"), 50, NODE, hooks("0+99x120")),
    "DranetHostStateNotRestored": rising("dranet_host_state_not_restored_total", "0x10 1x30", "5x40", 13),
    "DranetStoreRefuses": steady("dranet_store_writable", "0", "1", 3),
    "DranetStoreDamaged": steady("dranet_store_quarantined_records", "1", "0", 6),
    "DranetReconcileFails": rising(
        "dranet_reconcile_actions_total",
        "0+1x60",
        "0x5 8x55",  # claims of one pod, once
        35,
        {"reason": "sandbox-gone"},
        reason="sandbox-gone",
        action="failed",
    ),
    "DranetWorkedAgainst": rising(
        "dranet_reconcile_actions_total",
        "0+1x60",
        "0x5 8x55",  # claims of one pod, once
        35,
        {"reason": "device-missing"},
        reason="device-missing",
        action="attached",
    ),
    "DranetAddressConflict": rising("dranet_address_conflicts_total", "0x10 1x30", "5x40", 13),
    "DranetDhcpLeaseExpired": rising(
        "dranet_dhcp_renewals_total", "0x10 1x30", "5x40", 13, outcome="expired"
    ),
    "DranetDhcpRenewalsFail": Case(
        renewals("0+1x90", "0+0.1x90"),
        50,
        NODE,
        renewals("0x5 8x85", "0x9 8x81"),  # the server was restarted
    ),
    # --- devices ---
    "DranetLinksDownOnManyNodes": Case(
        {
            **nodes(3, f'{FAULT}{{device="net-1",fault="link-down"}}', "_x400 1x30"),
            **nodes(3, f'{FAULT}{{device="no-cable",fault="link-down"}}', "1x430"),
            **nodes(12, "dranet_build_info", "1x430"),
        },
        405,
        {},
        {
            **nodes(2, f'{FAULT}{{device="net-1",fault="link-down"}}', "_x400 1x30"),
            **nodes(12, f'{FAULT}{{device="net-2",fault="pcie-degraded"}}', "1x430"),
            **nodes(12, f'{FAULT}{{device="no-cable",fault="link-down"}}', "1x430"),
            **nodes(12, "dranet_build_info", "1x430"),
        },
        "3",
        raw=True,
    ),
    "DranetPodNicDown": Case(
        {
            f'{FAULT}{{device="net-1",fault="link-down"}}': "1x60",
            f'{FAULT}{{device="net-1",fault="rdma-port-down"}}': "1x60",
            f'dranet_pod_device_info{{{labels(POD)},request="nic",shared="false"}}': "1x60",
        },
        4,
        {**SCRAPED, **POD, "request": "nic", "shared": "false"},
        {
            f'{FAULT}{{device="net-2",fault="link-down"}}': "1x60",
            f'{FAULT}{{device="net-1",fault="link-flapping"}}': "1x60",
            f'dranet_pod_device_info{{{labels(POD)},request="nic",shared="false"}}': "1x60",
        },
    ),
    "DranetNicDown": Case(
        {f'{FAULT}{{device="net-1",fault="rdma-port-down"}}': "1x60"},
        31,
        {**SCRAPED, "device": "net-1", "fault": "rdma-port-down"},
        {
            f'{FAULT}{{device="net-1",fault="rdma-port-down"}}': "1x60",
            f"dranet_pod_device_info{{{labels(POD)}}}": "1x60",
        },
    ),
    "DranetNicOnWrongRail": steady("dranet_device_wrong_rail", "1", "0", 16, device="net-1"),
    "DranetNicDegraded": steady(FAULT, "1", "0", 16, device="net-1", fault="pcie-degraded"),
    "DranetRdmaRetransmits": Case(
        rdma("retransmits", "0+120x120", "transmit"),
        25,
        {**NODE, "device": "net-1"},
        rdma("retransmits", "0+30x120", "transmit"),
        "0.2%",
    ),
    "DranetRdmaErrors": Case(
        rdma("receive_errors", "0+120x120", "receive"),  # few cards count both
        25,
        {**NODE, "device": "net-1"},
        {**rdma("receive_errors", "0+30x120", "receive"), **rdma("receive_discards", "0x120", "receive")},
        "0.2%",
    ),
    "DranetRdmaConnectionsBreak": Case(
        {'dranet_rdma_retries_exceeded_total{device="net-1",port="1"}': "0+2x120"},
        35,
        {**NODE, "device": "net-1"},
        {'dranet_rdma_retries_exceeded_total{device="net-1",port="1"}': "0x5 8x100"},
    ),
    "DranetPodMisaligned": Case(
        {
            f"{WORSE}{{{labels(POD)}}}": "1x60",
            "dranet_alignment_devices_worse_than_possible": "1x60",
        },
        11,
        {**SCRAPED, **POD},
        {f"{WORSE}{{{labels(POD)}}}": "0x60", "dranet_alignment_devices_worse_than_possible": "0x60"},
    ),
    "DranetGpusUnknown": steady("dranet_inventory_gpus", "8", "0", 61, "8", state="unknown"),
    "DranetAttributesFileBad": steady("dranet_inventory_attributes_file_ok", "0", "1", 6),
    "DranetFilterFails": steady("dranet_inventory_filter_failed_devices", "2", "0", 16, "2"),
}
