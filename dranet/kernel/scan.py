"""One scan of the node: links, addresses, default routes, PCI, RDMA and GPUs -> ``NodeFacts``.

It reads and merges, and judges nothing: what may be offered is the inventory's matter. Links and addresses
come in one dump each; sysfs is asked only where netlink does not already say which device is behind a link.
"""

from __future__ import annotations

import errno
import socket
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.gpu import read_gpus
from dranet.kernel.inet import (
    RT_TABLE_MAIN,
    RTN_UNICAST,
    dump_addresses_request,
    dump_routes_request,
    is_default_route,
    parse_address,
    parse_route,
)
from dranet.kernel.netlink import NetlinkSocket
from dranet.kernel.pci import read_pci_functions
from dranet.kernel.rdma import RDMA_CLASS, read_rdma_devices
from dranet.kernel.rdmanl import read_netns_exclusive
from dranet.kernel.rtnl import Surroundings, decode_all, dump_links_request, parse_link, parse_link_name
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.facts import Address, Link, NodeFacts, Route


def read_node_facts(sysfs_root: Path, procfs_root: Path) -> NodeFacts:
    """Read everything in the calling thread's network namespace.

    Raises:
        KernelError: netlink itself failed; anything smaller is a line in ``warnings``.
    """
    warnings: list[str] = []
    sysfs, procfs = PseudoFiles(sysfs_root, warnings), PseudoFiles(procfs_root, warnings)
    with NetlinkSocket.open() as rtnl:
        links = read_links(rtnl, warnings, sysfs)
        default_routes = read_default_routes(rtnl, warnings)
    rdma_devices = read_rdma_devices(sysfs)
    functions = read_pci_functions(sysfs, {device.pci_address for device in rdma_devices})
    return NodeFacts(
        links=links,
        pci_functions=tuple(functions),
        rdma_devices=tuple(rdma_devices),
        gpus=tuple(read_gpus(sysfs, procfs, functions)),
        default_routes=default_routes,
        rdma_netns_exclusive=sysfs.has(RDMA_CLASS) and read_netns_exclusive(warnings),
        warnings=tuple(warnings),
    )


def read_links(
    rtnl: NetlinkSocket, warnings: list[str], sysfs: PseudoFiles | None = None
) -> tuple[Link, ...]:
    """All links of the socket's namespace with their addresses, sorted by ifindex.

    Raises:
        KernelError: a dump failed.
    """
    payloads = rtnl.dump(dump_links_request())
    names = dict(decode_all(parse_link_name, payloads, []))  # what is odd here warns below, once
    surroundings = Surroundings(
        addresses=_read_addresses(rtnl, names, warnings),
        homes=_read_homes(sysfs, set(names.values())) if sysfs else {},
    )
    links = decode_all(partial(parse_link, surroundings=surroundings), payloads, warnings)
    return tuple(sorted(links, key=lambda link: link.ifindex))


def _read_addresses(
    rtnl: NetlinkSocket, names: Mapping[int, str], warnings: list[str]
) -> dict[int, tuple[Address, ...]]:
    payloads = rtnl.dump(dump_addresses_request())
    by_link: dict[int, list[Address]] = defaultdict(list)
    for ifindex, address in decode_all(partial(parse_address, names=names), payloads, warnings):
        by_link[ifindex].append(address)
    return {ifindex: tuple(addresses) for ifindex, addresses in by_link.items()}


def _read_homes(sysfs: PseudoFiles, names: Collection[str]) -> dict[str, str]:
    return sysfs.homes("class/net", [name for name in sysfs.entries("class/net") if name in names])


def read_default_routes(rtnl: NetlinkSocket, warnings: list[str]) -> tuple[Route, ...]:
    """Main-table default routes of both families, with every metric and next hop; IPv4 first.

    Raises:
        KernelError: a dump failed.
    """
    routes: list[Route] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        payloads = _dump_main_table(rtnl, family)
        # A kernel without the family answers with the routes of all families: keep our own only.
        defaults = (p for p in payloads if p[:1] == bytes([family]) and is_default_route(p))
        routes += decode_all(parse_route, defaults, warnings)
    return tuple(route for route in routes if route.table == RT_TABLE_MAIN and route.type == RTN_UNICAST)


def _dump_main_table(rtnl: NetlinkSocket, family: int) -> list[bytes]:
    """Empty where the kernel has not made the table yet: it does so with the first route."""
    try:
        return rtnl.dump(dump_routes_request(family, table=RT_TABLE_MAIN))
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
