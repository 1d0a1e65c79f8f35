"""Objects of a small fleet, as an API server answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

JsonObject = dict[str, Any]
LABELS = {
    "app.kubernetes.io/part-of": "dranet",
    "app.kubernetes.io/component": "driver",
    "app.kubernetes.io/version": "0.1.0",
}


def node(name: str, ready: str = "True", **spec: Any) -> JsonObject:
    status = {"conditions": [{"type": "Ready", "status": ready, "reason": "KubeletNotReady"}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": name[0]}},
        "spec": spec,
        "status": status,
    }


def device(name: str, kind: str = "device", *taints: JsonObject) -> JsonObject:
    made: JsonObject = {"name": name, "attributes": {"dra.net/type": {"string": kind}}}
    return {**made, "taints": list(taints)} if taints else made


def resource_slice(
    node: str,
    *devices: JsonObject,
    driver: str = "dra.net",
    generation: int = 1,
    slices: int = 1,
    number: int = 0,
) -> JsonObject:
    pool = {"name": node, "generation": generation, "resourceSliceCount": slices}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{generation}-{number}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)},
    }


def driver_pod(node: str, ready: bool = True, **state: Any) -> JsonObject:
    container: JsonObject = {"name": "driver", "restartCount": 4, "state": state or {"running": {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"dranet-{node}", "namespace": "dranet-system", "labels": LABELS},
        "spec": {"nodeName": node, "containers": [{"name": "driver", "image": "x"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [container],
        },
    }


def claim(
    name: str,
    node: str,
    devices: Sequence[str],
    conditions: Mapping[str, tuple[str, str, str]] = MappingProxyType({}),
    **result: Any,
) -> JsonObject:
    """A claim of pod ``NAME-pod`` with devices of the node, the first of them with these conditions (type ->
    status, reason, message), and all others ready."""
    results = [
        {"request": "nic", "driver": "dra.net", "pool": node, "device": one, **result} for one in devices
    ]
    ready = {"Prepared": ("True", "DevicePrepared", ""), "Ready": ("True", "NetworkDeviceReady", "")}
    entries = [
        {
            "driver": "dra.net",
            "pool": node,
            "device": one,
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": message}
                for kind, (status, reason, message) in {**ready, **(conditions if not number else {})}.items()
            ],
        }
        for number, one in enumerate(devices)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "dranet"}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": f"{name}-pod", "uid": "u"}],
            "devices": entries,
        },
    }


def event(node: str, reason: str, message: str, kind: str = "Pod", count: int = 1) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{reason}-{count}".lower(), "namespace": "team-a"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "count": count,
        "lastTimestamp": f"2026-11-27T10:00:{count:02}Z",
        "involvedObject": {"kind": kind, "namespace": "team-a", "name": "train", "uid": "u"},
        "reportingComponent": "dra.net",
        "reportingInstance": node,
        "source": {"component": "dra.net", "host": node},
    }
