"""What the templates of the chart read from ``charts/dranet/files``: data that the code declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dranet.cluster.permissions import AUTHENTICATION_PERMISSIONS, DRIVER_NAME, build_rules
from dranet.security import context as security
from dranet.security.context import Mount
from dranet.security.seccomp import SECCOMP_NAME
from dranet.settings import DECLARATIONS
from tools.manifests.chart_policies import DRIVER, build_policy_files
from tools.manifests.chart_settings import BIND_ADDRESS
from tools.manifests.device_classes import CLASSES, PREFIX
from tools.manifests.values import mount_key, needed_values, plain, refused_values

JsonObject = dict[str, Any]

READY_FILE = "/run/dranet-pod/ready"

_WATCHED = (
    "driver_name",
    "kubelet_root",
    "state_dir",
    "cdi_dir",
    "nri_socket",
    "bind_address",
    "drain_seconds",
    "node_page",
)
"""Settings that say what the pod must look like, or what the notes say of it."""


def build_chart_files() -> Mapping[str, Any]:
    """File name below ``files`` -> its content, to be written as its name says: YAML or JSON."""
    return {
        "driver.yaml": _build_driver(),
        "rbac-rules.yaml": build_rules(DRIVER),
        "rbac-authentication-rules.yaml": build_rules(DRIVER, AUTHENTICATION_PERMISSIONS),
        "device-classes.yaml": _build_classes(),
        "refused-values.yaml": {
            "values": [{"path": path, "why": why} for path, why in refused_values().items()],
            "needed": list(needed_values()),
        },
        **build_policy_files(),
    }


def _build_driver() -> JsonObject:
    """The pod: what it mounts, what it may do, and the settings that go with that."""
    return {
        "defaults": {name: plain(DECLARATIONS[name].default) for name in _WATCHED},
        "bindAddress": BIND_ADDRESS,
        "chartSettings": {"procfs_root": security.HOST_PROC, "ready_file": READY_FILE},
        "pod": security.build_pod_security(),
        "securityContext": security.build_security_context(),
        "initSecurityContext": security.build_init_context(),
        "seccompProfile": SECCOMP_NAME,
        "mounts": [_build_mount(mount) for mount in security.MOUNTS],
        "seccompMount": _build_mount(security.SECCOMP_MOUNT),
    }


def _build_mount(mount: Mount) -> JsonObject:
    options: JsonObject = {"readOnly": True} if mount.read_only else {}
    if mount.propagation != "None":
        options["mountPropagation"] = mount.propagation
    return {
        "name": mount.name,
        "path": mount.path,
        "hostPath": mount.host_path,
        "type": mount.kind,
        "options": options,
        **({"key": mount_key(mount)} if mount.feature else {}),
    }


def _build_classes() -> JsonObject:
    classes = [{"key": one.key, "suffix": one.suffix, "expression": one.expression} for one in CLASSES]
    return {"driver": DRIVER_NAME, "prefix": PREFIX, "classes": classes}
