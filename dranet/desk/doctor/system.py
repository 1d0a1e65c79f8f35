"""Checks of the kernel, the container runtime (NRI, CDI, locked memory) and the kubelet.

Kernel: is it recent enough, and was it built with what claims may ask for? Runtime: files show what was
configured, not what is in effect; what a running driver has observed (``driver/features.py``) takes
precedence and is not judged here. Kubelet: its version compared with the API server's, its feature gates, and
which managers choose a pod's CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dranet.desk.doctor.checks import Evaluation, Surroundings, check, fine, join, note, problem, warning
from dranet.model.findings import (
    DEFAULT_REQUEST_TIMEOUT_SECONDS,
    PATIENCE,
    RUNTIME_CDI,
    RUNTIME_NRI,
    SOFT_OPTIONS,
)

KERNEL = "kernel"

LEAST_KERNEL, LEAST_KERNEL_FOR_RDMA = (4, 20), (5, 3)
"""Strict netlink dumps (``NETLINK_GET_STRICT_CHK``); RDMA devices that move between namespaces."""

_KERNEL_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,4})")


def parse_kernel_version(release: str) -> tuple[int, int] | None:
    """``6.12.95+deb12-amd64`` -> (6, 12)."""
    found = _KERNEL_VERSION.match(release)
    return (int(found[1]), int(found[2])) if found else None


@check(
    "kernel-old",
    KERNEL,
    "the version of the kernel",
    matters="The driver reads links with strict netlink dumps (Linux 4.20), and moves RDMA devices between "
    "network namespaces (Linux 5.3).",
    fix="Update the node's kernel; distributions of 2022 and later have 5.14 or more.",
)
def kernel_version(seen: Surroundings) -> Iterator[Evaluation]:
    release = seen.host.kernel.release
    found = parse_kernel_version(release)
    if found is None:
        return
    if found < LEAST_KERNEL:
        yield problem(f"Linux {release}", matters="No link of this node can be read.")
    elif seen.rdma and found < LEAST_KERNEL_FOR_RDMA:
        yield warning(f"Linux {release}", matters="RDMA devices cannot move into pods.")
    else:
        yield fine(f"Linux {release}")


@check(
    "kernel-options",
    KERNEL,
    "what the kernel was built with (/proc/config.gz, /boot/config-*)",
    matters="A claim that asks for what is missing is refused when it is prepared.",
    fix="Use a kernel of the distribution's standard flavour: slim ones for clouds and micro VMs leave "
    "these out.",
)
def kernel_options(seen: Surroundings) -> Iterator[Evaluation]:
    config = seen.host.kernel.config
    if config is None:
        return
    built = dict(config)
    if "NET_NS" not in built:
        yield problem("without NET_NS (network namespaces)", matters="Nothing can be given to a pod.")
    lost = [f"{name} ({what})" for name, what in SOFT_OPTIONS.items() if name not in built]
    if lost:
        yield note(f"without {join(lost, 12)}")
    if "NET_NS" in built and not lost:
        yield fine("built with all that claims can ask for")


RUNTIME = "runtime"

_CONTAINERD_NRI = '[plugins."io.containerd.nri.v1.nri"]'
_CONTAINERD_CRI = '[plugins."io.containerd.cri.v1.runtime"] (containerd 1.7: "io.containerd.grpc.v1.cri")'
_DEFAULT_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
_MEMLOCK_BYTES = 1 << 30
"""Less is too little for a buffer of NCCL; the kernel's own default is 8 MiB."""
_UNSHARED = 1 / 0.85
"""A hook uses at most 85 % of what the runtime waits (``driver/hooks.py``)."""

_MLX5 = "mlx5_core"
MLX5_SECONDS_PER_CHANNEL = 0.007
"""To close a channel and open it again, half of it each. Derived from the figures of Linux c5e7b1d1cc8a: up
and down of 248 channels of a ConnectX-7 takes 0.36 s less, which is 20 %."""
_ENOUGH_CHANNELS = 16
"""For the packets of a host whose traffic is RDMA."""


