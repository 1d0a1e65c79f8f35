"""Settings that a NIC's driver keeps in the card: how each part is read, compared and restored.

The parts stay on a link that moves, so a tenant with ``NET_ADMIN`` leaves them to the next one. Prepare reads
each; release reads those again that the driver reported then, and writes those that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.attachment.locality import (
    look_at_queues,
    open_queues,
    queue_difference,
    restore_queues,
)
from dranet.kernel.attachment.locate import Side
from dranet.kernel.ethtool import settings as ethtool
from dranet.kernel.ethtool.steering import Nic, read_steering, restore_steering, steering_difference
from dranet.kernel.netlink.dcb import dcb_difference, read_dcb, restore_dcb
from dranet.kernel.refusals import report_unreadable
from dranet.model.facts import Link
from dranet.model.plan import DcbState, EthtoolState, SteeringState


class HardwarePart(Struct, frozen=True):
    """One field of ``LinkState``."""

    read: Callable[[Side, Link, Any], Any]
    """``(side, link, recorded)``: everything that the driver reports, or with a record only what that has."""
    difference: Callable[[Any, Any], list[str]]
    """``(wanted, found)``: one line for each setting that is not as recorded."""
    restore: Callable[[Side, Link, Any, Any], list[str]]
    """``(side, link, wanted, found)``: the refusals."""
    rows: tuple[tuple[str, str], ...]
    """What it is, and its limits: rows of ``docs/user/restored.md``."""
    needs_up: bool = False
    """A driver resets it when the link comes up, so it is restored after that."""


def _read_ethtool(side: Side, link: Link, recorded: EthtoolState | None) -> EthtoolState:
    parts = tuple(part for part in ethtool.PARTS if recorded is None or getattr(recorded, part))
    return ethtool.read_ethtool_state(side.genl, link.ifindex, parts, link.ifname)


def _restore_ethtool(side: Side, link: Link, wanted: EthtoolState, _found: EthtoolState) -> list[str]:
    return ethtool.restore_ethtool(side.genl, link.ifindex, wanted, link.ifname)


def _nic(side: Side, link: Link) -> Nic:
    return Nic(side.genl, link.ifindex, link.ifname)


def _read_steering(side: Side, link: Link, recorded: SteeringState | None) -> SteeringState:
    return read_steering(_nic(side, link), recorded)


def _restore_steering(side: Side, link: Link, wanted: SteeringState, found: SteeringState) -> list[str]:
    return restore_steering(_nic(side, link), wanted, found)


def _read_dcb(side: Side, link: Link, recorded: DcbState | None) -> DcbState:
    return DcbState() if recorded == DcbState() else read_dcb(side.rtnl, link.ifname)


def _restore_dcb(side: Side, link: Link, wanted: DcbState, found: DcbState) -> list[str]:
    return restore_dcb(side.rtnl, link.ifname, wanted, found)


def _read_queues(side: Side, link: Link, recorded: Mapping[str, str] | None) -> Mapping[str, str]:
    if recorded is not None and not recorded:
        return {}
    try:
        with look_at_queues(side, link) as queues:
            if recorded is not None:
                return {name: queues.read_one(name) for name in recorded}
            found = queues.read(xps=True, rps=True)
    except KernelError as error:
        report_unreadable(link.ifname, "queues", error)
        return {}
    return {name: value for name, value in found.items() if value.strip("0,")}


def _restore_queues(
    side: Side, link: Link, wanted: Mapping[str, str], _found: Mapping[str, str]
) -> list[str]:
    if not queue_difference(wanted, _read_queues(side, link, wanted)):
        return []  # what was found is from before the link came up
    with open_queues(side, link.ifname) as queues:
        return restore_queues(queues, wanted)


HARDWARE: Mapping[str, HardwarePart] = {
    "ethtool": HardwarePart(
        _read_ethtool,
        ethtool.difference,
        _restore_ethtool,
        tuple((f"{part.what} (`ethtool {part.option}`)", part.limits) for part in ethtool.PARTS.values()),
    ),
    "steering": HardwarePart(
        _read_steering,
        steering_difference,
        _restore_steering,
        (
            ("RSS: table, key, hash function, input transformation (`ethtool -x`)", ""),
            ("additional RSS contexts (`ethtool -x LINK context N`)", "Linux 6.11"),
            ("fields that are hashed (`ethtool -n LINK rx-flow-hash tcp4`)", ""),
            ("flow rules, n-tuple (`ethtool -n`)", "those of a tenant are deleted"),
        ),
    ),
    "dcb": HardwarePart(
        _read_dcb,
        dcb_difference,
        _restore_dcb,
        (
            ("DCB: ETS, PFC, maximum rates, DCBX mode (`dcb ets`, `dcb pfc`, `dcb maxrate`, `dcb dcbx`)", ""),
            ("DCB: APP table (`dcb app`)", "the kernel drops it with every move since Linux 5.18"),
        ),
    ),
    "queues": HardwarePart(
        _read_queues,
        queue_difference,
        _restore_queues,
        (
            (
                "CPUs of the queues: XPS, RPS",
                "where some were set at Prepare; mlx5 sets its own when a link comes up",
            ),
        ),
        needs_up=True,
    ),
}
"""By field of ``LinkState``, in the order in which they are restored: tables and rules name channels."""
