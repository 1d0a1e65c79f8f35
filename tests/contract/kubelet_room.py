"""The driver's kubelet room on real sockets, with a handler that answers by script in place of the walks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.plugin import ANSWER_SECONDS, DeviceHealthFact, PreparedDeviceAnswer, PrepareOutcome
from dranet.model.claim import ClaimRef
from testbed.kubelet.nouns import KubeletOptions
from testbed.kubelet.plugins import PluginManager
from tests.contract.calls import Calls, eventually

DRIVER = "dra.net"
POOL = "node-1"

QUICK = KubeletOptions(
    registration_retry_seconds=0.02,
    registration_retry_cap_seconds=0.05,
    pod_retry_seconds=0.02,
    pod_retry_cap_seconds=0.05,
    health_retry_seconds=0.02,
    wipe_slices_after_seconds=0.05,
)
"""The kubelet's order and conditions, its waits cut short."""


class Script:
    """Answers as a test says: one device for each claim, or ``errors`` by UID. ``hold`` keeps the
    claims that it names until ``release``. Also the source of the health stream."""

    def __init__(self) -> None:
        self.devices: dict[str, tuple[PreparedDeviceAnswer, ...]] = {}
        self.errors: dict[str, str] = {}
        self.prepared: list[list[str]] = []
        self.unprepared: list[list[str]] = []
        self.facts: tuple[DeviceHealthFact, ...] = (DeviceHealthFact(POOL, "nic-1", healthy=True),)
        self.snapshots = 0
        self._held: dict[str, asyncio.Event] = {}

    def hold(self, *uids: str) -> None:
        self._held |= {uid: asyncio.Event() for uid in uids}

    def release(self) -> None:
        for held in self._held.values():
            held.set()
        self._held.clear()

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        self.prepared.append([ref.uid for ref in refs])
        await self._wait(refs)
        return {ref.uid: self._outcome(ref.uid) for ref in refs}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        self.unprepared.append([ref.uid for ref in refs])
        await self._wait(refs)
        return {ref.uid: self.errors.get(ref.uid, "") for ref in refs}

    def snapshot(self) -> Sequence[DeviceHealthFact]:
        self.snapshots += 1
        return self.facts

    async def _wait(self, refs: Sequence[ClaimRef]) -> None:
        for ref in refs:
            if ref.uid in self._held:
                await self._held[ref.uid].wait()

    def _outcome(self, uid: str) -> PrepareOutcome:
        if uid in self.errors:
            return PrepareOutcome(error=self.errors[uid])
        return PrepareOutcome(self.devices.get(uid, (a_device(uid),)))


def a_device(uid: str, *, share_id: str | None = None) -> PreparedDeviceAnswer:
    return PreparedDeviceAnswer(("nic",), POOL, "nic-1", (f"{DRIVER}/claim={uid}-nic-1",), share_id=share_id)


class Room:
    """One instance of the driver's kubelet room below ``root``, and the calls to it."""

    def __init__(
        self,
        root: Path,
        script: Script | None = None,
        *,
        watched: bool = True,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.script = script or Script()
        self.registry = root / "plugins_registry"
        self.folder = root / "plugins" / DRIVER
        self.calls = Calls(self.registry / f"{DRIVER}-reg.sock", self.folder / "dra.sock")
        self.plugin = KubeletPlugin(
            DRIVER,
            self.calls.dra_socket,
            self.calls.registration_socket,
            self.script,
            health=self.script if watched else None,
        )
        self.plugin._dra._answer_seconds = answer_seconds

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Room]:
        await self.plugin.start()
        try:
            yield self
        finally:
            self.script.release()
            await self.plugin.stop()


class Node:
    """The plugin manager of a kubelet that has nothing but plugins."""

    def __init__(self, root: Path, options: KubeletOptions = QUICK) -> None:
        self.wiped: list[str] = []
        self.manager = PluginManager(root, options, wipe_slices=self._wipe, on_change=lambda: None)

    async def _wipe(self, driver: str) -> None:
        self.wiped.append(driver)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        await self.manager.start()
        try:
            yield self
        finally:
            await self.manager.stop()

    async def wait_registered(self, count: int = 1) -> None:
        """Until so many plugins are registered and connected."""
        await eventually(lambda: [p.connected for p in self.manager.plugins] == [True] * count)


@asynccontextmanager
async def registered(root: Path, options: KubeletOptions = QUICK) -> AsyncIterator[tuple[Room, Node]]:
    """A room and a kubelet that have found each other."""
    room, node = Room(root), Node(root, options)
    async with node.running(), room.serving():
        await node.wait_registered()
        await eventually(lambda: room.plugin.capabilities.registered)
        yield room, node
