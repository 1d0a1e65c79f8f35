"""A container that reads what KEP-5304 promises it, and takes nothing that the KEP does not allow.

Written from the KEP and the Kubernetes documentation, not from our code: it is the judge of our files. Of a
stream it takes the first version that it knows and skips others; a malformed object of a known version is
fatal, as for the readers in Go.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KNOWN = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_ATTRIBUTE = re.compile(rf"({_SUBDOMAIN.pattern}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
_KINDS: Mapping[str, type] = {"string": str, "int": int, "bool": bool, "version": str}


class BadMetadata(Exception):
    """What no reader can use."""


def decode(content: bytes, known: tuple[str, ...] = KNOWN) -> dict[str, Any]:
    """The first object of a version that this reader knows."""
    unknown = []
    for item in iter_stream(content):
        version, kind = item.get("apiVersion"), item.get("kind")
        if not version or not kind:
            raise BadMetadata("an object that does not say what it is")
        if version not in known:
            unknown.append(version)
            continue
        check(item)
        return item
    raise BadMetadata(f"no compatible version; unknown: {unknown}" if unknown else "no objects")


def iter_stream(content: bytes) -> Iterator[dict[str, Any]]:
    """One JSON object after the other."""
    text, decoder = content.decode(), json.JSONDecoder()
    position = 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        try:
            item, position = decoder.raw_decode(text, position)
        except ValueError as error:
            raise BadMetadata(str(error)) from error
        if not isinstance(item, dict):
            raise BadMetadata("not an object")
        yield item


def check(item: Mapping[str, Any]) -> None:
    """The schema of both versions, with its limits; no field beyond them."""
    _only(item, "apiVersion", "kind", "metadata", "podClaimName", "requests")
    _must(item["kind"] == "DeviceMetadata", "kind")
    _only(item["metadata"], "name", "namespace", "uid", "generation")
    _must(_SUBDOMAIN.fullmatch(item["metadata"]["name"]), "metadata.name")
    _must(item["metadata"]["generation"] >= 1, "generation")
    if "podClaimName" in item:
        _must(_LABEL.fullmatch(item["podClaimName"]), "podClaimName")
    for request in item["requests"]:
        _only(request, "name", "devices")
        _must(all(_LABEL.fullmatch(part) for part in request["name"].split("/")), "request name")
        _must(request["name"].count("/") <= 1, "request name")
        for device in request["devices"]:
            _check_device(device)


def _check_device(device: Mapping[str, Any]) -> None:
    _only(device, "driver", "pool", "name", "attributes", "networkData")
    _must(_SUBDOMAIN.fullmatch(device["driver"]) and len(device["driver"]) <= 63, "driver")
    _must(_SUBDOMAIN.fullmatch(device["pool"]), "pool")
    _must(_LABEL.fullmatch(device["name"]) and len(device["name"]) <= 63, "device name")
    attributes = device.get("attributes", {})
    _must(len(attributes) <= 32, "more than 32 attributes")
    for name, value in attributes.items():
        _must(_ATTRIBUTE.fullmatch(name), f"attribute name {name}")
        _check_value(name, value)
    if "networkData" in device:
        _check_network(device["networkData"])


def _check_value(name: str, value: Mapping[str, Any]) -> None:
    _must(len(value) == 1, f"{name} has exactly one value")
    ((kind, given),) = value.items()
    wanted = _KINDS.get(kind.removesuffix("s") if kind.endswith("s") else kind)
    _must(wanted is not None, f"{name}: kind {kind}")
    items = given if kind.endswith("s") else [given]
    _must(isinstance(items, list) and items, f"{name}: empty")
    for item in items:
        _must(type(item) is wanted, f"{name}: {item!r} is no {kind}")
        _must(not isinstance(item, str) or len(item.encode()) <= 64, f"{name}: longer than 64 bytes")


def _check_network(network: Mapping[str, Any]) -> None:
    _only(network, "interfaceName", "ips", "hardwareAddress")
    _must(network, "empty networkData")
    _must(0 < len(network.get("interfaceName", "x")) <= 256, "interfaceName")
    _must(0 < len(network.get("hardwareAddress", "x")) <= 128, "hardwareAddress")
    ips = network.get("ips", [])
    _must(len(ips) <= 16 and len(set(ips)) == len(ips), "ips")
    _must(all(ipaddress.ip_interface(ip).with_prefixlen == ip for ip in ips), "an address is not canonical")


def _only(item: Mapping[str, Any], *names: str) -> None:
    _must(isinstance(item, dict), "not an object")
    _must(not set(item) - set(names), f"unknown fields {set(item) - set(names)}")


def _must(condition: object, what: str) -> None:
    if not condition:
        raise BadMetadata(what)


def read_request(folder: Path) -> dict[str, dict[str, Any]]:
    """All files of a request by name, as a reader finds them that knows no driver."""
    found = {path.name: decode(path.read_bytes()) for path in sorted(folder.glob("*-metadata.json"))}
    if not found:
        raise BadMetadata(f"no metadata files in {folder}")
    return found


def read_mounted(mounts: Mapping[str, str], path: str) -> dict[str, Any]:
    """The file at a path of a container, given its mounts (destination to source)."""
    for destination, source in mounts.items():
        if path == destination or path.startswith(f"{destination}/"):
            return decode(Path(source + path.removeprefix(destination)).read_bytes())
    raise BadMetadata(f"{path} is not mounted")
