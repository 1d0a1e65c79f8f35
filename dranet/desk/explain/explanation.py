"""An explanation as frozen values: what happened on each node, and the conclusion. ``dranet explain`` prints
it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from dranet.desk.allocation.outcome import AttemptResult
from dranet.desk.allocation.selection import Removal
from dranet.desk.allocation.taints import AppliedTaint, DeviceId
from dranet.desk.explain.blockers import Miss
from dranet.desk.explain.subject import Subject
from dranet.desk.templates.trial import Distances
from dranet.model.facts import Distance


@dataclass(frozen=True, slots=True)
class Note:
    """One device, and a remark about it at this step."""

    id: DeviceId
    text: str = ""

    @property
    def name(self) -> str:
        return self.id[2]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step took from a request."""

    removal: Removal
    what: str
    """Names the step: the selector, the taint, the constraint."""
    devices: tuple[Note, ...]
    index: int = 0
    """Place of the selector or the constraint among those of its owner."""
    expression: str = ""
    """The CEL expression, for a selector."""
    taint: AppliedTaint | None = None


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One request, or one of its prioritised alternatives."""

    claim: str
    name: str
    """``req`` or ``req/sub``."""
    class_name: str
    wanted: int | None
    """``None`` for all devices that match."""
    seen: int
    """Devices published for this node."""
    steps: tuple[Step, ...]
    left: tuple[DeviceId, ...]
    """The devices that it could have at that point of the search."""
    satisfied: bool
    blocked: bool
    """It belongs to the request that the search could not get past."""

    @property
    def request(self) -> str:
        return self.name.partition("/")[0]

    def removed_by(self, removal: Removal) -> tuple[Note, ...]:
        return tuple(note for step in self.steps if step.removal is removal for note in step.devices)


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A value of a constraint's attribute, and the devices that have it, by the name of the request."""

    value: str
    """Empty for the devices that lack the attribute."""
    devices: Mapping[str, tuple[DeviceId, ...]]

    @property
    def requests(self) -> set[str]:
        """Those that have a device of this value."""
        return {name.partition("/")[0] for name, devices in self.devices.items() if devices}


@dataclass(frozen=True, slots=True)
class ConstraintReport:
    """A constraint that stood in the way, with the values on both sides."""

    claim: str
    index: int
    attribute: str
    distinct: bool
    requests: tuple[str, ...]
    rows: tuple[ValueRow, ...]

    @property
    def common(self) -> tuple[str, ...]:
        """The values that some device of every request has, in one or another alternative of it."""
        every = {name.partition("/")[0] for name in self.requests}
        return tuple(row.value for row in self.rows if row.value and row.requests == every)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the attempt broke off."""

    cause: str
    """The name of a :class:`dranet.desk.allocation.failures.Cause`."""
    message: str
    reason: str
    """The message without what it is about."""
    hint: str
    request: str
    device: str


@dataclass(frozen=True, slots=True)
class DevicePair:
    """A NIC with a GPU."""

    nic: DeviceId
    gpu: DeviceId
    distance: Distance | None


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device that a request has, or would get."""

    claim: str
    request: str
    id: DeviceId
    is_admin: bool = False
    """Admin access: the claim watches the device and does not use it."""
    pair: DevicePair | None = None
    """A NIC in a pod with GPUs has the GPU that it is for."""


Taken = tuple[AllocatedDevice, ...]


@dataclass(frozen=True, slots=True)
class Alignment:
    """The distances of a pod's NICs to its GPUs, and the best that the node could give."""

    taken: Taken
    """All devices of the claims, each NIC with its GPU."""
    distances: Distances
    best: Distances
    """The best of all devices of the node, held by a claim or not."""
    better: tuple[DevicePair, ...] = ()
    """Pairs at a smaller distance; none where these are the best."""
    holders: tuple[str, ...] = ()
    """The claims that have devices of :attr:`better`; empty: they are free."""
    fix: str = ""
    """The claim that gets a better pair now."""
    assumption: str = ""
    """The platform by which NUMA nodes of GPUs are assumed, with the source; empty: they are published."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node."""

    node: str
    ending: AttemptResult
    reached: int
    """How many requests had what they want when the search came as far as it ever did."""
    pools: tuple[tuple[str, int, str], ...]
    """Pool, number of its devices here, and its defect."""
    requests: tuple[RequestReport, ...] = ()
    constraints: tuple[ConstraintReport, ...] = ()
    allocated: Taken = ()
    failure: Failure | None = None
    alignment: Alignment | None = None
    """``None`` without a NIC and a GPU."""

    @property
    def blocked(self) -> tuple[RequestReport, ...]:
        """The alternatives of the request that the search could not get past."""
        return tuple(request for request in self.requests if request.blocked)


class Conclusion(Enum):
    """The one-word answer."""

    ALLOCATED = "allocated"
    """All of its claims have their devices."""
    POSSIBLE = "possible"
    """Some node could give them now."""
    IMPOSSIBLE = "impossible"
    """No node can."""
    BROKEN = "broken"
    """An error ends every attempt, on whatever node."""
    UNKNOWN = "unknown"
    """Something is asked for, or published, that cannot be judged here."""

    @property
    def is_good(self) -> bool:
        return self in (Conclusion.ALLOCATED, Conclusion.POSSIBLE)


Excluded = tuple[tuple[str, tuple[str, ...]], ...]
"""Reasons for which nodes are not looked at, each with the nodes."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with the same story; ``story`` and ``misses`` are those of the first."""

    report: NodeReport
    nodes: tuple[str, ...]
    misses: tuple[Miss, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    subject: Subject
    conclusion: Conclusion
    headline: str
    """One clause."""
    fix: str
    """What would most likely help; may be empty."""
    allocated: Taken
    """What the claims have that are allocated already."""
    groups: tuple[NodeGroup, ...]
    """The most promising first."""
    excluded: Excluded
    remarks: tuple[str, ...] = ()
    """What to know of the answer."""
    alignment: Alignment | None = None
    """Where all claims are allocated, on one node."""


def group_reports(reports: Iterable[NodeReport]) -> list[list[NodeReport]]:
    """Group reports that differ only in names and values."""
    groups: dict[object, list[NodeReport]] = {}
    for report in reports:
        groups.setdefault(_outline(report), []).append(report)
    return list(groups.values())


def _outline(report: NodeReport) -> object:
    """Which steps, and how many devices at each."""
    return (
        report.ending,
        report.reached,
        tuple((count, defect) for _, count, defect in report.pools),
        tuple(
            (
                r.claim,
                r.name,
                r.seen,
                r.satisfied,
                len(r.left),
                tuple((s.removal, s.what, len(s.devices)) for s in r.steps),
            )
            for r in report.requests
        ),
        tuple(constraint.index for constraint in report.constraints),
        tuple((allocated.claim, allocated.request, allocated.id[0]) for allocated in report.allocated),
        (report.alignment.distances, report.alignment.best) if report.alignment else None,
        (report.failure.cause, report.failure.request) if report.failure else None,
    )
