"""Where the spec of the driver's pod comes from: the data behind the chart, or rendered manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dranet.security import context as security

PodSpec = dict[str, Any]
CONTAINER = "dranet"


def build_pod_spec() -> PodSpec:
    """The pod spec as far as rights go, straight from ``manifests/security.py``."""
    return {
        **security.build_pod_security(),
        "volumes": security.build_volumes(),
        "initContainers": [
            {
                "name": "seccomp",
                "command": ["dranet", "seccomp", "--write", "/var/lib/kubelet/seccomp"],
                "securityContext": security.build_init_context(),
                "volumeMounts": security.build_init_volume_mounts(),
            }
        ],
        "containers": [
            {
                "name": CONTAINER,
                "securityContext": security.build_security_context(),
                "volumeMounts": security.build_volume_mounts(),
            }
        ],
    }


def read_pod_spec(manifests: Path) -> tuple[PodSpec, dict[str, dict[str, str]]]:
    """The pod spec of the DaemonSet in rendered manifests, and the data of the ConfigMaps beside it."""
    documents = [document for document in yaml.safe_load_all(manifests.read_text()) if document]
    (spec,) = (d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet")
    data = {d["metadata"]["name"]: d.get("data", {}) for d in documents if d["kind"] == "ConfigMap"}
    return spec, data
