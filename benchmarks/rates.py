"""Rate limits with real TCP between two namespaces: how far what passes is from what was asked for.

A veth pair stands for the NIC; one end is in the pod and is limited, in the direction that is measured.
Goodput is turned into the rate on the wire with the headers of a full packet (Ethernet, IPv4, TCP with
timestamps). 1 Gbit/s and less, because two Python processes on two busy cores are no sure source of more.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Result, Series
from dranet.kernel.attachment.links import open_pod_side
from dranet.kernel.attachment.traffic import limit_rate, remove_limits
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.plan import LimitRate
from testbed.runtime.pod_netns import create_netns, remove_netns
from testbed.traffic import Endpoint, measure_traffic

RATES = {"10 Mbit/s": 10**7, "100 Mbit/s": 10**8, "1 Gbit/s": 10**9}
RUNS = 3
SECONDS = 3.0
BOUND_PERCENT = 10.0

MTU, FRAME_HEADER, IP_AND_TCP = 1500, 14, 52

NETNS = Path("/run/netns")
POD = Endpoint(str(NETNS / "pod"), "net1", "10.9.0.1")
FAR = Endpoint(str(NETNS / "far"), "far1", "10.9.0.2")


@dataclass(frozen=True, slots=True)
class Direction:
    """Which way the bytes go, and the limit on that way."""

    name: str
    client: Endpoint
    server: Endpoint

    def limit(self, rate: int) -> LimitRate:
        if self.name == "egress":
            return LimitRate(egress_bits_per_second=rate)
        return LimitRate(ingress_bits_per_second=rate)


DIRECTIONS = (Direction("egress", POD, FAR), Direction("ingress", FAR, POD))


def run() -> Iterator[Result]:
    """Each rate in each direction; how many percent the rate on the wire is off, either way."""
    _make_ends()
    try:
        for direction in DIRECTIONS:
            for name, rate in RATES.items():
                off = [abs(_measure(direction, rate) / rate - 1) * 100 for _ in range(RUNS)]
                title = f"{direction.name} limit of {name}, off by"
                yield Result(title, Series(title, tuple(off), unit="%"), bound=BOUND_PERCENT)
    finally:
        for end in (POD, FAR):
            remove_netns(Path(end.netns_path))


def _measure(direction: Direction, rate: int) -> float:
    """Bits per second on the wire, under a limit made for this run."""
    with NetworkNamespace.open(POD.netns_path) as netns, open_pod_side(netns) as pod:
        ifindex = pod.run(lambda: socket.if_nametoindex(POD.ifname))
        limit_rate(pod, ifindex, POD.ifname, direction.limit(rate))
        try:
            passed = asyncio.run(
                measure_traffic(direction.client, direction.server, seconds=SECONDS, round_trips=1)
            )
        finally:
            remove_limits(pod, ifindex, POD.ifname)
    if not passed.crossed_the_interfaces:
        raise RuntimeError("the bytes took another way")
    return passed.bits_per_second * (MTU + FRAME_HEADER) / (MTU - IP_AND_TCP)


def _make_ends() -> None:
    for end in (POD, FAR):
        create_netns(Path(end.netns_path))
    _ip(f"link add {POD.ifname} type veth peer name {FAR.ifname} netns far", "pod")
    for end, name in ((POD, "pod"), (FAR, "far")):
        _ip(f"addr add {end.address}/24 dev {end.ifname}\nlink set {end.ifname} up", name)


def _ip(lines: str, netns: str) -> None:
    subprocess.run(("ip", "-n", netns, "-batch", "-"), input=lines, text=True, check=True)
