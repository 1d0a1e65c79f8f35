"""The inputs of one plan, and values derived from them."""

from __future__ import annotations

from msgspec import Struct

from dranet.model.cpus import CpuSurroundings
from dranet.model.device import Device
from dranet.model.facts import TABLE_MAIN
from dranet.model.ipam import IpamAnswer
from dranet.model.parameters.interface import IPV6_MTU_MIN
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AddRule, DhcpLease, LinkState
from dranet.model.virtual_functions import VfSettings

_FNV32_OFFSET, _FNV32_PRIME = 0x811C9DC5, 0x01000193


class PlanInput(Struct, frozen=True):
    """A device with a link, its configuration, and what was read of the node for them.

    ``host`` is the link that moves, or the parent of the link that is made.
    """

    device: Device
    host: LinkState
    config: NetworkConfig
    lease: DhcpLease | None = None
    mac_seed: str = ""
    """Seed of a generated hardware address: the same the next time, and another one for each device."""
    physical_function_mtu: int | None = None
    """MTU of the PF of a virtual function; ``None`` where it cannot be seen."""
    cpus: CpuSurroundings | None = None
    """Where the config asks for near CPUs."""
    host_rules: tuple[AddRule, ...] = ()
    """The policy rules of the host's namespace."""
    vf: VfSettings | None = None
    """What the virtual function has, as its physical function reports; where the config administers it."""
    ipam: IpamAnswer | None = None
    """Where the config names a source of addresses."""
    bandwidth: int | None = None
    """Bits per second that the allocation took of a shared device, the most that the link may carry."""

    @property
    def moves(self) -> bool:
        """The link itself goes into the pod."""
        return self.config.interface.is_passthrough

    @property
    def inherits_routing(self) -> bool:
        """The pod gets routes, rules and neighbours that the host has for the link."""
        return self.moves and self.config.interface.inherit_routing is not False

    @property
    def pod_ifname(self) -> str:
        return self.config.interface.name or self.host.ifname

    @property
    def table(self) -> int:
        """The routing table of routes that name none."""
        vrf = self.config.interface.vrf
        return TABLE_MAIN if vrf is None else vrf.table or default_vrf_table(vrf.name)

    @property
    def mtu(self) -> int | None:
        """What to set; ``None`` leaves the MTU alone.

        Without an MTU in the claim a DHCP server's counts, if it lowers the MTU and keeps IPv6 possible: only
        the kernel knows whether the device takes more, and only when the pod starts.
        """
        offered = self.lease.mtu if self.lease else None
        if self.config.interface.mtu is None and offered and IPV6_MTU_MIN <= offered < self.host.mtu:
            return offered
        return self.config.interface.mtu

    @property
    def node_has_ipv6(self) -> bool:
        """IPv6 is not switched off for the whole node; taken for granted where nothing was read."""
        is_known = self.host.sysctls and self.host.mtu >= IPV6_MTU_MIN
        return not is_known or any(name.startswith("ipv6/") for name in self.host.sysctls)

    @property
    def link_has_ipv6(self) -> bool:
        """The kernel gives the link its IPv6 side: settings and, unless switched off, addresses."""
        mtu = self.mtu or self.host.mtu
        return self.node_has_ipv6 and (not mtu or mtu >= IPV6_MTU_MIN)

    @property
    def ipv6_blocker(self) -> str:
        """Why nothing of IPv6 can be set on the link; empty when it can."""
        if not self.node_has_ipv6:
            return "the node has no IPv6"
        return "" if self.link_has_ipv6 else f"a link with an MTU below {IPV6_MTU_MIN} has no IPv6"


def default_vrf_table(name: str) -> int:
    """1000 to 1999, as in DraNet, by FNV-1a of the name (32 bits, as Go's ``hash/fnv``)."""
    value = _FNV32_OFFSET
    for byte in name.encode():
        value = (value ^ byte) * _FNV32_PRIME & 0xFFFFFFFF
    return 1000 + value % 1000


def is_ipv6(text: str) -> bool:
    return ":" in text
