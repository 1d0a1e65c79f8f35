"""Command lines and configuration of a control plane and a kubelet out of a folder of programs.

Pure: places in, text out. One machine, one node, nothing highly available: everybody meets at the first
address of the service network, which the lane puts on ``lo``, so that no kube-proxy is needed. Flags and
fields are those that Kubernetes documents; no such program has run them yet (``docs/dev/e2e.md``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVICE_NETWORK = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""Of the service ``kubernetes``: what pods are told to find the API server at."""
NODE_ADDRESS = "10.97.0.1"
API_PORT = 443
ETCD_URL = "http://127.0.0.1:2379"
_ETCD_PEERS = "http://127.0.0.1:2380"
_ISSUER = "https://kubernetes.default.svc.cluster.local"

USERS: Mapping[str, tuple[str, str]] = {
    "admin": ("dranet-e2e", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kubelet": ("system:node:{node}", "system:nodes"),
}
"""Who has a token: user and group, as the authorizer's own roles name them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where one cluster keeps its files, and what its node is called."""

    folder: Path
    node: str
    runtime_socket: Path
    cgroup: str
    kubelet_root: Path = Path("/var/lib/kubelet")

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    @property
    def certificate(self) -> Path:
        return self.folder / "apiserver.crt"

    @property
    def key(self) -> Path:
        return self.folder / "apiserver.key"

    @property
    def accounts_key(self) -> Path:
        """Signs the tokens of service accounts."""
        return self.folder / "service-accounts.key"

    @property
    def kubelet_config(self) -> Path:
        return self.folder / "kubelet.yaml"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"


def etcd_flags(plan: Plan) -> list[str]:
    return [
        "--name=e2e",
        f"--data-dir={plan.folder / 'etcd'}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={_ETCD_PEERS}",
        f"--initial-advertise-peer-urls={_ETCD_PEERS}",
        f"--initial-cluster=e2e={_ETCD_PEERS}",
        "--unsafe-no-fsync",  # of a cluster that nobody misses
    ]


def apiserver_flags(plan: Plan) -> list[str]:
    return [
        f"--etcd-servers={ETCD_URL}",
        f"--advertise-address={NODE_ADDRESS}",
        "--bind-address=0.0.0.0",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--tls-cert-file={plan.certificate}",
        f"--tls-private-key-file={plan.key}",
        f"--token-auth-file={plan.tokens}",
        f"--service-account-key-file={plan.accounts_key}",
        f"--service-account-signing-key-file={plan.accounts_key}",
        f"--service-account-issuer={_ISSUER}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
    ]


def controller_manager_flags(plan: Plan) -> list[str]:
    return [
        f"--kubeconfig={plan.kubeconfig('kube-controller-manager')}",
        f"--service-account-private-key-file={plan.accounts_key}",
        f"--root-ca-file={plan.certificate}",
        "--use-service-account-credentials=true",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]


def scheduler_flags(plan: Plan) -> list[str]:
    return [
        f"--kubeconfig={plan.kubeconfig('kube-scheduler')}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]


def kubelet_flags(plan: Plan) -> list[str]:
    return [
        f"--config={plan.kubelet_config}",
        f"--kubeconfig={plan.kubeconfig('kubelet')}",
        f"--root-dir={plan.kubelet_root}",
        f"--cert-dir={plan.folder / 'kubelet-pki'}",
        f"--hostname-override={plan.node}",
        f"--node-ip={NODE_ADDRESS}",
    ]


def build_kubelet_config(plan: Plan) -> dict[str, Any]:
    """No rule about swap, eviction or version 1 of cgroups: the node is a tree on somebody's machine.
    Pods have cgroups of their own, since by these the suite finds what is inside."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{plan.runtime_socket}",
        "imageServiceEndpoint": f"unix://{plan.runtime_socket}",
        "address": "127.0.0.1",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.cgroup}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "resolvConf": "",  # what the machine's own points at is often below /run, which the tree covers
        "volumePluginDir": str(plan.folder / "volume-plugins"),
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "5s",
    }


def build_tokens(plan: Plan, tokens: Mapping[str, str]) -> str:
    """The static token file: token, user, uid, groups."""
    rows = []
    for name, (user, group) in USERS.items():
        who = user.format(node=plan.node)
        rows.append(f"{tokens[name]},{who},{who}" + (f',"{group}"' if group else ""))
    return "\n".join(rows) + "\n"


def build_kubeconfig(plan: Plan, token: str) -> str:
    """A kubeconfig (JSON is YAML)."""
    cluster = {
        "server": f"https://{SERVICE_ADDRESS}:{API_PORT}",
        "certificate-authority": str(plan.certificate),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": {"token": token}}],
    }
    return json.dumps(document, indent=1) + "\n"
