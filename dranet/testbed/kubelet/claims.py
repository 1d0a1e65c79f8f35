"""The kubelet's claim bookkeeping: which claims are prepared here, for whom, and with what.

Source of the behaviour: ``pkg/kubelet/cm/dra`` of Kubernetes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dranet.kubelet.claim_locks import ClaimLocks
from dranet.model.claim import ClaimRef
from dranet.testbed.kubelet.api import KubeletApi
from dranet.testbed.kubelet.nouns import JsonObject, KubeletDevice, PluginFailure, PodFailure
from dranet.testbed.kubelet.plugins import PluginManager
from dranet.testbed.kubelet.podspec import PodView

PREPARE_FAILED = "FailedPrepareDynamicResources"
UNPREPARE_FAILED = "FailedUnprepareDynamicResources"

PodDevices = Mapping[str, tuple[KubeletDevice, ...]]
"""Prepared devices by the pod's own name of the claim."""


@dataclass(slots=True)
class _Entry:
    """A claim in the kubelet's cache."""

    ref: ClaimRef
    drivers: tuple[str, ...]
    consumers: set[str] = field(default_factory=set)
    devices: dict[str, tuple[KubeletDevice, ...]] = field(default_factory=dict)
    prepared: bool = False

    @property
    def all_devices(self) -> tuple[KubeletDevice, ...]:
        return tuple(device for driver in self.drivers for device in self.devices.get(driver, ()))


class ClaimBook:
    """Prepares each claim once for all pods that share it, and unprepares it after the last of them."""

    def __init__(self, api: KubeletApi, plugins: PluginManager) -> None:
        self._api = api
        self._plugins = plugins
        self._locks = ClaimLocks()
        self._entries: dict[str, _Entry] = {}

    def forget_prepared(self) -> None:
        """As after a restart: the checkpoint keeps the claims, but none counts as prepared."""
        for entry in self._entries.values():
            entry.prepared = False

    async def prepare(self, pod: PodView) -> PodDevices:
        """Prepare what the pod's claims still need; repeatable.

        Raises:
            PodFailure: a claim is not ready for this pod, or a driver is missing or failed.
            ClusterError: a claim could not be read.
        """
        claims = {
            pod_claim: _check_claim(await self._api.fetch_claim(pod.namespace, name), name, pod_claim, pod)
            for pod_claim, name in pod.get_resolved_claims().items()
        }
        async with self._locks.hold(_ref(claim).uid for claim in claims.values()):
            entries = {pod_claim: self._enter(claim, pod) for pod_claim, claim in claims.items()}
            pending = {entry.ref.uid: entry for entry in entries.values() if not entry.prepared}
            try:
                await self._prepare_entries(list(pending.values()))
            except PluginFailure as failure:
                raise PodFailure(
                    PREPARE_FAILED, f"Failed to prepare dynamic resources: {failure}"
                ) from failure
        return {pod_claim: entry.all_devices for pod_claim, entry in entries.items()}

    async def unprepare(self, pod: PodView) -> None:
        """Let the pod go from its claims, and unprepare those that it was the last to use; repeatable.

        Raises:
            PodFailure: a driver is missing or failed.
        """
        used = [entry for entry in self._entries.values() if pod.uid in entry.consumers]
        async with self._locks.hold(entry.ref.uid for entry in used):
            last = [entry for entry in used if entry.consumers == {pod.uid}]
            try:
                for driver, batch in _by_driver(last).items():
                    await self._plugins.find(driver).unprepare([entry.ref for entry in batch])
            except PluginFailure as failure:
                raise PodFailure(
                    UNPREPARE_FAILED, f"Failed to unprepare dynamic resources: {failure}"
                ) from failure
            for entry in used:
                entry.consumers.discard(pod.uid)
                if not entry.consumers:
                    del self._entries[entry.ref.uid]

    def _enter(self, claim: JsonObject, pod: PodView) -> _Entry:
        ref = _ref(claim)
        for other in self._entries.values():
            if (other.ref.namespace, other.ref.name) == (
                ref.namespace,
                ref.name,
            ) and other.ref.uid != ref.uid:
                raise PodFailure(
                    PREPARE_FAILED,
                    f"old ResourceClaim with same name {ref.name} and different UID {other.ref.uid} exists",
                )
        entry = self._entries.setdefault(ref.uid, _Entry(ref, _drivers(claim)))
        entry.consumers.add(pod.uid)
        return entry

    async def _prepare_entries(self, pending: Sequence[_Entry]) -> None:
        """One call per driver; all drivers must be there before the first one is called."""
        calls = [(self._plugins.find(driver), batch) for driver, batch in _by_driver(pending).items()]
        for plugin, batch in calls:
            answers = await plugin.prepare([entry.ref for entry in batch])
            for entry in batch:
                entry.devices[plugin.info.driver] = answers[entry.ref.uid]
        for entry in pending:
            entry.prepared = True


def pick_cdi_ids(asked: Iterable[tuple[str, str]], devices: PodDevices) -> tuple[str, ...]:
    """CDI names for a container that asks for (pod claim name, request or empty), each once."""
    ids = [
        cdi_id
        for pod_claim, request in asked
        for device in devices.get(pod_claim, ())
        if device.serves(request)
        for cdi_id in device.cdi_ids
    ]
    return tuple(dict.fromkeys(ids))


def _by_driver(entries: Iterable[_Entry]) -> dict[str, list[_Entry]]:
    batches: dict[str, list[_Entry]] = defaultdict(list)
    for entry in entries:
        for driver in entry.drivers:
            batches[driver].append(entry)
    return batches


def _check_claim(claim: JsonObject | None, name: str, pod_claim: str, pod: PodView) -> JsonObject:
    """Allocated, of this pod if made from a template, and reserved for it."""
    if claim is None:
        raise PodFailure(
            PREPARE_FAILED, f"failed to fetch ResourceClaim {name} referenced by pod {pod.name}: not found"
        )
    owners = claim["metadata"].get("ownerReferences", ())
    if pod_claim in pod.template_claims and pod.uid not in {owner["uid"] for owner in owners}:
        raise PodFailure(
            PREPARE_FAILED, f"ResourceClaim {name} was not created for pod {pod.name} (pod is not owner)"
        )
    status = claim.get("status", {})
    if not status.get("allocation"):
        raise PodFailure(PREPARE_FAILED, f"ResourceClaim {name} is not allocated")
    if pod.uid not in {consumer["uid"] for consumer in status.get("reservedFor", ())}:
        raise PodFailure(
            PREPARE_FAILED, f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {name} "
        )
    return claim


def _ref(claim: JsonObject) -> ClaimRef:
    metadata = claim["metadata"]
    return ClaimRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def _drivers(claim: JsonObject) -> tuple[str, ...]:
    """In the order of the allocation's results, each once."""
    results = claim["status"]["allocation"].get("devices", {}).get("results", ())
    return tuple(dict.fromkeys(result["driver"] for result in results))
