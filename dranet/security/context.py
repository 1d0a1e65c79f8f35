"""What the driver's container may do: capabilities, mounts and the rest of its security context, as data.

This module states what each right is for and what fails without it; ``docs/user/security.md`` is made from
it. The chart renders its DaemonSet from this; ``tests/runtime`` runs the driver under exactly this in a real
container, and takes each right away in turn. What the kernel may be asked is in
:mod:`~dranet.security.seccomp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dranet.security.seccomp import SECCOMP_NAME

HOST_PROC = "/host/proc"
"""``procfs_root`` of the driver in a pod: below its own ``/proc`` a container may not write sysctls."""

SELINUX_TYPE = "spc_t"
"""The type of containers that manage their node. Nodes without SELinux do not look at it."""

APPARMOR_TYPE = "Unconfined"
"""The runtimes' own profile forbids to mount and, by name, most of ``/proc`` and ``/sys``."""


class Capability(Struct, frozen=True):
    """One right of root that the driver keeps; ``name`` as a pod spec has it, without ``CAP_``."""

    name: str
    number: int
    """``linux/capability.h``."""
    why: str
    without: str
    """What fails; reads on after "without it"."""
    feature: str = ""
    """What one may do without, and drop the capability then; empty where nothing works without."""


class HostMount(Struct, frozen=True):
    """One folder of the node that the container sees.

    Paths may hold ``{kubelet_root}``, ``{state_dir}``, ``{cdi_dir}``, ``{nri_dir}`` and ``{driver_name}``,
    which are settings of the driver (see :data:`PLACES`). Every folder except the node's ``/proc`` is at its
    own path, because kubelet and runtime receive paths and look for them on the node.
    """

    name: str
    path: str
    host_path: str
    why: str
    without: str
    read_only: bool = True
    propagation: str = "None"
    """``HostToContainer`` where what is mounted on the node later has to be seen."""
    kind: str = "DirectoryOrCreate"
    """``hostPath.type``."""
    feature: str = ""
    """What one may do without, and leave the mount out then; empty where nothing works without."""


CAPABILITIES = (
    Capability(
        "NET_ADMIN",
        12,
        "move NICs into pods and back; set addresses, routes, rules, ethtool settings, limits and sysctls",
        "no NIC can be attached: the hook of each pod with a claim is refused",
    ),
    Capability(
        "SYS_ADMIN",
        21,
        "enter the network namespace of a pod (`setns`), read the sysfs of that namespace, see BPF programs",
        "no claim is prepared: the network namespace of a pod could not be entered",
    ),
    Capability(
        "NET_RAW",
        13,
        "ask a DHCP server for an address before a NIC has one (packet sockets)",
        "claims with `dhcp: true` are refused at Prepare",
        feature="`dhcp: true`",
    ),
    Capability(
        "SYS_PTRACE",
        19,
        "find the network namespace of a pod that is gone except for a hanging process (`/proc/PID/ns/net`); "
        "by it `/host/proc/PID/root` also opens the node's files to the driver",
        "a NIC in such a namespace is taken for gone, and comes back only when that process ends",
        feature="pods that leave a process behind",
    ),
)

DROPPED = ("ALL",)

PLACES: Mapping[str, str] = {
    "kubelet_root": "/var/lib/kubelet",
    "state_dir": "/var/lib/dranet",
    "cdi_dir": "/var/run/cdi",
    "nri_dir": "/var/run/nri",
    "driver_name": "dra.net",
}
"""The defaults of what paths of mounts are made from; ``nri_dir`` is the folder of ``nri_socket``."""

MOUNTS = (
    HostMount(
        "state",
        "{state_dir}",
        "{state_dir}",
        "remember prepared claims; files that containers of claims mount",
        "the driver does not start: it could not remember what it has attached",
        read_only=False,
    ),
    HostMount(
        "cdi",
        "{cdi_dir}",
        "{cdi_dir}",
        "write a CDI spec for each claim, which the runtime reads; read those of GPU vendors",
        "no claim is prepared: the runtime would not learn what its containers get",
        read_only=False,
    ),
    HostMount(
        "cdi-static",
        "/etc/cdi",
        "/etc/cdi",
        "read the CDI specs that GPU vendors put there",
        "GPUs of such vendors come as device nodes, without the vendor's libraries",
        feature="GPUs that this driver gives to pods",
    ),
    HostMount(
        "nri",
        "{nri_dir}",
        "{nri_dir}",
        "connect to the container runtime, which calls the driver's hooks",
        "the driver does not become ready: no hook, no NIC",
    ),
    HostMount(
        "plugin",
        "{kubelet_root}/plugins/{driver_name}",
        "{kubelet_root}/plugins/{driver_name}",
        "the socket on which the kubelet asks to prepare claims",
        "the driver does not start: the kubelet could not call it",
        read_only=False,
    ),
    HostMount(
        "registry",
        "{kubelet_root}/plugins_registry",
        "{kubelet_root}/plugins_registry",
        "the socket by which the kubelet finds the driver",
        "the driver does not start: the kubelet would never find it",
        read_only=False,
    ),
    HostMount(
        "pod-resources",
        "{kubelet_root}/pod-resources",
        "{kubelet_root}/pod-resources",
        "ask the kubelet which GPUs a pod was given",
        "some alignment verdicts are Unknown; a vendor's driver that goes while its pods run is believed "
        "gone",
        feature="GPUs of device plugins",
    ),
    HostMount(
        "netns",
        "/var/run/netns",
        "/run/netns",  # without a link in it: containerd looks by the text for a mount that is shared
        "open the network namespaces of pods, which the runtime mounts here one by one",
        "no NIC can be attached: the hook does not find the pod's network namespace",
        propagation="HostToContainer",
    ),
    HostMount(
        "proc",
        HOST_PROC,
        "/proc",
        "detect whether irqbalance runs; find namespaces by the processes in them",
        "the driver does not start; with `procfs_root: /proc` it refuses claims with `cpuLocality.irq`",
        kind="Directory",
    ),
    HostMount(
        "proc-sys-net",
        f"{HOST_PROC}/sys/net",
        "/proc/sys/net",
        "write network sysctls in the namespace of a pod; a container's own `/proc/sys` is read-only",
        "the hook refuses claims with sysctls, and those of a NIC are not restored",
        read_only=False,
        kind="Directory",
        feature="claims with sysctls",
    ),
    HostMount(
        "proc-irq",
        f"{HOST_PROC}/irq",
        "/proc/irq",
        "place the interrupts of a NIC on near CPUs; a container's own `/proc/irq` is read-only",
        "the hook refuses claims with `cpuLocality.irq`",
        read_only=False,
        kind="Directory",
        feature="`cpuLocality.irq`",
    ),
)

SECCOMP_MOUNT = HostMount(
    "seccomp",
    "{kubelet_root}/seccomp",
    "{kubelet_root}/seccomp",
    "the init container writes the seccomp profile of this version here",
    "the driver's container cannot be created: the kubelet does not find its profile",
    read_only=False,
)
"""Mount of the init container alone, which runs ``dranet seccomp --write {kubelet_root}/seccomp``."""


def resolve_path(path: str, places: Mapping[str, str] = PLACES) -> str:
    """A path of a mount with its settings put in."""
    return path.format_map({**PLACES, **places})


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
