"""Build ``pod.status`` for a pod on the stand-in's node. Pure; times are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from testbed.kubelet.nouns import JsonObject, PodFailure
from testbed.kubelet.podspec import ContainerView, PodView
from testbed.runtime.contract import RunningContainer


@dataclass(frozen=True, slots=True)
class StartedContainer:
    """A running container, its id as Kubernetes writes it, and the time it was started."""

    running: RunningContainer
    container_id: str
    started_at: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of the pod on this node."""

    sandbox_ready: bool = False
    containers: Mapping[str, StartedContainer] = field(default_factory=dict)
    failure: PodFailure | None = None
    health: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict)
    """``allocatedResourcesStatus`` by container name."""


def build_status(pod: PodView, progress: Progress, now: str) -> JsonObject:
    """The fields of ``status`` that a kubelet owns; conditions of others are kept."""
    ready = bool(pod.containers) and all(c.name in progress.containers for c in pod.containers)
    return {
        "phase": "Running" if progress.containers else "Pending",
        "startTime": pod.status.get("startTime", now),
        "conditions": _build_conditions(
            pod.status.get("conditions", ()),
            {
                "PodReadyToStartContainers": progress.sandbox_ready,
                "Initialized": True,
                "ContainersReady": ready,
                "Ready": ready,
            },
            now,
        ),
        "containerStatuses": [_build_container(container, progress) for container in pod.containers],
    }


def _build_conditions(present: Sequence[JsonObject], ours: Mapping[str, bool], now: str) -> list[JsonObject]:
    known = {condition["type"]: condition for condition in present}
    foreign = [condition for condition in present if condition["type"] not in ours]
    return foreign + [_build_condition(name, holds, known.get(name), now) for name, holds in ours.items()]


def _build_condition(name: str, holds: bool, before: JsonObject | None, now: str) -> JsonObject:
    status = "True" if holds else "False"
    same = before is not None and before["status"] == status
    since = before["lastTransitionTime"] if before is not None and same else now
    condition = {"type": name, "status": status, "lastTransitionTime": since}
    if not holds and name in ("ContainersReady", "Ready"):
        condition["reason"] = "ContainersNotReady"
    return condition


def _build_container(container: ContainerView, progress: Progress) -> JsonObject:
    started = progress.containers.get(container.name)
    status: JsonObject = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": started is not None,
        "started": started is not None,
        "restartCount": 0,
        "state": _build_state(container.name, started, progress.failure),
    }
    if started is not None:
        status["containerID"] = started.container_id
    if container.name in progress.health:
        status["allocatedResourcesStatus"] = list(progress.health[container.name])
    return status


def _build_state(name: str, started: StartedContainer | None, failure: PodFailure | None) -> JsonObject:
    if started is not None:
        return {"running": {"startedAt": started.started_at}}
    if failure is None or failure.container not in ("", name):
        return {"waiting": {"reason": "ContainerCreating"}}
    if failure.container:
        return {"waiting": {"reason": failure.waiting_reason, "message": failure.message[:1024]}}
    return {"waiting": {"reason": failure.waiting_reason}}
