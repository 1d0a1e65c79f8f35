"""Small objects for the lint's tests."""

from __future__ import annotations

from typing import Any

from dranet.cel import Version
from dranet.desk.lint import Key, Scope, read_devices

OURS = 'device.driver == "dra.net"'
A_NIC = f'{OURS} && device.attributes["dra.net"].?ifName.orValue("") != ""'


def selectors(*expressions: str) -> list[Any]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def device_class(*expressions: str, name: str = "nic", config: Any = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": selectors(*expressions)}
    if config is not None:
        spec["config"] = [{"opaque": {"driver": "dra.net", "parameters": one}} for one in config]
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def request(name: str = "nic", *expressions: str, device_class: str = "nic", **rest: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, **rest}
    return {"name": name, "exactly": {**exactly, "selectors": selectors(*expressions)}}


def config(parameters: Any, *requests: str, driver: str = "dra.net") -> dict[str, Any]:
    return {"requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def claim(*requests: Any, name: str = "fast", **rest: Any) -> dict[str, Any]:
    devices = {"requests": list(requests), **rest}
    return {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": devices}}


def template(*requests: Any, name: str = "fast", **rest: Any) -> dict[str, Any]:
    spec = claim(*requests, **rest)["spec"]
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": spec}}


def pod(*claims: Any, uses: Any = None, name: str = "train", **rest: Any) -> dict[str, Any]:
    """``uses`` are the claims that its container names: all."""
    names = [{"name": one["name"]} for one in claims] if uses is None else uses
    container = {"name": "main", "image": "x", "resources": {"claims": names}, **rest.pop("container", {})}
    spec = {"resourceClaims": list(claims), "containers": [container], **rest}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec}


def nic_slice(node: str, *devices: dict[str, Any], driver: str = "dra.net") -> dict[str, Any]:
    entries = [
        {"name": f"d{number}", "attributes": {name: typed(value) for name, value in one.items()}}
        for number, one in enumerate(devices)
    ]
    spec = {"driver": driver, "pool": {"name": node}, "nodeName": node, "devices": entries}
    return {"kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def typed(value: Any) -> dict[str, Any]:
    if isinstance(value, Version):
        return {"version": value.text}
    return {{bool: "bool", int: "int", str: "string"}[type(value)]: value}


def scope(*bodies: dict[str, Any], is_live: bool = False) -> Scope:
    """What is known with these objects."""
    found: dict[str, list[dict[str, Any]]] = {}
    for body in bodies:
        found.setdefault(body["kind"], []).append(body)

    def by_key(kind: str) -> dict[Key, dict[str, Any]]:
        return {Key("default", body["metadata"]["name"]): body for body in found.get(kind, ())}

    return Scope(
        classes={key.name: body for key, body in by_key("DeviceClass").items()},
        claims=by_key("ResourceClaim"),
        templates=by_key("ResourceClaimTemplate"),
        devices=read_devices(found.get("ResourceSlice", ())),
        is_live=is_live,
    )
