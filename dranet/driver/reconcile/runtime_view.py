"""The pod sandboxes that the container runtime has reported.

At Synchronize it reports all; later those that start or stop. After a restart of the runtime the end of
older ones is not reported (containerd), so a reader asks the kernel whether their namespaces live.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet.model.plan import PreparedClaim
from dranet.model.sandbox import PodSandbox

ASSUMED_REQUEST_TIMEOUT_SECONDS = 2.0
"""``plugin_request_timeout`` of a runtime that does not report it (before NRI 0.7): the default of all."""


class RuntimeSnapshot(Struct, frozen=True):
    """Pods and records, read so that what differs is not just under way."""

    pods: tuple[PodSandbox, ...] | None
    """``None`` while the runtime is away, and its pods are unknown."""
    records: tuple[PreparedClaim, ...]
    placed_before: Mapping[str, str]
    """Sandboxes by claim, as they were some time before the runtime's pods were asked for. A hook of another
    instance may have attached a pod since, which is then in the records and not among the pods."""
    is_news: bool = True
    """The first look after a connection: what is in place is checked as a whole, and reported to users."""
    known_before: frozenset[str] | None = None
    """Sandboxes that the runtime had reported some time before: the hook of any other may be under way.
    ``None``: does not matter."""


def placements(records: Iterable[PreparedClaim]) -> Mapping[str, str]:
    """Sandboxes by claim UID; empty where the claim is in none."""
    return {record.claim.uid: record.sandbox_id for record in records}


def lives(pod: PodSandbox) -> bool:
    """Whether the sandbox has a network namespace of its own that is there, or has a process on the host's
    network. For others a process means nothing: some runtimes (CRI-O) run sandboxes without any. Where the
    look fails nothing is attached; a restore looks by itself."""
    if pod.is_on_host_network:
        return pod.running
    try:
        return Path(pod.netns_path).exists()
    except OSError:
        return False


class RuntimeView:
    """Pod sandboxes by id. Updated on the NRI thread, read on any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, PodSandbox] | None = None
        self.patience_seconds = ASSUMED_REQUEST_TIMEOUT_SECONDS
        """How long the runtime waits for a plugin."""

    def replace(self, pods: Iterable[PodSandbox]) -> None:
        """The runtime has these and no others."""
        with self._lock:
            self._pods = {pod.id: _strip(pod) for pod in pods}

    def note(self, pod: PodSandbox) -> None:
        """A sandbox runs, or gets a container."""
        with self._lock:
            if self._pods is not None:
                self._pods[pod.id] = _strip(pod)

    def remove(self, sandbox_id: str) -> None:
        """It has stopped."""
        with self._lock:
            if self._pods is not None:
                self._pods.pop(sandbox_id, None)

    def lose(self) -> None:
        """The runtime is away; when it is back it reports everything again."""
        with self._lock:
            self._pods = None

    def read(self) -> tuple[PodSandbox, ...] | None:
        """Every sandbox that has not stopped, in the order in which they came; ``None``: not known."""
        with self._lock:
            return None if self._pods is None else tuple(self._pods.values())


def _strip(pod: PodSandbox) -> PodSandbox:
    """Annotations may be long, and there may be hundreds of pods."""
    return replace(pod, annotations={}) if pod.annotations else pod


class SnapshotQueue:
    """From the NRI thread to the event loop; only the newest snapshot counts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._newest: RuntimeSnapshot | None = None
        self._filled = asyncio.Event()

    def put(self, snapshot: RuntimeSnapshot) -> None:
        """Called on the NRI thread."""
        self._loop.call_soon_threadsafe(self._store, snapshot)

    async def get(self) -> RuntimeSnapshot:
        await self._filled.wait()
        self._filled.clear()
        assert self._newest is not None
        return self._newest

    def _store(self, snapshot: RuntimeSnapshot) -> None:
        self._newest = snapshot
        self._filled.set()
