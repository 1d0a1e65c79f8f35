"""The network namespaces of pods that have devices, kept open.

Some runtimes remove a namespace before they tell us of the pod's end (CRI-O), and links that exist only in it
would end with it. But whoever holds one keeps it alive, so it is let go once its devices are back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from msgspec import Struct

from dranet.kernel.namespaces.netns import NetworkNamespace, open_netns
from dranet.model.plan import PreparedClaim


class PodLinks(Protocol):
    """Whoever wants to know which namespaces have devices. Called with the node's devices held still, so it
    must be quick, and must raise nothing."""

    def follow(self, pod_uid: str, netns: NetworkNamespace) -> None:
        """The pod's devices are in ``netns``, which stays open until :meth:`forget`."""

    def forget(self, pod_uid: str) -> None:
        """They are not there any more; if elsewhere, or there again, ``follow`` comes next."""


class _Held(Struct, frozen=True):
    sandbox_id: str
    netns: NetworkNamespace


class HeldNamespaces:
    """By pod, for one sandbox each. Called with the node's devices held still."""

    def __init__(self, pod_links: PodLinks | None) -> None:
        self._pod_links = pod_links
        self._held: dict[str, _Held] = {}

    def hold(self, pod_uid: str, sandbox_id: str, netns: NetworkNamespace) -> None:
        """Keep it, instead of another of the pod, and close it at the end."""
        self._drop(pod_uid)
        self._held[pod_uid] = _Held(sandbox_id, netns)
        if self._pod_links is not None:
            self._pod_links.follow(pod_uid, netns)

    def get(self, claim: PreparedClaim) -> NetworkNamespace | None:
        """That of the sandbox which has the claim's devices, if it is held."""
        held = self._held.get(claim.pod.uid)
        return held.netns if held is not None and held.sandbox_id == claim.sandbox_id else None

    @contextmanager
    def open(self, claim: PreparedClaim, path: str = "") -> Iterator[NetworkNamespace | None]:
        """The same, or where it is not held what is at ``path`` (by default the record's); ``None``: it died.

        Raises:
            KernelError: what is at the path cannot be opened or entered.
        """
        held = self.get(claim)
        opened = open_netns(path or claim.netns_path, claim.netns_id) if held is None else None
        with opened or nullcontext():
            yield held or opened

    def keep_only(self, claims: Iterable[PreparedClaim]) -> None:
        """Let go of every other, whichever instance of the driver has given its devices back."""
        if self._held:
            placed = {(claim.pod.uid, claim.sandbox_id) for claim in claims if claim.netns_path}
            for pod_uid, held in tuple(self._held.items()):
                if (pod_uid, held.sandbox_id) not in placed:
                    self._drop(pod_uid)

    def close(self) -> None:
        """Let go of all."""
        for pod_uid in tuple(self._held):
            self._drop(pod_uid)

    def _drop(self, pod_uid: str) -> None:
        held = self._held.pop(pod_uid, None)
        if held is not None:
            if self._pod_links is not None:
                self._pod_links.forget(pod_uid)
            held.netns.close()
