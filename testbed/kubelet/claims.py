"""The kubelet's claim bookkeeping: which claims are prepared here, for whom, and with what.

Source of the behaviour: ``pkg/kubelet/cm/dra`` of Kubernetes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dranet.model.claim import ClaimRef
from testbed.kubelet.api import KubeletApi
from testbed.kubelet.client import PluginClient
from testbed.kubelet.nouns import JsonObject, KubeletDevice, PluginFailure, PodFailure
from testbed.kubelet.plugins import PluginManager
from testbed.kubelet.podspec import PodView

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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A claim that a pod may use, with the plugin of each of its drivers."""

    ref: ClaimRef
    plugins: dict[str, PluginClient]


class ClaimBook:
    """Prepares claims that no pod here had prepared yet, and unprepares each after the last pod that used it.

    Pods do not wait for each other: two that share a claim and start together both have it prepared, as the
    kubelet, which holds no lock across a call of a driver, may ask for it twice at the same time."""

    def __init__(self, api: KubeletApi, plugins: PluginManager) -> None:
        self._api = api
        self._plugins = plugins
        self._entries: dict[str, _Entry] = {}

    def forget_prepared(self) -> None:
        """As after a restart: the checkpoint keeps the claims, but none counts as prepared."""
        for entry in self._entries.values():
            entry.prepared = False

    def forget_all(self) -> None:
        """As when the checkpoint is lost."""
        self._entries.clear()

    async def prepare(self, pod: PodView) -> PodDevices:
        """Prepare what the pod's claims still need; repeatable.

        Nothing is noted of a pod whose claims are not ready or whose drivers are not all there: it can be
        deleted without a call of any driver.

        Raises:
            PodFailure: a claim is not ready for this pod, or a driver is missing or failed.
            ClusterError: a claim could not be read.
        """
        claims = {
            pod_claim: _check_claim(await self._api.fetch_claim(pod.namespace, name), name, pod_claim, pod)
            for pod_claim, name in pod.get_resolved_claims().items()
        }
        try:
            wanted = {pod_claim: self._find_plugins(claim) for pod_claim, claim in claims.items()}
            entries = {pod_claim: self._enter(one, pod) for pod_claim, one in wanted.items()}
            await _prepare_entries([(entries[name], wanted[name]) for name in entries])
        except PluginFailure as failure:
            raise PodFailure(PREPARE_FAILED, f"Failed to prepare dynamic resources: {failure}") from failure
        return {pod_claim: entry.all_devices for pod_claim, entry in entries.items()}

    async def unprepare(self, pod: PodView) -> None:
        """Let the pod go from its claims, and unprepare those that it was the last to use; repeatable.

        Raises:
            PodFailure: a driver is missing or failed.
        """
        last = []
        for entry in [entry for entry in self._entries.values() if pod.uid in entry.consumers]:
            if len(entry.consumers) > 1:
                entry.consumers.discard(pod.uid)
            else:
                last.append(entry)
        try:
            for driver, batch in _by_driver(last).items():
                await self._plugins.find(driver).unprepare([entry.ref for entry in batch])
        except PluginFailure as failure:
            raise PodFailure(
                UNPREPARE_FAILED, f"Failed to unprepare dynamic resources: {failure}"
            ) from failure
        for entry in last:
            self._leave(entry, pod)

    def _leave(self, entry: _Entry, pod: PodView) -> None:
        """Forget it, unless another pod came for it during the call: that one has to prepare it again."""
        entry.consumers.discard(pod.uid)
        entry.prepared = False
        if not entry.consumers:
            self._entries.pop(entry.ref.uid, None)

    def _find_plugins(self, claim: JsonObject) -> _Wanted:
        """Every driver must be there, even for a claim that is prepared already."""
        return _Wanted(_ref(claim), {driver: self._plugins.find(driver) for driver in _drivers(claim)})

    def _enter(self, wanted: _Wanted, pod: PodView) -> _Entry:
        ref = wanted.ref
        for other in self._entries.values():
            same_name = (other.ref.namespace, other.ref.name) == (ref.namespace, ref.name)
            if same_name and other.ref.uid != ref.uid:
                raise PodFailure(
                    PREPARE_FAILED,
                    f"old ResourceClaim with same name {ref.name} and different UID {other.ref.uid} exists",
                )
        entry = self._entries.setdefault(ref.uid, _Entry(ref, tuple(wanted.plugins)))
        entry.consumers.add(pod.uid)
        return entry


async def _prepare_entries(found: Sequence[tuple[_Entry, _Wanted]]) -> None:
    """One call per plugin, with all claims that are not prepared yet; the first failure ends it."""
    batches: dict[PluginClient, dict[str, _Entry]] = defaultdict(dict)
    pending = [(entry, wanted) for entry, wanted in found if not entry.prepared]
    for entry, wanted in pending:
        for plugin in wanted.plugins.values():
            batches[plugin][entry.ref.uid] = entry
    for plugin, batch in batches.items():
        answers = await plugin.prepare([entry.ref for entry in batch.values()])
        for uid, entry in batch.items():
            entry.devices[plugin.info.driver] = answers[uid]
    for entry, _ in pending:
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
