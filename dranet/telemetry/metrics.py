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
    VirtualFunctionMetrics,
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
            "Requests to the API server, counting each attempt; a `watch` is counted when it begins, so each "
            "restart of a watch counts",
            {
                "verb": verbs,
                "resource": one_of(RESOURCES),
                "code": "HTTP status, or `none` without a response",
            },
        )
        self.seconds = r.histogram(
            "dranet_api_request_seconds",
            "Time in seconds until the API server's response headers arrived",
            {"verb": verbs},
            API_BUCKETS,
        )
        self.retries = r.counter(
            "dranet_api_retries_total",
            "Requests to the API server that were sent again",
            {
                "cause": one_of(
                    Retry, throttled="the server asked for a delay", unauthorized="with a new token"
                )
            },
        )
        self.errors = r.counter(
            "dranet_api_errors_total",
            "Failed requests to the API server, counting each attempt",
            {"reason": "[one of these](reasons.md#reasons)"},
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
            "Claim statuses and Events that were dropped because they were invalid or too many were waiting",
            kinds,
        )
        self.waiting = r.gauge(
            "dranet_reports_waiting", "Claim statuses and Events waiting to be written", kinds
        )
        self.oldest = r.gauge(
            "dranet_reports_oldest_age_seconds",
            "Age in seconds of the oldest claim status or Event waiting to be written; 0 if none is waiting",
            kinds,
        )


class KubeletMetrics:
    def __init__(self, r: Recorder) -> None:
        r, claims = r.of(Group.PEERS), r.of(Group.CLAIMS)
        method = "`PrepareResourceClaims`, `UnprepareResourceClaims`"
        self.requests = claims.counter(
            "dranet_driver_dra_plugin_requests_total",
            "Calls from the kubelet; an error of a single claim is part of the response, so the call is a "
            "`success`",
            {"method": method, "status": "`success`, `failed`"},
        )
        self.latency = claims.histogram(
            "dranet_driver_dra_plugin_requests_latency_seconds",
            "Duration in seconds of calls from the kubelet",
            {"method": method},
        )
        self.registered = r.gauge(
            "dranet_kubelet_registered", "1 if the driver is registered with the kubelet, else 0"
        )
        self.health_streams = r.gauge(
            "dranet_kubelet_health_streams", "Health streams that the kubelet has open"
        )


