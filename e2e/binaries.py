"""The lane of a folder of programs: a whole cluster with a real kubelet and containerd, without Docker.

Everything runs in the private tree of ``dranet.testbed.isolation``: its own network, mounts and processes,
which the kernel removes whole. The scenario's hardware is made there, so that every scenario can be walked
that a real kubelet allows; what the node is made of, and what of the machine is covered, is in
``binaries_node``.
"""

from __future__ import annotations

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
from dranet.testbed.node.hardware import Hardware
from e2e import binaries_config as config
from e2e import image
from e2e.access import Access, LaneUnavailable
from e2e.binaries_node import LaneNode, boot_node, check_uncovered
from e2e.etcd import check_health, find_etcd
from e2e.hands import ProcHands
from e2e.live_driver import is_ready
from e2e.programs import Found, Programs, find_programs
from e2e.run import OpenLane

LANE = "binaries"
_BOOT_SECONDS = 60.0
_NODE_SECONDS = 90.0
_PATIENCE = 4.0


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
    if not (given := os.environ.get("KUBE_BIN_DIR", "")):
        raise LaneUnavailable("KUBE_BIN_DIR names no folder", hint="KUBE_BIN_DIR=FOLDER make e2e")
    folder = Path(given).resolve()
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
    check_uncovered([folder, kit.etcd, kit.toolchain.folder, kit.image])
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
        return Path(given).resolve()
    return image.build_archive(Path(".cache/e2e-image").resolve())


@asynccontextmanager
async def _open(kit: _Kit, hardware: Hardware, work_dir: Path) -> AsyncIterator[Access]:
    """Boot the cluster; inside a private tree only."""
    async with AsyncExitStack() as stack:
        node = await boot_node(stack, kit.toolchain, kit.image, hardware, work_dir, kit.logs)
        layout = node.runtime.layout
        plan = config.Plan(work_dir / "kubernetes", NODE_NAME, layout.socket, layout.cgroup)
        write_files(plan)
        programs = await stack.enter_async_context(Programs(node.logs))
        await _start_control_plane(programs, kit, plan)
        await _start_kubelet(programs, kit, plan)
        yield build_access(plan, node)


def build_access(plan: config.Plan, node: LaneNode) -> Access:
    """Where the manifests have the host's hardware, the node's made-up one is mounted."""
    return Access(
        lane=LANE,
        kubeconfig=plan.kubeconfig("admin"),
        node_name=plan.node,
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
