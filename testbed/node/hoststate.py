"""The network state of the node's namespace as lines of text, so that before and after can be compared.

It asks iproute2, not the driver's own readers. Left out is what the kernel changes by itself: counters,
remaining lifetimes, the progress of duplicate address detection, learnt neighbours, and interface indexes
(a NIC that comes back may find its old one taken).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.node.iproute import read_json

_FOREVER = 4294967295
_VOLATILE = {
    "link": frozenset({"ifindex", "ifname", "link_netnsid", "stats", "stats64"}),
    "address": frozenset({"tentative", "dadfailed"}),
    "route": frozenset({"expires", "used"}),
    "rule": frozenset[str](),
    "neighbour": frozenset({"used", "confirmed", "updated", "probes", "refcnt", "state"}),
    "qdisc": frozenset({"refcnt"}),
}


@dataclass(frozen=True, slots=True)
class HostState:
    """Every fact of the namespace as one line each, such as ``link eth1: mtu 9000``."""

    facts: frozenset[str]

    def differences(self, after: HostState) -> tuple[str, ...]:
        """Lines ``- fact`` that are gone and ``+ fact`` that are new; empty when nothing differs."""
        gone = [f"- {fact}" for fact in self.facts - after.facts]
        new = [f"+ {fact}" for fact in after.facts - self.facts]
        return tuple(sorted(gone + new, key=lambda line: (line[2:].partition(":")[0], line[2:], line[0])))


def read_host_state() -> HostState:
    """Read links, addresses, routes and rules (both families), permanent neighbours and qdiscs.

    Raises:
        KernelError: iproute2 failed.
    """
    return HostState(
        frozenset(
            line
            for lines in (
                _links(read_json("ip", "-json", "-details", "link")),
                _addresses(read_json("ip", "-json", "address")),
                _tables("route", "show", "table", "all"),
                _tables("rule"),
                _tables("neighbour", "show", "nud", "permanent"),
                _whole("qdisc", read_json("tc", "-json", "qdisc"), ""),
            )
            for line in lines
        )
    )


def _links(links: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for link in links:
        for key, value in sorted(link.items()):
            if key not in _VOLATILE["link"]:
                yield f"link {link['ifname']}: {key} {_text(value)}"


def _addresses(links: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for link in links:
        for address in link.get("addr_info", ()):
            lasting = {
                key: value
                for key, value in address.items()
                if key not in _VOLATILE["address"] and not (key.endswith("life_time") and value != _FOREVER)
            }
            yield f"address of {link['ifname']}: {_text(lasting)}"


def _tables(kind: str, *arguments: str) -> Iterator[str]:
    for family in ("-4", "-6"):
        yield from _whole(kind, read_json("ip", "-json", family, kind, *arguments), f" ({family[1]})")


def _whole(kind: str, entries: Iterable[Mapping[str, Any]], suffix: str) -> Iterator[str]:
    for entry in entries:
        of = f" of {entry['dev']}" if "dev" in entry else ""
        lasting = {key: value for key, value in entry.items() if key not in _VOLATILE[kind] | {"dev"}}
        yield f"{kind}{suffix}{of}: {_text(lasting)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_text(inner)}" for key, inner in sorted(value.items()))
    if isinstance(value, list):
        return "[" + ", ".join(_text(inner) for inner in value) + "]"
    return str(value)
