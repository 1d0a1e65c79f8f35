"""The lane of a folder of programs: a whole cluster with a real kubelet and containerd, without Docker.

Everything runs in the private tree of ``dranet.testbed.isolation``: its own network, mounts and processes,
which the kernel removes whole. The scenario's hardware is made there, so that every scenario can be walked
that a real kubelet allows. ``/var/lib`` is covered by an empty file system, so that kubelet and driver keep
their files at the places of the manifests without touching the machine's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.testbed.cluster import NODE_NAME
from dranet.testbed.containerd import node as containerd_node
from dranet.testbed.containerd.fetch import Toolchain, default_cache_dir, fetch_toolchain
from dranet.testbed.containerd.image import BUSYBOX_IMAGE
from dranet.testbed.containerd.runtime import ContainerdRuntime
from dranet.testbed.isolation import require_isolation
from dranet.testbed.node.hardware import Hardware
from dranet.testbed.node.iproute import run_ip
from dranet.testbed.node.node import Node
from e2e import binaries_config as config
from e2e.access import Access, E2eFailed, LaneUnavailable
from e2e.etcd import check_health, find_etcd
from e2e.hands import ProcHands
from e2e.live_driver import is_ready
from e2e.programs import Found, Programs, find_programs
from e2e.run import OpenLane

LANE = "binaries"
IMAGE = "localhost/dranet-e2e/dranet:e2e"
_BOOT_SECONDS = 60.0
_NODE_SECONDS = 90.0
_PATIENCE = 4.0
_VAR_LIB = Path("/var/lib")
_NRI_SOCKET, _CDI_DIR = Path("/var/run/nri/nri.sock"), Path("/var/run/cdi")


@dataclass(frozen=True, slots=True)
class _Kit:
    """What was found and fetched before the private tree, which has no way to the outside."""

    kubernetes: Found
    etcd: Path
    toolchain: Toolchain
    image: Path
    logs: Path


def prepare() -> OpenLane:
    """Look for everything, fetch what can be fetched, build the image.

    Raises:
        LaneUnavailable: what is missing, by name.
        Unavailable: no etcd or no containerd can be had.
    """
    containerd_node.check_root()
    folder = Path(os.environ.get("KUBE_BIN_DIR", ""))
    kubernetes = find_programs(folder)
    if shutil.which("openssl") is None:
        raise LaneUnavailable("no openssl on PATH, which makes the certificate and the key of the accounts")
    kit = _Kit(
        kubernetes=kubernetes,
        etcd=find_etcd(folder),
        toolchain=fetch_toolchain(default_cache_dir(), lambda _: None),
        image=_find_image(),
        logs=Path(os.environ.get("E2E_LOGS", ".cache/e2e")).resolve(),
    )
    sys.stdout.write(
        f"e2e: {LANE}: Kubernetes {kubernetes.version}, containerd {kit.toolchain.version}; "
        f"logs in {kit.logs}\n"
    )
    return partial(_open, kit)


def _find_image() -> Path:
    """``E2E_IMAGE`` names an archive; without it the image is built from this checkout."""
    if given := os.environ.get("E2E_IMAGE", ""):
        if not Path(given).is_file():
            raise LaneUnavailable(
                f"E2E_IMAGE={given} is no file; this lane takes an archive of `make rootfs`"
            )
        return Path(given)
    from deploy.image.base import host_architecture
    from deploy.image.build import build_image

    output = Path(".cache/e2e-image").resolve()
    return build_image(host_architecture(), output, name=IMAGE).archive


@asynccontextmanager
async def _open(kit: _Kit, hardware: Hardware, work_dir: Path) -> AsyncIterator[Access]:
    """Boot the cluster; inside a private tree only."""
    require_isolation()
    containerd_node.mount_tmpfs(_VAR_LIB)
    async with AsyncExitStack() as stack:
        node = Node(hardware, work_dir)
        await asyncio.to_thread(stack.enter_context, node)
        _add_addresses()
        runtime = await _start_runtime(stack, kit, work_dir)
        plan = config.Plan(work_dir / "kubernetes", NODE_NAME, runtime.layout.socket, runtime.layout.cgroup)
        write_files(plan)
        programs = await stack.enter_async_context(Programs(kit.logs))
        await _start_control_plane(programs, kit, plan)
        await _start_kubelet(programs, kit, plan)
        yield build_access(plan, node, kit.logs)


def build_access(plan: config.Plan, node: Node, logs: Path) -> Access:
    """Where the manifests have the host's ``/proc`` and ``/sys``, the node's made-up ones are mounted."""
    procfs = node.procfs_root
    return Access(
        lane=LANE,
        kubeconfig=plan.kubeconfig("admin"),
        node_name=plan.node,
        image=IMAGE,
        pod_image=BUSYBOX_IMAGE,
        settings={"sysfs_root": str(node.sysfs_root)},
        host_paths={
            "/proc": str(procfs),
            "/proc/irq": str(procfs / "irq"),
            "/etc/cdi": str(plan.folder / "etc-cdi"),
        },
        mounts=(str(node.sysfs_root),),
        hands=ProcHands(),
        layout=node,
        log_file=logs / "kubelet.log",
        patience=_PATIENCE,
    )


def _add_addresses() -> None:
    """The API server's and the node's, on ``lo``: nobody's uplink, and no NIC of the scenario's."""
    run_ip("link", "set", "lo", "up")
    for address in (config.SERVICE_ADDRESS, config.NODE_ADDRESS):
        run_ip("address", "add", f"{address}/32", "dev", "lo")


async def _start_runtime(stack: AsyncExitStack, kit: _Kit, work_dir: Path) -> ContainerdRuntime:
    folder = work_dir / "containerd"
    folder.mkdir(parents=True)
    runtime = ContainerdRuntime(kit.toolchain, folder, _NRI_SOCKET, _CDI_DIR)
    await runtime.start()
    stack.push_async_callback(runtime.stop)
    ctr = [
        str(kit.toolchain.bin_dir / "ctr"),
        "--address",
        str(runtime.layout.socket),
        "--namespace",
        "k8s.io",
    ]
    await asyncio.to_thread(_import_image, [*ctr, "images", "import", str(kit.image)])
    return runtime


def _import_image(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise E2eFailed(f"ctr images import: {done.stderr.strip()}")
    if IMAGE not in done.stdout:
        raise E2eFailed(f"the archive has no {IMAGE}", hint=f"make rootfs IMAGE={IMAGE}")


def write_files(plan: config.Plan) -> None:
    """Certificate, keys, tokens, kubeconfigs and the kubelet's configuration."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    (plan.folder / "etc-cdi").mkdir(exist_ok=True)
    names = f"subjectAltName=IP:{config.SERVICE_ADDRESS},IP:{config.NODE_ADDRESS},IP:127.0.0.1,DNS:kubernetes"
    _openssl("genrsa", "-out", str(plan.accounts_key), "2048")
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=dranet-e2e"),
        *("-addext", names, "-keyout", str(plan.key), "-out", str(plan.certificate)),
    )
    tokens = {name: secrets.token_urlsafe() for name in config.USERS}
    plan.tokens.write_text(config.build_tokens(plan, tokens))
    for name, token in tokens.items():
        plan.kubeconfig(name).write_text(config.build_kubeconfig(plan, token))
    plan.kubelet_config.write_text(yaml.safe_dump(config.build_kubelet_config(plan)))


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaneUnavailable(f"openssl {arguments[0]}: {done.stderr.strip()}")


