"""The link that a lease is asked for on: raised for the time of the conversation, then as it was.

Prepare must not leave a mark on a link that another claim may get, and the recorded host state was read
before or is read after.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from dranet.errors import KernelError, Reason
from dranet.kernel.inet import (
    add_address_request,
    add_neighbour_request,
    dump_addresses_request,
    dump_neighbours_request,
    is_kernel_link_local,
    parse_address,
    parse_permanent_neighbour,
)
from dranet.kernel.netlink import (
    NETLINK_ROUTE,
    NetlinkSocket,
    Request,
    open_raw_socket,
)
from dranet.kernel.rtnl import (
    IFF_UP,
    RTNLGRP_LINK,
    decode,
    get_link_request,
    parse_link,
    set_link_request,
)
from dranet.model.facts import Address, Link

_ARPHRD_ETHER = 1
_NOTIFICATION_BYTES = 64 * 1024


@contextmanager
def raised(ifname: str, deadline: float) -> Iterator[Link]:
    """The link, up and with a carrier; lowered afterwards if it was down before.

    Raises:
        KernelError: no such link, no Ethernet, or no carrier until ``deadline`` (monotonic).
    """
    with NetlinkSocket.open() as rtnl:
        link = read_link(rtnl, ifname)
        if link.is_up:
            yield _wait_for_carrier(rtnl, link, deadline)
            return
        kept = _read_what_a_lowered_link_loses(rtnl, link)
        _set_up(rtnl, link, up=True)
        try:
            yield _wait_for_carrier(rtnl, link, deadline)
        finally:
            _lower(rtnl, link, kept)


def read_link(rtnl: NetlinkSocket, ifname: str) -> Link:
    """An Ethernet link by name.

    Raises:
        KernelError: no such link, or another kind of hardware, which speaks another DHCP (RFC 4390).
    """
    (answer,) = rtnl.request(get_link_request(ifname=ifname))
    link = decode(parse_link, answer.payload)
    if link.arp_type != _ARPHRD_ETHER:
        raise KernelError(
            f"link {ifname} is no Ethernet link: DHCP is not available on it",
            operation="speak DHCP",
            link=ifname,
            hint="give interface.addresses instead",
            reason=Reason.MISSING_FEATURE,
            retryable=False,
        )
    return link


def read_addresses(rtnl: NetlinkSocket, link: Link) -> tuple[Address, ...]:
    """The addresses of the link but those that the kernel makes by itself."""
    parse = partial(parse_address, names={link.ifindex: link.ifname})
    payloads = [p for p in rtnl.dump(dump_addresses_request(link.ifindex)) if not is_kernel_link_local(p)]
    parsed = (decode(parse, payload) for payload in payloads)
    return tuple(found[1] for found in parsed if found is not None and found[0] == link.ifindex)


def _wait_for_carrier(rtnl: NetlinkSocket, link: Link, deadline: float) -> Link:
    with closing(open_raw_socket(NETLINK_ROUTE)) as news:
        news.bind((0, 1 << (RTNLGRP_LINK - 1)))
        news.setblocking(False)
        poll = select.poll()
        poll.register(news, select.POLLIN)
        while not (link := read_link(rtnl, link.ifname)).carrier:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise KernelError(
                    f"link {link.ifname} has no carrier: no DHCP server can be asked",
                    operation="speak DHCP",
                    link=link.ifname,
                    hint="is its cable or its other end up?",
                    reason=Reason.DHCP_FAILED,
                )
            _drain(news)
        return link


def _drain(news: socket.socket) -> None:
    """Something changed; what, is read from the link itself."""
    try:
        while news.recv(_NOTIFICATION_BYTES):
            pass
    except BlockingIOError:
        return
    except OSError:
        return  # some were lost (ENOBUFS): a change, too


def _set_up(rtnl: NetlinkSocket, link: Link, *, up: bool) -> None:
    operation = "raise" if up else "lower"
    flags = IFF_UP if up else 0
    rtnl.request(
        set_link_request(link.ifindex, operation=operation, link=link.ifname, flags=flags, change=IFF_UP)
    )


def _read_what_a_lowered_link_loses(rtnl: NetlinkSocket, link: Link) -> list[Request]:
    """Requests that give a link what the kernel takes from it as it goes down: IPv6 addresses, neighbours."""
    addresses = [a for a in read_addresses(rtnl, link) if ":" in a.cidr]
    parse = partial(parse_permanent_neighbour, ifindex=link.ifindex)
    payloads = rtnl.dump(dump_neighbours_request(link.ifindex))
    neighbours = [n for n in (decode(parse, payload) for payload in payloads) if n is not None]
    return [
        *(add_address_request(link.ifindex, a, link.ifname) for a in addresses),
        *(add_neighbour_request(link.ifindex, n, link.ifname) for n in neighbours),
    ]


def _lower(rtnl: NetlinkSocket, link: Link, kept: list[Request]) -> None:
    """Down again, if it is still here: the runtime's hook may have taken it meanwhile, up or not."""
    try:
        _set_up(rtnl, link, up=False)
    except KernelError:
        return
    rtnl.batch(kept)
