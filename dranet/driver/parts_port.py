"""The port of probes, metrics and page, wired to the parts that it tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dranet.driver.features import Features
from dranet.driver.metrics.reading import CounterReader
from dranet.driver.metrics.scrape import Scraper, set_up_gauges
from dranet.driver.metrics.snapshot import take_snapshot
from dranet.driver.probes.access import Access, TokenReviews
from dranet.driver.probes.server import ProbeServer
from dranet.driver.probes.tls import TlsFiles, open_tls
from dranet.driver.status_page.source import PageSource, PartsKnowledge
from dranet.model.findings import Finding
from dranet.settings import Authentication, DeviceMetrics

if TYPE_CHECKING:
    from dranet.driver.parts import Parts


def build_port(parts: Parts, *, is_live: bool) -> ProbeServer:
    """The last part to be built: it asks all others. Nothing listens yet.

    Raises:
        SettingsError: certificate, key or CA cannot be used.
    """
    settings = parts.settings
    has_tokens = settings.metrics_authentication is Authentication.KUBERNETES
    tls = open_tls(settings)
    findings = _Findings(parts, tls)
    set_up_gauges(parts)
    return ProbeServer(
        settings.bind_address,
        parts.metrics,
        parts.readiness.read,
        may_wait=lambda: bool(parts.handover.others),
        read_features=findings.read,
        read_fault=lambda: parts.nri.fault,
        read_metrics=_build_scraper(parts, is_live=is_live).render,
        read_page=PageSource(PartsKnowledge(parts, findings.read), parts.gate).read,
        access=Access(
            settings.node_page,
            settings.metrics_authentication,
            TokenReviews(parts.client) if has_tokens else None,
            parts.client.is_own_token,
        ),
        tls=tls,
    )


class _Findings:
    """What was found out about the driver's surroundings while it runs."""

    def __init__(self, parts: Parts, tls: TlsFiles | None) -> None:
        self._features = Features(parts.settings, parts.publisher, parts.kubelet, parts.nri, parts.gpus)
        self._tls = tls

    def read(self) -> list[Finding]:
        return [*self._features.read(), *(self._tls.read_findings() if self._tls is not None else ())]


def _build_scraper(parts: Parts, *, is_live: bool) -> Scraper:
    return Scraper(
        parts.metrics,
        lambda: take_snapshot(
            parts.inventory.view, parts.store, parts.pod_links, parts.health, parts.verdicts
        ),
        CounterReader(parts.settings.sysfs_root),
        parts.settings.device_metrics if is_live else DeviceMetrics.OFF,  # a capture has no counters
    )
