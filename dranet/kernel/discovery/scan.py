"""One scan of the node: links, addresses, default routes, lifelines and hardware -> ``NodeFacts``.

It reads and merges, and judges nothing: what may be offered is the inventory's matter. :class:`NodeScanner`
remembers the last scan, so that a change costs what changed and not the whole node.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.discovery.changes import EVERYTHING, Changes
from dranet.kernel.discovery.hardware import Hardware, HardwareReader
from dranet.kernel.discovery.linktable import LinkTable
from dranet.kernel.discovery.rdma import RDMA_CLASS
from dranet.kernel.inet import (
    RT_TABLE_MAIN,
    RTN_UNICAST,
    dump_routes_request,
    is_beyond_default_routes,
    is_default_route,
    parse_route,
)
from dranet.kernel.lifelines import LifelineTarget, find_lifelines
from dranet.kernel.netlink import NetlinkSocket
from dranet.kernel.rdmanl import read_netns_exclusive
from dranet.kernel.rtnl import decode_all
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.facts import NodeFacts, Route
from dranet.model.uplinks import outputs


def read_node_facts(sysfs_root: Path, procfs_root: Path) -> NodeFacts:
    """Read everything in the calling thread's network namespace, once.

    Raises:
        KernelError: netlink itself failed; anything smaller is a line in ``warnings``.
    """
    return NodeScanner(sysfs_root, procfs_root).read()


class NodeScanner:
    """Scans the node again and again. Not safe for threads, but the thread may be another each time."""

    is_live = True

    def __init__(self, sysfs_root: Path, procfs_root: Path, *, pci_ids: Path | None = None) -> None:
        self._sysfs_root, self._procfs_root = sysfs_root, procfs_root
        self._hardware = HardwareReader(sysfs_root, procfs_root, pci_ids)
        self._links = LinkTable()
        self._targets: tuple[LifelineTarget, ...] = ()
        self._facts = NodeFacts()
        self._owed = EVERYTHING
        """What the last complete read does not show yet; a read that fails leaves it for the next."""

    def set_lifelines(self, targets: Sequence[LifelineTarget]) -> None:
        """What the next reads look for; any thread may call this."""
        self._targets = tuple(targets)

    def read(self, changes: Changes = EVERYTHING) -> NodeFacts:
        """The facts of the calling thread's network namespace, of which ``changes`` is read anew.

        The result equals what a full read would give, as far as ``changes`` names what happened. Facts that
        read as before are the same objects; warnings stay until the next full read.

        Raises:
            KernelError: netlink itself failed; what was asked for is read again with the next call.
        """
        self._owed |= changes
        facts = self._read_all() if self._owed.everything else self._read_changed(self._owed)
        self._owed = Changes()
        self._facts = facts
        return facts

    def _read_all(self) -> NodeFacts:
        sysfs = PseudoFiles(self._sysfs_root, self._missing_mounts())
        with NetlinkSocket.open() as rtnl:
            self._links.read_all(rtnl, sysfs)
            routes = read_default_routes(rtnl, sysfs.warnings)
            facts = self._merge(rtnl, routes, self._hardware.read(sysfs.warnings))
        exclusive = sysfs.has(RDMA_CLASS) and read_netns_exclusive(sysfs.warnings)
        return replace(facts, rdma_netns_exclusive=exclusive, warnings=_once(sysfs.warnings))

    def _missing_mounts(self) -> list[str]:
        """Without these files a node looks like one without cards, which nothing else would tell."""
        roots = {"sysfs": self._sysfs_root, "procfs": self._procfs_root}
        return [
            f"no {name} at {root}: what it tells of PCI, RDMA, GPUs and NUMA is missing; is it mounted there?"
            for name, root in roots.items()
            if not root.is_dir()
        ]

    def _read_changed(self, changes: Changes) -> NodeFacts:
        """The RDMA mode is not read again: it changes only while there is no other namespace, thus no pod."""
        sysfs = PseudoFiles(self._sysfs_root, [])
        last = self._facts
        with NetlinkSocket.open() as rtnl:
            touched = self._read_links(rtnl, changes, sysfs)
            routes = self._read_routes(rtnl, changes, sysfs.warnings)
            hardware = self._hardware.read(sysfs.warnings, changes.hardware, touched)
            facts = self._merge(rtnl, routes, hardware)
        warnings = _once((*last.warnings, *sysfs.warnings))
        return replace(facts, rdma_netns_exclusive=last.rdma_netns_exclusive, warnings=warnings)

    def _read_links(self, rtnl: NetlinkSocket, changes: Changes, sysfs: PseudoFiles) -> frozenset[str]:
        """Names of the links that were read, as of now and as of the last complete read: one that failed
        since then has changed the table already."""
        if changes.all_links:
            self._links.read_all(rtnl, sysfs)
            return frozenset(link.ifname for link in (*self._facts.links, *self._links.links))
        if not changes.links:
            return frozenset()
        before = [link.ifname for link in self._facts.links if link.ifindex in changes.links]
        return self._links.read_again(rtnl, changes.links, sysfs).union(before)

    def _read_routes(self, rtnl: NetlinkSocket, changes: Changes, warnings: list[str]) -> tuple[Route, ...]:
        """Routes go without a notification when their link goes down or loses their source address.

        IPv4 is cheap to ask. IPv6 is asked when its default routes are among those that could have gone.
        """
        known = self._facts.default_routes
        if changes.routes or changes.all_links:
            return read_default_routes(rtnl, warnings)
        if not changes.links:
            return known
        ipv6 = [route for route in known if ":" in route.destination]
        at_stake = any(route.source for route in ipv6) or outputs(ipv6) & changes.links
        return (
            *read_ipv4_default_routes(warnings),
            *(read_ipv6_default_routes(rtnl, warnings) if at_stake else ipv6),
        )

    def _merge(self, rtnl: NetlinkSocket, routes: tuple[Route, ...], hardware: Hardware) -> NodeFacts:
        links = self._links.links
        return NodeFacts(
            links=links,
            pci_functions=hardware.pci_functions,
            rdma_devices=hardware.rdma_devices,
            gpus=hardware.gpus,
            default_routes=routes,
            lifelines=find_lifelines(rtnl, self._targets, links),
            numa_nodes=hardware.numa_nodes,
            host=hardware.host,
        )


def _once(warnings: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(warnings))


def read_default_routes(rtnl: NetlinkSocket, warnings: list[str]) -> tuple[Route, ...]:
    """Main-table default routes of both families, with every metric and next hop; IPv4 first.

    For the calling thread's namespace, which must be the socket's.

    Raises:
        KernelError: a dump failed.
    """
    return (*read_ipv4_default_routes(warnings), *read_ipv6_default_routes(rtnl, warnings))


def read_ipv4_default_routes(warnings: list[str]) -> tuple[Route, ...]:
    """Those of the calling thread's namespace. Costs the same with a whole Internet in the table.

    Raises:
        KernelError: the dump failed.
    """
    request = dump_routes_request(socket.AF_INET, table=RT_TABLE_MAIN)
    with NetlinkSocket.open() as rtnl:
        payloads = _dump_table(lambda: rtnl.dump_start(request, is_beyond_default_routes))
    return _parse_defaults(socket.AF_INET, payloads, warnings)


def read_ipv6_default_routes(rtnl: NetlinkSocket, warnings: list[str]) -> tuple[Route, ...]:
    """Those of the socket's namespace; some 2 microseconds for each route of the table.

    Raises:
        KernelError: the dump failed.
    """
    request = dump_routes_request(socket.AF_INET6, table=RT_TABLE_MAIN)
    return _parse_defaults(socket.AF_INET6, _dump_table(lambda: rtnl.dump(request)), warnings)


def _dump_table(dump: Callable[[], list[bytes]]) -> list[bytes]:
    """Empty where the kernel has not made the table yet: it does so with the first route."""
    try:
        return dump()
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return []
        raise


def _parse_defaults(family: int, payloads: Iterable[bytes], warnings: list[str]) -> tuple[Route, ...]:
    # A kernel without the family answers with the routes of all families: keep our own only.
    defaults = (p for p in payloads if p[:1] == bytes([family]) and is_default_route(p))
    routes = decode_all(parse_route, defaults, warnings)
    return tuple(route for route in routes if route.table == RT_TABLE_MAIN and route.type == RTN_UNICAST)
