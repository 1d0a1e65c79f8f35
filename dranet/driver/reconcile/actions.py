"""What reconcile does, and why: each action has one line in the log and one count."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum

from dranet.model.plan import PreparedClaim
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)


class Action(StrEnum):
    """What was done; the ``action`` label of the metric."""

    ADOPTED = "adopted"
    ATTACHED = "attached"
    RELEASED = "released"
    FINISHED = "finished"
    """What a Prepare had begun: the files that containers mount."""
    FORGOTTEN = "forgotten"
    """Given back and deleted, as by an Unprepare."""
    REMOVED = "removed"
    """Files that no record owns."""
    FAILED = "failed"
    """Tried again at the next occasion."""


class Why(StrEnum):
    """What was found; the ``reason`` label of the metric."""

    POD_RUNS = "pod-runs"
    """Its devices are in it."""
    HOOK_MISSED = "hook-missed"
    """Its sandbox was started without us."""
    DEVICE_MISSING = "device-missing"
    """Somebody has taken a device away."""
    SANDBOX_GONE = "sandbox-gone"
    """The runtime does not have it any more."""
    NAMESPACE_GONE = "namespace-gone"
    """The runtime has not told of its end, or nobody is there who would."""
    CAME_BACK = "came-back"
    """On the host, as the kernel brings a link back from a dead namespace, and said to be in no pod."""
    FILES_MISSING = "files-missing"
    REBOOTED = "rebooted"
    CLAIM_DELETED = "claim-deleted"
    CLAIM_MOVED = "claim-moved"
    """Deallocated, or given other devices."""
    NO_RECORD = "no-record"


_WORDS = {
    Why.POD_RUNS: "its pod runs",
    Why.HOOK_MISSED: "its pod runs, and was started without us",
    Why.DEVICE_MISSING: "its pod runs, and lacks a device",
    Why.SANDBOX_GONE: "its pod sandbox is gone",
    Why.NAMESPACE_GONE: "the network namespace of its pod is gone",
    Why.CAME_BACK: "its device is on the host, and not as it was",
    Why.FILES_MISSING: "files that its containers mount are missing",
    Why.REBOOTED: "prepared before the last reboot",
    Why.CLAIM_DELETED: "the API server has no such claim, and no pod sandbox has its devices",
    Why.CLAIM_MOVED: "the claim is not allocated these devices any more, and no pod sandbox has them",
    Why.NO_RECORD: "no claim is prepared that they belong to",
}


ActionListener = Callable[[str, str, str, str], None]
"""Called with each action: kind of Event, word, what it regards, and a sentence."""


class ActionLog:
    """Counts and logs."""

    def __init__(self, metrics: Metrics, on_action: ActionListener | None = None) -> None:
        self._metrics = metrics.reconcile
        self._counter = metrics.reconcile.actions
        self._failures: dict[str, str] = {}
        """By claim UID, as said last: what fails again in the same way is counted, and not said again."""
        self._on_action = on_action

    def note(self, action: Action, why: Why, record: PreparedClaim) -> None:
        """Something was done for a claim."""
        self._failures.pop(record.claim.uid, None)
        self._counter.labels(action, why).inc()
        context = {"claim": record.claim, "pod": record.pod}
        log.info("%s: %s", action, _WORDS[why], extra={"context": context})
        self._report("Normal", f"Reconciled: {action}", f"claim {record.claim}", _WORDS[why])

    def note_files(self, kind: str, claim_uid: str) -> None:
        """Files of a claim that is not prepared were removed."""
        self._counter.labels(Action.REMOVED, Why.NO_RECORD).inc()
        context = {"claim_uid": claim_uid, "files": kind}
        log.info("%s: %s", Action.REMOVED, _WORDS[Why.NO_RECORD], extra={"context": context})

    def note_failure(self, why: Why, record: PreparedClaim, error: Exception | str) -> bool:
        """It did not succeed. Returns whether that is news."""
        self._counter.labels(Action.FAILED, why).inc()
        is_news = self._failures.get(record.claim.uid) != str(error)
        self._failures[record.claim.uid] = str(error)
        if is_news:
            context = {"claim": record.claim, "pod": record.pod}
            log.warning("%s: %s: %s", Action.FAILED, _WORDS[why], error, extra={"context": context})
            about = f"claim {record.claim}"
            self._report("Warning", f"Reconciled: {Action.FAILED}", about, f"{_WORDS[why]}: {error}")
        return is_news

    def note_look(self, has_failed: bool, seconds: float) -> None:
        """A regular look has ended, after so many seconds."""
        self._metrics.looked(has_failed, seconds)

    def keep_only(self, claim_uids: set[str]) -> None:
        """The others are not prepared any more."""
        self._failures = {uid: said for uid, said in self._failures.items() if uid in claim_uids}

    def _report(self, kind: str, word: str, about: str, text: str) -> None:
        if self._on_action is not None:
            self._on_action(kind, word, about, text)
