"""The levels as objects of Kueue: a Topology for each source of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dranet.desk.fabric.fabric import Fabric
from dranet.desk.fabric.labels import label_prefix, levels_in_use

API_VERSION = "kueue.x-k8s.io/v1beta2"
HOSTNAME = "kubernetes.io/hostname"


def build_topologies(fabric: Fabric, driver: str) -> list[Mapping[str, Any]]:
    """From wide to close, the node itself last. Nodes without a level that others have are not in it."""
    prefix = label_prefix(driver)
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "Topology",
            "metadata": {"name": f"dranet-{source.key}"},
            "spec": {
                "levels": [
                    *({"nodeLabel": prefix + name} for name in levels_in_use(fabric, source)),
                    {"nodeLabel": HOSTNAME},
                ]
            },
        }
        for source in fabric.sources
    ]
