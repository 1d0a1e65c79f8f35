"""A whole cluster on this machine: control plane, and the first node's containerd, kubelet and hardware.

Everything runs in the private tree of ``testbed.isolation``: its own network, mounts and processes,
which the kernel removes whole.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import yaml

from dranet.cluster import paths
from e2e import image
from e2e.access import Access, LaneUnavailable
from e2e.cluster import build, config
from e2e.cluster.cni_plugin import CniPlugin
from e2e.cluster.config import KubeletPlan, Plan
from e2e.cluster.control import LocalNodeControl
from e2e.cluster.controlplane import ControlPlane, ControlPlaneKit, find_kit, open_control_plane
from e2e.cluster.node import LaneNode, boot_node, check_uncovered
from e2e.hands import ProcHands
from e2e.live_driver import is_ready
from testbed.cluster import NODE_NAME
from testbed.containerd import node as containerd_node
from testbed.containerd.fetch import Toolchain, default_cache_dir, fetch_toolchain
from testbed.containerd.image import BUSYBOX_IMAGE
from testbed.node.hardware import Hardware

LANE = "cluster"
_NODE_SECONDS = 90.0
_PATIENCE = 4.0


@dataclass(frozen=True, slots=True)
class ClusterKit:
    """What is found, fetched and built before the private tree, which has no way to the outside."""

    control_plane: ControlPlaneKit
    toolchain: Toolchain
    image: Path
    """Archive of the driver's image."""

    @property
    def minor(self) -> str:
        """Version of Kubernetes as ``KUBE_VERSION`` names it: 1.37."""
        return ".".join(self.control_plane.kubernetes.version.split(".")[:2])

    def __str__(self) -> str:
        return f"Kubernetes {self.control_plane.kubernetes.version}, containerd {self.toolchain.version}"


