"""Addresses of the link in the pod: the claim's, a DHCP server's, or the host's."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv6Address

from msgspec.structs import replace

from dranet.claims.plan.inputs import PlanInput, is_ipv6
from dranet.model.facts import Address
from dranet.model.parameters.routing import SCOPE_UNIVERSE
from dranet.model.plan import DhcpLease

IFA_F_NODAD = 0x02
_IFA_F_TEMPORARY = 0x01
"""On an IPv6 address; on an IPv4 one the same bit means "secondary", which is an address like any other."""
_IFA_F_DADFAILED = 0x08
_IFA_F_MANAGETEMPADDR = 0x100
IFA_F_NOPREFIXROUTE = 0x200
_KEPT_ADDRESS_FLAGS = IFA_F_NODAD | _IFA_F_MANAGETEMPADDR | IFA_F_NOPREFIXROUTE
"""The flags that a user sets; the others are state that the kernel will establish again."""

_SLAAC_PREFIX_LENGTH = 64
_ETHERNET_MAC_BYTES = 6

_LEASE_FOR_EVER = 0xFFFFFFFF
"""RFC 2131, section 3.3."""


def plan_addresses(inputs: PlanInput) -> tuple[Address, ...]:
    """In the order in which they are added: the first IPv4 address of a subnet is the primary one.

    IPv6 addresses are usable at once (``IFA_F_NODAD``) unless the claim wants those it names to be checked:
    their owner has assigned them, and a pod would wait a second for each check.
    """
    interface = inputs.config.interface
    if interface.dhcp:
        return (_leased(inputs.lease),) if inputs.lease else ()
    if interface.addresses is not None:
        return tuple(
            _configured(cidr, interface.ipv6.duplicate_address_detection) for cidr in interface.addresses
        )
    inherited = (a for a in inputs.host.addresses if inputs.moves and _is_inheritable(a, inputs))
    return tuple(_inherited(address, inputs) for address in inherited)


def _configured(cidr: str, detect_duplicates: bool | None) -> Address:
    return Address(cidr, flags=IFA_F_NODAD if is_ipv6(cidr) and not detect_duplicates else 0)


def _leased(lease: DhcpLease) -> Address:
    """Valid for the time of the lease, so that the kernel drops an address that is not renewed."""
    seconds = None if lease.lease_seconds >= _LEASE_FOR_EVER else lease.lease_seconds
    return Address(lease.address, valid_seconds=seconds, preferred_seconds=seconds)


def _is_inheritable(address: Address, inputs: PlanInput) -> bool:
    """Global and in use. Privacy addresses are left out: the kernel makes new ones in the pod."""
    if is_ipv6(address.cidr):
        is_switched_off = inputs.config.interface.ipv6.enabled is False
        if is_switched_off or address.flags & (_IFA_F_TEMPORARY | _IFA_F_DADFAILED):
            return False
    return address.scope == SCOPE_UNIVERSE


def _inherited(address: Address, inputs: PlanInput) -> Address:
    """Without its label, which repeats the host's name, without a search for duplicates of it, and permanent:
    the host's DHCP client or daemon that renewed it cannot follow it into the pod."""
    no_dad = IFA_F_NODAD if is_ipv6(address.cidr) else 0
    kept = replace(address, label="", flags=address.flags & _KEPT_ADDRESS_FLAGS | no_dad)
    if _is_renewed_in_pod(address, inputs):
        return kept
    return replace(kept, valid_seconds=None, preferred_seconds=None)


def _is_renewed_in_pod(address: Address, inputs: PlanInput) -> bool:
    """Whether the pod's kernel renews it by itself, from router advertisements (RFC 4862).

    The kernel marks addresses that it makes of these with ``IFA_F_MANAGETEMPADDR`` (``addrconf_prefix_rcv``).
    In the pod it makes them of the hardware address (``addr_gen_mode`` is 0 in a new namespace), and renews
    only an address that it would make. Whether the link listens to routers is read when it is in the pod
    (``kernel.attachment.steps``).
    """
    interface = inputs.config.interface
    mac = interface.hardware_addr or inputs.host.mac
    return (
        is_ipv6(address.cidr)
        and bool(address.flags & _IFA_F_MANAGETEMPADDR)
        and interface.ipv6.token is None
        and interface.ipv6.accept_ra != 0
        and _is_made_from(mac, address)
    )


def _is_made_from(mac: str, address: Address) -> bool:
    """Whether the address has the modified EUI-64 of a hardware address (RFC 4291, appendix A)."""
    raw = bytes.fromhex(mac.replace(":", ""))
    local = ipaddress.ip_interface(address.cidr)
    if len(raw) != _ETHERNET_MAC_BYTES or local.network.prefixlen != _SLAAC_PREFIX_LENGTH:
        return False
    identifier = bytes([raw[0] ^ 0x02]) + raw[1:3] + b"\xff\xfe" + raw[3:]
    return IPv6Address(address.cidr.partition("/")[0]).packed[8:] == identifier


def check_addresses(inputs: PlanInput) -> Iterator[str]:
    """The kernel has an IPv6 address once on a link, whatever its prefix length. "<field path>: ..."."""
    seen: set[str] = set()
    for index, cidr in enumerate(inputs.config.interface.addresses or ()):
        address = cidr.partition("/")[0]
        if is_ipv6(cidr) and address in seen:
            yield f"interface.addresses[{index}]: {address} is named twice, with different prefix lengths"
        seen.add(address)


def ip_of(address: Address) -> str:
    """Without the prefix length."""
    return str(ipaddress.ip_interface(address.cidr).ip)
