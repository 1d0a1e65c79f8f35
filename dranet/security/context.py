"""What the driver's container may do: its capabilities and mounts, as data, each with what fails without it.

``docs/guides/security.md`` and the chart's DaemonSet (``tools.manifests.pod_security``) are made from it;
``tests/runtime`` runs the driver under exactly this in a real container, and takes each right away in turn.
System calls are in :mod:`~dranet.security.seccomp`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

HOST_PROC = "/host/proc"
"""``procfs_root`` of the driver in a pod: below its own ``/proc`` a container may not write sysctls."""


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
    """One folder of the node that the container sees; paths may hold the names of :data:`PLACES` in braces.
    All except the node's ``/proc`` are at their own path: kubelet and runtime receive paths."""

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
        "ask a DHCP server for an address, or whether one is in use, before a NIC has any; hear LLDP with "
        "`lldp: listen` (packet sockets)",
        "claims with `dhcp: true` are refused at Prepare, `address_conflicts` finds nothing, and "
        "`lldp: listen` hears no switch",
        feature="`dhcp: true`, `address_conflicts` and `lldp: listen`",
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


IPAM_MOUNTS = (
    HostMount(
        "cni-bin",
        "/opt/cni/bin",
        "/opt/cni/bin",
        "run CNI IPAM plugins",
        "claims with `interface.ipam` are refused",
        kind="Directory",
        feature="`interface.ipam`",
    ),
    HostMount(
        "cni-networks",
        "/var/lib/cni/networks",
        "/var/lib/cni/networks",
        "the plugin host-local keeps here which address is whose; `dataDir` names another folder",
        "claims with addresses of host-local are refused",
        read_only=False,
        feature="`interface.ipam` with host-local",
    ),
    HostMount(
        "cni-whereabouts",
        "/etc/cni/net.d/whereabouts.d",
        "/etc/cni/net.d/whereabouts.d",
        "the plugin whereabouts reads its configuration and its kubeconfig here",
        "claims with addresses of whereabouts are refused",
        kind="Directory",
        feature="`interface.ipam` with whereabouts",
    ),
)
"""Mounted only where the chart's ``ipam`` has a source that needs them."""


def resolve_path(path: str, places: Mapping[str, str] = PLACES) -> str:
    """A path of a mount with its settings put in."""
    return path.format_map({**PLACES, **places})
