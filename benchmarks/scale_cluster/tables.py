"""The tables of ``docs/dev/scale-1000-nodes.md`` and ``docs/dev/scheduler-jobs.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.scale import print_table
from benchmarks.scale_cluster.jobs import Job, Kind
from benchmarks.scale_cluster.phases import DRIVERS, Phase

REFUSED, UNANSWERED = "429", "0"


def print_phases(phases: Sequence[Phase], nodes: int) -> None:
    """Requests and bytes; then seconds and processor time."""
    header = (
        *("phase", "requests", "refused (429)", "no answer", "MB to the server", "MB from it"),
        *("connections", "calls of each node that were answered"),
    )
    print_table(header, [_traffic_row(phase, nodes) for phase in phases])
    costs = (
        *("phase", "seconds", "API server, s", "etcd, s", "scheduler, s", "controllers, s"),
        *("each driver, ms", "slowest request, s", "etcd, MB"),
    )
    print_table(costs, [_cost_row(phase, nodes) for phase in phases])


def print_jobs(jobs: Sequence[Job]) -> None:
    header = (
        *("pods, claims", "limits", "seconds", "pods a second", "against no claim"),
        *("scheduler, s", "ms for each pod", "API server, s", "controllers, s"),
    )
    print_table(header, [_job_row(job, _find_floor(job, jobs)) for job in jobs])


def _traffic_row(phase: Phase, nodes: int) -> tuple[str, ...]:
    traffic = phase.traffic
    return (
        phase.title,
        f"{traffic.requests.total():,}",
        *(f"{_count(traffic.requests, code):,}" for code in (REFUSED, UNANSWERED)),
        f"{traffic.bytes_out / 1e6:.1f}",
        f"{traffic.bytes_in / 1e6:.1f}",
        f"{traffic.connections:,}",
        ", ".join(_describe(traffic.requests, nodes)) or "nothing",
    )


def _count(requests: Counter[str], code: str) -> int:
    return sum(count for key, count in requests.items() if key.endswith(f" {code}"))


def _describe(requests: Counter[str], nodes: int) -> Iterator[str]:
    """``2.0 list resourceslices``, whatever the answer was."""
    answered: Counter[str] = Counter()
    for key, count in requests.items():
        call, _, code = key.rpartition(" ")
        if code not in (REFUSED, UNANSWERED):
            answered[call] += count
    return (f"{count / nodes:.1f} {call}" for call, count in sorted(answered.items()))


def _cost_row(phase: Phase, nodes: int) -> tuple[str, ...]:
    used = phase.processor
    programs = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager")
    return (
        phase.title,
        f"{phase.seconds:.1f}",
        *(f"{used[name]:.1f}" for name in programs),
        f"{used[DRIVERS] / nodes * 1000:.1f}",
        f"{phase.traffic.slowest:.2f}",
        f"{phase.database / 1e6:.0f}",
    )


def _job_row(job: Job, floor: Job) -> tuple[str, ...]:
    used = job.processor
    return (
        f"{job.pods:,}, {job.kind.title}",
        job.limits.title,
        f"{job.seconds:.1f}",
        f"{job.pods / job.seconds:.0f}",
        f"{job.seconds / floor.seconds:.1f}",
        f"{used['kube-scheduler']:.1f}",
        f"{used['kube-scheduler'] / job.pods * 1000:.1f}",
        f"{used['kube-apiserver']:.1f}",
        f"{used['kube-controller-manager']:.1f}",
    )


def _find_floor(job: Job, jobs: Sequence[Job]) -> Job:
    return next(one for one in jobs if one.kind is Kind.NOTHING and one.limits is job.limits)
