"""``interface``, ``routes``, ``rules`` and ``neighbors`` in the parameters: the link in the pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from dranet.model.facts import TABLE_MAIN
from dranet.model.parameters.part import AfterValidator, Conflict, Entries, Field, Part
from dranet.model.parameters.values import (
    UINT32_MAX,
    BitRate,
    Bytes,
    Count,
    Ifname,
    InterfaceCidr,
    Ip,
    IpamName,
    Ipv6Token,
    LinkAddress,
    Mac,
    Mark,
    NetworkCidr,
    OneOf,
    RequiredIfname,
    RuleIfname,
    Several,
    UInt32,
)
from dranet.model.virtual_functions import VfSettings

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

    gateway: Ip = Field("address of the router", examples=["192.168.10.1"])
    interface: RequiredIfname | None = Field(
        "name in the pod of the link that leads there; absent: this device", examples=["net2"]
    )
    weight: Annotated[int, Field(ge=1, le=256)] = Field(
        "share of the flows, 1 to 256", default=1, examples=[1]
    )
    onlink: bool = Field(
        "the router is reachable without a matching address", default=False, examples=[False]
    )


class RouteConfig(Part):
    """One entry of ``routes``: a route through the device, in the pod."""

    identity_words = "destination, table and metric"

    destination: NetworkCidr = Field(
        "CIDR; host bits are cleared; `0.0.0.0/0` and `::/0` are default routes", examples=["10.1.0.0/16"]
    )
    gateway: Ip | None = Field(
        "router; required unless `scope` is 253 or there are `nextHops`", examples=["192.168.10.1"]
    )
    source: Ip | None = Field("preferred source address", examples=["192.168.10.5"])
    scope: Annotated[int, AfterValidator(OneOf(SCOPE_UNIVERSE, SCOPE_LINK))] | None = Field(
        "0 universe; 253 link: neighbors reached directly, no gateway", examples=[253]
    )
    table: UInt32 | None = Field("routing table; 0 and absent are main. Not with a VRF", examples=[100])
    metric: UInt32 | None = Field("among equal destinations the lowest wins", examples=[50])
    mtu: Annotated[int, Field(ge=MTU_MIN, le=MTU_MAX)] | None = Field(
        "largest packet on this route, bytes", examples=[1400]
    )
    onlink: bool | None = Field("the gateway is reachable without a matching address", examples=[True])
    next_hops: Entries[NextHopConfig] = Field(
        "several routers, with weights (multipath), instead of `gateway`"
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
        "0 to 32767, the lowest first; 0 and absent: the kernel chooses", examples=[100]
    )
    source: NetworkCidr | None = Field("packets from here", examples=["192.168.10.5/32"])
    destination: NetworkCidr | None = Field("packets to here", examples=["10.1.0.0/16"])
    table: UInt32 | None = Field("routing table; 0 and absent are main", examples=[100])
    mark: Mark | None = Field("packets with this firewall mark", examples=["0x10"])
    mask: Mark | None = Field("bits of the mark that count; absent: all", examples=["0xff"])
    input_interface: RuleIfname | None = Field(
        "packets that arrived here (`iif`); `lo`: packets that the pod itself sends", examples=["net1"]
    )
    output_interface: RuleIfname | None = Field("packets of sockets bound to it (`oif`)", examples=["net1"])

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

    destination: Ip = Field("address of the neighbor", examples=["192.168.10.9"])
    hardware_addr: LinkAddress = Field(
        "its hardware address, which may be a multicast one", examples=["02:00:00:00:00:09"]
    )

    @property
    def identity(self) -> object:
        return self.destination


SUB_INTERFACE_TYPES = ("macvlan", "ipvlan", "vlan")
"""Values of ``interface.type`` with an object of the same name."""


class MacvlanConfig(Part):
    """``interface.macvlan``: a link with a hardware address of its own on a parent that stays on the node."""

    mode: Literal["bridge", "private", "vepa"] = Field(
        "`bridge`: macvlans of one parent reach each other directly; `private`: they do not; `vepa`: through "
        "the switch",
        default="bridge",
        examples=["bridge"],
    )


class IpvlanConfig(Part):
    """``interface.ipvlan``: a link that shares the parent's hardware address."""

    mode: Literal["l2", "l3", "l3s"] = Field(
        "`l2` switches; `l3` routes, without broadcast; `l3s` as `l3` through the node's netfilter. All "
        "ipvlans of one parent have one mode",
        default="l2",
        examples=["l3"],
    )
    flag: Literal["bridge", "private", "vepa"] = Field(
        "which links reach each other, as for macvlan", default="bridge", examples=["bridge"]
    )


class VlanConfig(Part):
    """``interface.vlan``: a tagged link on the parent."""

    id: Annotated[int, Field(ge=1, le=4094)] = Field("VLAN id, 1 to 4094", examples=[100])
    protocol: Literal["802.1Q", "802.1ad"] = Field(
        "tag: `802.1Q` or, for a service VLAN, `802.1ad`", default="802.1Q", examples=["802.1Q"]
    )


