"""Cases given to the real API server and scheduler, and what became of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError, Reason
from tests.desk.scheduler.cases import EVERYTHING, NAMESPACE, Case, Json
from tests.support.waiting import until

_AT_A_TIME = 24
_POLL_SECONDS = 0.25
_PATIENCE_SECONDS = 120.0
_ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_PROBE = "probe"


@dataclass
class Given:
    """One case in the cluster: the objects as the server keeps them, and the scheduler's answer."""

    case: Case
    refusal: str = ""
    """What the API server does not take of it; such a case never reaches a scheduler."""
    nodes: list[Json] = field(default_factory=list)
    classes: list[Json] = field(default_factory=list)
    rules: list[Json] = field(default_factory=list)
    slices: list[Json] = field(default_factory=list)
    holders: list[Json] = field(default_factory=list)
    claims: list[Json] = field(default_factory=list)
    pod: Json = field(default_factory=dict)
    answer: Answer | None = None


@dataclass(frozen=True)
class Answer:
    """What the scheduler did."""

    node: str = ""
    """Where the pod or its claims are; empty if nowhere."""
    allocations: tuple[Json, ...] = ()
    """``status.allocation`` of the claims, in order."""
    reason: str = ""
    """Of the pod's condition ``PodScheduled``: ``Unschedulable`` or ``SchedulerError``."""
    message: str = ""


async def give(api: ApiClient, cases: Sequence[Case], rules_path: str) -> list[Given]:
    """Write everything but the pods, wait until the scheduler has seen it, then the pods.

    Between the two nothing changes: ``before`` is what ``dranet explain`` would read.
    """
    given = [Given(case) for case in cases]
    await _each(given, lambda one: _publish(api, one, rules_path))
    await await_seen(api, given)
    return given


async def schedule(api: ApiClient, given: Sequence[Given], patience: float = _PATIENCE_SECONDS) -> None:
    """Create the pods and wait until the scheduler has answered for each."""
    waiting = [one for one in given if not one.refusal]

    async def create(one: Given) -> None:
        one.pod = await api.create(paths.pods(NAMESPACE), one.case.pod)

    await _each(waiting, create)
    async with asyncio.timeout(patience):
        while unanswered := [one for one in waiting if one.answer is None]:
            await asyncio.sleep(_POLL_SECONDS)
            await _read_answers(api, unanswered)
    await api.delete(paths.pods(NAMESPACE), grace_period_seconds=0)


