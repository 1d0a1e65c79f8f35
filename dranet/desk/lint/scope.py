"""What is known beside the object that is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from dranet.desk.lint.devices import Sample
from dranet.desk.lint.findings import JsonObject

MAX_RESULTS = 32
"""Devices of one claim."""


class Key(NamedTuple):
    """Which object; cluster-scoped ones have no namespace."""

    namespace: str
    name: str


class Scope(Struct, frozen=True):
    """Objects by name. ``is_live`` says that the cluster has no others."""

    driver: str = "dra.net"
    classes: Mapping[str, JsonObject] = field(default_factory=dict)
    claims: Mapping[Key, JsonObject] = field(default_factory=dict)
    templates: Mapping[Key, JsonObject] = field(default_factory=dict)
    devices: tuple[Sample, ...] = ()
    """Of slices and captures."""
    is_live: bool = False


class Alternative(NamedTuple):
    """What one request asks for, or one of its prioritised alternatives."""

    name: str
    """``req`` or ``req/sub``."""
    path: str
    demand: JsonObject

    @property
    def class_name(self) -> str:
        return str(self.demand.get("deviceClassName") or "")

    @property
    def number(self) -> int | None:
        """``None`` asks for all devices."""
        return None if self.demand.get("allocationMode") == "All" else int(self.demand.get("count") or 1)


def claim_devices(spec: JsonObject) -> JsonObject:
    """``spec.devices``; empty where there is none."""
    return spec.get("devices") or {}


def iter_alternatives(spec: JsonObject, path: str) -> Iterator[Alternative]:
    """Of all requests of a claim's spec at ``path``, in order."""
    for number, request in enumerate(claim_devices(spec).get("requests") or ()):
        where = f"{path}.devices.requests[{number}]"
        if request.get("exactly"):
            yield Alternative(request["name"], f"{where}.exactly", request["exactly"])
        for place, one in enumerate(request.get("firstAvailable") or ()):
            yield Alternative(f"{request['name']}/{one['name']}", f"{where}.firstAvailable[{place}]", one)


def covers(requests: list[str] | None, alternative: str) -> bool:
    """An empty list covers all; a request's own name its alternatives."""
    return not requests or alternative in requests or alternative.partition("/")[0] in requests


def expressions(owner: JsonObject) -> list[str]:
    """The selectors of a class or a request."""
    return [selector["cel"]["expression"] for selector in owner.get("selectors") or () if selector.get("cel")]
