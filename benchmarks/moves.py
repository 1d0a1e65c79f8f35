"""Whether the kernel can be made to move eight links at once: one after the other, in one batch, by threads.

A link that changes its namespace waits until no CPU can still see it in the old one (a grace period of RCU),
and the kernel waits with its lock over all links (RTNL) held: no other move can begin meanwhile, however it
is asked for. Links are veth ends, and up.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks.measure import Result, Series, time_ms
from dranet.kernel.netlink.rtnl import IFLA_NET_NS_FD, set_link_request
from dranet.kernel.netlink.socket import NetlinkSocket, Request, attribute_u32
from testbed.isolation import WORK_DIR
from testbed.runtime.pod_netns import create_netns, remove_netns

LINKS = 8
RUNS = 20
ONE, IN_TURN, BATCH, THREADS = "1 link", "one after the other", "one batch", "a thread and a socket for each"

Move = Callable[[Sequence[Request]], None]


def run() -> Iterator[Result]:
    ways: dict[str, Move] = {
        ONE: _move_first,
        IN_TURN: _move_in_turn,
        BATCH: _move_batch,
        THREADS: _move_by_threads,
    }
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(RUNS):
        for way, move in ways.items():
            samples[way].append(_measure(move))
    yield Result(f"move of {ONE}", Series(ONE, tuple(samples[ONE])))
    floor = Series(IN_TURN, tuple(samples[IN_TURN]))
    for way in (IN_TURN, BATCH, THREADS):
        yield Result(f"moves of {LINKS} links, {way}", Series(way, tuple(samples[way])), floor)


def _measure(move: Move) -> float:
    names = [f"rail{number}" for number in range(LINKS)]
    _ip([line for name in names for line in _make(name)])
    path = WORK_DIR / "moves"
    create_netns(path)
    netns = os.open(path, os.O_RDONLY)
    try:
        target = attribute_u32(IFLA_NET_NS_FD, netns)
        requests = [
            set_link_request(socket.if_nametoindex(name), target, operation="move", link=name)
            for name in names
        ]
        return time_ms(lambda: move(requests))
    finally:
        os.close(netns)
        _ip([f"link del peer-{name}" for name in names])
        remove_netns(path)


def _make(name: str) -> tuple[str, ...]:
    peer = f"peer-{name}"
    return f"link add {name} type veth peer name {peer}", f"link set {name} up", f"link set {peer} up"


def _move_first(requests: Sequence[Request]) -> None:
    _move_in_turn(requests[:1])


def _move_in_turn(requests: Sequence[Request]) -> None:
    with NetlinkSocket.open() as rtnl:
        for request in requests:
            rtnl.request(request)


def _move_batch(requests: Sequence[Request]) -> None:
    with NetlinkSocket.open() as rtnl:
        rtnl.batch(requests)


def _move_by_threads(requests: Sequence[Request]) -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(NetlinkSocket.open()) for _ in requests]
        with ThreadPoolExecutor(len(requests)) as threads:
            pairs = zip(sockets, requests, strict=True)
            list(threads.map(lambda pair: pair[0].request(pair[1]), pairs))


def _ip(lines: Sequence[str]) -> None:
    subprocess.run(("ip", "-batch", "-"), input="\n".join(lines), text=True, check=True)
