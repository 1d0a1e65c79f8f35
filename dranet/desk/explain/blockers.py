"""Blockers: things that can be in the way of an attempt. Each returns the inputs of the same attempt without
it.

So a near miss is never guessed: it is reported only if the attempt without its blocker succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from dranet.desk.allocation.allocator import ClusterDevices
from dranet.desk.allocation.devices import InUse, Node
from dranet.desk.allocation.taints import DeviceId
from dranet.desk.explain.subject import label_of
from dranet.desk.kubeapi.objects import JsonObject


@dataclass(frozen=True, slots=True)
class AttemptInputs:
    """What one attempt depends on."""

    claims: tuple[JsonObject, ...]
    """Those without an allocation."""
    node: Node
    cluster: ClusterDevices


class Blocker(Protocol):
    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        """The same attempt, had this not been in the way."""
        ...


@dataclass(frozen=True, slots=True)
class Miss:
    """What would have been enough."""

    blocker: Blocker
    devices: tuple[DeviceId, ...]
    """The devices that the blocker keeps away."""
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class InUseBy:
    """Other claims have these devices."""

    devices: tuple[DeviceId, ...]

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        used, gone = inputs.cluster.in_use, frozenset(self.devices)
        freed = InUse(
            used.devices - gone,
            {device: amounts for device, amounts in used.shares.items() if device not in gone},
            {device: names for device, names in used.holders.items() if device not in gone},
        )
        return replace(inputs, cluster=replace(inputs.cluster, in_use=freed))


@dataclass(frozen=True, slots=True)
class SelectorOfClass:
    """One selector of a DeviceClass."""

    class_name: str
    index: int

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        body = inputs.cluster.classes[self.class_name]
        changed = {**body, "spec": _without_selector(body.get("spec") or {}, self.index)}
        classes = {**inputs.cluster.classes, self.class_name: changed}
        return replace(inputs, cluster=replace(inputs.cluster, classes=classes))


def _without_selector(owner: JsonObject, index: int) -> JsonObject:
    selectors = owner["selectors"]
    return {**owner, "selectors": [*selectors[:index], *selectors[index + 1 :]]}


@dataclass(frozen=True, slots=True)
class SelectorOfRequest:
    """One selector of a request or of one of its alternatives."""

    claim: str
    request: str
    index: int

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        return _change_request(inputs, self.claim, self.request, lambda r: _without_selector(r, self.index))


@dataclass(frozen=True, slots=True)
class Tainted:
    """A taint that the request does not tolerate; without a request, none of them."""

    claim: str
    request: str
    key: str
    effect: str

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        if self.request:
            return _change_request(inputs, self.claim, self.request, self._tolerate)
        for claim in inputs.claims:
            inputs = _change_devices(inputs, label_of(claim), self._tolerate_everywhere)
        return inputs

    def _tolerate(self, request: JsonObject) -> JsonObject:
        toleration = {"key": self.key, "operator": "Exists", "effect": self.effect}
        return {**request, "tolerations": [*(request.get("tolerations") or ()), toleration]}

    def _tolerate_everywhere(self, devices: JsonObject) -> JsonObject:
        return {**devices, "requests": [self._tolerate_in(r) for r in devices.get("requests") or ()]}

    def _tolerate_in(self, request: JsonObject) -> JsonObject:
        if request.get("exactly"):
            return {**request, "exactly": self._tolerate(request["exactly"])}
        return {**request, "firstAvailable": [self._tolerate(s) for s in request["firstAvailable"]]}


@dataclass(frozen=True, slots=True)
class Together:
    """Several that are enough only if none of them is there."""

    blockers: tuple[Blocker, ...]

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        for blocker in self.blockers:
            inputs = blocker.without(inputs)
        return inputs


@dataclass(frozen=True, slots=True)
class AskedCapacity:
    """What a request asks of capacities."""

    claim: str
    request: str

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        return _change_request(inputs, self.claim, self.request, lambda r: {**r, "capacity": {}})


@dataclass(frozen=True, slots=True)
class ClaimConstraint:
    """One constraint of a claim, or with ``instead`` its attribute."""

    claim: str
    index: int
    instead: str = ""

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        return _change_devices(inputs, self.claim, self._change)

    def _change(self, devices: JsonObject) -> JsonObject:
        constraints = list(devices["constraints"])
        entry = constraints.pop(self.index)
        if self.instead:
            constraints.insert(self.index, {**entry, "matchAttribute": self.instead})
        return {**devices, "constraints": constraints}


@dataclass(frozen=True, slots=True)
class AllConstraints:
    """All constraints of all claims."""

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        for claim in inputs.claims:
            inputs = _change_devices(inputs, label_of(claim), lambda devices: {**devices, "constraints": []})
        return inputs


@dataclass(frozen=True, slots=True)
class PoolIncomplete:
    """A pool of which some slices are not there (yet)."""

    driver: str
    pool: str

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        mine = [entry for entry in inputs.cluster.slices if _pool_of(entry) == (self.driver, self.pool)]
        newest = max(_generation(entry) for entry in mine)
        number = sum(_generation(entry) == newest for entry in mine)
        slices = [_with_count(s, number) if s in mine else s for s in inputs.cluster.slices]
        return replace(inputs, cluster=replace(inputs.cluster, slices=slices))


def _pool_of(entry: JsonObject) -> tuple[str, str]:
    return entry["spec"]["driver"], entry["spec"]["pool"]["name"]


def _generation(entry: JsonObject) -> int:
    return int(entry["spec"]["pool"].get("generation") or 0)


def _with_count(entry: JsonObject, number: int) -> JsonObject:
    spec = entry["spec"]
    return {**entry, "spec": {**spec, "pool": {**spec["pool"], "resourceSliceCount": number}}}


@dataclass(frozen=True, slots=True)
class NotOffered:
    """Devices that the node has and its driver does not publish: a whole slice of them."""

    body: JsonObject

    def without(self, inputs: AttemptInputs) -> AttemptInputs:
        return replace(inputs, cluster=replace(inputs.cluster, slices=[*inputs.cluster.slices, self.body]))


Change = Callable[[JsonObject], JsonObject]


def _change_devices(inputs: AttemptInputs, label: str, change: Change) -> AttemptInputs:
    """With ``spec.devices`` of one claim changed."""
    claims = tuple(_changed(claim, change) if label_of(claim) == label else claim for claim in inputs.claims)
    return replace(inputs, claims=claims)


def _changed(claim: JsonObject, change: Change) -> JsonObject:
    return {**claim, "spec": {**claim["spec"], "devices": change(claim["spec"].get("devices") or {})}}


def _change_request(inputs: AttemptInputs, label: str, name: str, change: Change) -> AttemptInputs:
    """With one request, or ``req/sub``, changed."""

    def change_all(devices: JsonObject) -> JsonObject:
        return {
            **devices,
            "requests": [_change_one(request, name, change) for request in devices["requests"]],
        }

    return _change_devices(inputs, label, change_all)


def _change_one(request: JsonObject, name: str, change: Change) -> JsonObject:
    base, _, sub = name.partition("/")
    if request["name"] != base:
        return request
    if not sub:
        return {**request, "exactly": change(request["exactly"])}
    subs = [change(s) if s["name"] == sub else s for s in request["firstAvailable"]]
    return {**request, "firstAvailable": subs}
