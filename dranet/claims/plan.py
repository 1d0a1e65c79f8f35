"""Device + link state + config -> AttachPlan: the ordered steps that put one device into a pod.

Pure: everything the hook will do is decided here, at prepare, from the state that the link had then. What
the pod gets of the host's state, unless the config says otherwise: name, MTU, hardware address, the global
addresses, and with those addresses the routes that need them.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, Route
from dranet.model.network import IPV6_MTU_MIN, SCOPE_UNIVERSE, NetworkConfig, RouteConfig
from dranet.model.plan import AddAddress, AddRoute, AttachPlan, LinkState, MoveLink, MoveRdma, SetUp, Step

IFA_F_NODAD = 0x02
_IFA_F_TEMPORARY = 0x01
"""On an IPv6 address; on an IPv4 one the same bit says "secondary", which is an address like any other."""
_IFA_F_DADFAILED = 0x08
_IFA_F_MANAGETEMPADDR = 0x100
_IFA_F_NOPREFIXROUTE = 0x200
_KEPT_ADDRESS_FLAGS = IFA_F_NODAD | _IFA_F_MANAGETEMPADDR | _IFA_F_NOPREFIXROUTE
"""The flags that somebody chose; the others tell a state that the kernel will find anew."""

_RTPROT_KERNEL = 2
_RTPROT_STATIC = 4
_RTPROT_RA = 9
_RTN_UNICAST = 1
_RTNH_F_ONLINK = 4
_TABLE_MAIN = 254
_DEFAULT_DESTINATIONS = ("0.0.0.0/0", "::/0")


def plan_device(
    device: Device, host: LinkState | None, config: NetworkConfig, *, rdma_exclusive: bool
) -> AttachPlan:
    """The plan for one device; without steps where nothing moves (a GPU, RDMA in shared mode).

    Args:
        device: the allocated device.
        host: the state of its link now; ``None`` for a device without a link.
        config: decoded and merged for this device.
        rdma_exclusive: RDMA devices belong to one network namespace each, so they have to move too.

    Raises:
        ClaimError: UnsupportedClaim for interface settings or routes on a device without a link;
            InvalidConfig for settings that this link cannot take.
        DeviceError: DeviceNotFound for a NIC whose link is not on the host.
    """
    move_rdma = (MoveRdma(device.rdma_device),) if rdma_exclusive and device.rdma_device else ()
    if device.kind is not DeviceKind.NIC:
        _refuse_network_config(device, config)
        return AttachPlan(device.name, move_rdma)
    if host is None:
        raise DeviceError(f"device {device.name} has no network interface on the host")
    _check_against_link(device, host, config)
    pod_ifname = config.interface.name or host.ifname
    steps = (*_link_steps(pod_ifname, host, config), *move_rdma)
    return AttachPlan(device.name, steps, pod_ifname, host)


def check_pod_ifnames(plans: Iterable[AttachPlan]) -> None:
    """Two devices of one pod cannot have the same interface name.

    Raises:
        ClaimError: InvalidConfig, with every clash and the devices of each.
    """
    owners: dict[str, list[str]] = defaultdict(list)
    for plan in plans:
        if plan.pod_ifname:
            owners[plan.pod_ifname].append(plan.device)
    clashes = [
        f"{', '.join(names)} would all be {ifname}" for ifname, names in owners.items() if len(names) > 1
    ]
    if clashes:
        raise ClaimError(
            f"interface names must differ within a pod: {'; '.join(clashes)}",
            hint="give each request its own config with interface.name",
            reason=Reason.INVALID_CONFIG,
        )


def _refuse_network_config(device: Device, config: NetworkConfig) -> None:
    if config.is_empty:
        return
    what = "is a GPU" if device.kind is DeviceKind.GPU else "is RDMA-only"
    raise ClaimError(
        f"device {device.name} {what}: it has no network interface to configure",
        hint="name the requests that the config is for",
        reason=Reason.UNSUPPORTED_CLAIM,
    )


def _check_against_link(device: Device, host: LinkState, config: NetworkConfig) -> None:
    """What only the link itself can tell."""
    mac = config.interface.hardware_addr
    if mac and host.mac and len(mac) != len(host.mac):
        raise ClaimError(
            f"interface.hardwareAddr: device {device.name} has hardware addresses like {host.mac}, not {mac}",
            reason=Reason.INVALID_CONFIG,
        )
    mtu = config.interface.mtu
    inherits_ipv6 = any(_is_ipv6(a.cidr) for a in _addresses(host, config))
    if mtu is not None and mtu < IPV6_MTU_MIN and inherits_ipv6:
        raise ClaimError(
            f"interface.mtu: device {device.name} keeps an IPv6 address, which needs at least "
            f"{IPV6_MTU_MIN}, not {mtu}",
            reason=Reason.INVALID_CONFIG,
        )


def _link_steps(pod_ifname: str, host: LinkState, config: NetworkConfig) -> tuple[Step, ...]:
    routes = _routes(host, config)
    addresses = _without_dad_wait(_addresses(host, config), routes)
    return (
        MoveLink(pod_ifname, mtu=config.interface.mtu, mac=config.interface.hardware_addr),
        *(AddAddress(address) for address in addresses),
        SetUp(),
        *(AddRoute(route) for route in routes),
    )


def _addresses(host: LinkState, config: NetworkConfig) -> tuple[Address, ...]:
    if config.interface.addresses is not None:
        return tuple(Address(cidr) for cidr in config.interface.addresses)
    return tuple(_inherited(address) for address in host.addresses if _is_inheritable(address))


def _is_inheritable(address: Address) -> bool:
    """Global and in use. Privacy addresses are left out: the kernel makes new ones in the pod."""
    is_temporary = _is_ipv6(address.cidr) and address.flags & _IFA_F_TEMPORARY
    return address.scope == SCOPE_UNIVERSE and not is_temporary and not address.flags & _IFA_F_DADFAILED


def _inherited(address: Address) -> Address:
    """Without its label, which repeats the host's name, and without a search for duplicates of it."""
    no_dad = IFA_F_NODAD if _is_ipv6(address.cidr) else 0
    return replace(address, label="", flags=address.flags & _KEPT_ADDRESS_FLAGS | no_dad)


