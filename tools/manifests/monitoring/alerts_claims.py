"""Alerts about claims and the pods that wait for them, and about what the driver remembers."""

from __future__ import annotations

from tools.manifests.monitoring import commands as c
from tools.manifests.monitoring.recordings import BY_USER, CLUSTER, NODE, NOT_OURS, OBJECTIVE
from tools.manifests.monitoring.rule import Alert, Severity

_BURN = round(14.4 * (1 - OBJECTIVE), 3)
"""At this rate two days use up what the objective allows for a month."""

_HOOKS = "dranet_driver_nri_plugin_requests_latency_seconds"
_RUN = f'sum by ({NODE}) (increase({_HOOKS}_count{{status!="noop"}}[30m]))'
_SLOW = f'({_RUN} - sum by ({NODE}) (increase({_HOOKS}_bucket{{status!="noop",le="1.0"}}[30m])))'
_BY_USER = "|".join(BY_USER)
_FAILED = "kubectl get events -A --field-selector reason=ClaimPrepareFailed"


def _errors(matcher: str, window: str) -> str:
    series = f"dranet_claim_errors_total{{reason{matcher}}}"
    return f"sum by ({NODE}, phase, reason) (increase({series}[{window}]))"


def _renewals(outcomes: str) -> str:
    """Within an hour."""
    return f'sum by ({NODE}) (increase(dranet_dhcp_renewals_total{{outcome=~"{outcomes}"}}[1h]))'


def _again(selector: str) -> str:
    """In three of the last six spans of ten minutes: one event counts as often as there are claims."""
    found = f"sum by ({NODE}, reason) (increase(dranet_reconcile_actions_total{{{selector}}}[10m]))"
    return f"count_over_time(({found} > 0)[1h:10m]) >= 3"