class RuntimeMetrics:
    def __init__(self, r: Recorder) -> None:
        r, claims = r.of(Group.PEERS), r.of(Group.CLAIMS)
        labels = {
            "method": "the NRI hook, as `RunPodSandbox`",
            "status": "`success`, `failed`, `noop` (a pod without claims of ours)",
        }
        self.requests = claims.counter(
            "dranet_driver_nri_plugin_requests_total", "NRI calls from the container runtime", labels
        )
        self.latency = claims.histogram(
            "dranet_driver_nri_plugin_requests_latency_seconds",
            "Duration in seconds of NRI calls from the container runtime (budget: `hook_budget_seconds`)",
            labels,
        )
        self.connected = r.gauge(
            "dranet_nri_connected", "1 if the driver is connected to the container runtime by NRI, else 0"
        )
        self.connections = r.counter(
            "dranet_nri_connections_total", "NRI connections to the container runtime that were established"
        )
        self.gaps = r.counter(
            "dranet_nri_gap_seconds_total",
            "Seconds without an NRI connection, including the start; added when the connection is back",
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
    PROFILE = "profile"
    IPAM = "ipam"
    PROBE = "probe"
    LEASE = "lease"
    PLAN = "plan"
    STORE = "store"
    FILES = "files"


class PrepareMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.prepare_seconds = r.histogram(
            "dranet_claim_prepare_seconds", "Duration in seconds of Prepare of one claim", _ENDED
        )
        self.unprepare_seconds = r.histogram(
            "dranet_claim_unprepare_seconds", "Duration in seconds of Unprepare of one claim", _ENDED
        )
        self.phase_seconds = r.histogram(
            "dranet_claim_prepare_phase_seconds",
            "Duration in seconds of each phase of Prepare; a phase that was not needed is not counted",
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


class CloudMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.PEERS)
        provider = {"provider": "`gce`, `aws`, `azure`, `oke`, `alibaba` or `coreweave`"}
        self.requests = r.counter(
            "dranet_cloud_requests_total",
            "Times that the cloud was asked about this machine",
            {**provider, **_ENDED},
        )
        self.answered = r.gauge(
            "dranet_cloud_answered_timestamp_seconds",
            "Unix time in seconds of the cloud's last answer; the attributes are those of that answer",
            provider,
        )


class AttachMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.step_seconds = r.histogram(
            "dranet_attach_step_seconds",
            "Duration in seconds of the steps that attach a device to a pod; consecutive steps of one kind "
            "are one request to the kernel",
            {
                "step": "`move-link`, `create-link`, `set-link`, `set-ethtool`, `set-sysctl`, `set-token`, "
                "`join-vrf`, `remove-programs`, `add-address`, `set-up`, `set-cpu-locality`, `add-route`, "
                "`add-neighbour`, `add-rule`, `limit-rate`, `move-rdma`, `set-vf`"
            },
            SHORT_BUCKETS,
        )
        self.rollbacks = r.counter(
            "dranet_attach_rollbacks_total", "Attaches of a pod's devices that failed and were rolled back"
        )
        self.detach_seconds = r.histogram(
            "dranet_detach_seconds", "Duration in seconds of returning the devices of one claim to the host"
        )
        self.late_hooks = r.counter(
            "dranet_hook_deadline_misses_total",
            "NRI hooks that were answered at their deadline, before the kernel was done; the work continues "
            "in the background",
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
        self.leases = r.gauge("dranet_dhcp_leases", "DHCP leases held now")
        self.requests = r.counter("dranet_dhcp_requests_total", "DHCP leases requested by Prepare", _ENDED)
        self.renewals = r.counter(
            "dranet_dhcp_renewals_total",
            "Renewals of DHCP leases of running pods",
            {
                "outcome": one_of(
                    LeaseOutcome, rebound="by another server", failed="retried", expired="the address is gone"
                )
            },
        )


class IpamCommand(StrEnum):
    """What an IPAM plugin was asked for; the ``command`` label."""

    ADD = "ADD"
    CHECK = "CHECK"
    DEL = "DEL"


class IpamMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.seconds = r.histogram(
            "dranet_ipam_seconds",
            "Duration in seconds of calls to [IPAM plugins](../networking/ipam.md)",
            {"command": one_of(IpamCommand), **_ENDED},
        )
        self.unreleased = r.gauge(
            "dranet_ipam_unreleased_claims", "Ended claims whose addresses have not been released"
        )
        self.unreleased_seconds = r.gauge(
            "dranet_ipam_unreleased_seconds",
            "Seconds since the first attempt to release the addresses of the oldest of these claims, or 0",
        )
        self.conflicts = r.counter(
            "dranet_address_conflicts_total",
            "Addresses of claims that were found [in use elsewhere](../networking/address-pools.md) at "
            "Prepare",
        )
        self.unprobed = r.counter(
            "dranet_address_unprobed_total",
            "Devices whose network could not be probed for addresses in use: no carrier, no Ethernet",
        )
        self.failed_checks = r.gauge(
            "dranet_ipam_failed_checks",
            "Prepared claims whose IPAM plugin's CHECK reports that their addresses are no longer theirs",
        )


class WebhookMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.PEERS)
        self.up = r.gauge(
            "dranet_webhook_up",
            "1 if the webhook provider of attributes and configs answers, 0 while it is away",
            {"url": "of the provider"},
        )
        self.answered = r.gauge(
            "dranet_webhook_answered_timestamp_seconds",
            "Unix time in seconds of the oldest answer of the webhook provider that is in use",
            {"url": "of the provider"},
        )
        self.requests = r.counter(
            "dranet_webhook_requests_total",
            "Requests to the webhook provider, counting each attempt",
            {
                "request": "`health`, `GetDeviceAttributes`, `GetDeviceConfig`, `GetProfileConfig`, "
                "`ReleaseProfileConfig`",
                **_ENDED,
            },
        )
        self.unreleased = r.gauge(
            "dranet_webhook_unreleased_claims",
            "Claims that are no longer prepared and whose profiles the webhook provider has not taken back",
        )

    def is_up(self, url: str, up: bool) -> None:
        self.up.labels(url).set(up)

    def oldest_answer(self, url: str, unix_time: float) -> None:
        self.answered.labels(url).set(unix_time)

    def asked(self, request: str, has_answered: bool) -> None:
        self.requests.labels(request, Outcome.SUCCESS if has_answered else Outcome.FAILED).inc()


class ReconcileMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.actions = r.counter(
            "dranet_reconcile_actions_total",
            "Corrections by reconcile, at start, after a reconnect and at intervals, and "
            "[their reasons](reasons.md#what-reconcile-does)",
            {
                "action": "`adopted`, `attached`, `released`, `finished`, `forgotten`, `removed`, `failed`",
                "reason": "what was found",
            },
        )
        self.seconds = r.histogram(
            "dranet_reconcile_seconds",
            "Duration in seconds of the regular reconcile, including the pause between the two readings that "
            "it compares",
            _ENDED,
        )

    def looked(self, has_failed: bool, seconds: float) -> None:
        self.seconds.labels(Outcome.FAILED if has_failed else Outcome.SUCCESS).observe(seconds)


class StoreMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.writable = r.gauge(
            "dranet_store_writable",
            "1 if the disk accepts claim records; 0 if it refuses them and no claim can be prepared",
        )
        self.unwritten = r.gauge(
            "dranet_store_unwritten_records",
            "Claim records that are newer in memory than on disk because the disk refused them",
        )
        self.quarantined = r.gauge(
            "dranet_store_quarantined_records",
            "Claim records that [cannot be read](../commands/prepared-claims.md#records-that-cannot-be-read)",
        )
        self.write_seconds = r.histogram(
            "dranet_store_write_seconds",
            "Duration in seconds of writes of claim records to disk",
            buckets=LATENCY_BUCKETS,
        )
        self.size = r.gauge("dranet_store_size_bytes", "Size in bytes of all claim records on disk")


class HandoverMetrics:
    """The role of this instance among those on the node, as in a rolling update."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.DRIVER)
        self.state = r.gauge(
            "dranet_instance_state",
            "1 for the current [state](../operations/upgrades.md#what-to-watch) of this driver instance, "
            "0 for all others",
            {"state": "`waiting`, `on-duty`, `retired`, `aside`"},
        )
        self.instances = r.gauge(
            "dranet_instances", "Driver instances that run on the node; 2 during an update"
        )
        self.handovers = r.counter(
            "dranet_handovers_total",
            "Times that this instance took over or handed over the lead on its node",
            {"side": "`taken`, `given`"},
        )


class ScrapeMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.DRIVER)
        self.read_seconds = r.gauge(
            "dranet_scrape_read_seconds",
            "Duration in seconds of reading the devices' counters for this scrape",
        )
        self.unread_pods = r.gauge(
            "dranet_scrape_unread_pods",
            "Pods whose links could not be read in time; their series are absent",
        )
        self.stuck_reads = r.gauge(
            "dranet_scrape_stuck_reads",
            "Pods, RDMA devices or the node itself that are left out of scrapes because the kernel does not "
            "answer; the log names each",
        )
        self.loop_lag = r.gauge(
            "dranet_event_loop_lag_seconds",
            "Delay in seconds of the driver's event loop, measured at each scrape",
        )
        self.certificate_ok = r.gauge(
            "dranet_certificate_ok",
            "0 if the files of [the port's certificate](../operations/status-page.md#tls) are bad and the "
            "previous one stays in use, else 1; 1 without TLS",
        )
        setting = {"setting": "`metrics_tls_cert`"}
        self._not_before, self._not_after = (
            r.gauge(
                f"dranet_certificate_{bound}_timestamp_seconds",
                f"Unix time in seconds {words} which the port's certificate is valid; absent without TLS",
                setting,
            )
            for bound, words in (("not_before", "from"), ("not_after", "until"))
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
            "Errors while a claim was prepared, attached or released, counting each attempt",
            {
                "phase": "`prepare`, `attach`, `container`, `metadata`, `release`, `unprepare`",
                "reason": "[one of these](reasons.md#reasons)",
            },
        )
        self.prepared_claims = claims.gauge("dranet_prepared_claims", "Claims that are prepared now")
        self.store = StoreMetrics(r)
        self.not_restored = claims.counter(
            "dranet_host_state_not_restored_total",
            "Parts of links' host state that could not be restored at release; Events `HostStateNotRestored` "
            "name them",
        )
        self.reconcile = ReconcileMetrics(r)
        self.alignment = AlignmentMetrics(r)
        self.dhcp = DhcpMetrics(r)
        self.webhook = WebhookMetrics(r)
        self.ipam = IpamMetrics(r)
        self.cloud = CloudMetrics(r)
        self.virtual_functions = VirtualFunctionMetrics(r)
        self.slices = SliceMetrics(r)
        self.health = HealthMetrics(r)
        self.inventory = InventoryMetrics(r)
        self.api = ApiMetrics(r)
        self.reports = ReportMetrics(r)
        self.ready = driver.gauge(
            "dranet_ready", "1 if the part of the driver is ready, else 0", {"part": "as in `/readyz`"}
        )
        self.handover = HandoverMetrics(r)
        self.scrape = ScrapeMetrics(r)
        self.build_info = driver.gauge(
            "dranet_build_info",
            "Constant 1 with the versions of driver, Python and kernel",
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
