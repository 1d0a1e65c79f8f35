"""The port of the driver: probes, metrics and the status page, put together from what they show."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from dranet.cluster.client import ApiClient
from dranet.driver.metrics.reading import CounterReader
from dranet.driver.metrics.scrape import Scraper
from dranet.driver.metrics.snapshot import take_snapshot
from dranet.driver.probes.access import Access, TokenReviews
from dranet.driver.probes.server import PortContent, ProbeServer
from dranet.driver.probes.tls import TlsFiles
from dranet.driver.status_page.source import PageSource, StatusSources
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.settings import Authentication, DeviceMetrics, Settings
from dranet.telemetry import Metrics


class PortSources(Struct, frozen=True):
    """What the port shows."""

    status: StatusSources
    metrics: Metrics
    pod_links: PodLinks
    read_fault: Callable[[], str]
    """Why the driver has to be restarted; empty while it has not."""
    is_live: bool
    """Whether the inventory is of this node; a capture has no counters."""


def build_port(sources: PortSources, client: ApiClient, tls: TlsFiles | None) -> ProbeServer:
    """Nothing listens before :meth:`ProbeServer.start`."""
    status = sources.status
    return ProbeServer(
        status.settings.bind_address,
        sources.metrics,
        PortContent(
            status.readiness.read,
            read_features=status.read_findings,
            read_fault=sources.read_fault,
            read_page=PageSource(status).read,
            read_metrics=_build_scraper(sources).render,
        ),
        may_wait=lambda: bool(status.leadership.others),
        access=_build_access(status.settings, client),
        tls=tls,
    )


def _build_scraper(sources: PortSources) -> Scraper:
    status = sources.status
    return Scraper(
        sources.metrics,
        lambda: take_snapshot(
            status.inventory.view,
            status.store.get_all(),
            sources.pod_links,
            status.health.get_states(),
            status.verdicts.get_latest,
        ),
        CounterReader(status.settings.sysfs_root),
        status.settings.device_metrics if sources.is_live else DeviceMetrics.OFF,
    )


def _build_access(settings: Settings, client: ApiClient) -> Access:
    has_tokens = settings.metrics_authentication is Authentication.KUBERNETES
    return Access(
        settings.node_page,
        settings.metrics_authentication,
        TokenReviews(client) if has_tokens else None,
        client.is_own_token,
    )