CLAIM_ALERTS = (
    Alert(
        "DranetManyNodesFailToPrepare",
        Severity.CRITICAL,
        "10m",
        f"(count by ({CLUSTER}) (node:dranet_prepare_failures:ratio_rate5m > 0.5) >= 3) "
        f"> 0.1 * count by ({CLUSTER}) (dranet_build_info)",
        "Claims cannot be prepared on {{ $value }} nodes",
        "On more than a tenth of the nodes, and on three at least, most attempts to prepare a claim fail, "
        "and not by a mistake in the claim. New pods with NICs wait; pods that run are not affected.",
        _FAILED,
        f"One reason everywhere: it names who acts. All began with an update of the driver: `{c.UNDO}`.",
        ("troubleshooting.md#reasons", "updates.md"),
    ),
    Alert(
        "DranetClaimsFail",
        Severity.WARNING,
        "15m",
        _errors(f'!~"{NOT_OURS}"', "10m") + " > 2",
        "Claims on {{ $labels.node }} fail in {{ $labels.phase }}: {{ $labels.reason }}",
        "The driver cannot do what a claim asks for, and tries again. It is not the claim's mistake: the "
        "node, its devices or something around them has to be mended. In `prepare`, `attach` and `container` "
        "pods wait to start; in `release` and `unprepare` they stay in Terminating.",
        c.EVENTS,
        "Each Event has the reason and the kernel's or the server's words; the page says who acts.",
        ("troubleshooting.md#reasons", "troubleshooting.md#a-pod-stays-in-containercreating"),
    ),
    Alert(
        "DranetClaimsRefused",
        Severity.INFO,
        "30m",
        _errors(f'=~"{_BY_USER}"', "20m") + " > 5",
        "Claims on {{ $labels.node }} are refused: {{ $labels.reason }}",
        "Somebody's pod does not start, because its claim asks for what cannot be. The owner of the claim "
        "has to mend it; Events on the pod and the claim say how.",
        c.EVENTS,
        "Tell the owner. `dranet validate` finds most of it before anything is applied.",
        ("troubleshooting.md#a-pod-stays-in-containercreating", "validate.md"),
    ),
    Alert(
        "DranetPrepareBudgetBurns",
        Severity.WARNING,
        "2m",
        f"cluster:dranet_prepare_failures:ratio_rate5m > {_BURN} "
        f"and cluster:dranet_prepare_failures:ratio_rate1h > {_BURN}",
        "{{ $value | humanizePercentage }} of all attempts to prepare claims fail",
        f"The objective is that {OBJECTIVE:.0%} succeed, mistakes in claims not counted. At this rate two "
        "days use up what a month allows. The kubelet tries again, so pods may start late and not never.",
        _FAILED,
        "`sum by (node, reason) (rate(dranet_claim_errors_total[1h]))` says where and why.",
        ("troubleshooting.md#reasons",),
    ),
    Alert(
        "DranetPrepareSlow",
        Severity.WARNING,
        "15m",
        "node:dranet_claim_prepare_seconds:p99_rate5m > 10",
        "Preparing claims on {{ $labels.node }} takes {{ $value | humanizeDuration }}",
        "Pods start late.",
        c.LOGS,
        "`dranet_claim_prepare_phase_seconds` says in which phase the time goes: `fetch` is the API server, "
        "`lease` the DHCP server, `store` the disk, `plan` the kernel.",
        ("metrics.md",),
    ),
    Alert(
        "DranetHooksMissDeadline",
        Severity.WARNING,
        "",
        "increase(dranet_hook_deadline_misses_total[15m]) > 0",
        "Hooks on {{ $labels.node }} are not done in time",
        "The kernel needs longer than the runtime waits. The attach goes on, and containers are refused "
        "until all devices are there, so pods start late.",
        c.LOGS,
        "`dranet_attach_step_seconds` says which step. Many NICs in one pod, or a slow driver: fewer "
        "channels (`ethtool -L`) make each NIC faster; a longer `plugin_request_timeout` of the runtime, "
        "with a longer `hook_budget_seconds`, saves attempts.",
        ("troubleshooting.md#reasons",),
    ),
    Alert(
        "DranetHooksSlow",
        Severity.WARNING,
        "15m",
        f"{_SLOW} / ({_RUN} > 0) > 0.05 and {_SLOW} > 2",
        "Hooks on {{ $labels.node }} come near their deadline",
        "One in twenty, and three at least, took more than a second, of 1.5 that each may take. Those that "
        "take longer go on behind their answer, and their pods start late.",
        c.LOGS,
        "`dranet_attach_step_seconds` says which step. As for DranetHooksMissDeadline.",
        ("troubleshooting.md#reasons",),
    ),
    Alert(
        "DranetHostStateNotRestored",
        Severity.WARNING,
        "",
        "increase(dranet_host_state_not_restored_total[1h]) > 0",
        "A NIC on {{ $labels.node }} came back from a pod not as it was",
        "A part of its state on the host (an address, a sysctl, a name) could not be given back. The next "
        "pod gets the NIC all the same.",
        "kubectl get events -A --field-selector reason=HostStateNotRestored",
        "The Event names link and part. Set it by hand, or reboot the node when it is empty.",
        ("troubleshooting.md#after-a-crash",),
    ),
    Alert(
        "DranetStoreRefuses",
        Severity.WARNING,
        "2m",
        "dranet_store_writable == 0",
        "The disk of {{ $labels.node }} takes no records of dranet",
        "The state folder is full or read-only. No claim is prepared, so new pods with NICs wait; all else "
        "goes on.",
        c.DOCTOR,
        "Make room, or see to the disk. What was refused is written by itself.",
        ("claims-on-the-node.md", "troubleshooting.md#reasons"),
    ),
    Alert(
        "DranetStoreDamaged",
        Severity.WARNING,
        "5m",
        "dranet_store_quarantined_records > 0",
        "Records of claims on {{ $labels.node }} cannot be read",
        "The disk has damaged them. Their pods run on; what they have is not given back by itself.",
        c.CLAIMS,
        "The page says what is known of such a record and how it goes.",
        ("claims-on-the-node.md#records-that-cannot-be-read",),
    ),
    Alert(
        "DranetReconcileFails",
        Severity.WARNING,
        "",
        _again('action="failed"'),
        "dranet on {{ $labels.node }} cannot put right what it finds ({{ $labels.reason }})",
        "Something on the node is not as it should be, and the driver has tried several times.",
        c.LOGS,
        "The log says what, and why it failed.",
        ("troubleshooting.md#what-reconcile-does",),
    ),
    Alert(
        "DranetWorkedAgainst",
        Severity.WARNING,
        "",
        _again('reason=~"device-missing|came-back|files-missing"'),
        "Something on {{ $labels.node }} undoes what dranet does ({{ $labels.reason }})",
        "NICs are taken out of running pods, or files of the driver are removed, again and again. It puts "
        "them back each time.",
        c.DOCTOR,
        "Look for a second manager of the NICs: NetworkManager, the SR-IOV plugin, Multus, a clean-up "
        "script.",
        ("troubleshooting.md#what-reconcile-does", "sriov-and-multus.md"),
    ),
    Alert(
        "DranetDhcpLeaseExpired",
        Severity.WARNING,
        "",
        'increase(dranet_dhcp_renewals_total{outcome="expired"}[1h]) > 0',
        "A pod on {{ $labels.node }} has lost the address that DHCP gave it",
        "The server has not renewed the lease in time, or has taken it back. The pod runs without the "
        "address.",
        c.CLAIMS,
        "Mend the server or its relay, then start the pod anew.",
        ("troubleshooting.md#reasons",),
    ),
    Alert(
        "DranetDhcpRenewalsFail",
        Severity.WARNING,
        "30m",
        f"{_renewals('failed')} > 5 and {_renewals('failed')} > {_renewals('renewed|rebound')}",
        "DHCP leases on {{ $labels.node }} are not renewed",
        "Pods have their addresses still. Each is lost when its lease ends.",
        c.CLAIMS,
        "See to the server or its relay. The table has the end of each lease.",
        ("troubleshooting.md#reasons",),
    ),
)
