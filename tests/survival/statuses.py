"""What claims' statuses say of their devices, against what the devices' pods have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from testbed.cluster import DRIVER_NAME, JsonObject
from tests.survival.expected_devices import Wanted

_NOT_A_PROMISE = frozenset({"TopologyAligned", "Released"})
"""Conditions that a device which is well in its pod need not have as True."""

Links = Mapping[str, JsonObject]
"""Of a namespace, by name."""


def find_wrong(
    claim: JsonObject, wanted: Sequence[Wanted], read_links: Callable[[], Links] | None
) -> Iterator[str]:
    """Whatever the status says, or does not say, and is not so.

    ``read_links`` reads those of the pod that has the claim; ``None`` where no pod runs with it.
    """
    told = [e for e in claim.get("status", {}).get("devices", ()) if e["driver"] == DRIVER_NAME]
    yield from _compare_devices(wanted, told, is_used=read_links is not None)
    entries = {_identify(entry): entry for entry in told}
    for device in wanted:
        entry = entries.get((device.pool, device.device, device.share_id))
        if entry is not None:
            found = _compare_living(device, entry, read_links()) if read_links else _compare_ended(entry)
            yield from (f"{device.device}: {text}" for text in found)


def list_addresses(link: JsonObject) -> list[str]:
    """Those that a status tells: not the link-local ones."""
    return [
        f"{address['local']}/{address['prefixlen']}"
        for address in link.get("addr_info", ())
        if address["scope"] != "link"
    ]


def _identify(entry: JsonObject) -> tuple[str, str, str]:
    return entry["pool"], entry["device"], entry.get("shareID", "")


def _compare_devices(wanted: Sequence[Wanted], told: Sequence[JsonObject], *, is_used: bool) -> Iterator[str]:
    """A device of a running pod that nothing is said of, and one that is told of and was not given."""
    given = {(device.pool, device.device, device.share_id) for device in wanted}
    known = {_identify(entry) for entry in told}
    yield from (f"tells of {key}, which it was not given" for key in sorted(known - given))
    if is_used:
        yield from (f"its pod runs, and it says nothing of {key}" for key in sorted(given - known))


def _compare_living(device: Wanted, entry: JsonObject, links: Links) -> Iterator[str]:
    """Against the pod that has it."""
    yield from _compare_conditions(entry)
    if device.nic is None:
        return
    data = entry.get("networkData", {})
    name = data.get("interfaceName", "")
    if name in links:
        yield from _compare_link(entry, data, links[name])
    else:
        yield f"link {name} is not in the pod"


def _compare_conditions(entry: JsonObject) -> Iterator[str]:
    """Of a device that is in a pod which runs."""
    conditions = {condition["type"]: condition for condition in entry.get("conditions", ())}
    for name, condition in conditions.items():
        if name not in _NOT_A_PROMISE and condition["status"] != "True":
            yield f"{name} is {condition['status']}: {condition['reason']}: {condition.get('message', '')}"
    if "Ready" not in conditions:
        yield "it does not say Ready"
    if "Released" in conditions:
        yield "it says Released, and its pod runs"


def _compare_link(entry: JsonObject, data: JsonObject, link: JsonObject) -> Iterator[str]:
    has = {
        "hardware address": (data.get("hardwareAddress"), link["address"]),
        "addresses": (sorted(data.get("ips", ())), sorted(list_addresses(link))),
        "MTU": (entry.get("data", {}).get("mtu"), link["mtu"]),
    }
    yield from (
        f"{what} {told}, but the pod has {real}" for what, (told, real) in has.items() if told != real
    )


def _compare_ended(entry: JsonObject) -> Iterator[str]:
    """No pod has it."""
    for condition in entry.get("conditions", ()):
        kind, status = condition["type"], condition["status"]
        if kind in ("Ready", "Attached", "NetworkReady") and status == "True":
            yield f"{kind} is True, and no pod has it"
        if kind == "Released" and status != "True":
            yield f"Released is {status}: {condition['reason']}: {condition.get('message', '')}"