@check(
    "nri-off",
    RUNTIME,
    "whether the runtime's configuration has NRI on",
    matters="The runtime never calls the driver: no NIC can be attached, and no claim with a NIC is "
    "prepared.",
    fix=f"containerd: `disable = false` below {_CONTAINERD_NRI}, and nothing of it in disabled_plugins. "
    f"CRI-O: `enable_nri = true` below [crio.nri]. Then restart the runtime.",
)
def nri(seen: Surroundings) -> Iterator[Evaluation]:
    config = seen.host.runtime
    if config is None or config.nri is None or RUNTIME_NRI in seen.shown:
        return
    yield fine(f"NRI is on in {config.path}") if config.nri else problem(f"NRI is off in {config.path}")


@check(
    "nri-socket-elsewhere",
    RUNTIME,
    "where the runtime's configuration puts the NRI socket",
    matters="The driver waits at a socket on which no runtime listens.",
    fix="`--nri-socket` as in the configuration, and the same folder mounted into the pod.",
)
def nri_socket(seen: Surroundings) -> Iterator[Evaluation]:
    config, ours = seen.host.runtime, seen.settings.nri_socket
    if RUNTIME_NRI in seen.shown:
        return
    if config is not None and config.nri_socket and _resolve(config.nri_socket) != _resolve(str(ours)):
        yield warning(f"{config.nri_socket} in {config.path}, {ours} in the driver's settings")


def _resolve(path: str) -> Path:
    """``/run`` and ``/var/run`` are the same on every node."""
    return Path(path.replace("/var/run/", "/run/", 1)) if path.startswith("/var/run/") else Path(path)


@check(
    "nri-timeout-short",
    RUNTIME,
    "how long the runtime waits for a hook, against the driver's hook_budget_seconds",
    matters="A plugin that has not answered in time is disconnected, and the pod starts without its NIC; the "
    "driver answers after 85 % of it; a slow attach goes on, and its containers are tried again.",
    fix="Raise `plugin_request_timeout` (CRI-O: `nri_plugin_request_timeout`), or lower "
    "`--hook-budget-seconds`.",
)
def nri_timeout(seen: Surroundings) -> Iterator[Evaluation]:
    config, budget = seen.host.runtime, seen.settings.hook_budget_seconds
    if config is None or PATIENCE in seen.shown:
        return
    waits = config.nri_timeout_seconds or DEFAULT_REQUEST_TIMEOUT_SECONDS
    if waits < budget * _UNSHARED:
        yield warning(f"{waits:g} s in {config.path}, hook_budget_seconds is {budget:g} s")
    else:
        yield fine(f"waits {waits:g} s for a hook ({config.path})")


@check(
    "hook-estimate",
    RUNTIME,
    "how long a pod with all of this node's mlx5 NICs takes to get them, against the time that the runtime "
    "waits for a hook",
    matters="mlx5 closes and opens all channels of a NIC that moves. The driver keeps its progress and the "
    "containers wait at the start gate, so such a pod starts late and is not broken.",
    fix="Raise `plugin_request_timeout` (CRI-O: `nri_plugin_request_timeout`) and `--hook-budget-seconds`.",
)
def hook_estimate(seen: Surroundings) -> Iterator[Evaluation]:
    links = {link.ifname: link for link in seen.node.links}
    nics = [links[name] for name in sorted(seen.offered_links) if name in links]
    channels = {link.ifname: link.queues for link in nics if link.driver == _MLX5 and link.queues}
    if not channels:
        return
    config, total = seen.host.runtime, sum(channels.values())
    waits = (config and config.nri_timeout_seconds) or DEFAULT_REQUEST_TIMEOUT_SECONDS
    seconds, usable = total * MLX5_SECONDS_PER_CHANNEL, waits / _UNSHARED
    text = f"{len(channels)} mlx5 NICs with {total} channels: some {seconds:.1f} s for all of them in one pod"
    if seconds <= usable:
        yield fine(f"{text}, a hook has {usable:.1f} s")
        return
    many = [name for name, count in channels.items() if count > _ENOUGH_CHANNELS]
    commands = join(f"`ethtool -L {name} combined {_ENOUGH_CHANNELS}`" for name in many)
    fewer = sum(min(count, _ENOUGH_CHANNELS) for count in channels.values()) * MLX5_SECONDS_PER_CHANNEL
    yield note(
        f"{text}, a hook has {usable:.1f} s",
        fix=f"{commands} on the node: {fewer:.1f} s. RDMA does not use these channels." if many else "",
    )


