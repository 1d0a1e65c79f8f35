"""The controllers around ResourceClaims that a cluster runs alongside its scheduler.

Claims are made from templates and belong to their pod; a claim that no pod uses any more is deallocated,
and one whose pod has ended or is gone is deleted. Source: ``pkg/controller/resourceclaim`` and the garbage
collector of Kubernetes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.errors import ClusterError, Reason
from testbed.scheduler.mirror import Reconciler

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
FINALIZER = "resource.kubernetes.io/delete-protection"

_PODS = paths.pods()
_CLAIMS = paths.resource_claims()
_TEMPLATES = paths.resource_claim_templates()


class Controllers(Reconciler):
    """One per cluster; ``async with`` runs it."""

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client, (_PODS, _CLAIMS, _TEMPLATES))

    async def reconcile(self) -> None:
        """Tend to all pods, then to all claims."""
        for pod in self.mirror.items(_PODS):
            if not is_finished(pod) and not pod["metadata"].get("deletionTimestamp"):
                await self._make_claims(pod)
        for claim in self.mirror.items(_CLAIMS):
            await self._tend(claim)

    async def _make_claims(self, pod: JsonObject) -> None:
        """Make what the pod's templates ask for, and write into its status which claim is which."""
        statuses = list(pod.get("status", {}).get("resourceClaimStatuses") or ())
        named = {status["name"] for status in statuses}
        missing = [e for e in _templated(pod) if e["name"] not in named]
        made = [await self._make_claim(pod, entry) for entry in missing]
        new = [
            {"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]}
            for entry, claim in zip(missing, made, strict=True)
            if claim is not None
        ]
        if new:
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            body = {
                "metadata": {"uid": pod["metadata"]["uid"]},
                "status": {"resourceClaimStatuses": statuses + new},
            }
            self.mirror.put(_PODS, await self.client.patch(paths.pod_status(namespace, name), body))

    async def _make_claim(self, pod: JsonObject, entry: JsonObject) -> JsonObject | None:
        """The claim for one entry of ``spec.resourceClaims``; ``None`` while its template does not exist."""
        namespace = pod["metadata"]["namespace"]
        for claim in self.mirror.items(_CLAIMS):
            annotations = claim["metadata"].get("annotations") or {}
            if annotations.get(POD_CLAIM_NAME) == entry["name"] and is_owned(claim, pod):
                return claim
        template = self.mirror.get(_TEMPLATES, namespace, entry["resourceClaimTemplateName"])
        if template is None:
            return None
        body = _build_claim(pod, entry["name"], template)
        claim = await self.client.create(paths.resource_claims(namespace), body)
        self.mirror.put(_CLAIMS, claim)
        return claim

    async def _tend(self, claim: JsonObject) -> None:
        """Let go of pods that are done, then of the devices, then of the claim itself."""
        claim = await self._drop_consumers(claim)
        status = claim.get("status") or {}
        if not status.get("reservedFor") and not status.get("allocation"):
            claim = await self._drop_finalizer(claim)
        if not claim["metadata"].get("deletionTimestamp") and await self._has_lost_owner(claim):
            await self._delete(claim)

    async def _drop_consumers(self, claim: JsonObject) -> JsonObject:
        """Remove the pods that are done from ``reservedFor``; with the last one goes the allocation."""
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        kept = [
            c for c in reserved if c.get("resource") != "pods" or await self._uses(claim, c["name"], c["uid"])
        ]
        unused = (
            not kept and status.get("allocation") and (reserved or claim["metadata"].get("deletionTimestamp"))
        )
        if len(kept) == len(reserved) and not unused:
            return claim
        change: JsonObject = {"reservedFor": kept or None}
        if unused:
            change["allocation"] = None
        return await self._patch(claim, {"status": change}, "status")

    async def _drop_finalizer(self, claim: JsonObject) -> JsonObject:
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return claim
        kept = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        return await self._patch(claim, {"metadata": {"finalizers": kept}})

    async def _has_lost_owner(self, claim: JsonObject) -> bool:
        """Owned by pods that are all done; a finished pod lets go of its claims before it is deleted."""
        owners = [o for o in claim["metadata"].get("ownerReferences") or () if o["kind"] == "Pod"]
        uses = [await self._uses(claim, owner["name"], owner["uid"]) for owner in owners]
        return bool(owners) and not any(uses)

    async def _uses(self, claim: JsonObject, name: str, uid: str) -> bool:
        """Whether the pod can still use the claim.

        The mirror may not know a pod yet that is newer than the claim's reservation, so its word that a pod
        is gone is checked with the API server.
        """
        namespace = claim["metadata"]["namespace"]
        pod = self.mirror.get(_PODS, namespace, name)
        if pod is None or pod["metadata"]["uid"] != uid:
            pod = await self._fetch_pod(namespace, name)
        if pod is None or pod["metadata"]["uid"] != uid or is_finished(pod):
            return False
        never_ran = pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName")
        return not never_ran

    async def _fetch_pod(self, namespace: str, name: str) -> JsonObject | None:
        try:
            return await self.client.get(paths.pod(namespace, name))
        except ClusterError as error:
            if error.reason is Reason.API_NOT_FOUND:
                return None
            raise

    async def _patch(self, claim: JsonObject, change: JsonObject, subresource: str = "") -> JsonObject:
        """Change the version of the claim that was read, or fail with a conflict and be tried again."""
        metadata = claim["metadata"]
        guard = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {**change, "metadata": {**guard, **change.get("metadata", {})}}
        build_path = paths.resource_claim_status if subresource else paths.resource_claim
        patched = await self.client.patch(build_path(metadata["namespace"], metadata["name"]), body)
        self.mirror.put(_CLAIMS, patched)
        return patched

    async def _delete(self, claim: JsonObject) -> None:
        metadata = claim["metadata"]
        try:
            await self.client.delete(
                paths.resource_claim(metadata["namespace"], metadata["name"]), uid=metadata["uid"]
            )
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise


def is_finished(pod: JsonObject) -> bool:
    """Whether the pod has run to its end."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_owned(claim: JsonObject, pod: JsonObject) -> bool:
    owners = claim["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == pod["metadata"]["uid"] for owner in owners)


def _templated(pod: JsonObject) -> Iterator[JsonObject]:
    return (e for e in pod["spec"].get("resourceClaims") or () if e.get("resourceClaimTemplateName"))


def _build_claim(pod: JsonObject, pod_claim: str, template: JsonObject) -> JsonObject:
    owner = pod["metadata"]
    metadata = template["spec"].get("metadata") or {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": f"{owner['name']}-{pod_claim}-",
            "namespace": owner["namespace"],
            "labels": dict(metadata.get("labels") or {}),
            "annotations": {**(metadata.get("annotations") or {}), POD_CLAIM_NAME: pod_claim},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": owner["name"],
                    "uid": owner["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": copy.deepcopy(template["spec"]["spec"]),
    }
