"""Checks of PCIe links and rails: is each NIC as fast as both ends allow, and are all of them alike?

No node sees on its own what a fabric loses: each node knows only its own half of PFC and ECN.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from dranet.desk.doctor.checks import FAST_MBPS, Evaluation, Surroundings, check, fine, join, note, warning
from dranet.model.facts import Link, RdmaDevice
from dranet.model.findings import PciFacts
from dranet.terminal import count_of

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
    fix="Seat the card again, look at riser and slot, and at the link speed in the firmware; then reboot.",
)
def link(seen: Surroundings) -> Iterator[Evaluation]:
    nics = sorted({link.pci_address for link in seen.physical_links} | {d.pci_address for d in seen.rdma})
    judged = [a for a in nics if a in seen.pci and seen.pci[a].width and _shows_its_slot(seen, a)]
    below = [text for address in judged if (text := _judge_link(seen, address))]
    if below:
        yield warning(f"PCIe link below what it can: {'; '.join(below[:6])}")
    elif judged:
        yield fine(f"{count_of(len(judged), 'NIC link')} as fast as card and slot can")


def _judge_link(seen: Surroundings, address: str) -> str:
    """What is wrong; the slot's port counts as much as the card."""
    card, port = seen.pci[address], _find_port(seen, address)
    if port is None:
        return ""
    width = min(card.max_width, port.max_width)
    speed = min(parse_speed(card.max_speed), parse_speed(port.max_speed))
    deficits = []
    if card.width < width:
        deficits.append(f"x{card.width} of x{width}")
    if 0 < parse_speed(card.speed) < speed:
        deficits.append(f"{parse_speed(card.speed):g} of {speed:g} GT/s")
    return f"{address} at {' and '.join(deficits)}" if deficits else ""


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
    matters="The slowest NIC of a job sets its speed. Vendors ask for read requests of 4096 bytes "
    "(ConnectX), and for relaxed ordering on AMD and in virtual machines.",
    fix="Look with `lspci -s ADDRESS -vv | grep -E 'MaxReadReq|RlxdOrd'`. For 4096 bytes: "
    "`setpci -s ADDRESS CAP_EXP+8.w=5000:7000`; for relaxed ordering: "
    "`setpci -s ADDRESS CAP_EXP+8.w=0010:0010`. After each boot, or for good in the firmware.",
)
def settings(seen: Surroundings) -> Iterator[Evaluation]:
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
            evaluation = "; ".join(f"{join(names)}: {kind}" for kind, names in sorted(kinds.items()))
            yield note(f"PCIe settings differ: {evaluation}")
        else:
            yield fine(f"PCIe read requests of {next(iter(kinds))}")


RAILS = "rails"

ROCE_HEADERS = 96
"""What the kernel takes off an interface's MTU for RoCE (``iboe_get_mtu``, ``rdma/ib_addr.h``)."""
_IB_MTUS = (4096, 2048, 1024, 512, 256)
FULL_ROCE_MTU = _IB_MTUS[0] + ROCE_HEADERS


def compute_roce_mtu(mtu: int) -> int:
    """The largest RDMA MTU that fits: 1500 -> 1024, 9000 -> 4096."""
    return next((size for size in _IB_MTUS if size + ROCE_HEADERS <= mtu), 0)


def _group_rails(seen: Surroundings) -> tuple[list[Link], ...]:
    """Interfaces with RDMA by board and kind of network, uplinks left out: the rails of one fabric.

    Cards for storage are other boards, although often of the same chip.
    """
    boards = {device.pci_address: _name_board(seen, device) for device in seen.rdma}
    own = {link.ifindex for link in seen.node.protected_links}
    groups: dict[tuple[str, int], list[Link]] = defaultdict(list)
    for link in seen.physical_links:
        if link.pci_address in boards and link.ifindex not in own and link.master is None:
            groups[boards[link.pci_address], link.arp_type].append(link)
    return tuple(_keep_used(links) for links in groups.values())


