"""Which pod a claim's devices go to, and who is refused before any harm."""

from __future__ import annotations

import pytest

from dranet.claims.config import choose_pod
from dranet.errors import ClaimError, Reason
from dranet.model.claim import Claim, ClaimRef, Consumer, PodRef

ONE, TWO = Consumer("pods", "one", "uid-1"), Consumer("pods", "two", "uid-2")
GROUP = Consumer("podgroups", "workers", "uid-g", "scheduling.k8s.io")


def claim(*consumers: Consumer) -> Claim:
    return Claim(ClaimRef("team", "c", "uid"), True, reserved_for=consumers)


def refusal(*consumers: Consumer, moves: bool = True) -> ClaimError:
    with pytest.raises(ClaimError) as caught:
        choose_pod(claim(*consumers), moves=moves)
    return caught.value


@pytest.mark.parametrize("moves", [True, False])
def test_the_only_pod_gets_the_devices(moves: bool) -> None:
    assert choose_pod(claim(ONE), moves=moves) == PodRef("team", "one", "uid-1")
    assert choose_pod(claim(ONE, ONE), moves=moves).uid == "uid-1"


def test_what_moves_nothing_is_for_all_pods_of_the_claim() -> None:
    assert choose_pod(claim(ONE, TWO), moves=False) == PodRef("team", "one", "uid-1")


def test_a_network_device_cannot_be_in_two_pods_and_both_are_named() -> None:
    error = refusal(ONE, TWO)
    assert error.reason is Reason.UNSUPPORTED_CLAIM
    assert "one, two" in error.message
    assert "ResourceClaimTemplate" in error.hint
    assert error.retryable, "one of them may have ended, and its reservation not yet be gone"


def test_the_message_names_a_few_of_many_pods() -> None:
    message = refusal(*(Consumer("pods", f"pod-{n}", f"uid-{n}") for n in range(256))).message
    assert "256 pods" in message
    assert "pod-4 and 251 more" in message


def test_a_claim_of_nobody_is_tried_again() -> None:
    error = refusal()
    assert error.reason is Reason.CLAIM_NOT_RESERVED
    assert error.retryable


@pytest.mark.parametrize(
    ("consumer", "named"),
    [
        (Consumer("jobs", "j", "u", "batch"), "jobs.batch j"),
        (Consumer("pods", "p", "u", "example.com"), "pods.example.com p"),
        (GROUP, "podgroups.scheduling.k8s.io workers"),
    ],
)
@pytest.mark.parametrize("moves", [True, False])
def test_a_consumer_that_is_no_pod_is_refused_by_name(consumer: Consumer, named: str, moves: bool) -> None:
    error = refusal(ONE, consumer, moves=moves)
    assert error.reason is Reason.UNSUPPORTED_CLAIM
    assert named in error.message
