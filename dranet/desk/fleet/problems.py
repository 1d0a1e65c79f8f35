"""What is wrong with a node, as far as API objects show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dranet.desk.fleet.nodes import ClaimDevice, FleetNode, Problem, ProblemSeverity
from dranet.desk.kubeapi.objects import JsonObject
from dranet.model.status import FAILING, ConditionType, EventReason
from dranet.terminal import count_of

_NAMES_SHOWN = 3


def find_problems(node: FleetNode) -> Iterator[Problem]:
    """All problems of a node, the worse first."""
    found = (
        *_find_node_problems(node),
        *_find_driver_problems(node),
        *_find_slice_problems(node),
        *_find_claim_problems(node),
        *_find_taints(node),
        *_find_cables(node),
        *_find_events(node),
    )
    yield from sorted(found, key=lambda problem: problem.severity)


def _problem(reason: str, text: str) -> Problem:
    return Problem(ProblemSeverity.PROBLEM, reason, text)


def _warning(reason: str, text: str) -> Problem:
    return Problem(ProblemSeverity.WARNING, reason, text)


def _find_node_problems(node: FleetNode) -> Iterator[Problem]:
    if not node.is_known:
        yield _problem("NodeGone", "no such Node, but its ResourceSlices are still there")
    if node.body is None:
        return
    conditions = (node.body.get("status") or {}).get("conditions") or ()
    ready = next((one for one in conditions if one.get("type") == "Ready"), None)
    if ready is not None and ready.get("status") != "True":
        yield _problem("NodeNotReady", f"the node is not ready: {ready.get('reason') or 'unknown'}")
    if (node.body.get("spec") or {}).get("unschedulable"):
        yield _warning("NodeCordoned", "the node is cordoned")


def _find_driver_problems(node: FleetNode) -> Iterator[Problem]:
    if node.pods is None:
        return
    pods = [pod for pod in node.pods if not pod.is_ending]
    if not pods and node.is_known and (node.slices or node.devices):
        what = "its ResourceSlices are stale" if node.slices else "its claims cannot be released"
        yield _problem("DriverAbsent", f"no pod of the driver runs here, and {what}")
    if waiting := [pod for pod in pods if not pod.is_ready]:
        pod, is_updated = waiting[0], len(waiting) < len(pods)
        trouble = f": {pod.trouble}" if pod.trouble else ""
        another = "; the one before it still runs" if is_updated else ""
        make = _warning if is_updated else _problem
        yield make("DriverNotReady", f"pod {pod.name} of the driver is not ready{trouble}{another}")
    elif pods and not node.slices:
        yield _warning("NothingOffered", "the driver runs and has published no ResourceSlice")


def _find_slice_problems(node: FleetNode) -> Iterator[Problem]:
    by_pool: dict[str, list[JsonObject]] = defaultdict(list)
    for body in node.slices:
        by_pool[body["spec"]["pool"]["name"]].append(body)
    for name, bodies in by_pool.items():
        newest = max(int(body["spec"]["pool"].get("generation") or 0) for body in bodies)
        current = [b for b in bodies if int(b["spec"]["pool"].get("generation") or 0) == newest]
        wanted = max(int(body["spec"]["pool"]["resourceSliceCount"]) for body in current)
        if len(current) < wanted:
            text = (
                f"pool {name} has {len(current)} of {wanted} ResourceSlices: none of its devices is allocated"
            )
            yield _problem("PoolIncomplete", text)
        elif len(current) < len(bodies):
            old = count_of(len(bodies) - len(current), "ResourceSlice")
            yield _warning("SlicesStale", f"pool {name} has {old} of an earlier generation")


def _find_claim_problems(node: FleetNode) -> Iterator[Problem]:
    offered = {
        (body["spec"]["driver"], body["spec"]["pool"]["name"], device["name"])
        for body in node.slices
        for device in body["spec"].get("devices") or ()
    }
    for device in node.devices:
        if device.device not in offered and not device.is_released:
            text = f"claim {device.claim} has {device.device[2]}, which the node no longer offers"
            yield _problem("DeviceGone", text)
        if failed := _find_failure(device):
            yield failed
    for pod in node.misaligned_pods:
        yield _warning("Misaligned", f"{_pod(pod)} is misaligned: {_describe_misaligned(node, pod)}")


def _pod(name: str) -> str:
    return name if name.startswith("claim ") else f"pod {name}"


def _find_failure(device: ClaimDevice) -> Problem | None:
    released = device.conditions.get(ConditionType.RELEASED) or {}
    if released.get("status") == "False":
        return _problem("NotReleased", _describe(device, ConditionType.RELEASED))
    if device.is_released:
        return None
    for condition in FAILING:
        if (device.conditions.get(condition) or {}).get("status") == "False":
            return _problem("ClaimFailed", _describe(device, condition))
    return None


def _describe(device: ClaimDevice, condition: ConditionType) -> str:
    body = device.conditions[condition]
    message = f": {body['message']}" if body.get("message") else ""
    reason = body.get("reason") or "no reason"
    return f"claim {device.claim}: {device.device[2]} {condition} False ({reason}){message}"


def _describe_misaligned(node: FleetNode, pod: str) -> str:
    """The driver's own words for its first device."""
    devices = (d for d in node.devices if d.is_misaligned and pod in (*d.users, f"claim {d.claim}"))
    first = next(devices)
    message = str(first.conditions[ConditionType.ALIGNED].get("message") or "")
    return f"{first.device[2]} is {message}" if message else first.device[2]


def _find_taints(node: FleetNode) -> Iterator[Problem]:
    by_taint: dict[str, list[str]] = defaultdict(list)
    for device, taint in node.taints:
        value = f"={taint['value']}" if taint.get("value") else ""
        by_taint[f"{taint['key']}{value}:{taint['effect']}"].append(device)
    for text, devices in by_taint.items():
        what = f"{count_of(len(devices), 'device')} with the taint {text} ({_names(devices)})"
        yield (_warning if text.endswith(":None") else _problem)("DeviceTainted", what)


def _find_events(node: FleetNode) -> Iterator[Problem]:
    """The last of each reason, except what the claims show themselves."""
    by_reason: dict[str, list[JsonObject]] = defaultdict(list)
    for event in node.events:
        if event.get("reason") == EventReason.MISALIGNED_TOPOLOGY:
            continue
        by_reason[str(event.get("reason"))].append(event)
    for reason, events in by_reason.items():
        last = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        regarding = last.get("involvedObject") or {}
        place = "/".join(filter(None, (regarding.get("namespace"), regarding.get("name"))))
        number = sum(int(event.get("count") or 1) for event in events)
        times = f" ({number} times)" if number > 1 else ""
        about = f"{str(regarding.get('kind', 'object')).lower()} {place}"
        yield _warning(
            "WarningEvent", f"Event {reason}{times}, last about {about}: {last.get('message', '')}"
        )


def _find_cables(node: FleetNode) -> Iterator[Problem]:
    return (_warning("Miscabled", text) for text in node.miscabled)


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
