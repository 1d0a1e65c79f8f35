"""The pods of the survival suite: each claims one NIC or several, moved into it or shared with others."""

from __future__ import annotations

import ipaddress
from enum import StrEnum

from testbed.cluster import DRIVER_NAME, JsonObject
from tests.support.objects import device_class

SHARED_NIC = "enp131s0np0"
"""Stays on the node; pods get a macvlan on it."""
SHARE_SETTING = {"shared_devices": f'device.attributes["dra.net"].ifName == "{SHARED_NIC}"'}

_API = "resource.k8s.io/v1"
_MACVLANS = ipaddress.IPv4Network("10.77.0.0/16")


class Way(StrEnum):
    """How a pod has its NIC; also the name of the DeviceClass."""

    MOVED = "moved"
    """The NIC itself, with the addresses that it has on the node."""
    SHARED = "shared"
    """A macvlan on :data:`SHARED_NIC`, with an address of its own."""


_SELECTORS = {
    Way.MOVED: 'device.attributes["dra.net"].rdma && !device.allowMultipleAllocations',
    Way.SHARED: "device.allowMultipleAllocations",
}

CLASSES: list[JsonObject] = [
    device_class(way.value, f'device.driver == "{DRIVER_NAME}" && {_SELECTORS[way]}') for way in Way
]


def build_pod(name: str, way: Way = Way.MOVED, number: int = 1, claims: int = 1) -> list[JsonObject]:
    """A pod after the claims that it names: ``NAME-1`` and so on, whose links are ``net1`` and so on.

    Shared links get addresses of ``10.77.0.0/16``, other ones for each ``number`` (from 1) and claim.
    """
    names = [f"{name}-{count}" for count in range(1, claims + 1)]
    made = [_build_claim(claim, way, count, number * 4 + count) for count, claim in enumerate(names, 1)]
    return [*made, _build_pod(name, names)]


def _build_claim(name: str, way: Way, count: int, host: int) -> JsonObject:
    interface: JsonObject = {"name": f"net{count}"}
    if way is Way.SHARED:
        interface |= {"type": "macvlan", "addresses": [f"{_MACVLANS[host]}/{_MACVLANS.prefixlen}"]}
    opaque = {"driver": DRIVER_NAME, "parameters": {"interface": interface}}
    return {
        "apiVersion": _API,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": way.value}}],
                "config": [{"opaque": opaque}],
            }
        },
    }


def _build_pod(name: str, claims: list[str]) -> JsonObject:
    resources = {"claims": [{"name": claim} for claim in claims]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            "containers": [
                {"name": "main", "image": "x", "command": ["sleep", "infinity"], "resources": resources}
            ],
        },
    }