def _keep_used(links: list[Link]) -> list[Link]:
    """Without a card's second port that has no cable; a card that is down as a whole stays a rail."""
    used = {_card_of(link) for link in links if link.operstate != "down"}
    return [link for link in links if link.operstate != "down" or _card_of(link) not in used]


def _card_of(link: Link) -> str:
    """``0000:29:00.1`` -> ``0000:29:00``."""
    return link.pci_address.rpartition(".")[0]


def _name_board(seen: Surroundings, device: RdmaDevice) -> str:
    """``MT_0000000838``; by vendor and device where its driver does not name the board."""
    return device.board_id or seen.models.get(device.pci_address, "")


def _differ(groups: Iterable[list[Link]], what: Mapping[int, object]) -> Iterator[str]:
    """``9000: eth0, eth1; 1500: eth2`` of each group that is not of one mind."""
    for links in groups:
        kinds: dict[object, list[str]] = defaultdict(list)
        for link in links:
            if link.ifindex in what:
                kinds[what[link.ifindex]].append(link.ifname)
        if len(kinds) > 1:
            ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
            yield "; ".join(f"{kind}: {join(names)}" for kind, names in ordered)


@check(
    "mtu-differs",
    RAILS,
    "the MTU of RDMA NICs of one board, ports without a cable left out",
    matters="The two ends of a connection must agree, and a switch drops what is larger: one odd rail "
    "makes jobs slow or hang, and small tests pass.",
    fix="Set one MTU on all of them (`ip link set dev LINK mtu 9000`, and where the node's network is "
    "configured), or in the claim: `interface.mtu`.",
)
def mtu(seen: Surroundings) -> Iterator[Evaluation]:
    groups = _group_rails(seen)
    found = list(_differ(groups, {link.ifindex: link.mtu for link in seen.node.links}))
    yield from (warning(f"MTU differs: {text}") for text in found)
    if groups and not found:
        sizes = sorted({link.mtu for links in groups for link in links})
        yield fine(f"MTU {join(map(str, sizes))} on RDMA NICs")


@check(
    "roce-mtu-small",
    RAILS,
    "the RDMA MTU that follows from an interface's MTU",
    matters="RoCE takes the largest of 256 to 4096 bytes that fits into the interface's MTU less 96: "
    "1500 leaves 1024, which takes four times as many packets.",
    fix="An MTU of 4200 or more (9000 is usual) on the NIC and on each switch of the fabric; in a claim: "
    "`interface.mtu`.",
)
def roce_mtu(seen: Surroundings) -> Iterator[Evaluation]:
    small = []
    names = {flow.ifname for flow in seen.host.flows}
    for link in seen.physical_links:
        is_fast = (link.speed_mbps or 0) >= FAST_MBPS
        if link.ifname in names and is_fast and 0 < link.mtu < FULL_ROCE_MTU:
            small.append(f"{link.ifname} ({link.mtu} leaves {compute_roce_mtu(link.mtu)})")
    if small:
        yield note(f"RDMA in small packets: {join(small)}")


@check(
    "speed-differs",
    RAILS,
    "the speed of RDMA NICs of one board",
    matters="A job goes as fast as its slowest rail.",
    fix="Look at cable, transceiver and switch port of the slow one (`ethtool -m LINK`, `mlxlink`).",
)
def speed(seen: Surroundings) -> Iterator[Evaluation]:
    known = {link.ifindex: f"{link.speed_mbps} Mbit/s" for link in seen.node.links if link.speed_mbps}
    for text in _differ(_group_rails(seen), known):
        yield warning(f"speed differs: {text}")


