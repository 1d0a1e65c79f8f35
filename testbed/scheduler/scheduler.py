"""Gives pods to nodes: the part of a scheduler that knows claims.

For each waiting pod it tries the nodes in order of their names, allocates the pod's claims, writes
allocation and reservation into the claims, and binds the pod. Scores, resources other than claims, affinity
and preemption are ignored. The ``PodScheduled`` condition names why a pod does not fit; it is tried
again whenever something changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.desk.allocation.allocator import (
    AllocationError,
    Attempt,
    AttemptResult,
    ClusterDevices,
    Node,
    Unschedulable,
    read_devices_in_use,
    summarize,
)
from dranet.desk.allocation.devices import matches_node
from dranet.desk.allocation.taints import AppliedTaint, find_untolerated
from testbed.scheduler.controllers import FINALIZER, is_finished, is_owned
from testbed.scheduler.mirror import Reconciler

MAX_RESERVATIONS = 256
"""Limit of ``status.reservedFor``."""

_PODS = paths.pods()
_CLAIMS = paths.resource_claims()
_WATCHED = (
    _PODS,
    _CLAIMS,
    paths.NODES,
    paths.RESOURCE_SLICES,
    paths.DEVICE_CLASSES,
    paths.DEVICE_TAINT_RULES,
)


@dataclass(frozen=True, slots=True)
class _Placement:
    """A node, and the allocation of each claim that still needs one, by the claim's name."""

    node: str
    allocations: dict[str, JsonObject]


