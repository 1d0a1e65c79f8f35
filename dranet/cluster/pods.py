"""Pods of this node: who uses a claim that is reserved for a whole PodGroup (KEP-5729), and which other
claims a pod has.

With a PodGroup in ``status.reservedFor`` nobody tells the driver which pod the claim is prepared for, so it
looks which pods of the group are on this node and use the claim. Only then are pods listed. A single pod is
read where another driver serves the node's GPUs, to tell how near they are to ours (``TopologyAligned``).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dranet.cluster import paths
from dranet.cluster.claims import fetch_claim, parse_claim
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.messages import check_stored
from dranet.cluster.shapes import get_items, get_object, get_text
from dranet.errors import ClaimError, ClusterError, Reason
from dranet.model.claim import AllocationResult, Claim, ClaimRef, Consumer, PodRef

_ENDED = ("Succeeded", "Failed")


async def fetch_claim_for_node(client: ApiClient, ref: ClaimRef, node_name: str) -> Claim:
    """The claim as the API server has it now, allocated on this node, with pods as its consumers.

    Raises:
        ClaimError: as :func:`~dranet.cluster.claims.fetch_claim`; UnsupportedClaim when it is allocated on
            another node; as :func:`resolve_pod_groups`.
        ClusterError: no answer, or a refusal.
        ProtocolError: the claim, or a pod, is not what the API promises.
    """
    claim = await fetch_claim(client, ref)
    if claim.node_name not in ("", node_name):
        # Devices of several nodes have the same names: ours must not go for those of another node.
        raise ClaimError(
            f"claim {ref} is allocated on node {claim.node_name}, not on this one ({node_name})",
            hint="was the pod bound by hand? delete it and let the scheduler choose the node",
            reason=Reason.UNSUPPORTED_CLAIM,
        )
    return await resolve_pod_groups(client, claim, node_name)


async def resolve_pod_groups(client: ApiClient, claim: Claim, node_name: str) -> Claim:
    """The claim with each PodGroup of ``reserved_for`` replaced by its pods on this node that use the claim.

    Raises:
        ClaimError: ClaimNotReserved, to be tried again: no such pod.
        ClusterError: no answer, or a refusal; the role needs ``list`` on ``pods``.
        ProtocolError: a pod is not what the API promises.
    """
    groups = {consumer.name for consumer in claim.reserved_for if consumer.is_pod_group}
    if not groups:
        return claim
    listed = await client.list(paths.pods(claim.ref.namespace), field_selector=f"spec.nodeName={node_name}")
    users = [_consumer(pod) for pod in get_items(listed, "items") if _uses(pod, claim.ref.name, groups)]
    if not users:
        raise ClaimError(
            f"claim {claim.ref} is reserved for PodGroup {', '.join(sorted(groups))}, and no pod of it on "
            "this node uses the claim",
            hint="this is tried again; was the pod deleted?",
            reason=Reason.CLAIM_NOT_RESERVED,
            retryable=True,
        )
    others = [consumer for consumer in claim.reserved_for if not consumer.is_pod_group]
    return replace(claim, reserved_for=(*others, *users))


def _uses(pod: JsonObject, claim_name: str, groups: set[str]) -> bool:
    """Whether a pod that may still start containers is of one of the groups, and has the claim."""
    spec, status = get_object(pod, "spec"), get_object(pod, "status")
    group = get_text(get_object(spec, "schedulingGroup"), "podGroupName")
    is_over = get_text(status, "phase") in _ENDED or bool(
        get_object(pod, "metadata").get("deletionTimestamp")
    )
    return group in groups and not is_over and claim_name in _claim_names(spec, status)


def _claim_names(spec: JsonObject, status: JsonObject) -> Iterator[str]:
    """Claims that the pod names, and those that were made for it or its group from a template."""
    for item in (*get_items(spec, "resourceClaims"), *get_items(status, "resourceClaimStatuses")):
        yield get_text(item, "resourceClaimName")


async def fetch_other_results(
    client: ApiClient, pod: PodRef, known: frozenset[str]
) -> tuple[AllocationResult, ...]:
    """What is allocated to the claims that the pod uses, but for those of the names ``known``. Nothing for a
    pod, or a claim, that is there no more.

    Raises:
        ClusterError: no answer, or a refusal; the role needs ``get`` on ``pods``.
        ProtocolError: the pod, or a claim, is not what the API promises.
    """
    body = await _get_if_there(client, paths.pod(pod.namespace, pod.name))
    if body is None or get_text(get_object(body, "metadata"), "uid") != pod.uid:
        return ()
    spec, status = get_object(body, "spec"), get_object(body, "status")
    extended = get_text(get_object(status, "extendedResourceClaimStatus"), "resourceClaimName")
    names = dict.fromkeys(filter(None, (*_claim_names(spec, status), extended)))
    results: list[AllocationResult] = []
    for name in names:
        if name not in known:
            claim = await _get_if_there(client, paths.resource_claim(pod.namespace, name))
            results += parse_claim(claim).results if claim is not None else ()
    return tuple(results)


async def _get_if_there(client: ApiClient, path: str) -> JsonObject | None:
    try:
        return check_stored(await client.get(path), f"a GET of {path}")
    except ClusterError as error:
        if error.reason is Reason.API_NOT_FOUND:
            return None
        raise


def _consumer(pod: JsonObject) -> Consumer:
    metadata = get_object(pod, "metadata")
    return Consumer("pods", get_text(metadata, "name"), get_text(metadata, "uid"))
