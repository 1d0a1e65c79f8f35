"""The alignment verdicts of all pods: from records, inventory and the pod's GPUs to conditions, data and
metrics.

Nothing is stored. A verdict is computed when it is written and whenever its inputs change, so a restart
yields the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from dranet.claims.alignment import AlignmentCandidate, Verdict, judge_pod
from dranet.claims.report import add_alignment, has_alignment, keep_alignment
from dranet.cluster.claim_status import key_of
from dranet.cluster.client import JsonObject
from dranet.driver.alignment.pod_gpus import PodGpus
from dranet.driver.publish import View
from dranet.model.claim import Claim
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.status import ConditionType, DeviceStatus
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import AlignmentMetrics

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
        """Return the verdicts as judged last."""
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
        """Forget the pods that have ended."""
        self._latest = {uid: known for uid, known in self._latest.items() if uid in pod_uids}
        self._written = {uid: known for uid, known in self._written.items() if uid in pod_uids}
        self._left = {uid for uid in self._left if self._store.get(uid) is not None}
        self._own = {uid for uid in self._own if self._store.get(uid) is not None}

    def count_level(self, level: str) -> int:
        """Return how many devices in pods are now at this level of :data:`LEVELS`."""
        return self._count_levels()[level]

    def count_worse(self) -> int:
        """Return how many devices are in pods now although the node had a closer one."""
        return sum(
            key in self._latest.get(record.pod.uid, {}) and self._latest[record.pod.uid][key].is_surely_worse
            for record in self._store.get_all()
            if record.netns_path
            for key, _ in _find_nics([record])
        )

    def _count_levels(self) -> Counter[str]:
        latest, placed = self._latest, (r for r in self._store.get_all() if r.netns_path)
        return Counter(
            _level_of(latest.get(record.pod.uid, {}).get(key))
            for record in placed
            for key, _ in _find_nics([record])
        )

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
