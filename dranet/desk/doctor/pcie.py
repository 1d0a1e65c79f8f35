"""PCIe: is a NIC's link as fast as both ends can, and are cards of one model set alike?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from dranet.desk.doctor.checks import Surroundings, Told, check, fine, join, note, warning
from dranet.model.host_facts import PciFacts

PCIE = "pcie"

_GIGATRANSFERS = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s")


def parse_speed(text: str) -> float:
    """``32.0 GT/s PCIe`` -> 32.0; 0 where the kernel does not know."""
    found = _GIGATRANSFERS.match(text)
    return float(found[1]) if found else 0.0


@check(
    "pcie-link-below",
    PCIE,
    "the PCIe link of each NIC against what card and slot can",
    matters="A link at half its width or speed carries half: x8 of Gen5 is 252 Gbit/s, not enough for a "
    "port of 400.",
    mend="Seat the card again, look at riser and slot, and at the link speed in the firmware; then boot.",
)
def link(seen: Surroundings) -> Iterator[Told]:
    nics = sorted({link.pci_address for link in seen.physical_links} | {d.pci_address for d in seen.rdma})
    judged = [a for a in nics if a in seen.pci and seen.pci[a].width and _shows_its_slot(seen, a)]
    below = [text for address in judged if (text := _judge_link(seen, address))]
    if below:
        yield warning(f"PCIe link below what it can: {'; '.join(below[:6])}")
    elif judged:
        yield fine(f"{len(judged)} NIC link{'' if len(judged) == 1 else 's'} as fast as card and slot can")


def _judge_link(seen: Surroundings, address: str) -> str:
    """What is wrong; the slot's port counts as much as the card."""
    card, port = seen.pci[address], _find_port(seen, address)
    if port is None:
        return ""
    width = min(card.max_width, port.max_width)
    speed = min(parse_speed(card.max_speed), parse_speed(port.max_speed))
    lacks = []
    if card.width < width:
        lacks.append(f"x{card.width} of x{width}")
    if 0 < parse_speed(card.speed) < speed:
        lacks.append(f"{parse_speed(card.speed):g} of {speed:g} GT/s")
    return f"{address} at {' and '.join(lacks)}" if lacks else ""


def _shows_its_slot(seen: Surroundings, address: str) -> bool:
    """A virtual machine hides the port above."""
    port = _find_port(seen, address)
    return port is not None and port.max_width > 0


def _find_port(seen: Surroundings, address: str) -> PciFacts | None:
    path = seen.paths.get(address, ())
    return seen.pci.get(path[-2]) if len(path) > 1 else None


@check(
    "pcie-settings-differ",
    PCIE,
    "read request size and relaxed ordering of RDMA NICs of one model",
    matters="The slowest NIC of a job sets its pace. Vendors ask for read requests of 4096 bytes "
    "(ConnectX), and for relaxed ordering on AMD and in virtual machines.",
    mend="Look with `lspci -s ADDRESS -vv | grep -E 'MaxReadReq|RlxdOrd'`. For 4096 bytes: "
    "`setpci -s ADDRESS CAP_EXP+8.w=5000:7000`; for relaxed ordering: "
    "`setpci -s ADDRESS CAP_EXP+8.w=0010:0010`. After each boot, or for good in the firmware.",
)
def settings(seen: Surroundings) -> Iterator[Told]:
    models: dict[tuple[int, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    functions = {function.address: function for function in seen.node.pci_functions}
    for device in seen.rdma:
        function, facts = functions.get(device.pci_address), seen.pci.get(device.pci_address)
        if function is None or facts is None or facts.max_read_request is None or function.physical_function:
            continue
        model = models[function.vendor_id, function.device_id]
        ordering = "relaxed" if facts.relaxed_ordering else "strict"
        model[f"{facts.max_read_request} bytes, {ordering} ordering"].append(device.name)
    for kinds in models.values():
        if len(kinds) > 1:
            told = "; ".join(f"{join(names)}: {kind}" for kind, names in sorted(kinds.items()))
            yield note(f"PCIe settings differ: {told}")
        else:
            yield fine(f"PCIe read requests of {next(iter(kinds))}")


CHECKS = (link, settings)
