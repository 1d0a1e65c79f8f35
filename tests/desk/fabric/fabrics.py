"""Fabrics to judge: rail-optimised units of equal nodes, cabled as the caller wants."""

from __future__ import annotations

from msgspec.structs import replace

from dranet.desk.fabric.links import Link

RAILS = 8
Cabling = dict[tuple[str, int], Link]
"""Node and rail -> link."""


def cable(units: int = 1, nodes: int = 4, rails: int = RAILS) -> Cabling:
    """Unit u has the leaves ``leaf-u-r``; node n is on port ``Ethernet1/n`` of each."""
    found: Cabling = {}
    for unit in range(units):
        for number in range(nodes):
            node = f"gpu-{unit * nodes + number}"
            for rail in range(rails):
                found[node, rail] = Link(
                    node=node,
                    device=f"pci-0000-{rail + 16:02x}-00-0",
                    ifname=f"eth{rail}",
                    slot=f"0000:{rail + 16:02x}:00.0",
                    model="ConnectX-7",
                    rail=rail,
                    speed_mbps=400_000,
                    switch=f"02:00:00:00:{unit:02x}:{rail:02x}",
                    switch_name=f"leaf-{unit}-{rail}",
                    port=f"Ethernet1/{number + 1}",
                )
    return found


def swap(cabling: Cabling, one: tuple[str, int], other: tuple[str, int]) -> None:
    """Exchange the switch ends of two cables."""
    a, b = cabling[one], cabling[other]
    cabling[one] = replace(a, switch=b.switch, switch_name=b.switch_name, port=b.port)
    cabling[other] = replace(b, switch=a.switch, switch_name=a.switch_name, port=a.port)


def unplug(cabling: Cabling, place: tuple[str, int]) -> None:
    cabling[place] = replace(cabling[place], switch="", switch_name="", port="", speed_mbps=None)


def change(cabling: Cabling, place: tuple[str, int], **fields: object) -> None:
    cabling[place] = replace(cabling[place], **fields)
