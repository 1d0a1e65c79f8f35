"""Find the pod that the devices of a claim go to, or the reason why they can go to none.

The kubelet prepares a claim once, however many pods share it, and does not name the pod. A NIC is in one
network namespace at a time, so it goes to the claim's only pod on this node. What stays on the node (a GPU,
admin access) may be shared; the first pod represents them all.
"""

from __future__ import annotations

from collections.abc import Sequence

from dranet.errors import ClaimError, Reason
from dranet.model.claim import Claim, Consumer, PodRef

MAX_NAMED = 5
"""Pods named in a message; a claim may be reserved for 256."""


def choose_pod(claim: Claim, *, moves: bool) -> PodRef:
    """The pod that the claim's devices are for.

    Args:
        claim: with its pod groups replaced by their pods on this node (``cluster.pods.resolve_pod_groups``).
        moves: whether a device of the claim goes into the pod.

    Raises:
        ClaimError: UnsupportedClaim for a consumer that is no pod, and for several pods where a device moves;
            ClaimNotReserved when no pod has reserved the claim.
    """
    others = [consumer for consumer in claim.reserved_for if not consumer.is_pod]
    if others:
        raise _not_a_pod(claim, others[0])
    pods = list({consumer.uid: consumer for consumer in claim.reserved_for}.values())
    if not pods:
        raise ClaimError(
            f"claim {claim.ref} is not reserved for any pod",
            hint="the scheduler reserves it; was the pod bound by hand?",
            reason=Reason.CLAIM_NOT_RESERVED,
            retryable=True,
        )
    if moves and len(pods) > 1:
        raise _too_many(claim, pods)
    return PodRef(namespace=claim.ref.namespace, name=pods[0].name, uid=pods[0].uid)


def _not_a_pod(claim: Claim, consumer: Consumer) -> ClaimError:
    kind = f"{consumer.resource}.{consumer.api_group}" if consumer.api_group else consumer.resource
    return ClaimError(
        f"claim {claim.ref} is reserved for {kind} {consumer.name}",
        hint="only pods and pod groups can use a claim of this driver",
        reason=Reason.UNSUPPORTED_CLAIM,
    )


def _too_many(claim: Claim, pods: Sequence[Consumer]) -> ClaimError:
    names = ", ".join(pod.name for pod in pods[:MAX_NAMED])
    more = f" and {len(pods) - MAX_NAMED} more" if len(pods) > MAX_NAMED else ""
    return ClaimError(
        f"claim {claim.ref} is used by {len(pods)} pods ({names}{more}), and a network device can be in one "
        "pod only",
        hint="use a ResourceClaimTemplate in the pod, so that each pod gets a claim of its own",
        reason=Reason.UNSUPPORTED_CLAIM,
        retryable=True,  # one of them may have ended, and its reservation not yet be gone
    )
