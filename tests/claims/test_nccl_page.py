"""The files shown in the guide and the reference of NCCL are what a pod on a DGX H100 gets."""

from __future__ import annotations

import re
from pathlib import Path

from dranet.claims.report import as_gid
from dranet.driver.workload import PodContext, build_content
from dranet.model.claim import (
    AUTO,
    ClaimRef,
    Container,
    GidSlot,
    NcclSettings,
    PodRef,
    PodSandbox,
    Processor,
    WorkloadSettings,
)
from dranet.model.device import DeviceKind
from dranet.model.facts import Address, CharDevice
from dranet.model.plan import AddAddress, AttachPlan, PreparedClaim, PreparedDevice, RdmaAccess
from tests.data.layouts import read_layout, take_layout

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "guides/nccl.md", DOCS / "reference/nccl-files.md")

WISHES = WorkloadSettings(NcclSettings(True, True, gid_index=AUTO, cross_nic=AUTO), ucx_net_devices=True)


def build() -> dict[str, str]:
    """For a pod with two GPUs and the NIC beside each, whose claim lists the NICs the other way round."""
    machine = [decision.device for decision in take_layout("dgx-h100")]
    gpus = sorted((d for d in machine if d.kind is DeviceKind.GPU), key=lambda d: d.pci_address)[:2]
    nics = [
        next(d for d in machine if d.rdma_device and d.pcie_root == gpu.pcie_root) for gpu in reversed(gpus)
    ]
    devices = tuple(
        PreparedDevice(
            "rail",
            "node",
            nic,
            plan=AttachPlan(nic.name, (AddAddress(Address(f"10.{rail}.0.5/24")),), f"rail{rail}"),
            rdma=RdmaAccess((CharDevice("/dev/infiniband/uverbs0", 231, 192),)),
            workload=WISHES,
        )
        for rail, nic in zip((1, 0), nics, strict=True)
    )
    record = PreparedClaim(ClaimRef("train", "c", "uid"), PodRef("train", "w-0", "pod"), devices, "boot")
    gids = {
        nic.rdma_device: (GidSlot(1, 3, as_gid(f"10.{rail}.0.5/24"), "RoCE v2"),)
        for rail, nic in zip((1, 0), nics, strict=True)
    }
    surroundings = PodContext(
        [record], gpus, read_layout("dgx-h100").facts, gids, False, "eth0", Processor("GenuineIntel", 6, 143)
    )
    pod, container = PodSandbox("s", "worker-0", "train", "pod"), Container("c", "trainer", "s")
    content = build_content(pod, container, WISHES, surroundings)
    return {**content.files, "environment": "".join(f"{k}={v}\n" for k, v in content.environment)}


def test_the_pages_show_what_is_written() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"```(?:ini|xml|sh)\n(.*?)```", text, re.DOTALL)
    for name, content in build().items():
        assert content in blocks, f"{name} is now:\n{content}"
