"""API objects -> for each node its driver, devices and claims, and the problems that they show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dranet.cluster.events import WARNING as WARNING_EVENT
from dranet.cluster.pods import is_ready
from dranet.desk.explain.subject import label_of
from dranet.desk.fabric.misfits import MisfitKind, find_misfits, misfits_by_node
from dranet.desk.fabric.read import iter_links, read_nodes
from dranet.desk.fleet.nodes import (
    ClaimDevice,
    DeviceKey,
    DriverPod,
    FleetNode,
    Use,
)
from dranet.desk.fleet.problems import find_problems
from dranet.desk.hardware.nodes import is_gpu_driver
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.pools import choose_newest
from dranet.desk.kubeapi.quantities import parse_quantity
from dranet.model.attributes import BANDWIDTH, TYPE
from dranet.model.status import ConditionType

_NIC, _GPU = "nic", "gpu"
VERSION_LABEL = "app.kubernetes.io/version"


class FleetObjects(Struct, frozen=True):
    """All that is known. ``None``: of this kind nothing is known, for lack of a right or of a file."""

    slices: Sequence[JsonObject]
    claims: Sequence[JsonObject] | None = None
    nodes: Sequence[JsonObject] | None = None
    driver_pods: Sequence[JsonObject] | None = None
    taint_rules: Sequence[JsonObject] = ()
    events: Sequence[JsonObject] = ()


def read_fleet(objects: FleetObjects, driver: str) -> tuple[FleetNode, ...]:
    """Every node, those with problems first."""
    reader = _Reader(objects, driver)
    nodes = [reader.read(name) for name in reader.names]
    wrong = _find_wrong_cables(objects.slices, driver)
    nodes = [replace(node, miscabled=wrong.get(node.name, ())) for node in nodes]
    judged = (replace(node, problems=tuple(find_problems(node))) for node in nodes)
    return tuple(sorted(judged, key=lambda n: (n.severity is None, n.severity or 0, n.name)))


_WRONG_CABLE = frozenset({MisfitKind.SWAPPED, MisfitKind.OTHER_LEAF, MisfitKind.RAIL})


def _find_wrong_cables(slices: Sequence[JsonObject], driver: str) -> Mapping[str, tuple[str, ...]]:
    """By node. A missing neighbour and a different speed are left to ``dranet fabric``."""
    misfits = find_misfits(iter_links(read_nodes(slices, driver)))
    wrong = misfits_by_node(one for one in misfits if one.kind in _WRONG_CABLE)
    return {node: tuple(f"{one.text}: {one.fix}" for one in found) for node, found in wrong.items()}


class _Reader:
    """The objects by node."""

    def __init__(self, objects: FleetObjects, driver: str) -> None:
        self._objects, self._driver = objects, driver
        self._bodies = {str(body["metadata"].get("name")): body for body in objects.nodes or ()}
        self._slices: dict[str, list[JsonObject]] = defaultdict(list)
        for body in objects.slices:
            if name := body["spec"].get("nodeName"):
                self._slices[name].append(body)
        self._node_of_pool = {
            (body["spec"]["driver"], body["spec"]["pool"]["name"]): name
            for name, bodies in self._slices.items()
            for body in bodies
        }
        self._pods: dict[str, list[DriverPod]] = defaultdict(list)
        for pod in objects.driver_pods or ():
            if name := (pod.get("spec") or {}).get("nodeName"):
                self._pods[name].append(_read_pod(pod))
        self._claimed: dict[str, list[ClaimDevice]] = defaultdict(list)
        for claim in objects.claims or ():
            for device in _read_claim(claim):
                self._claimed[self._node_of_pool.get(device.device[:2]) or device.device[1]].append(device)
        self._events = self._sort_events()

    @property
    def names(self) -> list[str]:
        """Nodes, and what else has slices or pods of the driver."""
        ours = {n for n, bodies in self._slices.items() if any(map(self._is_ours, bodies))}
        return sorted({*self._bodies, *ours, *self._pods})

    def read(self, name: str) -> FleetNode:
        slices = tuple(choose_newest(self._slices[name]))
        held = {device.device for device in self._claimed[name]}
        offered: dict[str, set[DeviceKey]] = defaultdict(set)
        for body in slices:
            for device in body["spec"].get("devices") or ():
                offered[self._kind_of(body, device)].add(_key(body, device["name"]))
        capacities = {
            _key(body, device["name"]): bits
            for body in filter(self._is_ours, slices)
            for device in body["spec"].get("devices") or ()
            if (bits := _read_bits((device.get("capacity") or {}).get(BANDWIDTH, {}).get("value")))
        }
        nics, gpus = (Use(len(offered[kind] & held), len(offered[kind])) for kind in (_NIC, _GPU))
        return FleetNode(
            name,
            self._bodies.get(name),
            tuple(body for body in self._slices[name] if self._is_ours(body)),
            None if self._objects.driver_pods is None else tuple(self._pods[name]),
            nics,
            gpus,
            Use(_sum_bandwidth(self._claimed[name], capacities), sum(capacities.values())),
            tuple(device for device in self._claimed[name] if device.device[0] == self._driver),
            tuple(self._iter_taints(slices)),
            tuple(self._events[name]),
            is_known=self._objects.nodes is None or name in self._bodies,
        )

    def _is_ours(self, body: JsonObject) -> bool:
        return bool(body["spec"]["driver"] == self._driver)

    def _kind_of(self, body: JsonObject, device: JsonObject) -> str:
        """Parts of GPUs count as GPUs; devices of other drivers that are no GPUs do not count."""
        if not self._is_ours(body):
            return _GPU if is_gpu_driver(body["spec"]["driver"]) else ""
        attributes = device.get("attributes") or {}
        kind = attributes.get(TYPE.qualified) or attributes.get(TYPE.name) or {}
        return _GPU if kind.get("string") == "gpu" else _NIC

    def _iter_taints(self, slices: Iterable[JsonObject]) -> Iterator[tuple[str, JsonObject]]:
        for body in filter(self._is_ours, slices):
            for device in body["spec"].get("devices") or ():
                for taint in device.get("taints") or ():
                    yield device["name"], taint
                for rule in self._objects.taint_rules:
                    if _applies(rule, _key(body, device["name"])):
                        yield device["name"], rule["spec"]["taint"]

    def _sort_events(self) -> dict[str, list[JsonObject]]:
        """By the host that has reported them; by the pod or claim they are about where none has."""
        found: dict[str, list[JsonObject]] = defaultdict(list)
        uids = dict(_iter_uids(self._objects.claims or ()))
        for event in self._objects.events:
            if _is_of_earlier(event, uids):
                continue
            source = event.get("source") or {}
            component = event.get("reportingComponent") or source.get("component")
            host = event.get("reportingInstance") or source.get("host")
            if event.get("type") == WARNING_EVENT and component == self._driver and host:
                found[str(host)].append(event)
        return found


_Named = tuple[str, str, str]
"""Kind, namespace and name."""


def _iter_uids(claims: Iterable[JsonObject]) -> Iterator[tuple[_Named, str]]:
    """The UIDs of claims, and of the pods that they are reserved for."""
    for claim in claims:
        namespace, _, name = label_of(claim).partition("/")
        yield ("ResourceClaim", namespace, name), str(claim["metadata"].get("uid") or "")
        for user in (claim.get("status") or {}).get("reservedFor") or ():
            if user["resource"] == "pods":
                yield ("Pod", namespace, str(user["name"])), str(user.get("uid") or "")


def _is_of_earlier(event: JsonObject, uids: Mapping[_Named, str]) -> bool:
    """Whether it is about an object that is gone and whose name another one has now."""
    about = event.get("involvedObject") or {}
    named = (str(about.get("kind")), str(about.get("namespace")), str(about.get("name")))
    now, then = uids.get(named), about.get("uid")
    return bool(now and then and now != then)


def _key(body: JsonObject, device: str) -> DeviceKey:
    return body["spec"]["driver"], body["spec"]["pool"]["name"], device


def _applies(rule: JsonObject, key: DeviceKey) -> bool:
    """An empty selector taints every device."""
    selector = rule["spec"].get("deviceSelector") or {}
    wanted = (selector.get("driver"), selector.get("pool"), selector.get("device"))
    return all(want in (None, "", have) for want, have in zip(wanted, key, strict=True))


def _read_pod(pod: JsonObject) -> DriverPod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    ready = is_ready(pod)
    version = (metadata.get("labels") or {}).get(VERSION_LABEL) or "unknown version"
    return DriverPod(
        str(metadata.get("name")),
        str(version),
        ready,
        bool(metadata.get("deletionTimestamp")),
        "" if ready else _find_trouble(status),
    )


def _find_trouble(status: Mapping[str, Any]) -> str:
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        reason = (state.get("waiting") or {}).get("reason") or (state.get("terminated") or {}).get("reason")
        if reason and reason != "Completed":
            restarts = container.get("restartCount") or 0
            return f"{reason}, {restarts} restarts" if restarts else str(reason)
    return str(status.get("reason") or status.get("phase") or "")


def _read_claim(claim: JsonObject) -> Iterator[ClaimDevice]:
    status = claim.get("status") or {}
    namespace = label_of(claim).partition("/")[0]
    users = [one["name"] for one in status.get("reservedFor") or () if one["resource"] == "pods"]
    conditions = {
        (entry["driver"], entry["pool"], entry["device"]): entry.get("conditions") or ()
        for entry in status.get("devices") or ()
    }
    for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
        if result.get("adminAccess"):
            continue
        key = (result["driver"], result["pool"], result["device"])
        by_type = {ConditionType(c["type"]): c for c in conditions.get(key, ()) if c["type"] in _TYPES}
        yield ClaimDevice(
            label_of(claim),
            key,
            tuple(f"{namespace}/{name}" for name in users),
            by_type,
            _read_bits((result.get("consumedCapacity") or {}).get(BANDWIDTH)),
        )


def _sum_bandwidth(claimed: Iterable[ClaimDevice], capacities: Mapping[DeviceKey, int]) -> int:
    """What claims took; all of a device that is not shared (a virtual function)."""
    return sum(
        capacities[one.device] if one.bandwidth is None else one.bandwidth
        for one in claimed
        if one.device in capacities
    )


def _read_bits(text: object) -> int | None:
    """A quantity as a whole number; ``None`` for anything else."""
    amount = parse_quantity(text)
    return None if amount is None else int(amount)


_TYPES = frozenset(ConditionType)