async def _start_control_plane(programs: Programs, kit: _Kit, plan: config.Plan) -> None:
    paths_of = kit.kubernetes.paths
    await programs.start(kit.etcd, config.etcd_flags(plan))
    await programs.wait("etcd", check_health, _BOOT_SECONDS)
    await programs.start(paths_of["kube-apiserver"], config.apiserver_flags(plan))
    await programs.wait("kube-apiserver", partial(_check_api, plan), _BOOT_SECONDS)
    await programs.start(paths_of["kube-controller-manager"], config.controller_manager_flags(plan))
    await programs.start(paths_of["kube-scheduler"], config.scheduler_flags(plan))
    account = "/api/v1/namespaces/default/serviceaccounts/default"  # made by the controller manager
    await programs.wait("kube-controller-manager", partial(_check_there, plan, account), _BOOT_SECONDS)


async def _start_kubelet(programs: Programs, kit: _Kit, plan: config.Plan) -> None:
    await programs.start(kit.kubernetes.paths["kubelet"], config.kubelet_flags(plan))
    await programs.wait("kubelet", partial(_check_node, plan), _NODE_SECONDS)


async def _check_api(plan: config.Plan) -> str:
    return await _check_there(plan, paths.namespace("default"))


async def _check_there(plan: config.Plan, path: str) -> str:
    async with ApiClient.from_kubeconfig(plan.kubeconfig("admin"), user_agent="dranet-e2e") as api:
        await api.get(path)
    return ""


async def _check_node(plan: config.Plan) -> str:
    async with ApiClient.from_kubeconfig(plan.kubeconfig("admin"), user_agent="dranet-e2e") as api:
        node = await api.get(paths.node(plan.node))
    return "" if is_ready(node) else f"node {plan.node}: {node.get('status', {}).get('conditions')}"
