"""The nouns of the fleet view: a node with its driver, devices, claims and problems."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct, field

from dranet.desk.kubeapi.objects import JsonObject
from dranet.model.status import ConditionReason, ConditionType

DeviceKey = tuple[str, str, str]
"""Driver, pool, device."""


class ProblemSeverity(IntEnum):
    """The worse first."""

    PROBLEM = 0
    """Pods do not start there, or do not get what they were given."""
    WARNING = 1
    """Something to look at; pods run."""

    def __str__(self) -> str:
        return self.name.lower()


class Problem(Struct, frozen=True):
    """One thing that is wrong."""

    severity: ProblemSeverity
    reason: str
    """CamelCase, for programs."""
    text: str


class DriverPod(Struct, frozen=True):
    """A pod of the DaemonSet."""

    name: str
    version: str
    is_ready: bool
    is_ending: bool
    trouble: str = ""
    """Why it is not ready, as far as its status has it."""


class Use(Struct, frozen=True):
    """How much of one kind is offered, and how much of it claims have."""

    allocated: int = 0
    offered: int = 0


class ClaimDevice(Struct, frozen=True):
    """A device of the driver in a claim, with the conditions that the driver has written."""

    claim: str
    """``namespace/name``."""
    device: DeviceKey
    users: tuple[str, ...]
    """The pods of the claim, ``namespace/name``."""
    conditions: Mapping[ConditionType, JsonObject]
    bandwidth: int | None = None
    """Bits per second that the allocation took; ``None`` for a device that the claim has alone."""

    def holds(self, condition: ConditionType) -> bool:
        return (self.conditions.get(condition) or {}).get("status") == "True"

    @property
    def is_misaligned(self) -> bool:
        return (self.conditions.get(ConditionType.ALIGNED) or {}).get("status") == "False"

    @property
    def is_released(self) -> bool:
        ready = self.conditions.get(ConditionType.READY) or {}
        return ready.get("reason") == ConditionReason.DEVICE_RELEASED


class FleetNode(Struct, frozen=True):
    """One node."""

    name: str
    body: JsonObject | None
    """The Node; ``None`` where only slices name it."""
    slices: tuple[JsonObject, ...] = ()
    """Those of the driver."""
    pods: tuple[DriverPod, ...] | None = ()
    """``None`` where the driver's pods are not known."""
    nics: Use = field(default_factory=Use)
    gpus: Use = field(default_factory=Use)
    bandwidth: Use = field(default_factory=Use)
    """Bits per second, where the driver publishes them as a capacity."""
    devices: tuple[ClaimDevice, ...] = ()
    """Those of the driver that claims have."""
    taints: tuple[tuple[str, JsonObject], ...] = ()
    """Device and taint, of slices and of DeviceTaintRules."""
    events: tuple[JsonObject, ...] = ()
    """Warnings of the driver about this node, its pods and its claims."""
    miscabled: tuple[str, ...] = ()
    """One line for each cable that is not where those of its unit are, and the fix."""
    is_known: bool = True
    """The Nodes were read and this is one of them, or they were not read."""
    problems: tuple[Problem, ...] = ()

    @property
    def version(self) -> str:
        """``0.1.0``, or ``0.1.0, 0.2.0`` during an update; empty without a pod."""
        return ", ".join(sorted({pod.version for pod in self.pods or ()}))

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(device.claim for device in self.devices)

    @property
    def attached_claims(self) -> frozenset[str]:
        """Claims of which every device is ready."""
        waiting = {d.claim for d in self.devices if not d.holds(ConditionType.READY)}
        return self.claims - waiting

    @property
    def prepared_claims(self) -> frozenset[str]:
        waiting = {d.claim for d in self.devices if not d.holds(ConditionType.PREPARED)}
        return self.claims - waiting

    @property
    def misaligned_pods(self) -> tuple[str, ...]:
        pods = {pod for d in self.devices if d.is_misaligned for pod in d.users or (f"claim {d.claim}",)}
        return tuple(sorted(pods))

    @property
    def severity(self) -> ProblemSeverity | None:
        return min((problem.severity for problem in self.problems), default=None)
