"""A GPU of a claim, as containers get it: the vendor's CDI device, or its device nodes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.report import report_prepared
from dranet.driver.gpus import GpuContainers
from dranet.errors import Reason
from dranet.model.attributes import GPU_UUID, GPU_VENDOR
from dranet.model.claim import Claim, Consumer
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice, Gpu
from dranet.runtime.vendor_cdi import VENDOR_KINDS
from testbed.runtime.standin_cdi import resolve
from tests.driver.test_prepare import Bench, a_claim

UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
CONTROL = CharDevice("/dev/nvidiactl", 195, 255)


def nvidia(minor: int) -> Gpu:
    nodes = (CharDevice(f"/dev/nvidia{minor}", 195, minor), CONTROL)
    return Gpu(f"0000:1{minor}:00.0", "nvidia", uuid=UUID if minor == 0 else "", char_devices=nodes)


def published(gpu: Gpu) -> Device:
    attributes = {GPU_VENDOR.qualified: gpu.vendor, GPU_UUID.qualified: gpu.uuid}
    name = f"gpu-{gpu.pci_address.replace(':', '-').replace('.', '-')}"
    return Device(
        name,
        DeviceKind.GPU,
        {key: value for key, value in attributes.items() if value},
        pci_address=gpu.pci_address,
        char_devices=gpu.char_devices,
    )


class GpuBench(Bench):
    """A node with GPUs, and a folder where a vendor may put specs."""

    def __init__(self, folder: Path, claim: Claim, *gpus: Gpu) -> None:
        super().__init__(folder, claim)
        self.devices = {device.name: device for device in map(published, gpus)}
        self.vendor_dir = folder / "etc-cdi"
        self.vendor_dir.mkdir()
        containers = GpuContainers([self.vendor_dir, self.cdi_dir], lambda: gpus)
        sources = replace(
            self.preparer._sources,
            get_offered=self.get_offered,
            find_vendor_device=containers.find_vendor_device,
        )
        self.preparer._sources = sources

    def get_offered(self, name: str) -> Device:
        return self.devices[name]

    def write_vendor_spec(self, kind: str, nodes: Mapping[str, Sequence[str]]) -> None:
        devices = [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
            for name, paths in nodes.items()
        ]
        spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": devices}
        (self.vendor_dir / "vendor.json").write_text(json.dumps(spec))

    async def give(self, claim: Claim) -> Any:
        (device,) = (await self.prepare(claim)).devices
        return device

    def edits(self) -> dict[str, Any]:
        (entry,) = self.read_specs()[0]["devices"]
        return dict(entry["containerEdits"])


GPU_NAME = published(nvidia(0)).name


async def test_with_a_spec_of_the_vendor_the_answer_names_its_device_and_ours_brings_no_node(
    tmp_path: Path,
) -> None:
    bench = GpuBench(tmp_path, claim := a_claim(device=GPU_NAME), nvidia(0), nvidia(1))
    bench.write_vendor_spec(
        "nvidia.com/gpu", {"0": ["/dev/nvidia0"], UUID: ["/dev/nvidia0"], "1": ["/dev/nvidia1"]}
    )
    device = await bench.give(claim)

    ours, vendors = device.cdi_ids
    assert ours.startswith("dra.net/claim=")
    assert vendors == f"nvidia.com/gpu={UUID}"
    assert bench.edits() == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}


async def test_without_one_our_own_device_brings_the_nodes_and_keeps_nvidias_runtime_from_adding_more(
    tmp_path: Path,
) -> None:
    bench = GpuBench(tmp_path, claim := a_claim(device=GPU_NAME), nvidia(0), nvidia(1))
    device = await bench.give(claim)

    assert len(device.cdi_ids) == 1
    given = resolve(bench.cdi_dir, device.cdi_ids)
    assert given.devices == {"/dev/nvidia0": "195:0", "/dev/nvidiactl": "195:255"}
    assert dict(given.env) == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_a_spec_that_comes_or_goes_later_changes_nothing_for_a_prepared_claim(tmp_path: Path) -> None:
    bench = GpuBench(tmp_path, claim := a_claim(device=GPU_NAME), nvidia(0))
    bench.write_vendor_spec("nvidia.com/gpu", {"0": ["/dev/nvidia0"]})
    first, edits = await bench.give(claim), bench.edits()
    (bench.vendor_dir / "vendor.json").unlink()
    assert await bench.give(claim) == first
    assert bench.edits() == edits
    record = bench.store.get("uid")
    assert record is not None
    assert record.devices[0].vendor_cdi_id == "nvidia.com/gpu=0"


async def test_the_next_pod_of_a_claim_gets_the_gpu_as_the_kubelet_was_told_for_the_first(
    tmp_path: Path,
) -> None:
    bench = GpuBench(tmp_path, claim := a_claim(device=GPU_NAME), nvidia(0))
    first, edits = await bench.give(claim), bench.edits()
    bench.write_vendor_spec("nvidia.com/gpu", {"0": ["/dev/nvidia0"]})
    bench.claims["uid"] = replace(claim, reserved_for=(Consumer(resource="pods", name="next", uid="next"),))
    await bench.preparer.reassign(claim.ref)
    record = bench.store.get("uid")
    assert record is not None
    assert record.pod.uid == "next"
    assert await bench.give(claim) == first
    assert bench.edits() == edits


@pytest.mark.parametrize(
    "nodes", [{"all": ["/dev/nvidia0"]}, {"1": ["/dev/nvidia1"]}, {"0": ["/dev/nvidia0", "/dev/nvidia1"]}]
)
async def test_a_spec_without_this_gpu_alone_leads_to_its_nodes(
    tmp_path: Path, nodes: dict[str, list[str]]
) -> None:
    bench = GpuBench(tmp_path, claim := a_claim(device=GPU_NAME), nvidia(0), nvidia(1))
    bench.write_vendor_spec("nvidia.com/gpu", nodes)
    assert len((await bench.give(claim)).cdi_ids) == 1
    assert len(bench.edits()["deviceNodes"]) == 2


async def test_a_gpu_of_amd_is_told_from_the_others_by_its_render_node(tmp_path: Path) -> None:
    kfd = CharDevice("/dev/kfd", 511, 0)
    gpus = [
        Gpu(
            f"0000:0{n}:00.0",
            "amd",
            char_devices=(kfd, CharDevice(f"/dev/dri/renderD{128 + n}", 226, 128 + n)),
        )
        for n in range(2)
    ]
    bench = GpuBench(tmp_path, claim := a_claim(device="gpu-0000-01-00-0"), *gpus)
    bench.write_vendor_spec(
        "amd.com/gpu",
        {
            "0": ["/dev/kfd", "/dev/dri/renderD128"],
            "1": ["/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD129"],
        },
    )
    assert (await bench.give(claim)).cdi_ids[1] == "amd.com/gpu=1"


async def test_a_gpu_without_a_node_is_an_error_that_says_so(tmp_path: Path) -> None:
    bench = GpuBench(tmp_path, claim := a_claim(device=GPU_NAME), replace(nvidia(0), char_devices=()))
    outcome = await bench.prepare(claim)
    assert "has no device node that a container could be given" in outcome.error
    assert bench.told.failures[0][2].reason is Reason.DEVICE_EXCLUDED


async def test_which_way_was_taken_is_in_the_log_and_in_the_claims_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = GpuBench(tmp_path, claim := a_claim(device=GPU_NAME), nvidia(0))
    bench.write_vendor_spec("nvidia.com/gpu", {"0": ["/dev/nvidia0"]})
    with caplog.at_level(logging.INFO):
        await bench.give(claim)
    (said,) = [record for record in caplog.records if record.getMessage() == "prepared"]
    assert said.context["gpus_by"] == "nvidia.com/gpu=0"  # type: ignore[attr-defined]
    (prepared,) = bench.told.prepared_claims[0].devices
    vendors = report_prepared("dra.net", prepared).conditions[0]
    assert vendors.message == "given by the vendor's CDI device nvidia.com/gpu=0"
    bare = report_prepared("dra.net", replace(prepared, vendor_cdi_id="")).conditions[0]
    assert bare.message.startswith("given by its device nodes")


def test_vendors_are_those_that_the_scan_knows() -> None:
    assert set(VENDOR_KINDS) <= {"nvidia", "amd", "intel", "habana"}
