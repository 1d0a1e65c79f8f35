"""The two sides of a move, and where a planned link is now.

A link is known by its device and index, else by its permanent MAC address where it has one, else by a MAC
address that it had or was given. The permanent address alone is not enough: igbvf takes for it whatever
address the tenant set.
Names are only hints: the kernel returns a NIC under its pod name or as ``dev%d`` when a namespace
dies, and a tenant may rename it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TypeVar

from msgspec import Struct

from dranet.errors import DranetError, KernelError
from dranet.kernel.attachment.linkstate import read_link
from dranet.kernel.namespaces.netns import NetworkNamespace, Visit
from dranet.kernel.netlink.rtnl import decode_all, dump_links_request, parse_link
from dranet.kernel.netlink.socket import NETLINK_GENERIC, NetlinkSocket
from dranet.kernel.sysfs.sysctl import write_sysctl
from dranet.model.facts import Link
from dranet.model.plan import AttachPlan, LinkState, MoveLink

_SHARED_MAC_KINDS = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "bond", "bridge", "team"})
"""Kinds that wear the MAC address of a link below them."""

_NAME_OF_THE_RETURNED = re.compile(r"dev[0-9]+")
"""What the kernel calls a link that it takes out of a dying namespace when its name is not free."""

T = TypeVar("T")


class Side:
    """One end of a move: a namespace, sockets that live in it, and a way to call functions in it."""

    def __init__(self, netns: NetworkNamespace, rtnl: NetlinkSocket, visit: Visit | None = None) -> None:
        """``visit`` is the thread inside; ``None`` where the calling thread is inside by itself."""
        self.netns = netns
        self.rtnl = rtnl
        self._visit = visit
        self._genl: NetlinkSocket | None = None

    @property
    def genl(self) -> NetlinkSocket:
        """A generic netlink socket, opened at the first use.

        Raises:
            KernelError: it could not be opened.
        """
        if self._genl is None:
            self._genl = self.run(lambda: NetlinkSocket.open(NETLINK_GENERIC))
        return self._genl

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in this namespace.

        Raises:
            Exception: whatever ``function`` raised.
        """
        return function() if self._visit is None else self._visit.run(function)

    def close(self) -> None:
        """Close what the side opened by itself; the rest is its opener's."""
        if self._genl is not None:
            self._genl.close()
            self._genl = None


@contextmanager
def open_host_side() -> Iterator[Side]:
    """The calling thread's namespace."""
    with (
        NetworkNamespace.current() as netns,
        NetlinkSocket.open() as rtnl,
        closing(Side(netns, rtnl)) as side,
    ):
        yield side


@contextmanager
def open_pod_side(netns: NetworkNamespace) -> Iterator[Side]:
    """A pod's namespace, entered once; ``netns`` stays the caller's.

    Raises:
        KernelError: the namespace could not be entered.
    """
    with (
        netns.enter() as visit,
        visit.run(NetlinkSocket.open) as rtnl,
        closing(Side(netns, rtnl, visit)) as side,
    ):
        yield side


class Found(Struct, frozen=True):
    """A link and the side it is on."""

    side: Side
    link: Link


def planned_move(plan: AttachPlan) -> MoveLink | None:
    """The step that moves the link; ``None`` for a device without one."""
    return next((step for step in plan.steps if isinstance(step, MoveLink)), None)


def is_same_device(link: Link, plan: AttachPlan, host: LinkState) -> bool:
    """Whether this is the link that was prepared, by the strongest identity that it has."""
    if host.parent_device and (link.parent_device, link.ifindex) == (host.parent_device, host.ifindex):
        return True
    if link.permanent_mac or host.permanent_mac:
        return link.permanent_mac == host.permanent_mac
    move = planned_move(plan)
    return link.mac in {host.mac, move.mac if move else None}


