"""What each expectation of a scenario looks at.

They ask the kernel (through iproute2), the API server and the runtime, never the driver itself. Each returns
lines with what was seen, or raises ``StepFailed`` with what is not as expected. What may still become
true is looked at again until the step's time is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from dranet.model.device import Device
from dranet.model.facts import Distance
from testbed.cluster import DRIVER_NAME, JsonObject
from testbed.scenario import scenario as actions
from testbed.scenario.scenario import Action, ExpectVerdict
from testbed.scenario.views import (
    describe_alignment,
    describe_link,
    describe_traffic,
    draw_topology,
    is_up,
)
from testbed.scenario.walk import Lines, StepFailed, Walk
from testbed.traffic import measure_traffic

_TRAFFIC_SLACK_SECONDS = 10.0


# What the driver has published


async def _show_inventory(walk: Walk, _: actions.ShowInventory) -> Lines:
    published = await _fetch_published(walk)
    return draw_topology(walk.cluster.decisions, published)


async def _expect_slices(walk: Walk, action: actions.ExpectSlices) -> Lines:
    published: list[str] = []

    async def look() -> str:
        nonlocal published
        published = await _fetch_published(walk)
        return _complain_of_slices(action, published)

    await walk.eventually(look)
    return (f"{len(published)} devices in the driver's ResourceSlices",)


def _complain_of_slices(action: actions.ExpectSlices, published: Sequence[str]) -> str:
    if action.devices is not None and len(published) != action.devices:
        return f"{len(published)} devices are published, not {action.devices}: {', '.join(published)}"
    absent = [name for name in action.has if name not in published]
    extra = [name for name in action.without if name in published]
    faults = [*(f"{name} is not published" for name in absent), *(f"{name} is published" for name in extra)]
    return ", ".join(faults)


async def _fetch_published(walk: Walk) -> list[str]:
    slices = await walk.cluster.fetch_slices()
    return [device["name"] for slice_ in slices for device in slice_["spec"].get("devices", ())]


# What a pod got


async def _expect_aligned(walk: Walk, action: actions.ExpectAligned) -> Lines:
    lines: list[str] = []
    for pod in action.pods:
        devices = await _fetch_devices(walk, pod)
        described, distances = describe_alignment(pod, devices)
        if not distances or any(far is None or far > Distance[action.at_most] for far in distances):
            raise StepFailed(f"farther than {action.at_most}: {'; '.join(described) or f'{pod} has no NIC'}")
        lines += described
    return tuple(lines)


async def _fetch_devices(walk: Walk, pod: str) -> list[Device]:
    """The devices that the pod's claims were allocated."""
    known = {decision.device.name: decision.device for decision in walk.cluster.decisions}
    results = [
        result
        for claim in await walk.cluster.fetch_pod_claims(pod)
        for result in _allocation_results(claim)
        if result["driver"] == DRIVER_NAME
    ]
    strange = [result["device"] for result in results if result["device"] not in known]
    if strange:
        raise StepFailed(f"pod {pod} was allocated {', '.join(strange)}, which this node does not have")
    return [known[result["device"]] for result in results]


def _allocation_results(claim: JsonObject) -> list[JsonObject]:
    results: list[JsonObject] = (
        claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    )
    return results


async def _expect_interfaces(walk: Walk, action: actions.ExpectInterfaces) -> Lines:
    links: list[JsonObject] = []

    async def look() -> str:
        nonlocal links
        links = await walk.cluster.pods.find_nics(action.pod)
        return _complain_of_links(action, links)

    await walk.eventually(look)
    return tuple(describe_link(link) for link in links)


def _complain_of_links(action: actions.ExpectInterfaces, links: Sequence[JsonObject]) -> str:
    found = {link["ifname"]: link for link in links}
    wanted = {interface.name: interface for interface in action.interfaces}
    if found.keys() != wanted.keys():
        return f"pod {action.pod} has {', '.join(found) or 'no NIC'}, not {', '.join(wanted)}"
    for name, interface in wanted.items():
        link = found[name]
        addresses = [f"{a['local']}/{a['prefixlen']}" for a in link.get("addr_info", ())]
        right = (
            is_up(link)
            and interface.mtu in (None, link["mtu"])
            and interface.mac in (None, link["address"])
            and (interface.address is None or interface.address in addresses)
        )
        if not right:
            return f"in pod {action.pod}: {describe_link(link)}; wanted: {interface}, up"
    return ""


