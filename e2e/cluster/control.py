"""What the lane can do on its node besides the API server: hold sandboxes, play other drivers and plugins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from e2e.cluster.cni_plugin import CniPlugin
from e2e.cluster.config import KubeletPlan
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.device_plugin import DevicePlugin
from testbed.node.hardware import Hardware
from testbed.vendor import VendorDriver, list_gpus


class LocalNodeControl:
    """Implements :class:`~e2e.access.NodeControl`. What it starts ends with ``stack``."""

    def __init__(
        self,
        stack: AsyncExitStack,
        plane: ControlPlane,
        kubelet: KubeletPlan,
        hardware: Hardware,
        cni: CniPlugin,
    ) -> None:
        self._stack = stack
        self._plane = plane
        self._kubelet = kubelet
        self._hardware = hardware
        self._cni = cni

    def hold_sandboxes(self, hold: bool) -> None:
        self._cni.hold(hold)

    def is_prepared(self, claim_uid: str) -> bool:
        """The driver has answered Prepare once the claim's CDI file is there."""
        return any(claim_uid in file.name for file in Path("/var/run/cdi").glob("*.json"))

    async def start_vendor_driver(self, name: str) -> None:
        api = await self._stack.enter_async_context(self._plane.connect())
        driver = VendorDriver(name, api, list_gpus(self._hardware), self._kubelet.node, self._kubelet.root)
        await self._stack.enter_async_context(driver)

    async def add_device_plugin(self, resource: str, ids: Sequence[str]) -> None:
        await self._stack.enter_async_context(DevicePlugin(self._kubelet.root, resource, ids))
