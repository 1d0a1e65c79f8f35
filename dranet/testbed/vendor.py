"""The GPU driver of a vendor, as far as others see it: slices that say where GPUs sit, and a plugin that the
kubelet may call. It prepares whatever it is asked and gives containers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.plugin import PrepareOutcome
from dranet.model.claim import ClaimRef
from dranet.testbed.node.hardware import Function, Hardware

JsonObject = dict[str, Any]


class VendorDriver:
    """One DRA driver beside ours; ``async with`` registers it and publishes the node's GPUs."""

    def __init__(
        self, name: str, client: ApiClient, hardware: Hardware, node_name: str, kubelet_root: Path
    ) -> None:
        self._client = client
        self._slice = _build_slice(name, node_name, hardware)
        self._plugin = KubeletPlugin(
            name,
            kubelet_root / "plugins" / name / "dra.sock",
            kubelet_root / "plugins_registry" / f"{name}-reg.sock",
            _GiveNothing(),
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


class _GiveNothing:
    """Every claim is prepared, with no devices for the runtime to inject."""

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        return {ref.uid: PrepareOutcome() for ref in refs}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        return {ref.uid: "" for ref in refs}


def _build_slice(driver: str, node_name: str, hardware: Hardware) -> JsonObject:
    gpus = [
        function
        for socket in hardware.sockets
        for root in socket.roots
        for function in _functions(root.functions)
        if function.gpu is not None
    ]
    devices = [_build_device(number, function) for number, function in enumerate(gpus)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _functions(functions: Sequence[Function]) -> Iterator[Function]:
    for function in functions:
        yield function
        yield from _functions(function.below)


def _build_device(number: int, function: Function) -> JsonObject:
    assert function.gpu is not None
    attributes = {
        "resource.kubernetes.io/pciBusID": {"string": function.address},
        "uuid": {"string": function.gpu.uuid},
        "type": {"string": "gpu"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes}