def find_link(plan: AttachPlan, host: LinkState, home: Side, pod: Side | None) -> Found | None:
    """Find the planned link on either side; ``None`` if it is gone.

    Cheap look-ups come first, a walk over all links last. A link that only its place and index identify (a
    tenant changed the MAC address of a device that has no permanent one) comes after every link that its
    address identifies.
    """
    for candidate in _iter_candidates(plan, host, home, pod):
        if is_same_device(candidate.link, plan, host):
            return candidate
    return _find_by_index(plan, host, home, pod)


def _iter_candidates(plan: AttachPlan, host: LinkState, home: Side, pod: Side | None) -> Iterator[Found]:
    yield from _look_up(home, ifindex=host.ifindex)
    if pod is not None:
        yield from _look_up(pod, ifname=plan.pod_ifname)
    yield from _look_up(home, ifname=host.ifname)
    yield from _look_up(home, ifname=plan.pod_ifname)
    if pod is not None:
        yield from (found for found in _walk(pod) if found.link.kind not in _SHARED_MAC_KINDS)
    yield from (found for found in _walk(home) if _may_have_returned(found.link, host))


def _may_have_returned(link: Link, host: LinkState) -> bool:
    """Whether a link of the host that nothing but its MAC address points to may be the planned one.

    Without a permanent address others can wear the same one (an ipvlan shares it with the NIC below), so
    then the name must be one that the kernel gives.
    """
    return bool(host.permanent_mac) or _NAME_OF_THE_RETURNED.fullmatch(link.ifname) is not None


def _walk(side: Side) -> Iterator[Found]:
    for link in decode_all(parse_link, side.rtnl.dump(dump_links_request()), []):
        yield Found(side, link)


def _look_up(side: Side, ifindex: int = 0, ifname: str = "") -> Iterator[Found]:
    link = read_link(side.rtnl, ifindex, ifname)
    if link is not None:
        yield Found(side, link)


def _find_by_index(plan: AttachPlan, host: LinkState, home: Side, pod: Side | None) -> Found | None:
    if host.permanent_mac:
        return None
    in_pod = _look_up(pod, ifname=plan.pod_ifname) if pod is not None else iter(())
    for candidate in (*in_pod, *_look_up(home, ifindex=host.ifindex)):
        if candidate.link.ifindex == host.ifindex and not candidate.link.permanent_mac:
            return candidate
    return None


# --- undo of a failed attach, last step first -----------------------------------------------------------

Undo = Callable[[], Iterable[str] | None]
"""Takes one thing back; returns what could not be taken back, one line each, or nothing."""


class UndoStack:
    """The undo of every step that was taken so far, each with the device that it was taken for."""

    def __init__(self) -> None:
        self._undos: list[tuple[str, Undo]] = []

    def later(self, device: str, undo: Undo) -> None:
        """Take this back if a later step fails."""
        self._undos.append((device, undo))

    def run(self) -> tuple[str, ...]:
        """Take everything back, going on after a refusal; returns the problems, each with its device."""
        problems: list[str] = []
        while self._undos:
            device, undo = self._undos.pop()
            try:
                problems += [f"{device}: {problem}" for problem in undo() or ()]
            except DranetError as error:
                problems.append(f"{device}: {error.message}")
        return tuple(problems)


# --- sysctls of a pod, with undo ------------------------------------------------------------------------


def write_pod_sysctls(pod: Side, device: str, wanted: Iterable[tuple[str, str]], undo: UndoStack) -> None:
    """Write values by path, in order.

    Raises:
        KernelError: the kernel refused one; those before it are written.
    """
    before: list[tuple[str, str]] = []

    def write() -> None:
        for path, value in wanted:
            was = write_sysctl(path, value)
            before.append((path, was))

    undo.later(device, partial(_write_back, pod, before))
    pod.run(write)


def _write_back(pod: Side, before: Sequence[tuple[str, str]]) -> list[str]:
    """Write the previous values. An empty one could not be read and cannot be restored."""
    problems: list[str] = []

    def write() -> None:
        for path, value in reversed(before):
            try:
                if value:
                    write_sysctl(path, value)
            except KernelError as error:
                problems.append(error.message)

    pod.run(write)
    return problems
