"""Pick values out of answers that may have any shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from dranet.model.attributes import join_whole
from dranet.model.device import AttributeValue
from dranet.settings import CloudProvider

Attributes = dict[str, AttributeValue]

MAX_INTERFACES = 256


class SourceRouting(Struct, frozen=True):
    """Packets from these addresses leave by the NIC itself, by a routing table of its own."""

    sources: tuple[str, ...]
    table: int

    def build_config(self, router: str) -> dict[str, list[dict[str, object]]]:
        """As a claim would write it."""
        default = "::/0" if ":" in router else "0.0.0.0/0"
        return {
            "rules": [{"source": source, "table": self.table} for source in self.sources],
            "routes": [{"destination": default, "gateway": router, "table": self.table}],
        }


class CloudFacts(Struct, frozen=True):
    """The answer of one cloud, by qualified names. ``model.provider`` checks the values."""

    node: Mapping[str, Any] = field(default_factory=dict)
    by_mac: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys are lower case with colons."""
    by_rdma: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By the name of the RDMA device."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By hardware address: what the cloud's network needs of a NIC, as a claim would write it."""
    ipv6_routing: Mapping[str, SourceRouting] = field(default_factory=dict)
    """By hardware address. No cloud names the router of IPv6: the kernel learns it."""

    def find_config(self, mac: str, find_ipv6_router: Callable[[], str]) -> Mapping[str, Any]:
        """What the NIC needs; of IPv6 only where its router is known."""
        config = self.configs.get(mac, {})
        routing = self.ipv6_routing.get(mac)
        if routing is None or not (router := find_ipv6_router()):
            return config
        added = routing.build_config(router)
        return {**config, **{name: [*config.get(name, ()), *more] for name, more in added.items()}}


class Remembered(Struct, frozen=True):
    """What the attributes are made of, as of the last answer. Without a cloud it is the labels alone."""

    boot_id: str
    provider: CloudProvider
    answer: CloudFacts
    labels: Mapping[str, str]


def get_text(answer: object, *path: str) -> str:
    """The text below the keys; empty where it is missing or of another type."""
    for key in path:
        answer = answer.get(key) if isinstance(answer, Mapping) else None
    return answer.strip() if isinstance(answer, str) else ""


def get_entries(answer: object, key: str) -> Iterator[Mapping[str, Any]]:
    """The objects of the list below ``key``."""
    entries = answer.get(key) if isinstance(answer, Mapping) else None
    for entry in entries[:MAX_INTERFACES] if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield entry


def known(values: Mapping[str, object]) -> dict[str, object]:
    """Those that the cloud has given."""
    return {name: value for name, value in values.items() if value not in ("", None)}


def join(texts: Sequence[object]) -> str:
    """As many whole texts as an attribute can take."""
    return join_whole([text for text in texts if isinstance(text, str) and text]) or ""


def list_macs(text: str) -> list[str]:
    """The hardware addresses of a listing, a line for each."""
    macs = (canonical_mac(line.rstrip("/")) for line in text.split()[:MAX_INTERFACES])
    return [mac for mac in macs if mac]


def canonical_mac(text: str) -> str:
    """Lower case with colons, however the cloud writes it; empty for anything else."""
    digits = text.lower().replace(":", "").replace("-", "")
    if len(digits) != 12 or any(digit not in "0123456789abcdef" for digit in digits):
        return ""
    return ":".join(digits[place : place + 2] for place in range(0, 12, 2))
