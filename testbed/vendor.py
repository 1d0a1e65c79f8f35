"""The DRA driver of a vendor, as far as others see it: a slice with its devices, and a plugin that the
kubelet may call. It prepares whatever it is asked and gives containers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.plugin import PrepareOutcome
from dranet.model.claim import ClaimRef
from testbed.node.hardware import Hardware, Placed

JsonObject = dict[str, Any]


class VendorDriver:
    """One DRA driver alongside ours; ``async with`` registers it and publishes its devices."""

    def __init__(
        self,
        name: str,
        client: ApiClient,
        devices: Sequence[JsonObject],
        node_name: str,
        kubelet_root: Path,
    ) -> None:
        self._client = client
        self._slice = _build_slice(name, node_name, devices)
        self._plugin = KubeletPlugin(
            name,
            kubelet_root / "plugins" / name / "dra.sock",
            kubelet_root / "plugins_registry" / f"{name}-reg.sock",
            GiveNothing(),
        )

    async def __aenter__(self) -> Self:
        await self._plugin.start()
        await self._client.create(paths.RESOURCE_SLICES, self._slice)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._plugin.stop()


class GiveNothing:
    """Every claim is prepared, with no devices for the runtime to inject."""

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        return {ref.uid: PrepareOutcome() for ref in refs}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        return {ref.uid: "" for ref in refs}


def list_gpus(hardware: Hardware) -> list[JsonObject]:
    """The node's GPUs as a vendor's driver publishes them."""
    gpus = [placed for placed in hardware.placed() if placed.function.gpu]
    return [_build_device(number, placed) for number, placed in enumerate(gpus)]


def _build_slice(driver: str, node_name: str, devices: Sequence[JsonObject]) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def _build_device(number: int, placed: Placed) -> JsonObject:
    """With the standard attributes that NVIDIA's and AMD's drivers publish."""
    assert placed.function.gpu is not None
    attributes = {
        "resource.kubernetes.io/pciBusID": {"string": placed.address},
        "resource.kubernetes.io/pcieRoot": {"string": placed.root},
        "uuid": {"string": placed.function.gpu.uuid},
        "type": {"string": "gpu"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes}
