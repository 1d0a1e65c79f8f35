"""A scan of 10, 100 and 1,000 links, against iproute2 reading the same.

Floor: ``ip -details -json link`` and then ``ip -json addr``, as two child processes, output read and
thrown away. Ours additionally reads routes, PCI, RDMA and GPU facts of the running machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Result, Series, time_in_turn
from dranet.kernel.scan import read_node_facts

SIZES = (10, 100, 1000)
RUNS = 15
BOUND = 2.0


def run() -> Iterator[Result]:
    """Links are veth ends with one address each, added as the size grows."""
    made = 0
    for size in SIZES:
        _add_links(made, size)
        made = size
        ours, floor = time_in_turn(_scan, _read_with_ip, RUNS)
        title = f"scan of {size} links"
        yield Result(title, Series(title, tuple(ours)), Series("ip link + ip addr", tuple(floor)), BOUND)


def _scan() -> None:
    read_node_facts(Path("/sys"), Path("/proc"))


def _read_with_ip() -> None:
    for arguments in (("-details", "-json", "link"), ("-json", "addr")):
        subprocess.run(("ip", *arguments), check=True, stdout=subprocess.DEVNULL)


def _add_links(first: int, end: int) -> None:
    lines = []
    for number in range(first, end, 2):
        lines += [
            f"link add v{number} type veth peer name v{number + 1}",
            f"addr add 10.{number // 250}.{number % 250}.1/24 dev v{number}",
            f"addr add 10.{100 + number // 250}.{number % 250}.1/24 dev v{number + 1}",
        ]
    subprocess.run(("ip", "-batch", "-"), input="\n".join(lines), text=True, check=True)