@dataclass(frozen=True, slots=True)
class Options:
    """What a test wants different from an ordinary cluster."""

    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: Sequence[str] = ()
    has_static_pods: bool = False
    has_audit: bool = False
    nodes: int = 1
    """How many nodes get a token. :func:`open_cluster` starts the first."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """One that runs."""

    plane: ControlPlane
    node: LaneNode
    kubelet: KubeletPlan
    control: LocalNodeControl

    def with_kit(self, kit: ControlPlaneKit) -> LocalCluster:
        """The same cluster; what is started through it runs the programs of ``kit``."""
        return replace(self, plane=replace(self.plane, kit=kit))

    async def start_kubelet(self) -> None:
        """Start it, also again, and wait until its node is ready."""
        path = self.plane.kit.kubernetes.paths["kubelet"]
        await self.plane.programs.start(path, config.kubelet_flags(self.kubelet))
        await self.plane.programs.wait(
            "kubelet", partial(check_ready, self.plane, self.kubelet.node), _NODE_SECONDS
        )

    async def stop_kubelet(self) -> None:
        await self.plane.programs.stop("kubelet")

    async def kill_kubelet(self) -> None:
        await self.plane.programs.kill("kubelet")

    def build_access(self) -> Access:
        return replace(build_access(self.plane.plan, self.node), control=self.control)


async def check_ready(plane: ControlPlane, name: str) -> str:
    """What a node lacks to be ready; empty when it is."""
    async with plane.connect() as api:
        node = await api.get(paths.node(name))
    return "" if is_ready(node) else f"node {name}: {node['status'].get('conditions')}"


def prepare(report: build.Report, version: str = "") -> ClusterKit:
    """Find, fetch and build everything. ``version`` of Kubernetes: 1.34; by default ``KUBE_VERSION``.

    Raises:
        LaneUnavailable: what is missing, by name.
        Unavailable: no etcd or no containerd can be had.
    """
    containerd_node.check_root()
    control_plane = find_kit(report, version)
    kit = ClusterKit(
        control_plane=control_plane,
        toolchain=fetch_toolchain(default_cache_dir(), report),
        image=find_image(),
    )
    places = [*control_plane.kubernetes.paths.values(), control_plane.etcd, kit.toolchain.folder, kit.image]
    check_uncovered(places)
    return kit


def folder_of_plan(work_dir: Path) -> Path:
    return work_dir / "kubernetes"


def prepare_upgrade(report: build.Report) -> tuple[ClusterKit, tuple[ControlPlaneKit, ...]]:
    """The oldest version, and the newer ones that are built, in order. Builds no version of Kubernetes.

    Raises:
        LaneUnavailable: what is missing, by name.
        Unavailable: no etcd or no containerd can be had.
    """
    if os.environ.get("KUBE_BIN_DIR"):
        raise LaneUnavailable("an upgrade needs several versions of Kubernetes, and KUBE_BIN_DIR has one")
    known = build.known_versions()
    built = [version for version in known if build.find_built(build.kubernetes(version))]
    if missing := [version for version in (known[0], known[-1]) if version not in built]:
        hint = "; ".join(f"KUBE_VERSION={version} make cluster" for version in missing)
        raise LaneUnavailable(f"Kubernetes {' and '.join(missing)} is not built", hint=hint)
    newer = tuple(find_kit(report, version) for version in built[1:])
    check_uncovered([path for kit in newer for path in kit.kubernetes.paths.values()])
    return prepare(report, known[0]), newer


def find_image() -> Path:
    """``E2E_IMAGE`` names an archive; without it the image is built from this checkout."""
    if archive := os.environ.get("E2E_IMAGE", ""):
        if not Path(archive).is_file():
            raise LaneUnavailable(
                f"E2E_IMAGE={archive} is no file; this lane takes an archive of `make rootfs`"
            )
        return Path(archive).resolve()
    return image.build_archive(Path(".cache/e2e-image").resolve())


@asynccontextmanager
async def open_cluster(
    kit: ClusterKit, hardware: Hardware, work_dir: Path, logs: Path, options: Options | None = None
) -> AsyncIterator[LocalCluster]:
    """Boot the cluster; inside a private tree only.

    Raises:
        E2eFailed: a program does not come up; with the end of its log.
    """
    options = options or Options()
    async with AsyncExitStack() as stack:
        node = await boot_node(stack, kit.toolchain, kit.image, hardware, work_dir, logs)
        plan = Plan(
            folder_of_plan(work_dir),
            options.feature_gates,
            has_audit=options.has_audit,
            runtime_config=options.runtime_config,
        )
        plane = await stack.enter_async_context(
            open_control_plane(
                kit.control_plane, plan, node.logs, nodes=map(config.node_name, range(options.nodes))
            )
        )
        kubelet = write_kubelet_files(plan, node, options)
        cni = CniPlugin(node.runtime.layout)
        cni.install()
        control = LocalNodeControl(stack, plane, kubelet, hardware, cni)
        cluster = LocalCluster(plane, node, kubelet, control)
        await cluster.start_kubelet()
        yield cluster


def plan_kubelet(plan: Plan, node: LaneNode, number: int = 0) -> KubeletPlan:
    layout, name = node.runtime.layout, config.node_name(number)
    return KubeletPlan(plan, name, layout.socket, layout.cgroup, config.node_address(number))


def write_kubelet_files(plan: Plan, node: LaneNode, options: Options) -> KubeletPlan:
    kubelet = plan_kubelet(plan, node)
    if options.has_static_pods:
        kubelet = replace(kubelet, static_pods=plan.folder / "static-pods")
        assert kubelet.static_pods is not None
        kubelet.static_pods.mkdir()
    (plan.folder / "etc-cdi").mkdir(exist_ok=True)
    kubelet.config.write_text(yaml.safe_dump(config.build_kubelet_config(kubelet)))
    return kubelet


def build_access(plan: Plan, node: LaneNode) -> Access:
    """What the suite needs of it: the described hardware is mounted where the manifests have the host's."""
    return Access(
        lane=LANE,
        kubeconfig=plan.kubeconfig("admin"),
        node_name=NODE_NAME,
        image=image.NAME,
        pod_image=BUSYBOX_IMAGE,
        settings={"sysfs_root": str(node.hardware.sysfs_root)},
        host_paths={**node.host_paths, "/etc/cdi": str(plan.folder / "etc-cdi")},
        mounts=(str(node.hardware.sysfs_root),),
        hands=ProcHands(),
        layout=node.hardware,
        log_file=node.pod_logs,
        patience=_PATIENCE,
    )
