"""The layouts in this folder: where they lie, and what the driver makes of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Decision, Policy
from dranet.inventory.slices import fit_attributes
from dranet.model.capture import Capture, decode_capture
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import distance
from tests.data.machines import clouds, gpu_servers, routed, servers

FOLDER = Path(__file__).parent

DESCRIBED: Mapping[str, Callable[[], Capture]] = {
    "aws-p5": clouds.aws_p5,
    "azure-gb300": clouds.azure_gb300,
    "azure-nd-h100-v5": clouds.azure_nd_h100_v5,
    "cilium-eni": routed.cilium_eni,
    "dgx-a100": gpu_servers.dgx_a100,
    "dgx-h100": gpu_servers.dgx_h100,
    "eks-vpc-cni": routed.eks_vpc_cni,
    "gb200-nvl72": clouds.gb200_nvl72,
    "h20-roce-lag": routed.h20_roce_lag,
    "hgx-b200": gpu_servers.hgx_b200,
    "infiniband-only": servers.infiniband_only,
    "mi300x": gpu_servers.mi300x,
    "oci-gb200": clouds.oci_gb200,
    "plain-server": servers.plain_server,
    "terway": routed.terway,
}
"""Layouts that are described by hand."""

LAYOUTS = sorted(folder.parent.name for folder in FOLDER.glob("*/capture.json"))

_ROUTED = {"cilium-eni", "eks-vpc-cni", "h20-roce-lag", "terway"}
"""Without GPUs, or with all NICs in bonds, which are offered as shared devices alone."""

CLAIMED_LAYOUTS = [layout for layout in LAYOUTS if layout not in _ROUTED]
"""Those for which claims are generated."""


def is_described(layout: str) -> bool:
    """False once a real capture has taken the place of the described one."""
    return layout in DESCRIBED and read_layout(layout).source == DESCRIBED[layout]().source


def capture_file(layout: str) -> Path:
    return FOLDER / layout / "capture.json"


def expected_file(layout: str) -> Path:
    return FOLDER / layout / "expected.json"


def read_layout(layout: str) -> Capture:
    return decode_capture(capture_file(layout).read_text(encoding="utf-8"))


def take_layout(layout: str) -> tuple[Decision, ...]:
    """What a driver with default settings would decide on the machine."""
    return take_inventory(read_layout(layout).facts, {}, Policy())


def read_gpus(layout: str) -> list[Device]:
    """The GPUs of a machine, whoever would publish them."""
    devices = [decision.device for decision in take_layout(layout)]
    return [device for device in devices if device.kind is DeviceKind.GPU]


def expectation_text(layout: str) -> str:
    return json.dumps(expectation(take_layout(layout)), indent=1, ensure_ascii=False) + "\n"


def expectation(decisions: tuple[Decision, ...]) -> dict[str, Any]:
    """All decisions in their order, each with what a slice would say, and all distances."""
    devices = [decision.device for decision in decisions]
    return {
        "devices": [_decision(decision) for decision in decisions],
        "distances": distances(devices),
    }


def distances(devices: list[Device]) -> dict[str, dict[str, str | None]]:
    """NIC -> GPU -> ``PIX`` and so on; NICs without PCI are near nothing and left out."""
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    nics = [device for device in devices if device.kind is not DeviceKind.GPU and device.pci_address]
    return {nic.name: {gpu.name: _word(nic, gpu) for gpu in gpus} for nic in nics if gpus}


def _word(a: Device, b: Device) -> str | None:
    found = distance(a, b)
    return None if found is None else found.name


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "name": decision.device.name,
        "kind": str(decision.device.kind),
        "published": decision.published,
        "reason": decision.reason,
        "attributes": dict(decision.device.attributes),
        "left_out": sorted(fit_attributes(decision.device).left_out),
    }
