"""A control plane out of real programs: etcd, API server, controller manager and scheduler.

It listens on ``lo`` of the network namespace that it is started in, at fixed addresses: start it in a private
tree (``testbed.isolation``) only.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dranet.cluster.client import ApiClient
from e2e.access import LaneUnavailable
from e2e.cluster import build, config
from e2e.cluster.config import Plan
from e2e.cluster.etcd import check_health, find_etcd
from e2e.cluster.programs import Found, Programs, find_programs
from testbed.isolation import require_isolation
from testbed.node.iproute import run_ip

_BOOT_SECONDS = 60.0
_DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
"""The controller manager makes it, so it shows that the controller manager works."""
_BUILT_IN = ("/api/v1/namespaces/default", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")
"""The API server creates them after it begins to answer; a pod of the driver needs both."""

EVERYTHING = ("kube-controller-manager", "kube-scheduler")


@dataclass(frozen=True, slots=True)
class ControlPlaneKit:
    """The programs of a control plane (and a kubelet), on disk."""

    kubernetes: Found
    etcd: Path


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """One that runs. ``programs`` starts, stops and restarts its parts by name."""

    kit: ControlPlaneKit
    plan: Plan
    programs: Programs

    def connect(self, user: str = "admin") -> ApiClient:
        """A client, to be entered with ``async with``."""
        return ApiClient.from_kubeconfig(self.plan.kubeconfig(user), user_agent="dranet-e2e")

    async def start_apiserver(self) -> None:
        """Start it, also again, with the plan's flags, and wait until it answers."""
        await self.programs.start(self._path("kube-apiserver"), config.apiserver_flags(self.plan))
        await self.programs.wait("kube-apiserver", self._check_served, _BOOT_SECONDS)

    async def start_scheduler(self) -> None:
        await self.programs.start(self._path("kube-scheduler"), config.scheduler_flags(self.plan))

    async def start_controller_manager(self) -> None:
        flags = config.controller_manager_flags(self.plan)
        await self.programs.start(self._path("kube-controller-manager"), flags)
        check = partial(self._check_there, _DEFAULT_ACCOUNT)
        await self.programs.wait("kube-controller-manager", check, _BOOT_SECONDS)

    async def restart(self) -> None:
        """Stop everything but etcd, and start it with the programs of the kit."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver"):
            await self.programs.stop(name)
        await self.start_apiserver()
        await self.start_controller_manager()
        await self.start_scheduler()

    async def start_etcd(self) -> None:
        await self.programs.start(self.kit.etcd, config.etcd_flags(self.plan))
        await self.programs.wait("etcd", check_health, _BOOT_SECONDS)

    def _path(self, program: str) -> Path:
        return self.kit.kubernetes.paths[program]

    async def _check_served(self) -> str:
        return await self._check_there(*_BUILT_IN)

    async def _check_there(self, *objects: str) -> str:
        async with self.connect() as api:
            for path in objects:
                await api.get(path)
        return ""


def find_kit(report: build.Report, version: str = "") -> ControlPlaneKit:
    """The programs of ``KUBE_BIN_DIR``, else those of ``version``, cached or built now. Blocking.

    Raises:
        LaneUnavailable: what is missing, by name.
        Unavailable: no etcd can be had.
    """
    programs = os.environ.get("KUBE_BIN_DIR", "")
    module = build.kubernetes(version or build.choose_version())
    folder = Path(programs).resolve() if programs else build.build(module, report)
    if shutil.which("openssl") is None:
        raise LaneUnavailable("no openssl on PATH, which makes the certificate and the key of the accounts")
    return ControlPlaneKit(find_programs(folder), find_etcd(folder))


@asynccontextmanager
async def open_control_plane(
    kit: ControlPlaneKit,
    plan: Plan,
    logs: Path,
    *,
    nodes: Iterable[str] = (),
    parts: Sequence[str] = EVERYTHING,
) -> AsyncIterator[ControlPlane]:
    """Start etcd, the API server and ``parts``; end them at the end. ``nodes`` get a token each.

    Inside a private tree only.

    Raises:
        E2eFailed: one does not come up; with the end of its log.
    """
    require_isolation()
    add_addresses()
    write_files(plan, nodes)
    async with Programs(logs) as programs:
        plane = ControlPlane(kit, plan, programs)
        await plane.start_etcd()
        await plane.start_apiserver()
        if "kube-scheduler" in parts:
            await plane.start_scheduler()
        if "kube-controller-manager" in parts:
            await plane.start_controller_manager()
        yield plane


def add_addresses() -> None:
    """Put the API server's and the node's address on ``lo``, which is no uplink and no NIC of a scenario."""
    run_ip("link", "set", "lo", "up")
    for address in (config.SERVICE_ADDRESS, config.NODE_ADDRESS):
        run_ip("address", "replace", f"{address}/32", "dev", "lo")


def write_files(plan: Plan, nodes: Iterable[str]) -> None:
    """Write certificates, keys, tokens and kubeconfigs."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    names = f"subjectAltName=IP:{config.SERVICE_ADDRESS},IP:{config.NODE_ADDRESS},IP:127.0.0.1,DNS:kubernetes"
    _openssl("genrsa", "-out", str(plan.accounts_key), "2048")
    _make_certificate("/CN=dranet-e2e", plan.certificate, plan.key, "-addext", names)
    _make_certificate("/O=system:masters/CN=kube-apiserver", *plan.kubelet_client)
    plan.audit_policy.write_text(json.dumps(config.build_audit_policy()))
    users = config.users_of(nodes)
    tokens = {name: secrets.token_urlsafe() for name in users}
    plan.tokens.write_text(config.build_tokens(tokens, users))
    for name, token in tokens.items():
        plan.kubeconfig(name).write_text(config.build_kubeconfig(plan, token))


def _make_certificate(subject: str, certificate: Path, key: Path, *extra: str) -> None:
    """Sign it with its own key."""
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", subject),
        *(*extra, "-keyout", str(key), "-out", str(certificate)),
    )


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaneUnavailable(f"openssl {arguments[0]}: {done.stderr.strip()}")
