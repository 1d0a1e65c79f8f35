"""NetworkConfig: the opaque parameters that a claim or a DeviceClass may carry for a network device.

The JSON names are DraNet's. This version applies ``interface.{name,addresses,mtu,hardwareAddr}`` and
``routes``; every other field of DraNet's schema is known by name (:data:`NOT_APPLIED`) and refused, because
a pod that starts without what its claim asks for is worse than one that does not start.

Two forms decode: the bare object, and the same with ``apiVersion`` and ``kind`` beside its fields.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

API_VERSION = "dra.net/v1alpha1"
KIND = "NetworkConfig"

IFNAME_MAX_BYTES = 15
"""``IFNAMSIZ`` less the terminating zero."""
MTU_MIN = 68
"""RFC 791; the kernel takes no less for an Ethernet device."""
MTU_MAX = 65535
IPV6_MTU_MIN = 1280
"""RFC 8200; below it the kernel takes IPv6 off the link."""

SCOPE_UNIVERSE = 0
SCOPE_LINK = 253

NOT_APPLIED = frozenset(
    {
        "profile",
        "rules",
        "neighbors",
        "ethtool",
        "interface.type",
        "interface.ipvlan",
        "interface.dhcp",
        "interface.gsoMaxSize",
        "interface.groMaxSize",
        "interface.gsoIPv4MaxSize",
        "interface.groIPv4MaxSize",
        "interface.disableEbpfPrograms",
        "interface.forwarding",
        "interface.arpIgnore",
        "interface.arpAnnounce",
        "interface.vrf",
    }
)
"""Fields of DraNet's schema that this version refuses, as dotted paths."""

_IFNAME = re.compile(r"[A-Za-z0-9._-]+")
_RESERVED_IFNAMES = frozenset({".", "..", "lo", "all", "default"})
"""Not file names; the pod's loopback; and names of ``/proc/sys/net/ipv4/conf`` that the kernel keeps."""
_MAC_GROUPS = re.compile(r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2})*|[0-9A-Fa-f]{4}(\.[0-9A-Fa-f]{4})*")
_MAC_BYTES = (6, 20)
"""Ethernet and InfiniBand."""


def _ifname(value: str) -> str:
    if len(value.encode(errors="replace")) > IFNAME_MAX_BYTES:
        raise ValueError(f"must have at most {IFNAME_MAX_BYTES} bytes")
    if value and not _IFNAME.fullmatch(value):
        raise ValueError("must consist of ASCII letters, digits, '-', '_' and '.'")
    if value in _RESERVED_IFNAMES:
        raise ValueError("is a reserved name")
    return value


def _mac(value: str) -> str:
    digits = re.sub(r"[:.-]", "", value).lower()
    if not _MAC_GROUPS.fullmatch(value) or len(digits) // 2 not in _MAC_BYTES:
        raise ValueError("must be a hardware address of 6 or 20 bytes, e.g. 02:00:00:00:00:01")
    if len(digits) == 12 and (int(digits[:2], 16) & 1 or not int(digits, 16)):
        raise ValueError("must be a unicast hardware address")
    return ":".join(re.findall("..", digits))


def _interface_cidr(value: str) -> str:
    _require_prefix(value)
    try:
        interface = ipaddress.ip_interface(value)
    except ValueError as error:
        raise ValueError(f"must be an address with its prefix, e.g. 10.0.0.5/24: {error}") from error
    if interface.ip.is_multicast or interface.ip.is_unspecified or interface.ip.is_loopback:
        raise ValueError("must be a unicast address")
    return str(interface)


def _network_cidr(value: str) -> str:
    """Host bits are cleared, as DraNet does; the kernel refuses them."""
    _require_prefix(value)
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError as error:
        raise ValueError(f"must be a CIDR, e.g. 10.1.0.0/16: {error}") from error