@check(
    "firmware-differs",
    RAILS,
    "the firmware of RDMA adapters of one board",
    matters="Congestion control and adaptive routing change with the firmware: rails of two versions do "
    "not behave alike, and a fault of one is hard to find.",
    fix="Bring all to one version (`mlxfwmanager -u`, or your vendor's tool), then reset the adapters "
    "or boot.",
)
def firmware(seen: Surroundings) -> Iterator[Evaluation]:
    boards: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    virtual = {f.address for f in seen.node.pci_functions if f.physical_function}
    for device in seen.rdma:
        if device.firmware and device.pci_address not in virtual:
            boards[_name_board(seen, device)][device.firmware].append(device.name)
    for versions in boards.values():
        if len(versions) > 1:
            evaluation = "; ".join(f"{v}: {join(names)}" for v, names in sorted(versions.items()))
            yield warning(f"firmware differs: {evaluation}")
        else:
            yield fine(f"firmware {next(iter(versions))} on adapters of one board")


@check(
    "pfc-differs",
    RAILS,
    "which priorities PFC pauses on RoCE NICs of one board",
    matters="The rails of one fabric should be set alike: one without PFC drops what the others pause.",
    fix="`mlnx_qos -i LINK --pfc 0,0,0,1,0,0,0,0` (or `dcb pfc set dev LINK prio-pfc all:off 3:on`) as "
    "on the others, and on the switch ports.",
)
def pfc_differs(seen: Surroundings) -> Iterator[Evaluation]:
    evaluation = {f.ifname: f.pfc_priorities for f in seen.host.flows if f.pfc_priorities is not None}
    groups = _group_rails(seen)
    masks = {
        link.ifindex: f"priority {_describe_priorities(evaluation[link.ifname])}"
        for links in groups
        for link in links
        if link.ifname in evaluation
    }
    found = list(_differ(groups, masks))
    yield from (warning(f"PFC differs: {text}") for text in found)
    if any(evaluation.values()) and not found:
        yield fine(f"PFC on RoCE NICs: {join(sorted(set(masks.values())))}")


@check(
    "pfc-off",
    RAILS,
    "whether PFC pauses any priority on RoCE NICs",
    matters="A switch that is full drops RoCE packets, and each loss costs a timeout or a repeated "
    "window. Right as it is on fabrics built for that (DCQCN alone, Spectrum-X, ECN with selective "
    "repeat), and in clouds.",
    fix="Where your fabric is lossless: `mlnx_qos -i LINK --pfc 0,0,0,1,0,0,0,0 --trust dscp`, the same "
    "priority on the switches, and NCCL_IB_TC for it.",
)
def pfc_off(seen: Surroundings) -> Iterator[Evaluation]:
    evaluation = [flow for flow in seen.host.flows if flow.pfc_priorities is not None]
    if evaluation and not any(flow.pfc_priorities for flow in evaluation):
        yield note(f"PFC pauses no priority on {join(flow.ifname for flow in evaluation)}")


@check(
    "ecn-off",
    RAILS,
    "whether RoCE NICs mark and heed congestion (ecn/roce_np, ecn/roce_rp of NVIDIA's driver package)",
    matters="DCQCN slows a sender down before queues overflow. Without it PFC alone holds the fabric, "
    "and pauses spread.",
    fix="`echo 1 > /sys/class/net/LINK/ecn/roce_np/enable/PRIORITY`, the same in roce_rp, and ECN on the "
    "switches.",
)
def ecn(seen: Surroundings) -> Iterator[Evaluation]:
    evaluation = [flow for flow in seen.host.flows if flow.ecn_np is not None and flow.ecn_rp is not None]
    off = [flow.ifname for flow in evaluation if not flow.ecn_np or not flow.ecn_rp]
    if off:
        yield note(f"ECN is off on {join(off)}")
    elif evaluation:
        yield fine("ECN on all RoCE NICs that report it")


_NONE = "none"


def _describe_priorities(mask: int) -> str:
    """``0b1000`` -> ``3``."""
    return ",".join(str(bit) for bit in range(8) if mask >> bit & 1) or _NONE


CHECKS = (link, settings, mtu, roce_mtu, speed, firmware, pfc_differs, pfc_off, ecn)
