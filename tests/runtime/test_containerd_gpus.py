"""A vendor's CDI spec beside ours under a real containerd and runc: one container gets what both say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from dranet.model.facts import CharDevice
from dranet.runtime.containers import CdiDevice, CdiSpecs
from dranet.runtime.vendor_cdi import VendorSpecs, choose_device
from testbed.containerd.fetch import Toolchain
from testbed.runtime.contract import ContainerSpec
from tests.runtime.private_node import in_own_private_node
from tests.runtime.test_containerd_metadata import UID, a_sandbox

pytestmark = pytest.mark.runtime

NODE = CharDevice("/dev/nvidia0", 1, 3)
"""The numbers of ``/dev/null``: a node that every machine has."""
OTHER = CharDevice("/dev/nvidia1", 1, 5)
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void", "LIBRARIES=of-the-vendor"]},
    "devices": [
        {
            "name": str(node.minor),
            "containerEdits": {
                "deviceNodes": [{"path": node.path, "type": "c", "major": 1, "minor": node.minor}]
            },
        }
        for node in (NODE, OTHER)
    ],
}


@in_own_private_node
def test_a_container_gets_the_vendors_edits_and_ours(toolchain: Toolchain, folder: Path) -> None:
    async def scenario() -> None:
        async with a_sandbox(toolchain, folder) as (runtime, sandbox):
            (folder / "cdi").mkdir(exist_ok=True)
            (folder / "cdi" / "nvidia.yaml").write_text(yaml.safe_dump(SPEC))
            devices = VendorSpecs([folder / "cdi"]).list_devices("nvidia.com/gpu")
            chosen = choose_device(devices, [NODE], [OTHER])
            assert chosen is not None
            specs = CdiSpecs(folder / "cdi", "dra.net")
            specs.write(UID, [CdiDevice("gpu-0", env=(("NVIDIA_VISIBLE_DEVICES", "void"),))])
            names = (specs.device_id(UID, "gpu-0"), chosen.id)
            container = await runtime.create_container(sandbox, ContainerSpec("main", names))
            done = await runtime.exec_in_container(container, ("env",))
            assert {"NVIDIA_VISIBLE_DEVICES=void", "LIBRARIES=of-the-vendor"} <= set(done.stdout.split())
            shown = await runtime.exec_in_container(container, ("ls", "-l", "/dev"))
            lines = [line.replace(",", "").split() for line in shown.stdout.splitlines() if "nvidia" in line]
            assert [(line[0][0], line[4:6], line[-1]) for line in lines] == [("c", ["1", "3"], "nvidia0")]

    asyncio.run(scenario())