@check(
    "cdi-off",
    RUNTIME,
    "whether the runtime's configuration has CDI on",
    matters="Containers get none of what a claim gives them; the ready file is missing, so they do not "
    "start.",
    fix=f"containerd: `enable_cdi = true` below {_CONTAINERD_CRI}; then restart it. CRI-O has it always.",
)
def cdi(seen: Surroundings) -> Iterator[Evaluation]:
    config = seen.host.runtime
    if config is not None and config.cdi is not None and RUNTIME_CDI not in seen.shown:
        yield fine(f"CDI is on in {config.path}") if config.cdi else problem(f"CDI is off in {config.path}")


@check(
    "cdi-folder-unread",
    RUNTIME,
    "whether the runtime reads CDI specs from the driver's folder (--cdi-dir)",
    matters="The runtime does not find the devices that the driver promises: the container is not created "
    "(unresolvable CDI devices).",
    fix="Add the folder to `cdi_spec_dirs` of the runtime, or set `--cdi-dir` to one that is there.",
)
def cdi_dirs(seen: Surroundings) -> Iterator[Evaluation]:
    config = seen.host.runtime
    if config is None or RUNTIME_CDI in seen.shown:
        return
    dirs = config.cdi_dirs if config.cdi_dirs is not None else _DEFAULT_CDI_DIRS
    if _resolve(str(seen.settings.cdi_dir)) in {_resolve(path) for path in dirs}:
        yield fine(f"reads {seen.settings.cdi_dir}")
    else:
        yield problem(f"reads {join(dirs)}, the driver writes to {seen.settings.cdi_dir}")


@check(
    "memlock-low",
    RUNTIME,
    "how much memory containers may lock (RLIMIT_MEMLOCK of the runtime, which they inherit)",
    matters="RDMA pins its buffers: above the limit ibv_reg_mr fails with ENOMEM (NCCL: `Call to "
    "ibv_reg_mr failed`). Claims with `rdma.memlock` are not bound by it.",
    fix="`rdma.memlock: unlimited` in the DeviceClass (the chart's dranet-rdma has it), or the capability "
    "IPC_LOCK in the container, which then has no limit, or for all pods a drop-in of the runtime's unit: "
    "`[Service]` `LimitMEMLOCK=infinity`, then `systemctl daemon-reload` and a restart of it.",
)
def memlock(seen: Surroundings) -> Iterator[Evaluation]:
    if not seen.rdma:
        return
    for process in seen.host.processes or ():
        if not process.memlock:
            continue
        is_enough = process.memlock == "unlimited" or int(process.memlock) >= _MEMLOCK_BYTES
        text = f"containers may lock {_describe_bytes(process.memlock)} ({process.name})"
        yield fine(text) if is_enough else note(text)


def _describe_bytes(text: str) -> str:
    return "any memory" if text == "unlimited" else f"{int(text) >> 10} KiB of memory"


@check(
    "runtime-old",
    RUNTIME,
    "the version of the runtime, as the kubelet sees it",
    matters="Before containerd 1.7 and CRI-O 1.26 there is no NRI that the driver can use.",
    fix="Update the runtime; containerd 2 has NRI and CDI on from the start.",
)
def runtime_version(seen: Surroundings) -> Iterator[Evaluation]:
    name, _, number = seen.cluster.runtime_version.partition("://")
    least = {"containerd": (1, 7), "cri-o": (1, 26)}.get(name)
    if least is None or not number:
        return
    found = tuple(int(part) for part in number.lstrip("v").split(".")[:2] if part.isdecimal())
    if len(found) == 2 and found < least:
        yield problem(f"{name} {number}")
    elif RUNTIME_NRI in seen.shown:
        yield fine(f"{name} {number}")
    elif name == "containerd" and found < (2, 0):
        yield note(
            f"{name} {number}",
            matters="containerd 1.7 has NRI and CDI off unless its configuration turns them on.",
        )
    else:
        yield fine(f"{name} {number}")


