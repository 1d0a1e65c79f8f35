"""Gauges of the driver's parts that are read when they are scraped."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dranet import __version__
from dranet.driver.alignment.verdicts import LEVELS
from dranet.driver.reports.reporter import Backlog
from dranet.telemetry.claims import LeaseOutcome, Outcome

if TYPE_CHECKING:
    from dranet.driver.parts import Parts


def set_up_gauges(parts: Parts) -> None:
    """Nothing is read yet."""
    metrics = parts.metrics
    metrics.build_info.labels(__version__, platform.python_version(), platform.release()).set(1)
    metrics.prepared_claims.set_function(lambda: len(parts.store.get_all()))
    metrics.inventory.attributes_file_ok.set_function(lambda: not parts.policy.problem)
    metrics.slices.last_published.set_function(lambda: parts.publisher.last_published)
    _show_store(parts)
    _show_peers(parts)
    _show_reports(parts)
    _show_alignment(parts)
    _begin_at_zero(parts)


def _show_store(parts: Parts) -> None:
    shown = parts.metrics.store
    shown.writable.set_function(lambda: parts.store.is_writable)
    shown.unwritten.set_function(lambda: len(parts.store.unwritten))
    shown.quarantined.set_function(lambda: parts.store.quarantine_size)
    shown.size.set_function(lambda: parts.store.size_bytes)


def _show_peers(parts: Parts) -> None:
    kubelet = parts.metrics.kubelet
    kubelet.registered.set_function(lambda: bool(parts.kubelet.registered))
    kubelet.health_streams.set_function(lambda: parts.kubelet.traits.health_streams)
    parts.metrics.runtime.connected.set_function(lambda: parts.nri.is_ready)


def _show_reports(parts: Parts) -> None:
    reports, backlog = parts.metrics.reports, parts.reporter.get_backlog
    for kind in ("status", "event"):
        reports.waiting.labels(kind).set_function(partial(_count_waiting, backlog, kind))
        reports.oldest.labels(kind).set_function(partial(_measure_age, backlog, kind))


def _count_waiting(get_backlog: Callable[[str], Backlog], kind: str) -> int:
    return get_backlog(kind).waiting


def _measure_age(get_backlog: Callable[[str], Backlog], kind: str) -> float:
    return get_backlog(kind).age_seconds


def _show_alignment(parts: Parts) -> None:
    alignment = parts.metrics.alignment
    for level in LEVELS:
        alignment.devices.labels(level).set_function(partial(parts.verdicts.count_level, level))
    alignment.worse_now.set_function(parts.verdicts.count_worse)


def _begin_at_zero(parts: Parts) -> None:
    """What alerts ask the increase of: to Prometheus a series that begins at 1 has not risen."""
    metrics = parts.metrics
    for ended in (Outcome.SUCCESS, Outcome.FAILED):
        metrics.prepare.prepare_seconds.labels(ended)
    for lease in LeaseOutcome:
        metrics.dhcp.renewals.labels(lease)
    for kind in ("status", "event"):
        metrics.reports.dropped.labels(kind)
