"""The tables of devices and of prepared claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dranet.claims.alignment import Verdict, build_condition
from dranet.driver.status_page.content import Content, SeenClaim
from dranet.driver.status_page.markup import EMPTY, Html, ago, element, join, table
from dranet.health.tracker import DeviceHealth
from dranet.inventory.policy import Decision
from dranet.model.device import Device
from dranet.model.plan import PreparedDevice
from dranet.pictures.summary import DeviceSummarizer, Look, choose_hardware, name_hardware, summarize

MOST_DEVICES = 256
"""Rows. Nodes have fewer hardware devices, but some offer hundreds of software links."""

_DEVICES_HEADER = ("Device", "Link", "Place", "Speed", "State", "Offered", "Pod")


def find_holders(claims: Sequence[SeenClaim]) -> Mapping[str, Sequence[str]]:
    """Return pods by device; admin access does not count."""
    holders: dict[str, list[str]] = defaultdict(list)
    for seen in claims:
        for prepared in seen.record.devices:
            if not prepared.admin_access:
                holders[prepared.device.name].append(str(seen.record.pod))
    return holders


def show_devices(content: Content, look: Look, holders: Mapping[str, Sequence[str]]) -> Html:
    """Show hardware devices as a table, and the number of others."""
    shown = choose_hardware(look)
    hidden = len(look.inventory) - len(shown)
    if not shown:
        words = "No device of this node has a place in the hardware, and none is offered."
        return join([element("p", words, class_="empty"), _software(hidden)])
    names, reader = name_hardware(look), DeviceSummarizer(look.facts)
    rows = [
        _device_row(decision, names.get(decision.device.name, ""), reader, content.health, holders)
        for decision in _important_first(shown, holders)[:MOST_DEVICES]
    ]
    more = len(shown) - MOST_DEVICES
    left = element("p", f"and {more} more: dranet devices lists them", class_="empty") if more > 0 else EMPTY
    return join(
        [table(f"{summarize(shown, shows_all=True)}.", _DEVICES_HEADER, rows), left, _software(hidden)]
    )


def _software(count: int) -> Html:
    if not count:
        return EMPTY
    words = "1 link that software made is" if count == 1 else f"{count} links that software made are"
    return element(
        "p", f"{words} not offered and not shown: dranet devices --all lists them.", class_="empty"
    )


def _important_first(shown: Sequence[Decision], holders: Mapping[str, Sequence[str]]) -> list[Decision]:
    """Sort offered devices and those in pods first, otherwise in the order of the view."""
    return sorted(shown, key=lambda decision: not (decision.published or decision.device.name in holders))


def _device_row(
    decision: Decision,
    short_name: str,
    reader: DeviceSummarizer,
    health: Mapping[str, DeviceHealth],
    holders: Mapping[str, Sequence[str]],
) -> tuple[str, ...]:
    device, summary = decision.device, reader.read(decision.device)
    second = " · ".join(filter(None, (short_name, str(device.kind), summary.model)))
    return (
        join([device.name, element("small", second)]),
        " · ".join(filter(None, (device.ifname, device.rdma_device))),
        _place(device),
        summary.rate or summary.speed,
        _device_state(summary.state, device.name in holders, health.get(device.name)),
        "yes" if decision.published else f"no: it {_clause(decision.reason)}",
        ", ".join(holders.get(device.name, ())),
    )


def _clause(reason: str) -> str:
    return reason or "is not offered"


def _place(device: Device) -> str:
    numa = "" if device.numa_node is None else f"NUMA {device.numa_node}"
    return " · ".join(filter(None, (device.pci_address, numa)))


def _device_state(state: str, is_held: bool, health: DeviceHealth | None) -> Html:
    """Show the link's state on the node, and the device's health."""
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


def _message(health: DeviceHealth) -> Html:
    return element("small", health.message) if health.message else EMPTY


MOST_CLAIMS = 300
"""Rows; a node has fewer."""

_CLAIMS_HEADER = ("Claim", "Pod", "State", "Devices, and how near they are to the GPUs of the pod")


def show_claims(content: Content) -> Html:
    """Show a row for each claim, or a sentence if no claim is prepared."""
    if not content.claims:
        nothing = element(
            "p",
            "No claims are prepared on this node. That is normal while no pod with a claim "
            "of this driver is here.",
            class_="empty",
        )
        return join([nothing, _unreadable(content.unreadable_claims)])
    ordered = sorted(content.claims, key=lambda seen: (str(seen.record.pod), str(seen.record.claim)))
    rows = [_claim_row(seen, content) for seen in ordered[:MOST_CLAIMS]]
    more = len(ordered) - MOST_CLAIMS
    left = element("p", f"and {more} more: dranet claims lists them", class_="empty") if more > 0 else EMPTY
    caption = "What is prepared for pods on this node"
    return join([table(caption, _CLAIMS_HEADER, rows), left, _unreadable(content.unreadable_claims)])


def _unreadable(count: int) -> Html:
    words = f"{count} records cannot be read: dranet claims shows why."
    return element("p", words, class_="bad") if count else EMPTY


def _claim_row(seen: SeenClaim, content: Content) -> tuple[str, ...]:
    record = seen.record
    devices = (
        element("li", _claimed_device(prepared, content.verdicts.get((record.claim.uid, position))))
        for position, prepared in enumerate(record.devices)
    )
    return (
        str(record.claim),
        str(record.pod),
        _claim_state(seen, content.now),
        element("ul", *devices, class_="devices"),
    )


def _claimed_device(prepared: PreparedDevice, verdict: Verdict | None) -> Html:
    """Show its name and what it is in the pod; below it the verdict."""
    plan, device = prepared.plan, prepared.device
    host = plan.host.ifname if plan is not None and plan.host is not None else device.ifname
    words = (
        str(device.kind),
        host if host != device.name else "",
        device.rdma_device,
        "admin access" if prepared.admin_access else "",
    )
    kind = " · ".join(filter(None, words))
    arrow = f" as {plan.pod_ifname}" if plan is not None and plan.pod_ifname else ""
    name = join([element("b", device.name), arrow, f" ({kind})"])
    return name if verdict is None else join([name, _show_verdict(verdict)])


def _claim_state(seen: SeenClaim, now: float) -> Html:
    """Show the claim's state, and since when if that is known."""
    since = "" if seen.since is None else f"for {ago(seen.since, now)}"
    if not seen.record.plans:
        return join([element("span", "prepared", class_="good"), element("small", "nothing of it moves")])
    if not seen.record.netns_path:
        return join(["waiting", element("small", "for the sandbox of its pod")])
    if seen.is_attached:
        return join([element("span", "attached", class_="good"), element("small", since) if since else EMPTY])
    held = element("small", "its containers wait until its devices are verified")
    return join([element("span", "incomplete", class_="bad"), held])


_MARKS = {True: "good", False: "bad", None: ""}


def _show_verdict(verdict: Verdict) -> Html:
    condition = build_condition(verdict)
    word = "unknown" if verdict.distance is None or verdict.is_unclear else verdict.distance.name
    words = f" {condition.reason}: {condition.message}" if condition.message else f" {condition.reason}"
    return element("small", element("span", word, class_=_MARKS[condition.status]), words)
