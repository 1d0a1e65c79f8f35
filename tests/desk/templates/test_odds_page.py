"""The table of odds in the guide about device plugins is what the code computes for these machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import dranet
from dranet.desk.hardware.nodes import NodeHardware, Spot, read_hardware
from dranet.desk.templates.odds import Odds, alignment_odds, format_shares, measure_pod
from dranet.desk.templates.plugin_gpus import odds_on_each_numa_node
from dranet.desk.templates.trial import Distances
from dranet.model.facts import Distance
from tests.desk.templates.layout_clusters import world

PAGE = Path(dranet.__file__).parents[1] / "docs/guides/gpus-by-device-plugin.md"
MACHINES = {
    "DGX H100": "dgx-h100",
    "AWS p5": "aws-p5",
    "Azure ND H100 v5": "azure-nd-h100-v5",
    "GB200": "oci-gb200",
}
WAYS: dict[str, Callable[[NodeHardware], Odds | None]] = {
    "1 GPU, 1 NIC": lambda node: alignment_odds(node, 1, 1),
    "2 GPUs, 2 NICs": lambda node: alignment_odds(node, 2, 2),
    "4 GPUs, 4 NICs": lambda node: alignment_odds(node, 4, 4),
    "2 and 2, each kind on one NUMA node": lambda node: alignment_odds(node, 2, 2, measure_on_one_numa_node),
    "1 GPU, 1 NIC of each NUMA node": lambda node: odds_on_each_numa_node(node, 1, 1),
    "all GPUs, all of these NICs": lambda node: alignment_odds(node, len(node.gpus), len(node.nics)),
}


def measure_on_one_numa_node(nics: tuple[Spot, ...], gpus: tuple[Spot, ...]) -> Distances | None:
    """``single-numa-node`` for the GPUs, and ``matchAttribute`` on the NUMA node for the NICs."""
    is_one = all(len({spot.numa_node for spot in spots}) == 1 for spots in (nics, gpus))
    return measure_pod(nics, gpus) if is_one else None


def build_table() -> str:
    rows = [["", *MACHINES], ["---"] * (len(MACHINES) + 1)]
    nodes = [near_nics(layout) for layout in MACHINES.values()]
    for name, way in WAYS.items():
        rows.append([name, *(describe(way(node)) for node in nodes)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def describe(odds: Odds | None) -> str:
    """``PIX 1/8, else NODE or nearer 1/2``: the best distance, then the shares that are not farther."""
    if odds is None:
        return "-"
    near: dict[str, Fraction] = {}
    total = Fraction(0)
    for level, share in odds.by_worst.items():
        total += share
        near[level.name if level is not None else "unknown"] = total
    shown = {
        word: share
        for word, share in near.items()
        if word != Distance.SYS.name or share == near[next(iter(near))]
    }
    texts = format_shares(list(shown.values()))
    return ", ".join(
        f"{word} {'sure' if share == 1 else text}"
        for (word, share), text in zip(shown.items(), texts, strict=True)
    )


def near_nics(layout: str) -> NodeHardware:
    """With the NICs that are as near to a GPU as any, and have RDMA and a link."""
    (node,) = read_hardware(world(layout).slices).nodes
    usable = [nic for nic in node.nics if nic.has_rdma and nic.is_up and nic.nearest_gpu is not None]
    nearest = min(nic.nearest_gpu for nic in usable if nic.nearest_gpu is not None)
    return replace(node, nics=tuple(nic for nic in usable if nic.nearest_gpu is nearest))


def test_the_guide_has_the_odds_that_the_code_computes() -> None:
    assert build_table() in PAGE.read_text(encoding="utf-8")