async def prepare(api: ApiClient) -> None:
    """The namespace of the cases, whose pods may ask for admin access, with the account that pods must have:
    no controller manager makes one."""
    labels = {_ADMIN_LABEL: "true"}
    await api.create(paths.NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
    await api.create(f"{paths.namespace(NAMESPACE)}/serviceaccounts", {"metadata": {"name": "default"}})


async def find_rules_path(api: ApiClient) -> str:
    """Where the server serves DeviceTaintRules; empty where it does not."""
    for version in ("v1", "v1beta2", "v1alpha3"):
        path = f"/apis/resource.k8s.io/{version}/devicetaintrules"
        try:
            await api.list(path)
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise
        else:
            return path
    return ""


async def _publish(api: ApiClient, one: Given, rules_path: str) -> None:
    case = one.case
    if case.rules and not rules_path:
        one.refusal = "no DeviceTaintRule is served"
        return
    try:
        one.nodes = [await api.create(paths.NODES, body) for body in case.nodes]
        one.classes = [await api.create(paths.DEVICE_CLASSES, body) for body in case.classes]
        one.rules = [await api.create(rules_path, body) for body in case.rules]
        for body in case.slices:
            one.slices.append(await api.create(paths.RESOURCE_SLICES, body))
        one.holders = [await _create_holder(api, body) for body in case.holders]
        claims = paths.resource_claims(NAMESPACE)
        one.claims = [await api.create(claims, body) for body in case.claims]
    except ClusterError as error:
        if error.reason is not Reason.API_INVALID:
            raise
        one.refusal = error.message
        for body in one.slices:  # half of a pool would end every search for all devices
            await api.delete(paths.resource_slice(body["metadata"]["name"]))


async def _create_holder(api: ApiClient, body: Json) -> Json:
    stored = await api.create(paths.resource_claims(NAMESPACE), body)
    path = paths.resource_claim_status(NAMESPACE, body["metadata"]["name"])
    return await api.replace(path, {**stored, "status": body["status"]})


async def await_seen(api: ApiClient, given: Sequence[Given]) -> None:
    """A pod that gets a device published after everything else: the scheduler's caches hold all before it."""
    number = given[0].case.number
    name = f"{_PROBE}-{number}"
    node = {**given[0].case.nodes[0], "metadata": {"name": name, "labels": {"probe": name}}}
    driver = f"{name}.dev"
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    metadata = {"name": name}
    spec = {"driver": driver, "nodeName": name, "pool": pool, "devices": [{"name": "d"}]}
    requests = [{"name": "r", "exactly": {"deviceClassName": name}}]
    await api.create(paths.NODES, node)
    await api.create(paths.DEVICE_CLASSES, {"metadata": metadata, "spec": {"selectors": [selector]}})
    await api.create(paths.RESOURCE_SLICES, {"metadata": metadata, "spec": spec})
    claim = {"metadata": {**metadata, "namespace": NAMESPACE}, "spec": {"devices": {"requests": requests}}}
    await api.create(paths.resource_claims(NAMESPACE), claim)
    container = {"name": "c", "image": "none"}
    resources = [{"name": "c", "resourceClaimName": name}]
    pod_spec = {
        "nodeSelector": {"probe": name},
        "tolerations": [EVERYTHING],
        "containers": [container],
        "resourceClaims": resources,
    }
    await api.create(paths.pods(NAMESPACE), {"metadata": metadata, "spec": pod_spec})

    async def is_bound() -> bool:
        return bool((await api.get(paths.pod(NAMESPACE, name)))["spec"].get("nodeName"))

    await until(is_bound, f"pod {name} has a node", _PATIENCE_SECONDS)
    await api.delete(paths.pod(NAMESPACE, name), grace_period_seconds=0)


async def _read_answers(api: ApiClient, waiting: Iterable[Given]) -> None:
    pods = {b["metadata"]["name"]: b for b in (await api.list(paths.pods(NAMESPACE)))["items"]}
    claims = {b["metadata"]["name"]: b for b in (await api.list(paths.resource_claims(NAMESPACE)))["items"]}
    for one in waiting:
        own = [claims[claim["metadata"]["name"]] for claim in one.claims]
        one.answer = _read_answer(pods[one.case.pod["metadata"]["name"]], own)


def _read_answer(pod: Json, claims: Sequence[Json]) -> Answer | None:
    """``None`` while there is none. Where devices must be readied first, a pod has claims before a node."""
    status = [claim.get("status") or {} for claim in claims]
    if all(entry.get("allocation") and entry.get("reservedFor") for entry in status):
        allocations = tuple(entry["allocation"] for entry in status)
        return Answer(pod["spec"].get("nodeName") or _find_node(allocations), allocations)
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Answer(reason=condition["reason"], message=condition.get("message", ""))
    return None


def _find_node(allocations: Iterable[Json]) -> str:
    terms = [t for a in allocations for t in (a.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()]
    fields = [f for term in terms for f in term.get("matchFields") or () if f["key"] == "metadata.name"]
    return str(fields[0]["values"][0]) if fields else ""


async def _each(given: Iterable[Given], act: Callable[[Given], Awaitable[Any]]) -> None:
    """Several at a time."""
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def run(one: Given) -> None:
        async with turn:
            await act(one)

    async with asyncio.TaskGroup() as group:
        for one in given:
            group.create_task(run(one))
