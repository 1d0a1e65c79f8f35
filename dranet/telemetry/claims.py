"""Metrics of Prepare, the hooks, leases and reconcile; never labelled with a claim's name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import Histogram

from dranet.telemetry.recorder import SHORT_BUCKETS, Group, Recorder, one_of


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
    """Prepare and Unprepare, one claim at a time."""

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
        """Time a phase; on any thread."""
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
    """How the work on one claim ends."""

    def __init__(self) -> None:
        self.outcome = Outcome.FAILED

    def succeeded(self) -> None:
        self.outcome = Outcome.SUCCESS


class AttachMetrics:
    """Attach and detach in the kernel."""

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

    def observe_step(self, step: str, seconds: float) -> None:
        """Observe one step, or several that went out together."""
        self.step_seconds.labels(step).observe(seconds)

    def rolled_back(self) -> None:
        self.rollbacks.inc()

    def restored(self, seconds: float) -> None:
        """The devices of one claim were returned."""
        self.detach_seconds.observe(seconds)


class LeaseOutcome(StrEnum):
    """Result of a DHCP request; the ``outcome`` label."""

    RENEWED = "renewed"
    REBOUND = "rebound"
    """Another server was asked, because the lease's own did not answer."""
    FAILED = "failed"
    """No answer, or a refusal; retried until the lease ends."""
    EXPIRED = "expired"


class DhcpMetrics:
    """DHCP leases of pods."""

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
    """Actions of reconcile."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.actions = r.counter(
            "dranet_reconcile_actions_total",
            "what a start, a peer that came back, or the regular look found to do, and "
            "[why](troubleshooting.md#what-reconcile-does)",
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
        """A regular pass has ended."""
        self.seconds.labels(Outcome.FAILED if has_failed else Outcome.SUCCESS).observe(seconds)