async def _expect_in_pod(walk: Walk, action: actions.ExpectInPod) -> Lines:
    printed = ""

    async def look() -> str:
        nonlocal printed
        printed = await walk.cluster.pods.run_inside(action.pod, action.command)
        faults = [f"no {text!r}" for text in action.has if text not in printed]
        faults += [f"{text!r}" for text in action.without if text in printed]
        return f"{' '.join(action.command)} in pod {action.pod} has {', '.join(faults)}: {printed}" * bool(
            faults
        )

    await walk.eventually(look)
    found = [line.strip() for line in printed.splitlines() if any(text in line for text in action.has)]
    return tuple(dict.fromkeys(found))


async def _expect_container(walk: Walk, action: actions.ExpectContainer) -> Lines:
    container = await walk.cluster.pods.inspect_container(action.pod)
    absent = [path for path in action.devices if path not in container.devices]
    wrong = [f"{k}={container.env.get(k)!r}" for k, v in action.env.items() if container.env.get(k) != v]
    if absent or wrong:
        raise StepFailed(f"container {container.name} lacks {', '.join([*absent, *wrong])}")
    devices = {path: container.devices[path] for path in action.devices}
    return (
        f"container {container.name}: " + ", ".join(f"{path} ({number})" for path, number in devices.items()),
    )


async def _traffic(walk: Walk, action: actions.Traffic) -> Lines:
    result = await measure_traffic(
        await walk.cluster.pods.find_endpoint(action.client),
        await walk.cluster.pods.find_endpoint(action.server),
        seconds=action.seconds,
        round_trips=action.round_trips,
        deadline_seconds=action.seconds + _TRAFFIC_SLACK_SECONDS,
    )
    if not result.crossed_the_interfaces:
        raise StepFailed(f"the bytes did not cross the claimed NICs: {'; '.join(describe_traffic(result))}")
    return describe_traffic(result)


# What is written down


async def _expect_claim_condition(walk: Walk, action: actions.ExpectClaimCondition) -> Lines:
    lines: list[str] = []

    async def look() -> str:
        nonlocal lines
        cluster = walk.cluster
        claims = (
            await cluster.fetch_pod_claims(action.pod)
            if action.pod
            else [await cluster.fetch_claim(action.claim)]
        )
        lines = []
        for claim in claims:
            for result in _allocation_results(claim):
                condition = _find_condition(claim, result, action.type)
                if complaint := _complain_of_condition(action, condition):
                    return f"device {result['device']} of claim {claim['metadata']['name']}: {complaint}"
                lines.append(f"{result['device']}: {action.type} {action.status} ({condition['reason']})")
        return "" if lines else "no claim is allocated"

    await walk.eventually(look)
    return tuple(lines)


def _find_condition(claim: JsonObject, result: JsonObject, kind: str) -> JsonObject:
    for device in claim.get("status", {}).get("devices", ()):
        if all(device[key] == result[key] for key in ("driver", "pool", "device")):
            for condition in device.get("conditions", ()):
                if condition["type"] == kind:
                    found: JsonObject = condition
                    return found
    return {}


def _complain_of_condition(action: actions.ExpectClaimCondition, condition: JsonObject) -> str:
    if not condition:
        return f"no condition {action.type}"
    texts = [text for text in action.texts if text not in condition.get("message", "")]
    right = condition["status"] == action.status and action.reason in ("", condition["reason"]) and not texts
    return "" if right else f"condition is {condition}"


async def _expect_verdict(walk: Walk, action: actions.ExpectVerdict) -> Lines:
    lines: list[str] = []

    async def look() -> str:
        nonlocal lines
        lines = []
        for pod in action.pods:
            claims = await walk.cluster.fetch_pod_claims(pod)
            judged = [
                entry
                for claim in claims
                for entry in _verdicts(claim)
                if action.device in ("", entry["device"])
            ]
            if not judged:
                return f"no claim of pod {pod} has an alignment verdict"
            for entry in judged:
                if complaint := complain_of_verdict(action, entry):
                    return f"pod {pod}: {entry['device']}: {complaint}"
                lines += describe_verdict(pod, entry)
        return ""

    await walk.eventually(look)
    return tuple(lines)


