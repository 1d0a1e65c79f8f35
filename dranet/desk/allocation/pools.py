"""ResourceSlices -> the pools, counters and devices that an allocator may use for one node.

:class:`Inventory` reads the slices of the whole cluster once; :meth:`Inventory.pools_for` picks what reaches
a node. The rules are those of ``staging/src/k8s.io/dynamic-resource-allocation/structured`` of Kubernetes.
Counters are those of partitionable devices (KEP-4815): a device takes all that it names, a shared device
takes its part once, however many claims have a share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dranet.cel import CelError
from dranet.cel.values import parse_quantity
from dranet.desk.allocation.capacity import format_amount
from dranet.desk.allocation.devices import Candidate, CounterId, Node, Reach, parse_device
from dranet.desk.allocation.taints import TaintRule
from dranet.desk.kubeapi.objects import JsonObject


@dataclass(frozen=True, slots=True)
class CounterShortage:
    """Which counter is too little."""

    counter: CounterId
    asked: int
    free: int

    def __str__(self) -> str:
        (counters, name), free = self.counter, max(self.free, 0)
        return f"{counters}.{name}: {format_amount(free)} left, {format_amount(self.asked)} needed"


class InvalidCounters(Exception):
    """The pool's counters contradict each other; the message describes how."""


def parse_counters(sets: Iterable[JsonObject]) -> dict[CounterId, int]:
    """All counters of a pool. Raises :class:`InvalidCounters`."""
    counters: dict[CounterId, int] = {}
    names: set[str] = set()
    for entry in sets:
        if entry["name"] in names:
            raise InvalidCounters(f"counter set {entry['name']} twice")
        names.add(entry["name"])
        for name, counter in (entry.get("counters") or {}).items():
            try:
                counters[entry["name"], name] = parse_quantity(str(counter["value"]))
            except CelError as error:
                raise InvalidCounters(f"counter {entry['name']}.{name}: {error.message}") from error
    return counters


def check_references(counters: Mapping[CounterId, int], devices: Iterable[Candidate]) -> None:
    """Raises :class:`InvalidCounters` if a device takes of what is not there."""
    for device in devices:
        for (name, counter), _ in device.counters:
            if (name, counter) not in counters:
                raise InvalidCounters(
                    f"device {device.id[2]} takes of the counter {name}.{counter}, which is nowhere"
                )


def subtract(counters: Mapping[CounterId, int], devices: Iterable[Candidate]) -> dict[CounterId, int]:
    """What the devices leave; less than nothing is no more than nothing."""
    left = Counter(dict(counters))
    for device in devices:
        for counter, amount in device.counters:
            left[counter] -= amount
    return dict(left)


def find_counter_shortage(
    available: Mapping[CounterId, int], taken: Mapping[CounterId, int], device: Candidate
) -> CounterShortage | None:
    """The first counter that the device would make negative; ``taken`` is what this run has of them."""
    for counter, amount in device.counters:
        free = available.get(counter, 0) - taken.get(counter, 0)
        if amount > free:
            return CounterShortage(counter, amount, free)
    return None


PoolId = tuple[str, str]
"""Driver and pool."""

_KNOWN = frozenset(
    {"driver", "pool", "nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection", "devices"}
    | {"sharedCounters", "skipNodeOperations"}
)
_KNOWN_OF_COUNTERS = frozenset({"value"})


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """What of a pool reaches the node; with a defect nothing may be taken from it."""

    generation: Generation
    every: tuple[Candidate, ...]
    """In slices that reach the node, in the order of preference."""
    elsewhere: frozenset[Candidate]
    """Those of them that are not the node's."""
    incomplete: str = ""
    """Why, if the driver has not published all of it (yet)."""
    invalid: str = ""
    """Why, if what is published contradicts itself."""

    @property
    def id(self) -> PoolId:
        return self.generation.driver, self.generation.name

    @property
    def devices(self) -> tuple[Candidate, ...]:
        """The node's, in the order of preference."""
        return tuple(device for device in self.every if device not in self.elsewhere)

    @property
    def defect(self) -> str:
        """Why nothing may be taken from it."""
        if self.incomplete:
            return f"incomplete: {self.incomplete}"
        return f"invalid: {self.invalid}" if self.invalid else ""

    def __str__(self) -> str:
        return "/".join(self.id)


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """One slice."""

    name: str
    expected: int
    """``resourceSliceCount``: how many slices the pool has according to the driver."""
    reach: Reach
    per_device: bool
    devices: tuple[Candidate, ...]

    def reaches(self, node: Node) -> bool:
        if self.per_device:
            return any(device.reach.reaches(node) for device in self.devices)
        return self.reach.reaches(node)


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """The slices of one pool that were published together, over all nodes."""

    driver: str
    name: str
    slices: tuple[_Slice, ...]
    """By name."""
    counters: Mapping[CounterId, int]
    invalid: str
    """What is wrong with the counters."""

    def iter_devices(self) -> Iterator[Candidate]:
        for entry in self.slices:
            yield from entry.devices

    def for_node(self, node: Node, *, is_newest: bool) -> Pool | None:
        """``None`` if a newer one replaces it. One that is complete on the node itself is in use until a
        newer one reaches the node: the slices of other nodes are then not looked at."""
        reaching = [entry for entry in self.slices if entry.reaches(node)]
        every = tuple(device for entry in reaching for device in entry.devices)
        elsewhere = frozenset(device for device in every if not device.reach.reaches(node))
        expected = reaching[0].expected
        if len(reaching) != expected:
            if not is_newest:
                return None
            if len(self.slices) != expected:
                incomplete = f"{len(self.slices)} of {expected} slices"
                return Pool(self, every, elsewhere, incomplete=incomplete)
        return Pool(self, every, elsewhere, invalid=_find_double(every) or self.invalid)