class Scheduler(Reconciler):
    """One per cluster; ``async with`` runs it."""

    def __init__(self, client: ApiClient, name: str = "default-scheduler") -> None:
        super().__init__(client, _WATCHED)
        self._name = name

    async def reconcile(self) -> None:
        """Try every waiting pod once, the oldest first."""
        waiting = [pod for pod in self.mirror.items(_PODS) if self._is_waiting(pod)]
        for pod in sorted(waiting, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
            await self._schedule(pod)

    def _is_waiting(self, pod: JsonObject) -> bool:
        spec = pod["spec"]
        if spec.get("nodeName") or spec.get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
            return False
        return spec.get("schedulerName", self._name) == self._name and not is_finished(pod)

    async def _schedule(self, pod: JsonObject) -> None:
        try:
            claims = self._find_claims(pod)
            placement = self._place(pod, claims)
        except AllocationError as error:
            await self._report(pod, "SchedulerError", str(error))
        except Unschedulable as error:
            await self._report(pod, "Unschedulable", str(error))
        else:
            for claim in claims:
                await self._reserve(pod, claim, placement.allocations.get(claim["metadata"]["name"]))
            await self._bind(pod, placement.node)

    # --- decide ---------------------------------------------------------------------------------------

    def _find_claims(self, pod: JsonObject) -> list[JsonObject]:
        """The pod's claims; raises :class:`Unschedulable` if one cannot be used (yet)."""
        names = {
            s["name"]: s.get("resourceClaimName") for s in pod["status"].get("resourceClaimStatuses") or ()
        }
        claims = []
        for entry in pod["spec"].get("resourceClaims") or ():
            name = entry.get("resourceClaimName") or names.get(entry["name"])
            if name:
                claims.append(self._find_claim(pod, name, templated="resourceClaimTemplateName" in entry))
            elif entry["name"] not in names:
                raise Unschedulable(f"waiting for the claim {entry['name']} to be made from its template")
        return claims

    def _find_claim(self, pod: JsonObject, name: str, *, templated: bool) -> JsonObject:
        claim = self.mirror.get(_CLAIMS, pod["metadata"]["namespace"], name)
        if claim is None:
            raise Unschedulable(f"resourceclaim {name} not found")
        if claim["metadata"].get("deletionTimestamp"):
            raise Unschedulable(f"resourceclaim {name} is being deleted")
        if templated and not is_owned(claim, pod):
            raise Unschedulable(f"resourceclaim {name} was not made for this pod")
        consumers = (claim.get("status") or {}).get("reservedFor") or ()
        if len(consumers) >= MAX_RESERVATIONS and not _is_reserved(claim, pod):
            raise Unschedulable(f"resourceclaim {name} is used by {MAX_RESERVATIONS} pods already")
        return claim

    def _place(self, pod: JsonObject, claims: Sequence[JsonObject]) -> _Placement:
        """The first node that fits; raises with what each node lacks. A failed attempt ends the search."""
        nodes = self.mirror.items(paths.NODES)
        pending = [claim for claim in claims if not _allocation(claim)]
        attempt = Attempt(pending, self._devices()) if pending else None
        reasons = []
        for node in nodes:
            try:
                return self._fit(pod, claims, attempt, node)
            except AllocationError:
                raise
            except Unschedulable as error:
                reasons.append(f"node {node['metadata']['name']}: {error}")
        raise Unschedulable(f"0/{len(nodes)} nodes are available: {'; '.join(reasons) or 'there is no node'}")

    def _fit(
        self, pod: JsonObject, claims: Sequence[JsonObject], attempt: Attempt | None, node: JsonObject
    ) -> _Placement:
        view = Node.parse(node)
        _check_node(pod, node, view)
        for claim in claims:
            selector = (_allocation(claim) or {}).get("nodeSelector")
            if selector and not matches_node(selector, view):
                raise Unschedulable(f"resourceclaim {claim['metadata']['name']} is allocated elsewhere")
        allocations = _allocate(attempt, view) if attempt else ()
        pending = (claim["metadata"]["name"] for claim in claims if not _allocation(claim))
        named = zip(pending, allocations, strict=True)
        return _Placement(view.name, dict(named))

    def _devices(self) -> ClusterDevices:
        classes = self.mirror.items(paths.DEVICE_CLASSES)
        return ClusterDevices(
            slices=self.mirror.items(paths.RESOURCE_SLICES),
            classes={device_class["metadata"]["name"]: device_class for device_class in classes},
            in_use=read_devices_in_use(self.mirror.items(_CLAIMS)),
            taint_rules=self.mirror.items(paths.DEVICE_TAINT_RULES),
        )

    # --- write ----------------------------------------------------------------------------------------

    async def _reserve(self, pod: JsonObject, claim: JsonObject, allocation: JsonObject | None) -> None:
        """Finalizer first, then allocation and reservation in one write, as Kubernetes does it."""
        metadata = claim["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        finalizers = metadata.get("finalizers") or []
        if allocation and FINALIZER not in finalizers:
            change = {"metadata": {**_guard(claim), "finalizers": [*finalizers, FINALIZER]}}
            claim = await self.client.patch(paths.resource_claim(namespace, name), change)
            self.mirror.put(_CLAIMS, claim)
        status: JsonObject = {}
        if allocation:
            status["allocation"] = {**allocation, "allocationTimestamp": _now()}
        if not _is_reserved(claim, pod):
            status["reservedFor"] = [*((claim.get("status") or {}).get("reservedFor") or ()), _consumer(pod)]
        if status:
            change = {"metadata": _guard(claim), "status": status}
            claim = await self.client.patch(paths.resource_claim_status(namespace, name), change)
            self.mirror.put(_CLAIMS, claim)

    async def _bind(self, pod: JsonObject, node: str) -> None:
        metadata = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {key: metadata[key] for key in ("namespace", "name", "uid")},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.client.create(paths.pod_binding(metadata["namespace"], metadata["name"]), body)
        bound = await self.client.get(paths.pod(metadata["namespace"], metadata["name"]))
        self.mirror.put(_PODS, bound)

    async def _report(self, pod: JsonObject, reason: str, message: str) -> None:
        """Set ``PodScheduled`` to False; written only when it changes."""
        conditions = pod["status"].get("conditions") or ()
        known: JsonObject = next((c for c in conditions if c["type"] == "PodScheduled"), {})
        if (known.get("reason"), known.get("message")) == (reason, message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": known.get("lastTransitionTime") or _now(),
        }
        others = [c for c in conditions if c["type"] != "PodScheduled"]
        metadata = pod["metadata"]
        path = paths.pod_status(metadata["namespace"], metadata["name"])
        body = {"metadata": _guard(pod), "status": {"conditions": [*others, condition]}}
        self.mirror.put(_PODS, await self.client.patch(path, body))


def _allocate(attempt: Attempt, node: Node) -> tuple[JsonObject, ...]:
    outcome = attempt.on(node)
    if outcome.error:
        raise outcome.error
    if outcome.ending is not AttemptResult.ALLOCATED:
        raise Unschedulable(summarize(outcome))
    return attempt.allocations(outcome)


def _check_node(pod: JsonObject, node: JsonObject, view: Node) -> None:
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        raise Unschedulable("is unschedulable")
    for key, value in (pod["spec"].get("nodeSelector") or {}).items():
        if view.labels.get(key) != value:
            raise Unschedulable(f"does not match the pod's node selector {key}={value}")
    taints = [AppliedTaint.parse(taint) for taint in spec.get("taints") or ()]
    untolerated = find_untolerated(taints, pod["spec"].get("tolerations") or ())
    if untolerated:
        raise Unschedulable(f"has the taint {untolerated.key} that the pod does not tolerate")


def _allocation(claim: JsonObject) -> JsonObject | None:
    return (claim.get("status") or {}).get("allocation")


def _is_reserved(claim: JsonObject, pod: JsonObject) -> bool:
    consumers: Iterable[JsonObject] = (claim.get("status") or {}).get("reservedFor") or ()
    return any(consumer["uid"] == pod["metadata"]["uid"] for consumer in consumers)


def _consumer(pod: JsonObject) -> JsonObject:
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def _guard(item: JsonObject) -> JsonObject:
    """Metadata that makes a patch fail with a conflict if the object is not the one that was read."""
    return {key: item["metadata"][key] for key in ("uid", "resourceVersion")}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
