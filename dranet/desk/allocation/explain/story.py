"""What happened on one node, as values: how many devices each step took from each request, what was left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dranet.desk.allocation.outcome import Ending, Removal
from dranet.desk.allocation.taints import AppliedTaint, DeviceId


@dataclass(frozen=True, slots=True)
class Note:
    """One device, and what is to be said of it at this step."""

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
    """Of the selector or the constraint, among those of its owner."""
    expression: str = ""
    """Of a selector."""
    taint: AppliedTaint | None = None


@dataclass(frozen=True, slots=True)
class RequestStory:
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
    """What it could have where the search stood."""
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
    """A value of a constraint's attribute, and who has it: devices by the name of the request."""

    value: str
    """Empty for the devices that lack the attribute."""
    devices: Mapping[str, tuple[DeviceId, ...]]

    @property
    def requests(self) -> set[str]:
        """Those that have a device of this value."""
        return {name.partition("/")[0] for name, devices in self.devices.items() if devices}


@dataclass(frozen=True, slots=True)
class ConstraintStory:
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
class Given:
    """A device that a request has, or would get."""

    claim: str
    request: str
    id: DeviceId


@dataclass(frozen=True, slots=True)
class NodeStory:
    """One node."""

    node: str
    ending: Ending
    reached: int
    """How many requests had what they want when the search came as far as it ever did."""
    pools: tuple[tuple[str, int, str], ...]
    """Pool, number of its devices here, and its defect."""
    requests: tuple[RequestStory, ...] = ()
    constraints: tuple[ConstraintStory, ...] = ()
    given: tuple[Given, ...] = ()
    failure: Failure | None = None

    @property
    def blocked(self) -> tuple[RequestStory, ...]:
        """The alternatives of the request that the search could not get past."""
        return tuple(request for request in self.requests if request.blocked)
