"""The security context and the volumes of the driver's pod, from the rights in ``dranet.security``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dranet.security.context import CAPABILITIES, MOUNTS, PLACES, HostMount, resolve_path
from dranet.security.seccomp import SECCOMP_NAME

SELINUX_TYPE = "spc_t"
"""The type of containers that manage their node. Nodes without SELinux do not look at it."""

APPARMOR_TYPE = "Unconfined"
"""The runtimes' own profile forbids to mount and, by name, most of ``/proc`` and ``/sys``."""

DROPPED = ("ALL",)

SECCOMP_MOUNT = HostMount(
    "seccomp",
    "{kubelet_root}/seccomp",
    "{kubelet_root}/seccomp",
    "the init container writes the seccomp profile of this version here",
    "the driver's container cannot be created: the kubelet does not find its profile",
    read_only=False,
)
"""Mount of the init container alone, which runs ``dranet seccomp --write {kubelet_root}/seccomp``."""


def build_pod_security() -> dict[str, Any]:
    """Return the fields of the pod spec about rights, without those of its containers."""
    return {"hostNetwork": True, "hostPID": False, "hostIPC": False}


def build_security_context() -> dict[str, Any]:
    """``securityContext`` of the driver's container.

    User 0, because sockets and folders of kubelet and runtime belong to it, and because Kubernetes gives no
    capability to others. Without ``DAC_OVERRIDE`` it reads and writes only what belongs to root.
    ``SYS_ADMIN`` has to be spelled so: with ``CAP_`` in front the API server refuses it where
    ``allowPrivilegeEscalation`` is false.
    """
    return {
        **_common_context(),
        "capabilities": {"drop": list(DROPPED), "add": [capability.name for capability in CAPABILITIES]},
        "seccompProfile": {"type": "Localhost", "localhostProfile": SECCOMP_NAME},
        "seLinuxOptions": {"type": SELINUX_TYPE},
        "appArmorProfile": {"type": APPARMOR_TYPE},
    }


def build_init_context() -> dict[str, Any]:
    """Return the security context of the init container that writes the seccomp profile: no capability at
    all."""
    return {
        **_common_context(),
        "capabilities": {"drop": list(DROPPED)},
        "seccompProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": {"type": SELINUX_TYPE},
    }


def build_volumes(places: Mapping[str, str] = PLACES) -> list[dict[str, Any]]:
    """Return ``volumes`` of the pod, including those of the init container."""
    return [
        {"name": mount.name, "hostPath": {"path": resolve_path(mount.host_path, places), "type": mount.kind}}
        for mount in (*MOUNTS, SECCOMP_MOUNT)
    ]


def build_volume_mounts(places: Mapping[str, str] = PLACES) -> list[dict[str, Any]]:
    """``volumeMounts`` of the driver's container."""
    return [_build_volume_mount(mount, places) for mount in MOUNTS]


def build_init_volume_mounts(places: Mapping[str, str] = PLACES) -> list[dict[str, Any]]:
    """Return ``volumeMounts`` of the init container."""
    return [_build_volume_mount(SECCOMP_MOUNT, places)]


def _build_volume_mount(mount: HostMount, places: Mapping[str, str]) -> dict[str, Any]:
    built: dict[str, Any] = {"name": mount.name, "mountPath": resolve_path(mount.path, places)}
    if mount.read_only:
        built["readOnly"] = True
    if mount.propagation != "None":
        built["mountPropagation"] = mount.propagation
    return built


def _common_context() -> dict[str, Any]:
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": False,
    }
