"""Routes, rules and neighbours in the parameters of a claim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from dranet.model.facts import TABLE_MAIN
from dranet.model.parameters.decoder import AfterValidator, Field
from dranet.model.parameters.part import Conflict, Entries, Part
from dranet.model.parameters.values import (
    Ip,
    LinkAddress,
    Mark,
    NetworkCidr,
    OneOf,
    RequiredIfname,
    RuleIfname,
    UInt32,
)

MTU_MIN = 68
"""RFC 791; the kernel takes no less for an Ethernet device."""


MTU_MAX = 65535


IPV6_MTU_MIN = 1280
"""RFC 8200; below it the kernel takes IPv6 off the link."""


SCOPE_UNIVERSE = 0


SCOPE_LINK = 253


RESERVED_TABLES = (253, TABLE_MAIN, 255)
"""default, main and local."""


class NextHopConfig(Part):
    """One of ``routes[].nextHops``."""

    gateway: Ip = Field(description="address of the router", examples=["192.168.10.1"])
    interface: RequiredIfname | None = Field(
        default=None,
        description="name in the pod of the link that leads there; absent: this device",
        examples=["net2"],
    )
    weight: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="share of the flows, 1 to 256", examples=[1]
    )
    onlink: bool = Field(
        default=False, description="the router is reachable without a matching address", examples=[False]
    )


class RouteConfig(Part):
    """One entry of ``routes``: a route through the device, in the pod."""

    identity_words = "destination, table and metric"

    destination: NetworkCidr = Field(
        description="CIDR; host bits are cleared; `0.0.0.0/0` and `::/0` are default routes",
        examples=["10.1.0.0/16"],
    )
    gateway: Ip | None = Field(
        default=None,
        description="router; required unless `scope` is 253 or there are `nextHops`",
        examples=["192.168.10.1"],
    )
    source: Ip | None = Field(default=None, description="preferred source address", examples=["192.168.10.5"])
    scope: Annotated[int, AfterValidator(OneOf(SCOPE_UNIVERSE, SCOPE_LINK))] | None = Field(
        default=None,
        description="0 universe; 253 link: neighbours reached directly, no gateway",
        examples=[253],
    )
    table: UInt32 | None = Field(
        default=None, description="routing table; 0 and absent are main. Not with a VRF", examples=[100]
    )
    metric: UInt32 | None = Field(
        default=None, description="among equal destinations the lowest wins", examples=[50]
    )
    mtu: Annotated[int, Field(ge=MTU_MIN, le=MTU_MAX)] | None = Field(
        default=None, description="largest packet on this route, bytes", examples=[1400]
    )
    onlink: bool | None = Field(
        default=None, description="the gateway is reachable without a matching address", examples=[True]
    )
    next_hops: Entries[NextHopConfig] = Field(
        default=(),
        alias="nextHops",
        description="several routers, with weights (multipath), instead of `gateway`",
    )

    @property
    def identity(self) -> object:
        return self.destination, self.table or TABLE_MAIN, self.metric or 0

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.next_hops:
            yield from self._find_next_hop_conflicts()
        elif self.scope == SCOPE_LINK:
            if self.gateway or self.onlink:
                yield (
                    ("gateway" if self.gateway else "onlink",),
                    f"must be absent with scope {SCOPE_LINK} (link)",
                )
        elif not self.gateway:
            yield ("gateway",), f"is required unless scope is {SCOPE_LINK} (link) or there are nextHops"
        yield from self._find_family_conflicts()

    def _find_next_hop_conflicts(self) -> Iterator[Conflict]:
        for name, value in (("gateway", self.gateway), ("onlink", self.onlink)):
            if value:
                yield (name,), "must be absent with nextHops, each of which has its own"
        if self.scope == SCOPE_LINK:
            yield ("scope",), f"must not be {SCOPE_LINK} (link) with nextHops"

    def _find_family_conflicts(self) -> Iterator[Conflict]:
        ways = [(("nextHops", place, "gateway"), hop.gateway) for place, hop in enumerate(self.next_hops)]
        for path, ip in ((("gateway",), self.gateway), (("source",), self.source), *ways):
            if ip and (":" in ip) != (":" in self.destination):
                yield path, f"must be of the IP version of the destination {self.destination}, not {ip}"


class RuleConfig(Part):
    """One entry of ``rules``: which packets of the pod look into which routing table."""

    priority: Annotated[int, Field(ge=0, le=32767)] | None = Field(
        default=None,
        description="0 to 32767, the lowest first; 0 and absent: the kernel chooses",
        examples=[100],
    )
    source: NetworkCidr | None = Field(
        default=None, description="packets from here", examples=["192.168.10.5/32"]
    )
    destination: NetworkCidr | None = Field(
        default=None, description="packets to here", examples=["10.1.0.0/16"]
    )
    table: UInt32 | None = Field(
        default=None, description="routing table; 0 and absent are main", examples=[100]
    )
    mark: Mark | None = Field(default=None, description="packets with this firewall mark", examples=["0x10"])
    mask: Mark | None = Field(
        default=None, description="bits of the mark that count; absent: all", examples=["0xff"]
    )
    input_interface: RuleIfname | None = Field(
        default=None,
        alias="inputInterface",
        description="packets that came in here (`iif`); `lo`: those that the pod itself sends",
        examples=["net1"],
    )
    output_interface: RuleIfname | None = Field(
        default=None,
        alias="outputInterface",
        description="packets of sockets bound to it (`oif`)",
        examples=["net1"],
    )

    @property
    def families(self) -> tuple[int, ...]:
        """IP versions that the rule is for: that of its prefixes, else both."""
        prefixes = [prefix for prefix in (self.source, self.destination) if prefix]
        return (6 if ":" in prefixes[0] else 4,) if prefixes else (4, 6)

    def find_conflicts(self) -> Iterator[Conflict]:
        source, destination = self.source, self.destination
        if source and destination and (":" in source) != (":" in destination):
            yield ("destination",), f"must be of the IP version of the source {source}, not {destination}"
        if self.mask is not None and self.mark is None:
            yield ("mask",), "must come with mark"


class NeighbourConfig(Part):
    """One entry of ``neighbors``: a permanent ARP or ND entry."""

    identity_words = "destination"

    destination: Ip = Field(description="address of the neighbour", examples=["192.168.10.9"])
    hardware_addr: LinkAddress = Field(
        alias="hardwareAddr",
        description="its hardware address, which may be a multicast one",
        examples=["02:00:00:00:00:09"],
    )

    @property
    def identity(self) -> object:
        return self.destination