KUBELET = "kubelet"

LEAST_KUBELET = (1, 34)
"""resource.k8s.io/v1 is on from here."""
MOST_SKEW = 3
"""Minor versions that a kubelet may be behind the API server (Kubernetes' version skew policy)."""

_KUBERNETES_VERSION = re.compile(r"v?([0-9]{1,2})\.([0-9]{1,3})")
_DRA_GATE = "DynamicResourceAllocation"


def parse_kubernetes_version(text: str) -> tuple[int, int] | None:
    """``v1.35.2-eks-1`` -> (1, 35)."""
    found = _KUBERNETES_VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


@check(
    "kubelet-old",
    KUBELET,
    "the kubelet's version",
    matters="Before 1.34 dynamic resource allocation is behind a feature gate, and its API is not the "
    "one that the driver writes.",
    fix="Update the node to Kubernetes 1.34 or later.",
)
def kubelet_version(seen: Surroundings) -> Iterator[Evaluation]:
    found = parse_kubernetes_version(seen.cluster.kubelet_version)
    if found is not None:
        text = f"kubelet {seen.cluster.kubelet_version}"
        yield fine(text) if found >= LEAST_KUBELET else problem(text)


@check(
    "kubelet-skew",
    KUBELET,
    "the kubelet's version compared with the API server's",
    matters="Kubernetes supports a kubelet that is up to three minor versions behind the API server, and "
    "none that is ahead: fields that one of them does not know get lost.",
    fix="Update the control plane first, then the nodes.",
)
def kubelet_skew(seen: Surroundings) -> Iterator[Evaluation]:
    ours, theirs = (
        parse_kubernetes_version(seen.cluster.kubelet_version),
        parse_kubernetes_version(seen.cluster.server_version),
    )
    if ours is None or theirs is None:
        return
    if ours > theirs or theirs[1] - ours[1] > MOST_SKEW:
        yield warning(f"kubelet {seen.cluster.kubelet_version}, API server {seen.cluster.server_version}")


@check(
    "kubelet-gate-off",
    KUBELET,
    "the feature gate DynamicResourceAllocation of the kubelet",
    matters="The kubelet prepares no claims, so no pod with one starts here.",
    fix="Take `DynamicResourceAllocation: false` out of featureGates in the kubelet's configuration.",
)
def kubelet_gate(seen: Surroundings) -> Iterator[Evaluation]:
    config = seen.host.kubelet
    if config is not None and dict(config.feature_gates).get(_DRA_GATE) is False:
        yield problem(f"{_DRA_GATE} is off in {config.path}")


@check(
    "topology-manager",
    KUBELET,
    "which managers choose the CPUs and the memory of a pod (CPU, memory and Topology Manager)",
    matters="Without the static CPU manager a pod's threads wander over all sockets, whatever NUMA node "
    "its NIC and GPU are on. The Topology Manager does not know devices of DRA drivers: it does not help "
    "a claim, and single-numa-node can refuse a pod whose device plugins and CPUs lie apart.",
    fix="`cpuManagerPolicy: static` (whole CPUs, Guaranteed pods), `memoryManagerPolicy: Static` where "
    "memory is to be near; NICs and GPUs stay aligned by the claim (docs/guides/alignment.md). Before a "
    "change of policy: drain the node, remove cpu_manager_state.",
)
def resource_managers(seen: Surroundings) -> Iterator[Evaluation]:
    config = seen.host.kubelet
    if config is None or not seen.is_fast or len(seen.node.numa_nodes) < 2:
        return
    managers = (
        f"CPU manager {config.cpu_policy or 'unknown'}, memory manager {config.memory_policy or 'unknown'}"
    )
    topology = f", topology manager {config.topology_policy}" if config.topology_policy else ""
    severity = fine if config.cpu_policy == "static" else note
    yield severity(f"{managers}{topology} ({config.path})")


CHECKS = (
    kernel_version,
    kernel_options,
    runtime_version,
    nri,
    nri_socket,
    nri_timeout,
    hook_estimate,
    cdi,
    cdi_dirs,
    memlock,
    kubelet_version,
    kubelet_skew,
    kubelet_gate,
    resource_managers,
)
