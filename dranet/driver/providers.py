"""What knows more about devices than the kernel: a cloud's metadata service, a webhook provider.

What the webhook needs is loaded where a setting names it, and costs nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dranet.driver.cloud import CloudWatch
from dranet.driver.instances.members import WorkLocks
from dranet.model.device import Device
from dranet.model.facts import ProvidedFacts
from dranet.model.findings import WEBHOOK, WEBHOOK_PROVIDER, Finding, Severity, ok
from dranet.model.provider import ProvidedConfig
from dranet.settings import CloudProvider, ProfileProvider, Settings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics

if TYPE_CHECKING:
    from dranet.driver.profiles import Profiles
    from dranet.providers.webhook_devices import WebhookDevices


class Providers:
    """:attr:`facts` and :meth:`find_config` may be used in any thread, the rest on the event loop."""

    def __init__(
        self,
        settings: Settings,
        cloud: CloudWatch,
        store: ClaimStore,
        metrics: Metrics,
        get_devices: Callable[[], Iterable[Device]],
        on_change: Callable[[], None],
    ) -> None:
        """
        Args:
            settings: name the providers.
            cloud: the cloud's facts, if there is a cloud.
            store: has the records of the claims whose profiles are in use.
            metrics: show how the webhook provider does.
            get_devices: those on offer.
            on_change: called when :attr:`facts` are others.

        Raises:
            SettingsError: the webhook's URL or certificates cannot be used.
        """
        self._cloud = cloud
        self._webhook: WebhookDevices | None = None
        self.profiles: Profiles | None = None
        """``None``: claims with a profile are refused."""
        if settings.webhook_url:
            self._open_webhook(settings, store, metrics, get_devices, on_change)

    def _open_webhook(
        self,
        settings: Settings,
        store: ClaimStore,
        metrics: Metrics,
        get_devices: Callable[[], Iterable[Device]],
        on_change: Callable[[], None],
    ) -> None:
        from dranet.driver.profiles import Profiles
        from dranet.providers.webhook import WebhookCapabilities, open_client
        from dranet.providers.webhook_devices import WebhookDevices

        client = open_client(settings, metrics.webhook.asked)
        is_cloud = settings.cloud_provider is CloudProvider.WEBHOOK
        needs = WebhookCapabilities(is_cloud, settings.profile_provider is ProfileProvider.WEBHOOK)
        self._webhook = WebhookDevices(
            client,
            needs,
            get_devices if is_cloud else tuple,
            on_change,
            metrics.webhook,
            settings.state_dir / "webhook.json",
            settings.webhook_refresh_seconds,
        )
        if needs.profile_provider or (is_cloud and settings.profile_provider is ProfileProvider.CLOUD):
            self.profiles = Profiles(client, store, metrics)

    @property
    def facts(self) -> tuple[ProvidedFacts, ...]:
        """As known now."""
        return (*self._cloud.facts, *(self._webhook.facts if self._webhook else ()))

    def find_config(self, device: Device) -> ProvidedConfig | None:
        """What a provider wants for the device. Raises ProviderError where that is not known yet."""
        if self._webhook is not None and self._webhook.has_configs:
            config = self._webhook.find_config(device)
            owner = f"device {device.name} (from the webhook provider {self._webhook.url})"
            return ProvidedConfig(owner, config) if config else None
        return self._cloud.find_config(device)

    def scanned(self) -> None:
        """There may be new devices."""
        if self._webhook is not None:
            self._webhook.scanned()

    async def run(self) -> None:
        """Ask the webhook provider until cancelled."""
        if self._webhook is not None:
            await self._webhook.run()

    async def look(self, work: WorkLocks) -> None:
        """Reconcile: release the profiles of no claim. Raises DranetError."""
        if self.profiles is not None:
            await self.profiles.look(work)

    def read_findings(self) -> list[Finding]:
        """For the doctor."""
        found = self._cloud.read_findings()
        if self._webhook is None:
            return found
        if not self._webhook.problem:
            return [*found, ok(WEBHOOK, f"{self._webhook.url} answers", WEBHOOK_PROVIDER)]
        return [
            *found,
            Finding(
                WEBHOOK,
                Severity.WARNING,
                self._webhook.problem,
                "devices keep its last answers; a new device has none of its attributes and cannot be "
                "prepared, and neither can a claim that names a profile",
                "start the provider, or correct webhook_url; see docs/networking/providers.md",
                WEBHOOK_PROVIDER,
            ),
        ]
