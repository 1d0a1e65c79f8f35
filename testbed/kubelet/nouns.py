"""The nouns of the stand-in kubelet's modules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto
from typing import Any

JsonObject = dict[str, Any]


class PluginFailure(Exception):
    """A plugin cannot be registered, called or believed; the text is the kubelet's."""


class NotServed(PluginFailure):
    """The plugin does not have the service that was asked for."""


class PodFailure(Exception):
    """One try to start or end a pod failed; it is tried again.

    ``reason`` is the Event's. ``container`` and ``waiting_reason`` are what the pod's status shows.
    """

    def __init__(
        self, reason: str, message: str, *, container: str = "", waiting_reason: str = "ContainerCreating"
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.container = container
        self.waiting_reason = waiting_reason


@dataclass(frozen=True, slots=True)
class KubeletDevice:
    """One prepared device of a claim, as a driver answered it."""

    driver: str
    pool: str
    device: str
    request_names: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()

    @property
    def resource_id(self) -> str:
        """How ``allocatedResourcesStatus`` names it: the first CDI id, else driver/pool/device."""
        return self.cdi_ids[0] if self.cdi_ids else f"{self.driver}/{self.pool}/{self.device}"

    def serves(self, request: str) -> bool:
        """Whether a container that asks for ``request`` (empty: the whole claim) gets it."""
        return not request or not self.request_names or request in self.request_names


class PodStage(IntEnum):
    """How far a pod has come; only ever grows."""

    PENDING = 0
    PREPARED = 1
    """Every driver answered; the sandbox has not been asked for yet."""
    SANDBOX = 2
    RUNNING = 3
    GONE = 4
    """Sandbox removed, claims unprepared, object deleted."""


class Phase(Enum):
    """The parts of a pod's start that are timed."""

    PREPARE = auto()
    SANDBOX = auto()
    CONTAINERS = auto()


@dataclass(frozen=True, slots=True)
class PodTimings:
    """Seconds that each phase took in the try in which it first succeeded; ``None``: not yet."""

    prepare_seconds: float | None = None
    sandbox_seconds: float | None = None
    containers_seconds: float | None = None
    tries: int = 0

    def with_phase(self, phase: Phase, seconds: float) -> PodTimings:
        """Note a success, unless there was one before."""
        if phase is Phase.PREPARE:
            return replace(self, prepare_seconds=_first(self.prepare_seconds, seconds))
        if phase is Phase.SANDBOX:
            return replace(self, sandbox_seconds=_first(self.sandbox_seconds, seconds))
        return replace(self, containers_seconds=_first(self.containers_seconds, seconds))


def _first(known: float | None, seconds: float) -> float:
    return seconds if known is None else known


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """The kubelet's times, by default those of Kubernetes 1.34 and later, except the pod retry.

    ``known_services`` and ``known_health_services`` are what this kubelet speaks: drop the first of them to
    play an old one.
    """

    known_services: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    known_health_services: tuple[str, ...] = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
    """Newest first; the first that the plugin advertises is watched."""
    asks_unadvertised_health: bool = False
    """As Kubernetes 1.34 to 1.36: watch although the plugin advertises no health, and ask again even after
    UNIMPLEMENTED."""
    pod_selector: str = ""
    """Labels of the pods that it runs; another kubelet runs the other pods of its node."""
    dial_seconds: float = 10.0
    get_info_seconds: float = 1.0
    notify_seconds: float = 5.0
    registration_retry_seconds: float = 0.5
    registration_retry_cap_seconds: float = 120.0
    call_seconds: float = 45.0
    wipe_slices_after_seconds: float = 30.0
    pod_retry_seconds: float = 0.5
    """The real one waits for its next sync, up to 90 seconds."""
    pod_retry_cap_seconds: float = 5.0
    health_retry_seconds: float = 5.0
    health_lease_seconds: float = 30.0
    """How long a device's health is valid when the plugin sets no timeout."""