def _verdicts(claim: JsonObject) -> list[JsonObject]:
    """Entries of the claim's status that have one."""
    return [entry for entry in claim.get("status", {}).get("devices", ()) if find_verdict(entry)]


async def _expect_event(walk: Walk, action: actions.ExpectEvent) -> Lines:
    found = ""

    async def look() -> str:
        nonlocal found
        events = await walk.cluster.fetch_events(action.name)
        for event in events:
            message = event.get("message", "")
            if event["reason"] == action.reason and all(text in message for text in action.texts):
                found = f"{event['reason']}: {message}"
                return ""
        seen = "; ".join(f"{event['reason']}: {event.get('message', '')}" for event in events)
        return f"no such Event about {action.name}; there are: {seen or 'none'}"

    await walk.eventually(look)
    return (found,)


# The host


async def _expect_node_link(walk: Walk, action: actions.ExpectNodeLink) -> Lines:
    found = ""

    async def look() -> str:
        nonlocal found
        links = await walk.cluster.read_node_links()
        named = [link for link in links if link["ifname"] == action.name]
        if not named:
            return f"the node has no link {action.name}"
        found = describe_link(named[0])
        right = is_up(named[0]) == action.up and action.mtu in (None, named[0]["mtu"])
        return "" if right else found

    await walk.eventually(look)
    return (found,)


async def _expect_host_unchanged(walk: Walk, _: actions.ExpectHostUnchanged) -> Lines:
    async def look() -> str:
        after = await walk.cluster.read_host_state()
        return "\n".join(walk.host_before.differences(after))

    await walk.eventually(look)
    count = len(walk.host_before.facts)
    return (f"all {count} facts (links, addresses, routes, rules, neighbors, qdiscs) equal those before",)


EXPECTATIONS: Mapping[type[Action], Callable[[Walk, Any], Awaitable[Lines]]] = {
    actions.ShowInventory: _show_inventory,
    actions.ExpectSlices: _expect_slices,
    actions.ExpectAligned: _expect_aligned,
    actions.ExpectInterfaces: _expect_interfaces,
    actions.ExpectContainer: _expect_container,
    actions.Traffic: _traffic,
    actions.ExpectClaimCondition: _expect_claim_condition,
    actions.ExpectVerdict: _expect_verdict,
    actions.ExpectEvent: _expect_event,
    actions.ExpectInPod: _expect_in_pod,
    actions.ExpectNodeLink: _expect_node_link,
    actions.ExpectHostUnchanged: _expect_host_unchanged,
}


def find_verdict(entry: JsonObject) -> JsonObject:
    """The condition ``TopologyAligned`` of an entry of ``status.devices``; empty where it has none."""
    conditions = entry.get("conditions", ())
    found: JsonObject = next((item for item in conditions if item["type"] == "TopologyAligned"), {})
    return found


def complain_of_verdict(action: ExpectVerdict, entry: JsonObject) -> str:
    """What is not as expected; empty where all is."""
    condition, table = find_verdict(entry), entry.get("data", {}).get("alignment", {})
    better = table.get("better", {}).get("device", "")
    right = (
        condition["status"] == action.status
        and action.reason in ("", condition["reason"])
        and action.distance in ("", table.get("distance"))
        and action.better == better
        and all(text in condition["message"] for text in action.texts)
    )
    return "" if right else f"the alignment verdict is {condition}, {table}"


def describe_verdict(pod: str, entry: JsonObject) -> Iterator[str]:
    """The alignment verdict in a line, and the row of the table of distances in another."""
    condition, table = find_verdict(entry), entry.get("data", {}).get("alignment", {})
    yield f"{pod}: {entry['device']}: TopologyAligned {condition['status']} ({condition['reason']})"
    yield f"  {condition['message']}"
    distances = ", ".join(f"{gpu} {distance}" for gpu, distance in table.get("distances", {}).items())
    if distances:
        yield f"  distances: {distances}; the best possible: {table['best']}"
