"""Rails: which links have a cable, which rail its switch announces, and which cables are on the wrong one.

A rail is never guessed. It comes from the administrator's pattern over what the switch announces, or from a
rule of theirs. What is judged here needs no other node; ``desk.fabric.misfits`` compares the nodes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from dranet.model.attributes import (
    IFNAME,
    IS_SRIOV_VF,
    NEAREST_GPUS,
    RAIL,
    SWITCH_CHASSIS_ID,
    SWITCH_NAME,
    SWITCH_PORT_ID,
    Attribute,
)
from dranet.model.device import AttributeValue, Device
from dranet.model.facts import Link, LldpNeighbour, NodeFacts

_ARPHRD_ETHER = 1
_MAX_DIGITS = 9
_PORT_NAME = re.compile(r"(c\d+)?pf\d+.*")
"""A representor (``pf0vf3``): what it receives, the embedded switch below it has sent."""

RailPattern = re.Pattern[str]


def find_wires(facts: NodeFacts, offered_kinds: Collection[str] = ()) -> tuple[Link, ...]:
    """Links at whose other end a switch may announce itself: Ethernet hardware, and the kinds of software
    links that the operator offers. A virtual function hears nothing; its physical function does."""
    virtual = {function.address for function in facts.pci_functions if function.physical_function}
    return tuple(
        link
        for link in facts.links
        if link.arp_type == _ARPHRD_ETHER
        and (link.pci_address or link.kind in offered_kinds or not (link.kind or link.virtual))
        and link.pci_address not in virtual
        and not _PORT_NAME.fullmatch(link.phys_port_name)
    )


def describe_neighbour(
    neighbour: LldpNeighbour | None, pattern: RailPattern | None
) -> dict[Attribute, AttributeValue | None]:
    if neighbour is None:
        return {}
    return {
        SWITCH_NAME: neighbour.system_name or None,
        SWITCH_CHASSIS_ID: neighbour.chassis_id,
        SWITCH_PORT_ID: neighbour.port_id,
        RAIL: find_rail(neighbour, pattern),
    }


def find_rail(neighbour: LldpNeighbour, pattern: RailPattern | None) -> int | None:
    """The number that the pattern finds in ``SWITCH PORT DESCRIPTION``."""
    if pattern is None:
        return None
    text = f"{neighbour.system_name} {neighbour.port_id} {neighbour.port_description}"
    found = pattern.search(text)
    digits = (found[1] or "") if found else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS else None


class WrongRail(Struct, frozen=True):
    """A cable that is not where it belongs."""

    device: str
    ifname: str
    found: str
    """``rail 3 (leaf-03 swp7)``."""
    expected: str
    """What it should be, or why it cannot be right: reads after "expected is"."""


class CablingJudgement(Struct, frozen=True):
    judged: frozenset[str] = frozenset()
    """Names of the devices of which it is known."""
    wrong: tuple[WrongRail, ...] = ()


def judge_cabling(devices: Iterable[Device], expected: Mapping[str, int]) -> CablingJudgement:
    """By the rails that the administrator expects (by interface or PCI address), where they name any; else by
    what cannot be right: two NICs on one rail while most rails have one.

    Virtual functions share the cable of the physical one, so they are left out. A switch that announces no
    rail is not the one of an expected rail.
    """
    own = [device for device in devices if not device.attributes.get(_VF)]
    if not expected:
        return _find_doubles([device for device in own if RAIL.qualified in device.attributes])
    cabled = [device for device in own if not _CABLED.isdisjoint(device.attributes)]
    wanted = {d.name: rail for d in cabled if (rail := _expected_rail(d, expected)) is not None}
    wrong = (
        WrongRail(d.name, ifname_of(d), describe_port(d.attributes), f"rail {wanted[d.name]}")
        for d in cabled
        if d.name in wanted and d.attributes.get(RAIL.qualified) != wanted[d.name]
    )
    return CablingJudgement(frozenset(wanted), tuple(wrong))


_VF = IS_SRIOV_VF.qualified
_CABLED = frozenset(one.qualified for one in (RAIL, SWITCH_NAME, SWITCH_CHASSIS_ID))
"""What is known of the other end of a cable."""


def _expected_rail(device: Device, expected: Mapping[str, int]) -> int | None:
    return expected.get(ifname_of(device), expected.get(device.pci_address))


def _find_doubles(devices: Sequence[Device]) -> CablingJudgement:
    """Where every rail has two NICs, that is how the fabric is built. It is not known where as many rails
    have two as have one."""
    counts = Counter(map(_rail, devices))
    rails = Counter(counts.values())
    alone = rails.pop(1, 0)
    is_known = len(counts) > 1 and alone > max(rails.values(), default=0)
    names = frozenset(device.name for device in devices) if is_known else frozenset()
    wrong = (
        WrongRail(d.name, ifname_of(d), describe_port(d.attributes), "a rail of its own, as other NICs have")
        for d in devices
        if counts[_rail(d)] > 1
    )
    return CablingJudgement(names, tuple(wrong) if is_known else ())


def find_unordered(devices: Iterable[Device]) -> tuple[Device, ...]:
    """NICs whose rails do not follow the order of their GPUs. It may be the plan of the fabric: a hint, not a
    fault. NICs with the same GPUs may have their rails in any order."""
    groups: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        gpus = device.attributes.get(NEAREST_GPUS.qualified)
        if gpus and RAIL.qualified in device.attributes and not device.attributes.get(_VF):
            groups[str(gpus)].append(device)
    rails = sorted(_rail(device) for group in groups.values() for device in group)
    found: list[Device] = []
    for _, group in sorted(groups.items()):
        own, rails = rails[: len(group)], rails[len(group) :]
        found += [device for device in group if _rail(device) not in own]
    return tuple(found)


def describe_port(attributes: Mapping[str, AttributeValue]) -> str:
    """``rail 3 (leaf-03 swp7)``, as far as it is published."""
    switch = attributes.get(SWITCH_NAME.qualified) or attributes.get(SWITCH_CHASSIS_ID.qualified)
    port = " ".join(str(part) for part in (switch, attributes.get(SWITCH_PORT_ID.qualified)) if part)
    rail = attributes.get(RAIL.qualified)
    if rail is None:
        return port
    return f"rail {rail} ({port})" if port else f"rail {rail}"


def _rail(device: Device) -> int | str:
    value = device.attributes[RAIL.qualified]
    return value if isinstance(value, int) else str(value)


def ifname_of(device: Device) -> str:
    """Also while a pod has it."""
    return device.ifname or str(device.attributes.get(IFNAME.qualified, ""))