class VrfConfig(Part):
    """``interface.vrf``: a routing domain in the pod; links that name the same one share it."""

    name: RequiredIfname = Field("name of the VRF link in the pod", examples=["vrf-rail0"])
    table: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = Field(
        "its routing table, not 253 to 255; absent: 1000 to 1999, from the name", examples=[1100]
    )

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.table in RESERVED_TABLES:
            yield ("table",), f"must not be one of the kernel's own (253 to 255), not {self.table}"


class Ipv6Config(Part):
    """``interface.ipv6``: how IPv6 behaves on the link in the pod."""

    enabled: bool | None = Field("`false` disables IPv6 on the link (`disable_ipv6`)", examples=[True])
    accept_ra: Annotated[int, AfterValidator(OneOf(0, 1, 2))] | None = Field(
        "router advertisements: 0 ignore, 1 accept unless forwarding, 2 accept always",
        alias="acceptRA",
        examples=[0],
    )
    duplicate_address_detection: bool | None = Field(
        "`false`: addresses are usable at once, also those that the kernel creates. `true`: the kernel looks "
        "for duplicates of the configured addresses, which takes about a second. Absent: configured "
        "addresses skip the check, the kernel's own do not",
        examples=[False],
    )
    token: Ipv6Token | None = Field(
        "lower 64 bits of the addresses made from router advertisements (`ip token`)", examples=["::5"]
    )

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.token and self.accept_ra == 0:
            yield ("token",), "must come without acceptRA: 0, for it is about advertised prefixes"


class RateLimit(Part):
    """One direction of ``interface.rateLimit``."""

    rate: BitRate = Field("bits per second, at least 8k: a number or a quantity", examples=["10G"])
    burst: Bytes | None = Field(
        "bytes that can pass at once above the rate; absent: computed from the rate", examples=["1Mi"]
    )


class RateLimits(Part):
    """``interface.rateLimit``: what the link may carry, in the pod. Restored at release."""

    egress: RateLimit | None = Field("what the pod sends")
    ingress: RateLimit | None = Field("what the pod receives")


class VfConfig(Part):
    """``interface.vf``: what the node sets on an SR-IOV virtual function through its physical function. Only
    a DeviceClass sets it, or a claim whose class allows it by name. Restored at release."""

    trust: bool | None = Field(
        "the driver of the function may change its MAC address and be promiscuous", examples=[True]
    )
    spoof_check: bool | None = Field(
        "drop frames that are sent from another MAC address or VLAN", examples=[True]
    )
    vlan: Annotated[int, Field(ge=0, le=4094)] | None = Field(
        "VLAN that the NIC adds and removes, unseen by the pod; 0: none", examples=[100]
    )
    qos: Annotated[int, Field(ge=0, le=7)] | None = Field(
        "priority of the VLAN tag, with `vlan`", examples=[3]
    )
    min_tx_rate: Annotated[int, Field(ge=0, le=UINT32_MAX)] | None = Field(
        "guaranteed bandwidth in Mbit/s; 0: none", examples=[1000]
    )
    max_tx_rate: Annotated[int, Field(ge=0, le=UINT32_MAX)] | None = Field(
        "limit in Mbit/s, which the NIC enforces, also for RDMA where it can; 0: none", examples=[5000]
    )
    link_state: Literal["auto", "enable", "disable"] | None = Field(
        "`auto` follows the physical function; `enable` and `disable` do not", examples=["auto"]
    )

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.qos and not self.vlan:
            yield ("qos",), "must come with vlan"
        if self.max_tx_rate and self.min_tx_rate and self.min_tx_rate > self.max_tx_rate:
            yield ("minTxRate",), f"must not be above maxTxRate ({self.max_tx_rate})"

    @property
    def settings(self) -> VfSettings:
        return VfSettings(
            self.trust,
            self.spoof_check,
            self.vlan,
            self.qos,
            self.min_tx_rate,
            self.max_tx_rate,
            self.link_state,
        )


