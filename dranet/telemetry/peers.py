"""Metrics of the API server, the kubelet and the runtime."""

from __future__ import annotations

from enum import StrEnum

from dranet.telemetry.claims import Outcome
from dranet.telemetry.recorder import API_BUCKETS, Group, Recorder, one_of

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
RESOURCES = (
    "resourceslices",
    "resourceclaims",
    "resourceclaims/status",
    "pods",
    "nodes",
    "events",
    "deviceclasses",
    "other",
)
NO_ANSWER = "none"


class Retry(StrEnum):
    """Why a request was sent again; the ``cause`` label."""

    THROTTLED = "throttled"
    UNAUTHORIZED = "unauthorized"
    CONNECTION = "connection"


class ApiMetrics:
    """Requests to the API server. Implements ``cluster.client.ApiObserver``."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.PEERS)
        verbs = one_of(VERBS)
        self.requests = r.counter(
            "dranet_api_requests_total",
            "requests to the API server, each try. A `watch` is counted when it begins, so this also counts "
            "watches "
            "that were restarted",
            {
                "verb": verbs,
                "resource": one_of(RESOURCES),
                "code": "HTTP status, or `none` where no answer came",
            },
        )
        self.seconds = r.histogram(
            "dranet_api_request_seconds", "how long the head of the answer took", {"verb": verbs}, API_BUCKETS
        )
        self.retries = r.counter(
            "dranet_api_retries_total",
            "requests that were sent again",
            {
                "cause": one_of(
                    Retry, throttled="the server asked for a delay", unauthorized="with a new token"
                )
            },
        )
        self.errors = r.counter(
            "dranet_api_errors_total",
            "calls to the API server that failed, each try",
            {"reason": "[one of these](troubleshooting.md#reasons)"},
        )

    def answered(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A try has ended; ``code`` 0: without an answer."""
        known = resource if resource in RESOURCES else "other"
        self.requests.labels(verb, known, str(code) if code else NO_ANSWER).inc()
        self.seconds.labels(verb).observe(seconds)

    def retried(self, cause: str) -> None:
        self.retries.labels(cause).inc()


class ReportMetrics:
    """Claim statuses and Events."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.PEERS)
        kinds = {"kind": "`status`, `event`"}
        self.dropped = r.counter(
            "dranet_reports_dropped_total",
            "claim statuses and Events given up: found invalid, or too many waiting",
            kinds,
        )
        self.waiting = r.gauge(
            "dranet_reports_waiting", "claim statuses and Events that wait to be written", kinds
        )
        self.oldest = r.gauge(
            "dranet_reports_oldest_age_seconds",
            "how long the oldest of them has been waiting; 0 while none does",
            kinds,
        )


class KubeletMetrics:
    """The kubelet's calls, and its registration of the driver."""

    def __init__(self, r: Recorder) -> None:
        r, claims = r.of(Group.PEERS), r.of(Group.CLAIMS)
        method = "`PrepareResourceClaims`, `UnprepareResourceClaims`"
        self.requests = claims.counter(
            "dranet_driver_dra_plugin_requests_total",
            "calls of the kubelet. An error of one claim is in that claim's answer and leaves the call a "
            "`success`",
            {"method": method, "status": "`success`, `failed`"},
        )
        self.latency = claims.histogram(
            "dranet_driver_dra_plugin_requests_latency_seconds", "how long they took", {"method": method}
        )
        self.registered = r.gauge(
            "dranet_kubelet_registered", "1 while the kubelet has the driver registered"
        )
        self.health_streams = r.gauge(
            "dranet_kubelet_health_streams", "health streams that the kubelet has open"
        )


class RuntimeMetrics:
    """The runtime's hooks, and the connection to it."""

    def __init__(self, r: Recorder) -> None:
        r, claims = r.of(Group.PEERS), r.of(Group.CLAIMS)
        labels = {
            "method": "the NRI hook, as `RunPodSandbox`",
            "status": "`success`, `failed`, `noop` (a pod without claims of ours)",
        }
        self.requests = claims.counter(
            "dranet_driver_nri_plugin_requests_total", "calls of the container runtime", labels
        )
        self.latency = claims.histogram(
            "dranet_driver_nri_plugin_requests_latency_seconds",
            "how long they took; the budget is `hook_budget_seconds`",
            labels,
        )
        self.connected = r.gauge("dranet_nri_connected", "1 while the container runtime calls our hooks")
        self.connections = r.counter(
            "dranet_nri_connections_total", "connections to the container runtime that came about"
        )
        self.gaps = r.counter(
            "dranet_nri_gap_seconds_total",
            "time without such a connection, added up when there is one again; the start counts",
        )

    def observe(self, method: str, outcome: str, seconds: float) -> None:
        self.requests.labels(method, outcome).inc()
        self.latency.labels(method, outcome).observe(seconds)

    def begun(self, gap_seconds: float) -> None:
        """Connected, after so many seconds without a connection."""
        self.connections.inc()
        self.gaps.inc(gap_seconds)


__all__ = ["ApiMetrics", "KubeletMetrics", "Outcome", "ReportMetrics", "Retry", "RuntimeMetrics"]
