"""When containers may start whose claim several pods may use.

The ready file is of the claim. Where a claim can be of one pod alone (it was made from a template) the file
stays as long as the pod's sandbox: a container that fails is started again also while no driver runs. A
claim that somebody made by hand may be named by another pod, and the kubelet, which has prepared it, starts
that pod without asking us. With a driver at work ``CreateContainer`` refuses its containers; without one the
file would let them pass, and they would run without the device. So there the file exists only from our
answer to ``CreateContainer`` until the runtime has made the container (``StartContainer``, which containerd
and CRI-O call after the OCI runtime has made its mounts).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from dranet.driver.gate import ReadyGate
from dranet.model.plan import PreparedClaim

WINDOW_SECONDS = 60.0
"""A container that was not started within so long is not going to be: the runtime is at work as soon as it
has our answer."""


def may_be_shared(claim: PreparedClaim) -> bool:
    """Whether other pods than the one that it is prepared for may name the claim."""
    return not claim.pod_claim_name


class StartWindows:
    """Containers between two events of the runtime; called on the NRI thread, but for :meth:`sweep`.

    One lock: a sweep that has seen no container must not shut what one is given just then.
    """

    def __init__(self, gate: ReadyGate, now: Callable[[], float] = time.monotonic) -> None:
        self._gate = gate
        self._now = now
        self._lock = threading.Lock()
        self._starting: dict[str, dict[str, float]] = {}
        """By pod UID and container ID: since when."""

    def begin(self, pod_uid: str, container_id: str, claims: Iterable[PreparedClaim]) -> None:
        """The pod's devices were verified for this container: it may start.

        Raises:
            StoreError: a ready file cannot be made; the container must not be created.
        """
        with self._lock:
            for claim in claims:
                if may_be_shared(claim) or not self._gate.is_open(claim.claim.uid):
                    self._gate.open_again(claim.claim.uid)
            self._starting.setdefault(pod_uid, {})[container_id] = self._now()

    def end(self, pod_uid: str, container_id: str, claims: Iterable[PreparedClaim]) -> None:
        """The container has its mounts.

        Raises:
            StoreError: a ready file cannot be removed.
        """
        with self._lock:
            self._starting.get(pod_uid, {}).pop(container_id, None)
            self._shut(pod_uid, claims)

    def sweep(self, pod_uid: str, claims: Iterable[PreparedClaim]) -> None:
        """Shut what a container that never came, or a driver that was killed, has left open.

        Raises:
            StoreError: a ready file cannot be removed.
        """
        with self._lock:
            self._shut(pod_uid, claims)

    def forget(self, pod_uid: str) -> None:
        """The pod's sandbox has ended, and its gates with it. Waits for nobody: a disk that hangs holds up no
        pod's end."""
        self._starting.pop(pod_uid, None)

    def _shut(self, pod_uid: str, claims: Iterable[PreparedClaim]) -> None:
        starting = self._starting.get(pod_uid, {})
        oldest = self._now() - WINDOW_SECONDS
        if any(since > oldest for since in starting.values()):
            return
        self._starting.pop(pod_uid, None)
        for claim in claims:
            if may_be_shared(claim):
                self._gate.shut(claim.claim.uid)
