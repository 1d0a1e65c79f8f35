"""Results of CNI's ADD, read strictly: any text gives an answer that can be planned, or ResultError.

Versions differ in one thing here: before 1.0.0 an address has its IP ``version``. A route without a gateway
takes that of the first address of its IP version, as the specification allows and the reference plugins do.
``dns`` belongs to the pod's sandbox, which no driver of devices configures; the answer names it as ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_interface
from typing import Any

from dranet.model.ipam import CNI_VERSIONS, IpamAnswer, IpamRequest, IpamRoute
from dranet.model.parameters.values import UINT32_MAX, interface_cidr, ip, network_cidr

MAX_ADDRESSES = 64
MAX_ROUTES = 1024
_SCOPES = (0, 253)
_FIRST_WITHOUT_IP_VERSION = "1.0.0"


class ResultError(ValueError):
    """A text is no result; the message begins with the place in it."""


def parse_result(request: IpamRequest, text: bytes) -> IpamAnswer:
    document = _load(text)
    version = document.get("cniVersion")
    if version not in CNI_VERSIONS:
        raise ResultError(f"cniVersion: must be one of {', '.join(CNI_VERSIONS)}, not {_show(version)}")
    addresses, gateways = _parse_addresses(_list(document, "ips", MAX_ADDRESSES))
    if not addresses:
        raise ResultError("ips: has no address")
    routes = tuple(
        _parse_route(f"routes[{index}]", entry, addresses, gateways)
        for index, entry in enumerate(_list(document, "routes", MAX_ROUTES))
    )
    return IpamAnswer(
        request.name,
        request.source.plugin,
        request.container_id,
        addresses,
        gateways,
        tuple(dict.fromkeys(routes)),
        tuple(_find_ignored(document)),
    )


def build_result(answer: IpamAnswer, version: str) -> dict[str, Any]:
    """The answer as a result of that version, for CHECK."""
    ips = []
    for address, gateway in zip(answer.addresses, answer.gateways, strict=True):
        entry = {"address": address}
        if gateway:
            entry["gateway"] = gateway
        if version < _FIRST_WITHOUT_IP_VERSION:
            entry["version"] = str(ip_interface(address).version)
        ips.append(entry)
    routes = [
        {"dst": route.destination, **({"gw": route.gateway} if route.gateway else {})}
        for route in answer.routes
    ]
    return {"cniVersion": version, "ips": ips, "routes": routes, "dns": {}}


def _load(text: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ResultError("it is no JSON") from error
    if not isinstance(document, dict):
        raise ResultError("it is no JSON object")
    return document


def _list(document: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    entries = document.get(name)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ResultError(f"{name}: must be a list of objects")
    if len(entries) > most:
        raise ResultError(f"{name}: has {len(entries)} entries, more than {most}")
    return entries


def _parse_addresses(entries: list[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The addresses, and the gateway of each; what comes twice is one."""
    found: dict[str, str] = {}
    for index, entry in enumerate(entries):
        path = f"ips[{index}]"
        address = _text(f"{path}.address", entry.get("address"), interface_cidr)
        gateway = entry.get("gateway")
        gateway = _text(f"{path}.gateway", gateway, ip) if gateway not in (None, "") else ""
        if gateway and ip_address(gateway).version != ip_interface(address).version:
            raise ResultError(f"{path}.gateway: must be of the IP version of {address}, not {gateway}")
        found.setdefault(address, gateway)
    return tuple(found), tuple(found.values())


def _parse_route(
    path: str, entry: Mapping[str, Any], addresses: tuple[str, ...], gateways: tuple[str, ...]
) -> IpamRoute:
    destination = _text(f"{path}.dst", entry.get("dst"), network_cidr)
    scope = _number(f"{path}.scope", entry.get("scope"))
    if scope not in (None, *_SCOPES):
        raise ResultError(f"{path}.scope: must be 0 (universe) or 253 (link), not {scope}")
    gateway = entry.get("gw")
    if gateway not in (None, ""):
        gateway = _text(f"{path}.gw", gateway, ip)
        if scope == _SCOPES[1]:
            raise ResultError(f"{path}.gw: must be absent with scope {scope} (link)")
        if (":" in gateway) != (":" in destination):
            raise ResultError(f"{path}.gw: must be of the IP version of {destination}, not {gateway}")
    elif scope == _SCOPES[1]:
        gateway = ""
    else:
        pairs = zip(addresses, gateways, strict=True)
        same = (way for address, way in pairs if way and (":" in address) == (":" in destination))
        gateway = next(same, "")
    return IpamRoute(
        destination,
        gateway,
        _number(f"{path}.priority", entry.get("priority")),
        _number(f"{path}.table", entry.get("table")),
        scope,
        _number(f"{path}.mtu", entry.get("mtu")),
    )


def _text(path: str, value: object, check: Any) -> str:
    if not isinstance(value, str):
        raise ResultError(f"{path}: must be text, not {_show(value)}")
    try:
        return str(check(value))
    except ValueError as error:
        raise ResultError(f"{path}: {error}, not {_show(value)}") from error


def _number(path: str, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= UINT32_MAX:
        raise ResultError(f"{path}: must be a number from 0 to {UINT32_MAX}, not {_show(value)}")
    return value


def _find_ignored(document: Mapping[str, Any]) -> Iterator[str]:
    dns = document.get("dns")
    if dns if not isinstance(dns, dict) else any(dns.values()):
        yield "dns"
    if document.get("interfaces"):
        yield "interfaces"
    if any(entry.get("advmss") for entry in document.get("routes") or ()):
        yield "routes[].advmss"


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
