"""Facts of a node with physical functions, their virtual functions, and rules for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from dranet.inventory.virtual_functions import VfRules, parse_vf_rules
from dranet.model.facts import Link, NodeFacts, PciFunction, Route

PF = "0000:1a:00.0"
TOTAL = 8


def vf_address(index: int, pf: str = PF) -> str:
    return f"{pf.rpartition(':')[0]}:01.{index}"


def a_link(ifname: str, ifindex: int, address: str, **more: Any) -> Link:
    more.setdefault("mac", f"aa:00:00:00:00:{ifindex:02x}")
    return Link(
        ifindex, ifname, flags=1, carrier=True, parent_bus="pci", parent_device=address, pci_address=address,
        **more,
    )  # fmt: skip


def a_pf(
    count: int,
    *,
    pf: str = PF,
    ifindex: int = 2,
    away: Collection[int] = (),
    bound: Collection[int] = range(TOTAL),
    macs: Collection[str] = (),
) -> NodeFacts:
    """``away``: virtual functions whose links are not on the node; ``bound``: those that have a driver."""
    physical = PciFunction(
        pf, 0x020000, 0x8086, 0x1572, driver="i40e", root="pci0000:00", path=(pf,),
        sriov_total_vfs=TOTAL, sriov_num_vfs=count,
    )  # fmt: skip
    name, own = f"pf{ifindex}", [vf_address(i, pf) for i in range(count)]
    virtual = [
        replace(physical, address=address, path=(address,), physical_function=pf, virtual_function_index=i,
                sriov_total_vfs=0, sriov_num_vfs=0, driver="iavf" if i in bound else "")
        for i, address in enumerate(own)
    ]  # fmt: skip
    links = [a_link(name, ifindex, pf)]
    known = dict(enumerate(macs))
    for i, address in enumerate(own):
        if i in bound and i not in away:
            more = {"mac": known[i]} if i in known else {}
            links.append(a_link(f"{name}v{i}", ifindex + 1 + i, address, **more))
    return NodeFacts(links=tuple(links), pci_functions=(physical, *virtual))


def a_node(count: int, *, away: Collection[int] = (), uplink: bool = False) -> NodeFacts:
    """With one physical function."""
    routes = (Route("0.0.0.0/0", gateway="10.0.0.1", ifindex=2),) if uplink else ()
    return replace(a_pf(count, away=away), default_routes=routes)


def some_rules(*entries: dict[str, Any]) -> VfRules:
    found, problems = parse_vf_rules({"virtualFunctions": list(entries)}, "dra.net")
    assert problems == ()
    return found
