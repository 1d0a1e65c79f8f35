"""The plain manifests of ``deploy/`` with an image and settings of the suite's: what it installs.

Pure except for reading the files. The DaemonSet is what users get; only the image, the settings, the one node
that it is for and, where a lane has made the hardware up, the places of ``/proc`` and ``/sys`` are others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.access import Access
from e2e.objects import MARK, JsonObject, on_node

DEPLOY = Path(__file__).parents[1] / "deploy"
FILES = ("00-namespace.yaml", "rbac.yaml", "admission-policy.yaml", "deviceclasses.yaml", "daemonset.yaml")
SYSTEM_NAMESPACE = "dranet-system"
NAME = "dranet"
POD_LABELS = "app.kubernetes.io/name=dranet,app.kubernetes.io/component=driver"

_PARAMETERS = "dranet-parameters"
_SETTINGS = "settings.yaml"
_CHECKSUM = "checksum/settings"


def build_installation(
    access: Access,
    settings: Mapping[str, Any],
    *,
    with_classes: bool = True,
    with_parameters_policy: bool = True,
) -> list[JsonObject]:
    """The objects in the order to apply them. ``settings`` go over those of the lane, and these over those of
    the manifests."""
    items = [item for file in FILES for item in read_manifests(file)]
    items = [item for item in items if with_classes or item["kind"] != "DeviceClass"]
    items = [item for item in items if with_parameters_policy or item["metadata"]["name"] != _PARAMETERS]
    text = _merge_settings(items, {**access.settings, **settings})
    for item in items:
        labels = item["metadata"].setdefault("labels", {})
        labels[MARK] = "true"
        if item["kind"] == "DaemonSet":
            _fit_daemon_set(item, access, text)
    return items


def read_manifests(file: str) -> list[JsonObject]:
    return [item for item in yaml.safe_load_all((DEPLOY / file).read_text(encoding="utf-8")) if item]


def _merge_settings(items: list[JsonObject], settings: Mapping[str, Any]) -> str:
    """Put them into the ConfigMap, and return its text."""
    (config,) = (item for item in items if item["kind"] == "ConfigMap")
    merged = {**yaml.safe_load(config["data"][_SETTINGS]), **settings}
    config["data"][_SETTINGS] = yaml.safe_dump(merged)
    return str(config["data"][_SETTINGS])


def _fit_daemon_set(item: JsonObject, access: Access, settings: str) -> None:
    template = item["spec"]["template"]
    checksum = hashlib.sha256(settings.encode()).hexdigest()
    template["metadata"].setdefault("annotations", {})[_CHECKSUM] = checksum
    spec = template["spec"]
    spec["affinity"] = on_node(access.node_name)
    driver = spec["containers"][0]
    for container in (*spec.get("initContainers", ()), driver):
        container["image"] = access.image
    for volume in spec["volumes"]:
        if (place := volume.get("hostPath", {}).get("path")) in access.host_paths:
            volume["hostPath"]["path"] = access.host_paths[place]
    for number, path in enumerate(access.mounts):
        spec["volumes"].append({"name": f"e2e-{number}", "hostPath": {"path": path, "type": "Directory"}})
        driver["volumeMounts"].append({"name": f"e2e-{number}", "mountPath": path, "readOnly": True})
