"""What a claim's status says of how near a pod's NICs are to its GPUs, for steps that look at it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.cluster import JsonObject
from testbed.scenario.scenario import ExpectVerdict


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
    return "" if right else f"the verdict is {condition}, {table}"


def describe_verdict(pod: str, entry: JsonObject) -> Iterator[str]:
    """The verdict in a line, and the row of the table of distances in another."""
    condition, table = find_verdict(entry), entry.get("data", {}).get("alignment", {})
    yield f"{pod}: {entry['device']}: TopologyAligned {condition['status']} ({condition['reason']})"
    yield f"  {condition['message']}"
    distances = ", ".join(f"{gpu} {distance}" for gpu, distance in table.get("distances", {}).items())
    if distances:
        yield f"  distances: {distances}; the best possible: {table['best']}"
