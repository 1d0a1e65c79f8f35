"""The alignment verdicts of all pods, kept up to date outside the hooks.

Nothing is stored: a verdict is computed from records, inventory and the pod's GPUs when it is written and
whenever one of them changes. The API server is asked for the pod's other claims if another driver serves the
node's GPUs, the kubelet if containers do not show clearly what they have. A missing answer delays no verdict,
and is asked for again, ever more rarely, while the pod lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from dranet.claims.alignment import AlignmentCandidate, Verdict, judge_pod
from dranet.claims.report import add_alignment, has_alignment, keep_alignment
from dranet.cluster.claims import key_of
from dranet.cluster.client import JsonObject
from dranet.cluster.nodes import NodeDevices
from dranet.driver.alignment.pod_gpus import GpuName, PodGpus, observe_container
from dranet.driver.publish import View
from dranet.errors import DranetError, Reason
from dranet.kubelet.pod_resources import PodDevices
from dranet.model.claim import AllocationResult, Claim, Container, PodRef, PodSandbox
from dranet.model.device import Device, DeviceKind, GpuSource, find_resource_vendor
from dranet.model.facts import Distance, Gpu
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.status import ConditionType, DeviceStatus
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import AlignmentMetrics

log = logging.getLogger(__name__)

NicKey = tuple[str, int]
"""Claim UID and position of the device in its record."""
PodVerdicts = Mapping[NicKey, Verdict]

UNKNOWN, NONE = "unknown", "none"
LEVELS = (*(level.name for level in Distance), UNKNOWN, NONE)
"""Labels of the metrics; ``none`` is a device in a pod without a GPU."""


class Verdicts:
    """The verdicts of all pods of the node. For the event loop; gauges may be read on any thread."""

    def __init__(
        self,
        gpus: PodGpus,
        read_view: Callable[[], View],
        store: ClaimStore,
        get_unhealthy: Callable[[], Collection[str]],
        metrics: AlignmentMetrics,
    ) -> None:
        self.gpus = gpus
        self._read_view = read_view
        self._store = store
        self._get_unhealthy = get_unhealthy
        self._metrics = metrics
        self._latest: dict[str, PodVerdicts] = {}
        self._left: set[str] = set()
        """Claims whose verdict in the status was left as it was."""
        self._own: set[str] = set()
        """Claims whose status this driver has completed itself. That of the others is from an earlier
        instance."""
        self._written: dict[str, PodVerdicts] = {}
        """As of the last write of a status of the pod, or attempt."""
        for level in LEVELS:
            metrics.devices.labels(level).set_function(partial(self.count_level, level))
        metrics.worse_now.set_function(self.count_worse)

    def judge(self, pod_uid: str) -> PodVerdicts:
        """Return the verdicts by what is known now; devices without one are left out."""
        nics = dict(_find_nics(self._store.get_by_pod(pod_uid)))
        gpus = self.gpus.get(pod_uid)
        candidates = tuple(self._find_candidates(pod_uid)) if gpus.gpus else ()
        judged = judge_pod([prepared.device for prepared in nics.values()], gpus, candidates)
        found = {key: verdict for key, verdict in zip(nics, judged, strict=True) if verdict is not None}
        self._count(found, self._latest.get(pod_uid, {}))
        self._latest[pod_uid] = found
        return found

    def get_latest(self, pod_uid: str) -> PodVerdicts:
        return self._latest.get(pod_uid, {})

    def is_outdated(self, pod_uid: str, now: PodVerdicts) -> bool:
        """Whether the statuses may contain something else. Statuses that are still to be written do not
        count."""
        written = self._written.get(pod_uid)
        left = [record for record in self._store.get_by_pod(pod_uid) if record.claim.uid in self._left]
        is_over = not self.gpus.is_awaited(pod_uid) and not all(map(self._is_patient, left))
        return written is not None and (written != now or is_over)

    def complete(
        self, claim: Claim, statuses: Sequence[DeviceStatus], existing: Sequence[JsonObject] = ()
    ) -> Sequence[DeviceStatus]:
        """Return the statuses of a claim with the verdicts of devices that are in their pod. Called when they
        are written.

        The GPUs of a pod never change. While a source has not answered, as after a restart, the verdict in
        the claim (``existing``) is kept. If it was certain, it is also kept while a source fails.
        """
        record = self._store.get(claim.ref.uid)
        self._left.discard(claim.ref.uid)
        if record is None or not any(map(_is_attached, statuses)):
            return statuses
        verdicts = self._written[record.pod.uid] = self.judge(record.pod.uid)
        known = self._find_standing(record, existing)
        if any(_key_of(status) in known for status in statuses):
            self._left.add(claim.ref.uid)
            return [
                keep_alignment(status, known.get(_key_of(status), {})) if _is_attached(status) else status
                for status in statuses
            ]
        self._own.add(claim.ref.uid)
        by_device = {
            (prepared.pool, prepared.device.name, prepared.share_id): verdicts.get(
                (record.claim.uid, position)
            )
            for position, prepared in enumerate(record.devices)
        }
        return [
            add_alignment(status, verdict)
            if _is_attached(status)
            and (verdict := by_device.get((status.pool, status.device, status.share_id))) is not None
            else status
            for status in statuses
        ]

    def _find_standing(
        self, record: PreparedClaim, existing: Sequence[JsonObject]
    ) -> Mapping[tuple[str, ...], JsonObject]:
        is_awaited = self.gpus.is_awaited(record.pod.uid)
        if not is_awaited and not self._is_patient(record):
            return {}
        return {key_of(entry): entry for entry in existing if has_alignment(entry, certain=not is_awaited)}

    def _is_patient(self, record: PreparedClaim) -> bool:
        return record.claim.uid not in self._own and self.gpus.may_learn(record.pod.uid)

    def keep_only(self, pod_uids: Collection[str]) -> None:
        self._latest = {uid: known for uid, known in self._latest.items() if uid in pod_uids}
        self._written = {uid: known for uid, known in self._written.items() if uid in pod_uids}
        self._left = {uid for uid in self._left if self._store.get(uid) is not None}
        self._own = {uid for uid in self._own if self._store.get(uid) is not None}

    def count_level(self, level: str) -> int:
        return sum(_level_of(verdict) == level for verdict in self._find_placed())

    def count_worse(self) -> int:
        return sum(verdict is not None and verdict.is_surely_worse for verdict in self._find_placed())

    def _find_placed(self) -> Iterator[Verdict | None]:
        for record in self._store.get_all():
            if record.netns_path:
                latest = self._latest.get(record.pod.uid, {})
                yield from (latest.get(key) for key, _ in _find_nics([record]))

    def _count(self, now: PodVerdicts, before: PodVerdicts) -> None:
        for key, verdict in now.items():
            if verdict != before.get(key):
                self._metrics.verdicts.labels(_level_of(verdict)).inc()
                was_worse = key in before and before[key].is_surely_worse
                self._metrics.worse.inc(verdict.is_surely_worse and not was_worse)

    def _find_candidates(self, pod_uid: str) -> Iterator[AlignmentCandidate]:
        """Return every offered network device that works, with the claim that has it."""
        view, unhealthy = self._read_view(), self._get_unhealthy()
        holders = {
            prepared.device.name: str(record.claim)
            for record in self._store.get_all()
            if record.pod.uid != pod_uid
            for _, prepared in _find_nics([record])
            if not prepared.device.shared
        }
        for device in view.offered.values():
            if (
                device.kind is not DeviceKind.GPU
                and device.name not in unhealthy
                and not _is_down(device, view)
            ):
                yield AlignmentCandidate(device, holders.get(device.name, ""))


def _find_nics(records: Sequence[PreparedClaim]) -> Iterator[tuple[NicKey, PreparedDevice]]:
    """Return the network devices that a pod has to itself or a link on top of; no admin access."""
    for record in records:
        for position, prepared in enumerate(record.devices):
            if prepared.plan is not None and prepared.device.kind is not DeviceKind.GPU:
                yield (record.claim.uid, position), prepared


def _is_down(device: Device, view: View) -> bool:
    """Whether the link is switched on and has no carrier; if it is switched off, its state is unknown."""
    link = view.links.get(device.ifname)
    return link is not None and link.is_up and not link.carrier


def _is_attached(status: DeviceStatus) -> bool:
    return any(c.type is ConditionType.ATTACHED and c.status for c in status.conditions)


def _key_of(status: DeviceStatus) -> tuple[str, str, str, str]:
    return status.driver, status.pool, status.device, status.share_id or ""


def _level_of(verdict: Verdict | None) -> str:
    """Return the level as in the condition: an unclear distance is unknown."""
    if verdict is None:
        return NONE
    return UNKNOWN if verdict.distance is None or verdict.is_unclear else verdict.distance.name


ASK_TIMEOUT_SECONDS = 15.0
RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
"""The last one repeats: a pod lives for weeks, and an API server may be away for an hour."""
REFUSED_SECONDS = 3600.0
"""While a permission is missing."""
MAX_WAITING = 1000
"""Pods. A node has a few hundred at most."""


class AlignmentWatch:
    """Everything but :meth:`run` may be called on any thread."""

    def __init__(
        self,
        verdicts: Verdicts,
        store: ClaimStore,
        others: NodeDevices,
        report_again: Callable[[str], None],
        read_claims: Callable[[PodRef, frozenset[str]], Awaitable[tuple[AllocationResult, ...]]],
        ask_kubelet: Callable[[PodRef], Awaitable[PodDevices]],
        call_later: Callable[[float, Callable[[str], None], str], object] | None = None,
    ) -> None:
        """
        Args:
            report_again: has the statuses of a pod's claims written again, by the pod's UID.
            read_claims: the results of a pod's claims, except those with these names; raises DranetError.
            ask_kubelet: raises DranetError.
            call_later: calls back after so many seconds, with this pod; by default the event loop's.
        """
        self._gpus = verdicts.gpus
        self._verdicts = verdicts
        self._store = store
        self._others = others
        self._report_again = report_again
        self._read_claims = read_claims
        self._ask_kubelet = ask_kubelet
        self._loop = asyncio.get_running_loop()
        self._call_later = call_later or self._loop.call_later
        self._to_judge = _Waiting()
        self._to_ask = _Waiting()
        self._tries: dict[str, int] = {}
        """Pods that were asked about without success; they are asked about again later."""
        self._complaint = ""
        self._seen_gpus: tuple[Gpu, ...] = ()
        self._gpus.listeners.append(self.look)
        others.listeners.append(self._slices_changed)

    def look(self, pod_uid: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._to_judge.add, pod_uid)

    def container_seen(self, pod: PodSandbox, container: Container) -> None:
        """Observe a container of a pod that has claims. Called in a hook: asks nothing and never fails."""
        try:
            self._gpus.note_container(pod.uid, observe_container(container))
        except Exception:
            log.exception("bug in reading the GPUs of a container", extra={"context": {"pod": pod.uid}})

    def _slices_changed(self) -> None:
        for pod_uid in self._pods():
            self._gpus.changed(pod_uid)
            self.look(pod_uid)

    def scanned(self, gpus: tuple[Gpu, ...]) -> None:
        if gpus != self._seen_gpus:
            self._seen_gpus = gpus
            for pod_uid in self._pods():
                self._gpus.changed(pod_uid)

    def _pods(self) -> Iterable[str]:
        return dict.fromkeys(record.pod.uid for record in self._store.get_all())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work(self._to_judge, self._judge), name="alignment: judge")
            tasks.create_task(self._work(self._to_ask, self._ask), name="alignment: ask")

    async def _work(self, waiting: _Waiting, work: Callable[[str], Awaitable[None]]) -> None:
        while True:
            pod_uid = await waiting.take()
            try:
                await work(pod_uid)
            except Exception:  # a verdict must not end the driver
                log.exception("bug in a pod's verdict", extra={"context": {"pod": pod_uid}})

    async def _judge(self, pod_uid: str) -> None:
        self._forget_ended()
        records = self._store.get_by_pod(pod_uid)
        if not any(record.plans and record.netns_path for record in records):
            return
        if self._gpus.has_others(pod_uid):
            self._others.want()
        if self._verdicts.is_outdated(pod_uid, self._verdicts.judge(pod_uid)):
            self._report_again(pod_uid)
        is_unclear = self._gpus.is_missing_claims(pod_uid) or self._gpus.may_kubelet_know(pod_uid)
        if is_unclear and pod_uid not in self._tries:
            self._to_ask.add(pod_uid)

    def _forget_ended(self) -> None:
        living = set(self._pods())
        self._gpus.keep_only(living)
        self._verdicts.keep_only(living)
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in living}

    async def _ask(self, pod_uid: str) -> None:
        records = self._store.get_by_pod(pod_uid)
        if not records:
            return
        pod, names = records[0].pod, frozenset(record.claim.name for record in records)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
                if self._gpus.is_missing_claims(pod_uid):
                    await self._ask_server(pod, names)
                if self._gpus.may_kubelet_know(pod_uid):
                    await self._hear_kubelet(pod)
        except (DranetError, TimeoutError) as error:
            self._try_again(pod_uid, error)
        else:
            self._tries.pop(pod_uid, None)
        self.look(pod_uid)  # what waited for the answer may go on

    async def _ask_server(self, pod: PodRef, names: frozenset[str]) -> None:
        try:
            results = await self._read_claims(pod, names)
        except DranetError as error:
            self._gpus.note_claims(pod.uid, (), f"the pod's other claims cannot be read ({error.reason})")
            if self._gpus.may_kubelet_know(pod.uid):
                await self._hear_kubelet(pod)
            if self._gpus.is_missing_claims(pod.uid):
                raise
        else:
            self._gpus.note_claims(pod.uid, results)

    async def _hear_kubelet(self, pod: PodRef) -> None:
        try:
            found = await self._ask_kubelet(pod)
        except (DranetError, TimeoutError, asyncio.CancelledError):
            self._gpus.note_mute_kubelet(pod.uid)
            raise
        named = ((find_resource_vendor(resource), device) for resource, device in found.ids)
        ids = [GpuName(GpuSource.POD_RESOURCES, vendor, device) for vendor, device in named if vendor]
        self._gpus.note_kubelet(pod.uid, ids, found.results)

    def _try_again(self, pod_uid: str, error: Exception) -> None:
        complaint = str(error) or "no answer in time"
        if complaint != self._complaint:
            log.warning("the GPUs of a pod are not all known: %s", complaint)
        self._complaint = complaint
        tries = self._tries.get(pod_uid, 0)
        self._tries[pod_uid] = tries + 1
        is_refused = isinstance(error, DranetError) and error.reason is Reason.API_FORBIDDEN
        seconds = REFUSED_SECONDS if is_refused else RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
        self._call_later(seconds, self._to_ask.add, pod_uid)


class _Waiting:
    """Pods to look at, each once, the oldest first. For the event loop."""

    def __init__(self) -> None:
        self._pods: dict[str, None] = {}
        self._filled = asyncio.Event()

    def add(self, pod_uid: str) -> None:
        if len(self._pods) < MAX_WAITING:
            self._pods[pod_uid] = None
            self._filled.set()

    async def take(self) -> str:
        while not self._pods:
            self._filled.clear()
            await self._filled.wait()
        pod_uid = next(iter(self._pods))
        del self._pods[pod_uid]
        return pod_uid