def _require_prefix(value: str) -> None:
    """A prefix length, and as a number: no netmask, no bare address, no zone."""
    if not re.fullmatch(r"[0-9A-Fa-f.:]+/[0-9]{1,3}", value):
        raise ValueError("must be in CIDR form with a prefix length, e.g. 10.0.0.5/24")


def _ip(value: str) -> str:
    if "/" in value or "%" in value:
        raise ValueError("must be an IP address without prefix or zone")
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise ValueError("must be an IP address") from error


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"must not name {', '.join(twice)} twice")
    return values


InterfaceCidr = Annotated[str, AfterValidator(_interface_cidr)]


class _Part(BaseModel):
    """JSON in, frozen value out: no coercion, no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class InterfaceConfig(_Part):
    """``interface``: what the link is to be in the pod. ``None`` keeps what it has on the host."""

    name: Annotated[str, AfterValidator(_ifname)] | None = None
    """Name in the pod; empty is the host's name."""
    addresses: Annotated[tuple[InterfaceCidr, ...], Field(strict=False), AfterValidator(_unique)] | None = (
        None
    )
    """Interface addresses in CIDR form. An empty list means no addresses at all."""
    mtu: Annotated[int, Field(ge=MTU_MIN, le=MTU_MAX)] | None = None
    """Bytes."""
    hardware_addr: Annotated[str, AfterValidator(_mac)] | None = Field(default=None, alias="hardwareAddr")
    """Lower case, colon separated."""

    @model_validator(mode="after")
    def _check_mtu(self) -> Self:
        has_ipv6 = any(":" in address for address in self.addresses or ())
        if has_ipv6 and self.mtu is not None and self.mtu < IPV6_MTU_MIN:
            raise ValueError(f"mtu must be at least {IPV6_MTU_MIN} with an IPv6 address, not {self.mtu}")
        return self


class RouteConfig(_Part):
    """One entry of ``routes``: a route through the device, in the pod."""

    destination: Annotated[str, AfterValidator(_network_cidr)]
    gateway: Annotated[str, AfterValidator(_ip)] | None = None
    """Required unless ``scope`` is link."""
    source: Annotated[str, AfterValidator(_ip)] | None = None
    """Preferred source address."""
    scope: Literal[0, 253] | None = None
    """``rtnetlink(7)``: 0 universe (default), 253 link."""
    table: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    """Routing table; 0 and ``None`` are main."""

    @model_validator(mode="after")
    def _check_gateway(self) -> Self:
        if self.scope == SCOPE_LINK and self.gateway:
            raise ValueError("a link-scope route has no gateway")
        if self.scope != SCOPE_LINK and not self.gateway:
            raise ValueError(f"gateway is required unless scope is {SCOPE_LINK} (link)")
        return self

    @model_validator(mode="after")
    def _check_family(self) -> Self:
        for field in ("gateway", "source"):
            value = getattr(self, field)
            if value and (":" in value) != (":" in self.destination):
                raise ValueError(f"{field} {value} and destination {self.destination} differ in IP version")
        return self


class NetworkConfig(_Part):
    """The whole of the opaque parameters. Empty means: move the device as it is."""

    interface: InterfaceConfig = InterfaceConfig()
    routes: Annotated[tuple[RouteConfig, ...], Field(strict=False)] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing is asked for: neither an interface setting nor a route."""
        return not self.routes and not self.interface.model_dump(exclude_none=True)


def strip_version(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """``parameters`` without ``apiVersion`` and ``kind``, which go together or not at all.

    Raises:
        ValueError: another version or kind, or only one of the two.
    """
    stated = {key: parameters[key] for key in ("apiVersion", "kind") if parameters.get(key) is not None}
    if stated and stated != {"apiVersion": API_VERSION, "kind": KIND}:
        raise ValueError(f"apiVersion and kind must be {API_VERSION} and {KIND}, or both be absent")
    return {key: value for key, value in parameters.items() if key not in ("apiVersion", "kind")}
