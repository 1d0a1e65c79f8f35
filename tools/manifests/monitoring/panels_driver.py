"""Panels about claims on their way to a pod, and about the driver."""

from __future__ import annotations

from tools.manifests.monitoring.asking import SCRAPED, N, lines, quantile, rate_of
from tools.manifests.monitoring.panel import Kind, Panel, Query

_HOOKS = "dranet_driver_nri_plugin_requests_latency_seconds"

LATENCY = (
    lines(
        "Prepare of a claim",
        "How long the kubelet waits for it.",
        "s",
        Query(quantile(0.5, "dranet_claim_prepare_seconds", ""), "median"),
        Query(quantile(0.99, "dranet_claim_prepare_seconds", ""), "99th percentile"),
    ),
    lines(
        "Phases of Prepare",
        "99th percentile. fetch is the API server, lease DHCP, store the disk, plan the kernel.",
        "s",
        Query(quantile(0.99, "dranet_claim_prepare_phase_seconds", "phase"), "{{phase}}"),
    ),
    lines(
        "Hooks",
        "99th percentile of those that had something to do. The budget is hook_budget_seconds, 1.5 s.",
        "s",
        Query(quantile(0.99, _HOOKS, "method", f'{N},status!="noop"'), "{{method}}"),
    ),
    lines(
        "Steps of an attach",
        "99th percentile of each step in the kernel.",
        "s",
        Query(quantile(0.99, "dranet_attach_step_seconds", "step"), "{{step}}"),
    ),
    lines(
        "What went wrong",
        "Claims within five minutes, by phase and reason: docs/user/troubleshooting.md#reasons",
        "short",
        Query(
            f"sum by (phase, reason) (increase(dranet_claim_errors_total{{{N}}}[5m])) > 0",
            "{{phase}} {{reason}}",
        ),
        empty="Nothing",
    ),
    lines(
        "Put right by reconcile",
        "Within five minutes. What goes on counting is something that works against the driver.",
        "short",
        Query(
            f"sum by (action, reason) (increase(dranet_reconcile_actions_total{{{N}}}[5m])) > 0",
            "{{action}} {{reason}}",
        ),
        empty="Nothing",
    ),
)

DRIVER = (
    lines(
        "Memory",
        "An idle driver has some 60 MB.",
        "bytes",
        Query(f"process_resident_memory_bytes{{{SCRAPED}}}", "{{node}}"),
    ),
    lines(
        "Processor",
        "Seconds a second.",
        "percentunit",
        Query(rate_of("process_cpu_seconds_total", SCRAPED), "{{node}}"),
    ),
    lines(
        "Event loop",
        "How late it hears of an event.",
        "s",
        Query(f"dranet_event_loop_lag_seconds{{{N}}}", "{{node}}"),
    ),
    lines(
        "API requests",
        "Of all nodes, by answer.",
        "reqps",
        Query(f"sum by (verb, code) ({rate_of('dranet_api_requests_total')})", "{{verb}} {{code}}"),
    ),
    lines(
        "API latency",
        "99th percentile.",
        "s",
        Query(quantile(0.99, "dranet_api_request_seconds", "verb"), "{{verb}}"),
    ),
    lines(
        "Slices written",
        "At idle it stands still.",
        "cps",
        Query(f"sum by (verb) ({rate_of('dranet_slice_writes_total')})", "{{verb}}"),
    ),
    lines(
        "Store",
        "How long a transaction takes.",
        "s",
        Query(quantile(0.99, "dranet_store_write_seconds", "node"), "{{node}}"),
    ),
    lines(
        "Scan of the node",
        "99th percentile.",
        "s",
        Query(quantile(0.99, "dranet_inventory_scan_seconds", "node"), "{{node}}"),
    ),
    lines(
        "Counters read for a scrape",
        "How long.",
        "s",
        Query(f"dranet_scrape_read_seconds{{{N}}}", "{{node}}"),
    ),
    Panel(
        "Versions",
        "Nodes by version of driver and kernel.",
        (Query(f"count by (version, kernel) (dranet_build_info{{{N}}})"),),
        Kind.TABLE,
        width=12,
    ),
    Panel(
        "Instances",
        "More than one is an update that goes on.",
        (Query(f"dranet_instances{{{N}}}"),),
        Kind.TABLE,
        width=12,
        page=True,
    ),
)