class InterfaceConfig(Part):
    """``interface``: what the link is to be in the pod."""

    name: Ifname | None = Field(
        "name in the pod: at most 15 ASCII letters, digits, `-`, `_`, `.`; not `lo`, `all`, `default`. "
        "Absent or empty: the name on the node",
        examples=["net1"],
    )
    type: Literal["passthrough", "macvlan", "ipvlan", "vlan"] | None = Field(
        "`passthrough` (also when absent): the device itself moves. The others: it stays on the node and the "
        "pod gets a link on top of it",
        examples=["macvlan"],
    )
    macvlan: MacvlanConfig | None = Field("for `type: macvlan`")
    ipvlan: IpvlanConfig | None = Field("for `type: ipvlan`")
    vlan: VlanConfig | None = Field("for `type: vlan`, which needs the id")
    addresses: Several[InterfaceCidr] | None = Field(
        "addresses with prefix; `[]` means no address. Absent: the node's global addresses of this link",
        examples=[["192.168.10.5/24", "fd00::5/64"]],
    )
    dhcp: bool | None = Field(
        "IPv4 address, routes and default gateway from a DHCP server, asked when the claim is prepared; "
        "renewed while the pod runs, released after it. Not together with `addresses`",
        examples=[True],
    )
    ipam: IpamName | None = Field(
        "addresses, gateway and routes from this entry of the driver's `ipam_file`, taken when the claim is "
        "prepared, released after it. Not together with `addresses` or `dhcp`",
        examples=["storage"],
    )
    inherit_routing: bool | None = Field(
        "`false`: the node's routes, policy rules and permanent neighbors of this link stay on the node. "
        "Absent or `true`: they come along",
        examples=[False],
    )
    mtu: Annotated[int, Field(ge=MTU_MIN, le=MTU_MAX)] | None = Field(
        "bytes, 68 to 65535; at least 1280 with an IPv6 address; not above that of a parent or PF",
        examples=[9000],
    )
    hardware_addr: Mac | None = Field(
        "unicast hardware address: 6 bytes, 20 on InfiniBand", examples=["02:00:00:00:00:01"]
    )
    tx_queue_length: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        "packets in the device's queue", examples=[10000]
    )
    gso_max_size: Count | None = Field("largest GSO packet, bytes (BIG TCP)", examples=[185000])
    gro_max_size: Count | None = Field("largest GRO packet, bytes (BIG TCP)", examples=[185000])
    gso_ipv4_max_size: Count | None = Field(
        "as `gsoMaxSize`, for IPv4", alias="gsoIPv4MaxSize", examples=[185000]
    )
    gro_ipv4_max_size: Count | None = Field(
        "as `groMaxSize`, for IPv4", alias="groIPv4MaxSize", examples=[185000]
    )
    disable_ebpf_programs: bool | None = Field(
        "remove TC, TCX and XDP programs from the link in the pod", examples=[True]
    )
    forwarding: bool | None = Field("forward packets that arrive here, IPv4 and IPv6", examples=[True])
    arp_ignore: Annotated[int, AfterValidator(OneOf(0, 1, 2, 3, 8))] | None = Field(
        "`arp_ignore`: 0 to 3, or 8", examples=[1]
    )
    arp_announce: Annotated[int, AfterValidator(OneOf(0, 1, 2))] | None = Field(
        "`arp_announce`: 0 to 2", examples=[2]
    )
    vrf: VrfConfig | None = Field("put the link into a VRF of the pod")
    ipv6: Ipv6Config = Field("how IPv6 behaves on the link")
    rate_limit: RateLimits = Field("limits of the link's bandwidth")
    vf: VfConfig = Field("what the node sets on an SR-IOV virtual function; only a DeviceClass may")

    @property
    def is_passthrough(self) -> bool:
        """The device itself moves."""
        return self.type in (None, "passthrough")

    @property
    def has_own_addresses(self) -> bool:
        """Addresses come from the config, from DHCP or from IPAM, not from the node's link."""
        return self.addresses is not None or bool(self.dhcp) or bool(self.ipam)

    def find_conflicts(self) -> Iterator[Conflict]:
        yield from self._find_type_conflicts()
        if any(":" in address for address in self.addresses or ()):
            if self.mtu is not None and self.mtu < IPV6_MTU_MIN:
                yield ("mtu",), f"must be at least {IPV6_MTU_MIN} with an IPv6 address, not {self.mtu}"
            if self.ipv6.enabled is False:
                yield ("ipv6", "enabled"), "must not be false with an IPv6 address"
        if self.dhcp and self.addresses:
            yield ("dhcp",), "must not be true with addresses"
        if self.ipam and self.addresses:
            yield ("ipam",), "must be absent with addresses"
        if self.ipam and self.dhcp:
            yield ("ipam",), "must be absent with dhcp: true"

    def _find_type_conflicts(self) -> Iterator[Conflict]:
        for kind in SUB_INTERFACE_TYPES:
            if getattr(self, kind) is not None and self.type != kind:
                yield (kind,), f"must come with type: {kind}"
        if self.type == "vlan" and self.vlan is None:
            yield ("vlan",), "is required with type: vlan"
        if not self.is_passthrough and not self.vf.settings.is_empty:
            yield ("vf",), f"must be absent with type: {self.type}, which leaves the function on the node"
        if self.type == "ipvlan" and self.hardware_addr:
            yield (
                ("hardwareAddr",),
                "must be absent with type: ipvlan, whose links have the address of their parent",
            )
        if self.dhcp and self.type in ("ipvlan", "vlan"):
            yield (
                ("dhcp",),
                f"must not be true with type: {self.type}: the lease is taken before the link exists",
            )
