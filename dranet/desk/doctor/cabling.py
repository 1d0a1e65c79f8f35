"""Checks of cables: does each NIC reach the switch of its rail, and can switches be heard at all?"""

from __future__ import annotations

from collections.abc import Iterator

from dranet.desk.doctor.checks import Evaluation, Surroundings, check, fine, join, note, warning
from dranet.desk.doctor.pcie import RAILS
from dranet.inventory.cabling import describe_port, find_unordered, find_wires, ifname_of, judge_cabling
from dranet.settings import Lldp
from dranet.terminal import count_of


@check(
    "wrong-rail",
    RAILS,
    "whether the switch at the other end of each cable is that of the NIC's rail (LLDP), by "
    "`expected_rails`, or else two NICs on one rail",
    matters="The traffic of a NIC on another rail than its peers crosses the spine, and two NICs on one leaf "
    "share what each should have alone. The job runs, and is slow.",
    fix="Plug the cable into the leaf of its rail; the finding names the NIC and the switch's port. If the "
    "cabling is as planned, correct `expected_rails` or `rail_pattern`. `dranet nodes` compares all nodes.",
)
def wrong_rail(seen: Surroundings) -> Iterator[Evaluation]:
    judgement = judge_cabling(seen.offered, seen.expected_rails)
    for one in judgement.wrong:
        yield warning(f"{one.ifname or one.device} is cabled to {one.found}, expected is {one.expected}")
    if judgement.judged and not judgement.wrong:
        yield fine(f"{count_of(len(judgement.judged), 'NIC')} on the rails where they belong")


@check(
    "rails-unordered",
    RAILS,
    "whether rails follow the order of the GPUs, where `expected_rails` does not name the right ones",
    matters="Most fabrics number them so. Two swapped cables look like this; so does a fabric that is "
    "numbered in another way, the same on every node.",
    fix="Compare with the plan of the fabric. If it is right, write it into `expected_rails`, which is then "
    "what is checked.",
)
def unordered(seen: Surroundings) -> Iterator[Evaluation]:
    devices = () if seen.expected_rails else find_unordered(seen.offered)
    if devices:
        ports = (f"{ifname_of(device)}: {describe_port(device.attributes)}" for device in devices)
        yield note(f"rails not in the order of GPUs: {join(ports)}")


@check(
    "lldp-silent",
    RAILS,
    "whether a switch announces itself on each NIC with a carrier, where the setting `lldp` asks for it",
    matters="Without it the NIC has no `rail` and no `switchName`, and a wrong cable is not found.",
    fix="Let the switch port send LLDP; a switch does so every 30 seconds. Some NICs keep the frames for an "
    "agent in their firmware; docs/networking/rails.md shows how to switch it off.",
)
def silent(seen: Surroundings) -> Iterator[Evaluation]:
    if seen.settings.lldp is Lldp.OFF:
        return
    known = {neighbour.ifname for neighbour in seen.node.lldp_neighbours}
    wires = find_wires(seen.node, seen.settings.offer_link_kinds)
    offered = [link.ifname for link in wires if link.ifname in seen.offered_links and link.carrier]
    if missing := [name for name in offered if name not in known]:
        yield note(f"no LLDP neighbor on {join(missing)}")
    elif offered:
        yield fine(f"a switch announces itself on {count_of(len(offered), 'NIC')}")


CHECKS = (wrong_rail, unordered, silent)
