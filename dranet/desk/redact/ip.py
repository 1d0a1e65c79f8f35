"""IP addresses of a capture -> unassigned addresses, with their subnets kept apart and together.

They come from the blocks for documentation (RFC 5737, RFC 3849, RFC 9637) and, where a node has more networks
than fit there, from those for benchmarks (RFC 2544) and for future use (240.0.0.0/4).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import chain, count

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

_POOLS: Mapping[int, tuple[IpNetwork, ...]] = {
    4: tuple(
        IPv4Network(text)
        for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15", "240.0.0.0/4")
    ),
    6: (IPv6Network("2001:db8::/32"), IPv6Network("3fff::/20")),
}
"""The last one of each family is for single addresses only, so that these never run out."""

_LINK_LOCAL: Mapping[int, IpNetwork] = {4: IPv4Network("169.254.0.0/16"), 6: IPv6Network("fe80::/64")}


def is_telling(address: IpAddress) -> bool:
    """Whether the address identifies a machine: loopback, multicast and wildcards do not."""
    return not (
        address.is_loopback
        or address.is_multicast
        or address.is_unspecified
        or address == IPv4Address("255.255.255.255")
    )


def replace_addresses(
    addresses: Collection[IpAddress], networks: Collection[IpNetwork]
) -> dict[IpAddress, IpAddress]:
    """Choose a new address for each one that identifies a machine; no new address is among the old.

    Args:
        addresses: all that occur.
        networks: those of the addresses that were given with a prefix length.
    """
    telling = {address for address in addresses if is_telling(address)}
    renamed: dict[IpAddress, IpAddress] = {}
    for version in (4, 6):
        numbering = _Numbering(version, sorted(int(a) for a in telling if a.version == version))
        members = _by_network({a for a in telling if a.version == version}, networks)
        for network in sorted(members, key=lambda network: (network.prefixlen, network)):
            renamed.update(numbering.renumber(network, sorted(members[network], key=int)))
    return renamed


def _by_network(
    addresses: Iterable[IpAddress], networks: Collection[IpNetwork]
) -> dict[IpNetwork, list[IpAddress]]:
    """Each address with the smallest network that it is in, or alone. A default route is no network."""
    members: dict[IpNetwork, list[IpAddress]] = defaultdict(list)
    shared = {network for network in networks if 0 < network.prefixlen < network.max_prefixlen}
    lengths = sorted({(network.version, network.prefixlen) for network in shared}, reverse=True)
    for address in addresses:
        around = (_network(address, length) for version, length in lengths if version == address.version)
        own = _network(address, address.max_prefixlen)
        if address.is_link_local:
            own = _LINK_LOCAL[address.version]
        else:
            own = next((network for network in around if network in shared), own)
        members[own].append(address)
    return members


def _network(address: IpAddress, prefix_length: int) -> IpNetwork:
    if isinstance(address, IPv4Address):
        return IPv4Network((address, prefix_length), strict=False)
    return IPv6Network((address, prefix_length), strict=False)


class _Numbering:
    """Hands out numbers of one family's pools, aligned, each once, never one that is in use already."""

    def __init__(self, version: int, in_use: list[int]) -> None:
        self._bits = 32 if version == 4 else 128
        self._address = IPv4Address if version == 4 else IPv6Address
        self._in_use = in_use
        self._link_local = _LINK_LOCAL[version]
        self._pools = _POOLS[version]
        self._next = {pool: int(pool.network_address) for pool in self._pools}
        self._taken: set[tuple[int, int]] = set()

    def renumber(
        self, network: IpNetwork, members: Sequence[IpAddress]
    ) -> Iterator[tuple[IpAddress, IpAddress]]:
        """Old and new address of each member; what does not fit into a new network goes alone."""
        if network == self._link_local:
            numbers = self._free_in(network)
        else:
            numbers = chain(self._hosts(network, members), self._singles())
        yield from ((member, self._address(number)) for member, number in zip(members, numbers, strict=False))

    def _hosts(self, network: IpNetwork, members: Sequence[IpAddress]) -> Iterator[int]:
        """Numbers for sorted members; the network's own address and its broadcast stay what they are."""
        block = self._take(network.prefixlen) if network.prefixlen < self._bits else range(0)
        if network.prefixlen >= self._bits - 1:
            yield from block
            return
        first = members[0] == network.network_address
        last = members[-1] == network.broadcast_address
        yield from block[: int(first)]
        inner = block[1:-1][: len(members) - first - last]
        yield from inner
        if last and len(inner) == len(members) - first - last:
            yield from block[-1:]

    def _singles(self) -> Iterator[int]:
        while True:
            yield self._take(self._bits)[0]

    def _take(self, prefix_length: int) -> range:
        """A free run of numbers in a network of its own of that length, or an empty one when none is left."""
        for pool in self._pools if prefix_length == self._bits else self._pools[:-1]:
            size = 1 << (self._bits - max(prefix_length, pool.prefixlen))
            for start in range(-(-self._next[pool] // size) * size, _end(pool), size):
                network = (prefix_length, start >> (self._bits - prefix_length))
                if network not in self._taken and not self._is_used(start, size):
                    self._next[pool] = start + size
                    self._taken.add(network)
                    return range(start, start + size)
        return range(0)

    def _free_in(self, network: IpNetwork) -> Iterator[int]:
        first = int(network.network_address) + 1
        return (number for number in count(first) if not self._is_used(number, 1))

    def _is_used(self, start: int, size: int) -> bool:
        position = bisect_left(self._in_use, start)
        return position < len(self._in_use) and self._in_use[position] < start + size


def _end(pool: IpNetwork) -> int:
    return int(pool.network_address) + pool.num_addresses