def _without_dad_wait(addresses: Sequence[Address], routes: Sequence[Route]) -> tuple[Address, ...]:
    """The kernel refuses a route whose IPv6 source is still tentative: such addresses skip detection."""
    sources = {route.source for route in routes if _is_ipv6(route.source)}
    return tuple(replace(a, flags=a.flags | IFA_F_NODAD) if _ip(a) in sources else a for a in addresses)


def _routes(host: LinkState, config: NetworkConfig) -> tuple[Route, ...]:
    """The config's routes, then the inherited ones that it does not replace; on-link routes first.

    A gateway must be reachable when its route is added, hence the order.
    """
    own = [_configured(route) for route in config.routes]
    taken = {(route.destination, route.table) for route in own}
    inherited = [r for r in _inherited_routes(host, config) if (r.destination, r.table) not in taken]
    return tuple(sorted((*own, *inherited), key=lambda route: bool(route.gateway)))


def _configured(route: RouteConfig) -> Route:
    return Route(
        destination=route.destination,
        gateway=route.gateway or "",
        source=route.source or "",
        scope=route.scope or SCOPE_UNIVERSE,
        table=route.table or _TABLE_MAIN,
        protocol=_RTPROT_STATIC,
    )


def _inherited_routes(host: LinkState, config: NetworkConfig) -> list[Route]:
    """Routes belong to the addresses: with addresses of its own, the pod gets none of the host's."""
    if config.interface.addresses is not None:
        return []
    sources = {_ip(address) for address in _addresses(host, config)}
    return [_portable(route, sources) for route in host.routes if _is_portable(route)]


def _is_portable(route: Route) -> bool:
    """Not the default route, which is the pod network's; none that the kernel or a router makes by itself."""
    if route.destination in _DEFAULT_DESTINATIONS or route.next_hops:
        return False
    return route.type == _RTN_UNICAST and route.protocol not in (_RTPROT_KERNEL, _RTPROT_RA)


def _portable(route: Route, sources: set[str]) -> Route:
    """Without what is true on the host alone: the index, link-state flags, another link's address."""
    source = route.source if route.source in sources else ""
    return replace(route, ifindex=0, source=source, flags=route.flags & _RTNH_F_ONLINK)


def _is_ipv6(text: str) -> bool:
    return ":" in text


def _ip(address: Address) -> str:
    return str(ipaddress.ip_interface(address.cidr).ip)
