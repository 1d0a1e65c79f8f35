"""Services that work only where a setting or a claim asks for it: clouds and webhooks, sources of addresses,
neighbours by LLDP, virtual functions. The rest of :class:`dranet.driver.assembly.Services` builds on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from dranet.driver.attachments import Attachments
from dranet.driver.cloud import CloudMemory, CloudRules, CloudWatch
from dranet.driver.instances.leader import InstanceState, Leadership
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam, IpamClient, open_ipam_file
from dranet.driver.leases import Leases
from dranet.driver.metadata import DeviceMetadata
from dranet.driver.prepare import AddressCheck
from dranet.driver.protected_addresses import ProtectedAddresses
from dranet.driver.providers import Providers
from dranet.driver.publish import FactsReader, Inventory
from dranet.driver.reports.announcer import Announcer
from dranet.driver.virtual_functions import NodeState, VirtualFunctions
from dranet.model.claim import PodRef
from dranet.model.device import Device
from dranet.model.ipam import PoolNode
from dranet.settings import AddressConflicts, Lldp, Settings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics

if TYPE_CHECKING:
    from dranet.driver.lldp import HeardNeighbours, LldpdNeighbours


class OptionalServices(ABC):
    settings: Settings
    _boot_id: str
    _metrics: Metrics
    _reader: FactsReader

    @property
    @abstractmethod
    def inventory(self) -> Inventory: ...
    @property
    @abstractmethod
    def store(self) -> ClaimStore: ...
    @property
    @abstractmethod
    def leadership(self) -> Leadership: ...
    @property
    @abstractmethod
    def attachments(self) -> Attachments: ...
    @property
    @abstractmethod
    def _metadata(self) -> DeviceMetadata: ...
    @property
    @abstractmethod
    def _announcer(self) -> Announcer: ...
    @property
    @abstractmethod
    def _work(self) -> WorkLocks: ...
    @property
    @abstractmethod
    def protected_addresses(self) -> ProtectedAddresses: ...
    @abstractmethod
    def _look_again(self) -> None: ...

    def _find_pod(self, claim_uid: str) -> PodRef | None:
        record = self.store.get(claim_uid)
        return None if record is None else record.pod

    @cached_property
    def cloud(self) -> CloudWatch:
        settings = self.settings
        return CloudWatch(
            CloudRules(settings.cloud_provider, settings.node_label_attributes, settings.sysfs_root),
            CloudMemory(settings.state_dir / "cloud.json", self._boot_id),
            self._metrics.cloud,
            on_change=self._look_again,
            find_ipv6_router=self._find_ipv6_router,
        )

    @cached_property
    def providers(self) -> Providers:
        return Providers(
            self.settings,
            self.cloud,
            self.store,
            self._metrics,
            self._get_offered_devices,
            on_change=self._look_again,
        )

    def _find_ipv6_router(self, ifname: str) -> str:
        return self.inventory.view.find_ipv6_router(ifname)

    def _get_offered_devices(self) -> Iterable[Device]:
        return self.inventory.view.offered.values()

    @cached_property
    def neighbours(self) -> HeardNeighbours | LldpdNeighbours | None:
        if self.settings.lldp is Lldp.OFF or not self._reader.is_live:
            return None
        from dranet.driver.lldp import open_source

        return open_source(self.settings, lambda: self.leadership.state is InstanceState.LEADER)

    async def follow_neighbours(self) -> None:
        """Hear the switches while the driver runs."""
        if self.neighbours is not None:
            await self.neighbours.run(self._look_again)

    @cached_property
    def virtual_functions(self) -> VirtualFunctions | None:
        """``None`` without a file of rules, and where facts are those of another machine."""
        if self.settings.virtual_functions_file is None or not self._reader.is_live:
            return None
        made = self.settings.state_dir / "virtual-functions.json"
        return VirtualFunctions(
            NodeState(self.settings.node_name, made, self._boot_id),
            self.inventory,
            self.store,
            self._work,
            self._announcer,
            self._metrics,
            self._look_again,
        )

    @cached_property
    def leases(self) -> Leases:
        on_links = self._metadata.links_changed
        return Leases(self.store, self.attachments, self._announcer, self._metrics, on_links=on_links)

    @cached_property
    def _ipam(self) -> Ipam:
        return Ipam(
            self.store,
            self._boot_id,
            self._announcer,
            self._metrics,
            IpamClient(self.settings.cni_bin_dirs),
            open_ipam_file(self.settings),
        )

    def _find_pool_node(self) -> PoolNode:
        targets = self.protected_addresses.targets
        own = tuple(target.address for target in targets if target.is_own)
        return PoolNode(self.settings.node_name, own)

    def _open_address_check(self) -> AddressCheck | None:
        mode = self.settings.address_conflicts
        if mode is AddressConflicts.OFF:
            return None
        from dranet.driver.conflicts import ConflictCheck

        return ConflictCheck(mode, self.store, self._boot_id, self._announcer, self._metrics).check

    async def _look_outside(self) -> None:
        """At what was taken for claims outside of the node."""
        try:
            await self._ipam.look(self._work)
        finally:
            await self.providers.look(self._work)
