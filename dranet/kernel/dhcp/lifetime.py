"""How long a leased address may live; no I/O."""

from __future__ import annotations

from ipaddress import IPv4Interface

from dranet.model.facts import Address
from dranet.model.plan import DhcpLease

FOR_EVER = 0xFFFFFFFF
"""A lease time that never ends (RFC 2131, 3.3)."""


def leased_ip(lease: DhcpLease) -> str:
    """The lease's address without its prefix length."""
    return lease.address.partition("/")[0]


def seconds_left(lease: DhcpLease, now: float) -> int | None:
    """Of the lease at ``now`` (unix time), at least 0; ``None`` is for ever."""
    if lease.lease_seconds == FOR_EVER:
        return None
    return max(0, min(lease.lease_seconds, int(lease.obtained_at + lease.lease_seconds - now)))


def leased_address(lease: DhcpLease, now: float) -> Address:
    """The address as the kernel is to have it at ``now`` (unix time): it lives as long as the lease.

    Without that the pod would go on with an address that the server may give to somebody else.
    """
    left = seconds_left(lease, now)
    network = IPv4Interface(lease.address).network
    broadcast = str(network.broadcast_address) if network.prefixlen < 31 else ""
    return Address(lease.address, broadcast=broadcast, valid_seconds=left, preferred_seconds=left)
