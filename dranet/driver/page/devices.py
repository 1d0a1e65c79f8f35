"""The inventory on the page: every device with a place in the hardware, offered or held back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dranet.driver.page.content import Content, Health, SeenClaim
from dranet.driver.page.markup import EMPTY, Html, element, join, table
from dranet.inventory.decision import Decision
from dranet.model.device import Device
from dranet.pictures.hardware import choose_hardware, name_hardware
from dranet.pictures.look import Look, summarize
from dranet.pictures.traits import TraitReader

MOST_DEVICES = 256
"""Rows; no node has as many with a place in the hardware, but some offer hundreds of software links."""

_HEADER = ("Device", "Link", "Place", "Speed", "State", "Offered", "Who has it")


def find_holders(claims: Sequence[SeenClaim]) -> Mapping[str, Sequence[str]]:
    """Pods by device; those with admin access have nothing of it."""
    holders: dict[str, list[str]] = defaultdict(list)
    for seen in claims:
        for prepared in seen.record.devices:
            if not prepared.admin_access:
                holders[prepared.device.name].append(str(seen.record.pod))
    return holders


def show_devices(content: Content, look: Look, holders: Mapping[str, Sequence[str]]) -> Html:
    """A table, and what is not in it."""
    shown = choose_hardware(look)
    hidden = len(look.inventory) - len(shown)
    if not shown:
        words = "No device of this node has a place in the hardware, and none is offered."
        return join([element("p", words, class_="empty"), _software(hidden)])
    names, reader = name_hardware(look), TraitReader(look.facts)
    rows = [
        _row(decision, names.get(decision.device.name, ""), reader, content.health, holders)
        for decision in _important_first(shown, holders)[:MOST_DEVICES]
    ]
    more = len(shown) - MOST_DEVICES
    left = element("p", f"and {more} more: dranet devices lists them", class_="empty") if more > 0 else EMPTY
    return join([table(f"{summarize(shown, shows_all=True)}.", _HEADER, rows), left, _software(hidden)])


def _software(count: int) -> Html:
    if not count:
        return EMPTY
    words = "1 link that software made is" if count == 1 else f"{count} links that software made are"
    return element("p", f"{words} held back and not shown: dranet devices --all lists them.", class_="empty")


def _important_first(shown: Sequence[Decision], holders: Mapping[str, Sequence[str]]) -> list[Decision]:
    """What is on offer or held by a pod, then the rest; each in the order in which people look for it."""
    return sorted(shown, key=lambda decision: not (decision.published or decision.device.name in holders))


def _row(
    decision: Decision,
    short_name: str,
    reader: TraitReader,
    health: Mapping[str, Health],
    holders: Mapping[str, Sequence[str]],
) -> tuple[str, ...]:
    device, traits = decision.device, reader.read(decision.device)
    second = " · ".join(filter(None, (short_name, str(device.kind), traits.model)))
    return (
        join([device.name, element("small", second)]),
        " · ".join(filter(None, (device.ifname, device.rdma_device))),
        _place(device),
        traits.rate or traits.speed,
        _state(traits.state, device.name in holders, health.get(device.name)),
        "yes" if decision.published else f"no: it {_clause(decision.reason)}",
        ", ".join(holders.get(device.name, ())),
    )


def _clause(reason: str) -> str:
    return reason or "is held back"


def _place(device: Device) -> str:
    numa = "" if device.numa_node is None else f"NUMA {device.numa_node}"
    return " · ".join(filter(None, (device.pci_address, numa)))


def _state(state: str, is_held: bool, health: Health | None) -> Html:
    """The link's state on the node, and the driver's judgement on the device."""
    link = "in a pod" if is_held and not state else state
    if health is None or (health.healthy is None and not health.message):
        return join([link])
    if health.healthy:
        return join(
            [link, " · " if link else "", element("span", "healthy", class_="good"), _message(health)]
        )
    if health.healthy is None:
        return join([link, " · " if link else "", "health unknown", _message(health)])
    return join([link, " · " if link else "", element("span", "unhealthy", class_="bad"), _message(health)])


def _message(health: Health) -> Html:
    return element("small", health.message) if health.message else EMPTY
