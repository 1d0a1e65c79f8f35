"""All metrics of the driver. Those of Prepare, the hooks, leases, reconcile, the API server, the kubelet, the
runtime and the driver's own process are declared here. None is labelled with a claim's name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from dranet.telemetry.node import (
    AlignmentMetrics,
    DeviceFamilies,
    HealthMetrics,
    InventoryMetrics,
    SliceMetrics,
)
from dranet.telemetry.recorder import (
    API_BUCKETS,
    LATENCY_BUCKETS,
    SHORT_BUCKETS,
    Declared,
    Group,
    Recorder,
    one_of,
)

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
            "watches that were restarted",
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
            {"reason": "[one of these](../operations/troubleshooting.md#reasons)"},
        )

    def answered(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A try has ended; ``code`` 0: without an answer."""
        known = resource if resource in RESOURCES else "other"
        self.requests.labels(verb, known, str(code) if code else NO_ANSWER).inc()
        self.seconds.labels(verb).observe(seconds)

    def retried(self, cause: str) -> None:
        self.retries.labels(cause).inc()


class ReportMetrics:
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


class Outcome(StrEnum):
    """How a call ended; the ``status`` label."""

    SUCCESS = "success"
    FAILED = "failed"
    NOOP = "noop"
    """An NRI hook for a pod without claims of ours."""


_ENDED = {"status": one_of((Outcome.SUCCESS, Outcome.FAILED))}


class PreparePhase(StrEnum):
    """Phase of Prepare of one claim; the ``phase`` label."""

    WAIT = "wait"
    """For other work on the same claim or device."""
    FETCH = "fetch"
    DECODE = "decode"
    LEASE = "lease"
    PLAN = "plan"
    STORE = "store"
    FILES = "files"


class PrepareMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.prepare_seconds = r.histogram(
            "dranet_claim_prepare_seconds", "how long Prepare of one claim took", _ENDED
        )
        self.unprepare_seconds = r.histogram(
            "dranet_claim_unprepare_seconds", "how long Unprepare of one claim took", _ENDED
        )
        self.phase_seconds = r.histogram(
            "dranet_claim_prepare_phase_seconds",
            "the phases of Prepare; one that was not needed is not counted",
            {
                "phase": one_of(
                    PreparePhase,
                    wait="for other work on the same claim or device",
                    fetch="from the API server",
                    lease="DHCP",
                    plan="includes reading the link's state",
                )
            },
        )

    @contextmanager
    def phase(self, phase: PreparePhase) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phase_seconds.labels(phase).observe(time.perf_counter() - start)

    @contextmanager
    def claim(self, histogram: Histogram) -> Iterator[ClaimCall]:
        """Time the work on one claim; it has failed unless it is marked as succeeded."""
        call, start = ClaimCall(), time.perf_counter()
        try:
            yield call
        finally:
            histogram.labels(call.outcome).observe(time.perf_counter() - start)


class ClaimCall:
    def __init__(self) -> None:
        self.outcome = Outcome.FAILED

    def succeeded(self) -> None:
        self.outcome = Outcome.SUCCESS


class AttachMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.step_seconds = r.histogram(
            "dranet_attach_step_seconds",
            "steps of attaches that the kernel took; consecutive ones of one kind go out together",
            {
                "step": "`move-link`, `create-link`, `set-link`, `set-ethtool`, `set-sysctl`, `set-token`, "
                "`join-vrf`, `remove-programs`, `add-address`, `set-up`, `set-cpu-locality`, `add-route`, "
                "`add-neighbour`, `add-rule`, `limit-rate`, `move-rdma`"
            },
            SHORT_BUCKETS,
        )
        self.rollbacks = r.counter(
            "dranet_attach_rollbacks_total", "attaches of a pod's devices that failed and were undone"
        )
        self.detach_seconds = r.histogram(
            "dranet_detach_seconds", "how long it took to return the devices of one claim"
        )
        self.late_hooks = r.counter(
            "dranet_hook_deadline_misses_total",
            "hooks that were answered before the kernel was done; the work goes on behind the answer",
        )


class LeaseOutcome(StrEnum):
    """Result of a DHCP request; the ``outcome`` label."""

    RENEWED = "renewed"
    REBOUND = "rebound"
    """Another server was asked, because the lease's own did not answer."""
    FAILED = "failed"
    """No answer, or a refusal; retried until the lease ends."""
    EXPIRED = "expired"


class DhcpMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.leases = r.gauge("dranet_dhcp_leases", "leases that are held now")
        self.requests = r.counter("dranet_dhcp_requests_total", "leases asked for at Prepare", _ENDED)
        self.renewals = r.counter(
            "dranet_dhcp_renewals_total",
            "what became of them while pods run",
            {
                "outcome": one_of(
                    LeaseOutcome, rebound="by another server", failed="retried", expired="the address is gone"
                )
            },
        )


class ReconcileMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.actions = r.counter(
            "dranet_reconcile_actions_total",
            "what a start, a peer that came back, or the regular look found to do, and "
            "[why](../operations/troubleshooting.md#what-reconcile-does)",
            {
                "action": "`adopted`, `attached`, `released`, `finished`, `forgotten`, `removed`, `failed`",
                "reason": "what was found",
            },
        )
        self.seconds = r.histogram(
            "dranet_reconcile_seconds",
            "regular looks, with the time between the two readings that they compare",
            _ENDED,
        )

    def looked(self, has_failed: bool, seconds: float) -> None:
        self.seconds.labels(Outcome.FAILED if has_failed else Outcome.SUCCESS).observe(seconds)


class StoreMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.writable = r.gauge(
            "dranet_store_writable",
            "0 while the disk refuses records: no claim is prepared, all else goes on",
        )
        self.unwritten = r.gauge(
            "dranet_store_unwritten_records",
            "claims of which memory knows more than the disk, until it takes them",
        )
        self.quarantined = r.gauge(
            "dranet_store_quarantined_records",
            "records that [cannot be read](../commands/prepared-claims.md#records-that-cannot-be-read)",
        )
        self.write_seconds = r.histogram(
            "dranet_store_write_seconds",
            "transactions that the disk took, from the first word to the commit",
            buckets=LATENCY_BUCKETS,
        )
        self.size = r.gauge("dranet_store_size_bytes", "the files of all claims")


class HandoverMetrics:
    """The role of this instance among those on the node, as in a rolling update."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.DRIVER)
        self.state = r.gauge(
            "dranet_instance_state",
            "1 for the [state](../operations/upgrades.md#what-to-watch) of this instance",
            {"state": "`waiting`, `on-duty`, `retired`, `aside`"},
        )
        self.instances = r.gauge("dranet_instances", "living instances on the node")
        self.handovers = r.counter(
            "dranet_handovers_total", "leaderships taken over, and handed over", {"side": "`taken`, `given`"}
        )


class ScrapeMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.DRIVER)
        self.read_seconds = r.gauge(
            "dranet_scrape_read_seconds",
            "how long the counters of devices took to read, for this answer or the one that it repeats",
        )
        self.unread_pods = r.gauge(
            "dranet_scrape_unread_pods",
            "pods whose links could not be read in time, or at all; their series are absent meanwhile",
        )
        self.stuck_reads = r.gauge(
            "dranet_scrape_stuck_reads",
            "places (a pod, an RDMA device, the node itself) that are left out because the kernel has not "
            "answered for them; the log names each",
        )
        self.loop_lag = r.gauge(
            "dranet_event_loop_lag_seconds",
            "how long the driver's event loop took to hear of an event, measured when it is scraped",
        )
        self.certificate_ok = r.gauge(
            "dranet_certificate_ok",
            "0 while the files of [the port's certificate](../operations/status-page.md#tls) are bad, and "
            "the one before stays in use; 1 also without TLS",
        )
        setting = {"setting": "`metrics_tls_cert`"}
        self._not_before, self._not_after = (
            r.gauge(
                f"dranet_certificate_{bound}_timestamp_seconds",
                f"{words} the certificate in use is good (unix seconds); absent without TLS",
                setting,
            )
            for bound, words in (("not_before", "from when on"), ("not_after", "until when"))
        )

    def show_validity(self, not_before: float, not_after: float) -> None:
        self._not_before.labels("metrics_tls_cert").set(not_before)
        self._not_after.labels("metrics_tls_cert").set(not_after)


class Metrics:
    """All metrics, in a registry of their own. Labels come from closed lists."""

    def __init__(self) -> None:
        r = Recorder()
        claims, driver = r.of(Group.CLAIMS), r.of(Group.DRIVER)
        self.registry = r.registry
        self._recorder = r
        self.devices = DeviceFamilies(r)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.kubelet = KubeletMetrics(r)
        self.prepare = PrepareMetrics(r)
        self.runtime = RuntimeMetrics(r)
        self.attach = AttachMetrics(r)
        self.claim_errors = claims.counter(
            "dranet_claim_errors_total",
            "what went wrong, each time that it was tried",
            {
                "phase": "`prepare`, `attach`, `container`, `metadata`, `release`, `unprepare`",
                "reason": "[one of these](../operations/troubleshooting.md#reasons)",
            },
        )
        self.prepared_claims = claims.gauge("dranet_prepared_claims", "claims that are prepared now")
        self.store = StoreMetrics(r)
        self.not_restored = claims.counter(
            "dranet_host_state_not_restored_total",
            "parts of a link's host state that a release could not restore; Events `HostStateNotRestored` "
            "name them",
        )
        self.reconcile = ReconcileMetrics(r)
        self.alignment = AlignmentMetrics(r)
        self.dhcp = DhcpMetrics(r)
        self.slices = SliceMetrics(r)
        self.health = HealthMetrics(r)
        self.inventory = InventoryMetrics(r)
        self.api = ApiMetrics(r)
        self.reports = ReportMetrics(r)
        self.ready = driver.gauge("dranet_ready", "1 while the part is ready", {"part": "as in `/readyz`"})
        self.handover = HandoverMetrics(r)
        self.scrape = ScrapeMetrics(r)
        self.build_info = driver.gauge(
            "dranet_build_info",
            "1",
            {"version": "of the driver", "python": "that runs it", "kernel": "`uname -r` of the node"},
        )

    @property
    def declared(self) -> Sequence[Declared]:
        """All of them, except those of the Python process."""
        return self._recorder.declared

    def render(self) -> bytes:
        return generate_latest(self.registry)

    @contextmanager
    def time_dra(self, method: str) -> Iterator[None]:
        """Count and time one kubelet call; an exception counts as failed."""
        start = time.perf_counter()
        outcome = Outcome.FAILED
        try:
            yield
            outcome = Outcome.SUCCESS
        finally:
            self.kubelet.requests.labels(method, outcome).inc()
            self.kubelet.latency.labels(method).observe(time.perf_counter() - start)
