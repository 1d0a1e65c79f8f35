"""``docs/reference/restored.md``: what is restored of a device after its pod, and what is not.

The rows of a card's own settings are declared at the parts that record and restore them (``hardware``). A
test compares all rows with the fields of the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from dranet.kernel.attachment.hardware import HARDWARE
from tools.pages.page import fill, table


class Restored(Struct, frozen=True):
    """A row: the fields of ``LinkState`` or ``AttachPlan``, what they are, and its limits."""

    fields: tuple[str, ...]
    what: str
    limits: str = ""


LINK: tuple[Restored, ...] = (
    Restored(("ifname", "altnames"), "name and alternative names"),
    Restored(
        ("up", "mtu", "mac", "alias", "group", "tx_queue_length"),
        "up or down, MTU, MAC address, alias, group, queue length",
    ),
    Restored(
        ("promiscuous", "all_multicast", "arp", "multicast"), "promiscuous, all-multicast, ARP, multicast"
    ),
    Restored(("offload_sizes",), "GSO and GRO sizes"),
    Restored(
        ("addresses",), "addresses", "the kernel makes privacy addresses and its own `fe80::` by itself"
    ),
    Restored(
        ("routes",),
        "routes through the link, of every table",
        "a link with a route that cannot be recorded (nexthop object, several next hops) is not prepared",
    ),
    Restored(("neighbours",), "permanent neighbors and proxies"),
    Restored(("token",), "IPv6 token"),
    Restored(("sysctls",), "sysctls of the link (`conf`, `neigh`), IPv4 and IPv6"),
    Restored(("traffic_control",), "qdiscs and classes", "a move drops filters: their owner adds them again"),
    Restored(
        ("programs",),
        "BPF programs",
        "a tenant's are removed; the node's, which a move drops, are named in the log and not loaded again",
    ),
)
"""State that the kernel keeps of a link."""

DEVICE: tuple[Restored, ...] = (
    Restored(
        ("cpus",),
        "CPUs of interrupts, with `cpuLocality.irq`",
        "an interrupt that another program has placed since stays there",
    ),
    Restored(
        ("rdma_cm",),
        "`rdma_cm`: `default_roce_mode` and `default_roce_tos` of each port",
        "exclusive mode, where a move loses them; the pod has them too. It takes configfs in the kernel",
    ),
)
"""Other state of a device; the fields are those of ``AttachPlan``."""

IDENTITY = frozenset({"ifindex", "permanent_mac", "parent_device", "version", "read_at"})
"""Fields of ``LinkState`` that identify the link."""

NOT_RESTORED: Mapping[str, str] = {
    "speed, duplex, autonegotiation (`ethtool -s`)": "a mismatch shows as a link without carrier",
    "wake-on-LAN, message level, time stamping (`ethtool -s`, `hwstamp_ctl`)": "no traffic depends on them",
    "directions of pause frames while `autoneg` is on": "the two ends of the cable agree on them",
    "hash fields of an RSS context; RSS contexts before Linux 6.11": (
        "a context without a flow rule has no traffic, and flow rules are restored"
    ),
    "DCB buffers, APP trust and rewrite tables, CEE": "look at `dcb buffer`, `dcb apptrust`, `dcb rewr`",
    "devlink: port parameters, eswitch mode, rates": "devlink does not move with the link",
    "what a PF keeps of its VF (trust, spoof check, rate, VLAN), without `interface.vf`": (
        "only the node can set it; what `interface.vf` sets is restored"
    ),
    "firmware and flash (`ethtool -f`, `ethtool -E`)": "reset or flash the card between tenants",
    "XPS and RPS of a link that had none at Prepare": "only a privileged container can set them",
    "statistics": "counters go on",
}
"""State that a tenant or an administrator may have set -> why it is not restored, or what to check."""


def list_restored() -> Iterator[Restored]:
    """Yield every row, in the order of the page."""
    yield from LINK
    for field, part in HARDWARE.items():
        yield from (Restored((field,), what, limits) for what, limits in part.rows)
    yield from DEVICE


def restored_page() -> str:
    return fill(
        "restored.md",
        restored=table(("restored", "limits"), ((row.what, row.limits or "-") for row in list_restored())),
        not_restored=table(("not restored", "why, or what to do"), NOT_RESTORED.items()),
    )
