"""Slices, classes and claims in short form."""

from __future__ import annotations

from typing import Any

from dranet.desk.allocation.allocator import Attempt, ClusterDevices, Node, Outcome, allocate

NODE = Node("node-1", {"rack": "r1"})
DRIVER = "dra.net"
TWO: dict[str, Any] = {"pool": {"resourceSliceCount": 2}}
"""For :func:`slice_of`: one of a pool of two slices."""


def device(name: str, taints: list[dict[str, str]] | None = None, **attributes: Any) -> dict[str, Any]:
    typed = {key: {_type_of(value): value} for key, value in attributes.items()}
    return {"name": name, "attributes": typed, **({"taints": taints} if taints else {})}


def _type_of(value: object) -> str:
    if isinstance(value, list):
        return f"{_type_of(value[0])}s"
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"


def shared(name: str, capacity: dict[str, Any] | None = None, **attributes: Any) -> dict[str, Any]:
    """A device that many may have a share of; ``capacity`` by name, a text or a body."""
    bodies = {n: {"value": v} if isinstance(v, str) else v for n, v in (capacity or {}).items()}
    extra = {"capacity": bodies} if bodies else {}
    return {**device(name, **attributes), "allowMultipleAllocations": True, **extra}


def taker(name: str, amounts: dict[str, str], counter_set: str = "set", **attributes: Any) -> dict[str, Any]:
    """A device that takes of its pool's counters."""
    counters = {counter: {"value": amount} for counter, amount in amounts.items()}
    return {
        **device(name, **attributes),
        "consumesCounters": [{"counterSet": counter_set, "counters": counters}],
    }


def counters(amounts: dict[str, str], name: str = "set", **changes: Any) -> dict[str, Any]:
    """The slice with the counters of a pool of two slices."""
    body = slice_of(name="s0", pool={"resourceSliceCount": 2, **changes.pop("pool", {})}, **changes)
    values = {counter: {"value": amount} for counter, amount in amounts.items()}
    body["spec"]["sharedCounters"] = [{"name": name, "counters": values}]
    return body


def slice_of(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1, **changes.pop("pool", {})}
    name, driver = changes.pop("name", "s1"), changes.pop("driver", DRIVER)
    selection = changes or {"nodeName": "node-1"}
    spec = {"driver": driver, "pool": pool, "devices": list(devices), **selection}
    return {"metadata": {"name": name}, "spec": spec}


def selectors(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def request(name: str = "nic", *expressions: str, **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": _exact(expressions, exactly)}


def sub(name: str, *expressions: str, **exactly: Any) -> dict[str, Any]:
    return {"name": name, **_exact(expressions, exactly)}


def _exact(expressions: tuple[str, ...], fields: dict[str, Any]) -> dict[str, Any]:
    return {"deviceClassName": "net", "selectors": selectors(*expressions), **fields}


def claim(*requests: dict[str, Any], name: str = "c", **devices: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def classes(**configs: Any) -> dict[str, Any]:
    spec = {"selectors": selectors('device.driver == "dra.net"'), **configs}
    return {"net": {"spec": spec}, "any": {"spec": {}}}


def run(*claims: dict[str, Any], slices: list[dict[str, Any]], **cluster: Any) -> list[list[tuple[str, str]]]:
    view = ClusterDevices(slices, cluster.pop("classes", classes()), **cluster)
    allocations = allocate(claims, NODE, view)
    return [[(r["request"], r["device"]) for r in a["devices"]["results"]] for a in allocations]


def attempt(*claims: dict[str, Any], slices: list[dict[str, Any]], **cluster: Any) -> Outcome:
    """The outcome on ``node-1``."""
    view = ClusterDevices(slices, cluster.pop("classes", classes()), **cluster)
    return Attempt(claims, view).on(NODE)


def results(*claims: dict[str, Any], slices: list[dict[str, Any]], **cluster: Any) -> list[dict[str, Any]]:
    """All results of all claims, without their share ids."""
    view = ClusterDevices(slices, cluster.pop("classes", classes()), **cluster)
    return [r for a in allocate(claims, NODE, view) for r in a["devices"]["results"]]


def holder(*held: dict[str, Any], name: str = "other") -> dict[str, Any]:
    """A claim that has been given these results; ``device`` is enough."""
    made = [{"request": "r", "driver": DRIVER, "pool": "node-1", **result} for result in held]
    status = {"allocation": {"devices": {"results": made}}}
    return {"metadata": {"name": name, "namespace": "default"}, "status": status}