@dataclass(slots=True)
class Inventory:
    """The slices of a cluster, by pool."""

    pools: dict[PoolId, tuple[Generation, ...]] = field(default_factory=dict)
    """The newest generation of each first; older ones are leftovers, or other nodes' beginnings."""

    @classmethod
    def read(cls, slices: Iterable[JsonObject], rules: Sequence[TaintRule] = ()) -> Inventory:
        """All slices, whatever their node, with the taints that DeviceTaintRules add to their devices."""
        groups: dict[PoolId, list[JsonObject]] = defaultdict(list)
        for entry in slices:
            groups[entry["spec"]["driver"], entry["spec"]["pool"]["name"]].append(entry)
        return cls({key: tuple(_read_pool(key, groups[key], rules)) for key in sorted(groups)})

    def pools_for(self, node: Node) -> tuple[Pool, ...]:
        """By driver and name; those with a device that must be readied before a pod is bound come last."""
        found = (_find_pool(generations, node) for generations in self.pools.values())
        pools = [pool for pool in found if pool is not None]
        return tuple(sorted(pools, key=lambda pool: not pool.defect and _needs_binding(pool)))


def _find_pool(generations: Sequence[Generation], node: Node) -> Pool | None:
    """Find the pool in the newest generation that has a slice for the node."""
    for generation in generations:
        if any(entry.reaches(node) for entry in generation.slices):
            return generation.for_node(node, is_newest=generation is generations[0])
    return None


def _needs_binding(pool: Pool) -> bool:
    return any("bindingConditions" in device.binding for device in pool.every)


def _read_pool(key: PoolId, bodies: Sequence[JsonObject], rules: Sequence[TaintRule]) -> Iterator[Generation]:
    by_number: dict[int, list[JsonObject]] = defaultdict(list)
    for body in sorted(bodies, key=lambda b: str(b["metadata"]["name"])):
        by_number[_number(body)].append(body)
    for number in sorted(by_number, reverse=True):
        yield _read_generation(key, by_number[number], rules)


def _read_generation(key: PoolId, current: Sequence[JsonObject], rules: Sequence[TaintRule]) -> Generation:
    sets = [entry for body in current for entry in body["spec"].get("sharedCounters") or ()]
    unknown = next(_unknown_of_counters(sets), "")
    slices = tuple(_read_slice(body, unknown, rules) for body in current)
    try:
        counters = {} if unknown else parse_counters(sets)
        if not unknown:
            check_references(counters, (device for entry in slices for device in entry.devices))
    except InvalidCounters as error:
        return Generation(*key, slices, {}, str(error))
    return Generation(*key, slices, counters, "")


def _read_slice(body: JsonObject, blocker: str, rules: Sequence[TaintRule]) -> _Slice:
    spec = body["spec"]
    unknown = next((f"{key} is not modelled here" for key in spec if spec[key] and key not in _KNOWN), "")
    return _Slice(
        name=body["metadata"]["name"],
        expected=int(spec["pool"]["resourceSliceCount"]),
        reach=Reach.parse(spec),
        per_device=bool(spec.get("perDeviceNodeSelection")),
        devices=tuple(
            parse_device(spec, device, unknown or blocker, rules) for device in spec.get("devices") or ()
        ),
    )


def _unknown_of_counters(sets: Iterable[JsonObject]) -> Iterator[str]:
    for entry in sets:
        for name, counter in (entry.get("counters") or {}).items():
            for key in counter:
                if key not in _KNOWN_OF_COUNTERS:
                    yield f"{key} of the counter {entry['name']}.{name} is not modelled here"


def _number(body: JsonObject) -> int:
    return int(body["spec"]["pool"].get("generation", 0))


def _find_double(devices: Iterable[Candidate]) -> str:
    """Names must be unique in the slices that reach a node; the scheduler does not compare them with the
    others."""
    doubles = [device for (_, _, device), n in Counter(c.id for c in devices).items() if n > 1]
    return f"device {min(doubles)} twice" if doubles else ""
