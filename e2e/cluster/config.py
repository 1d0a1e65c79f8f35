"""Command lines and configuration of a control plane and a kubelet out of a folder of programs.

Places in, text out. One machine, nothing highly available: everybody meets at the first
address of the service network, which the lane puts on ``lo``, so that no kube-proxy is needed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from testbed.cluster import NODE_NAME

SERVICE_NETWORK = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""Address of the service ``kubernetes``, where pods find the API server."""
NODE_NETWORK = "10.97.0.0/24"
NODE_ADDRESS = "10.97.0.1"
"""Address of the first node."""
POD_NETWORK = "10.88.0.0/16"
API_PORT = 443
ETCD_URL = "http://127.0.0.1:2379"
_ETCD_PEERS = "http://127.0.0.1:2380"
_ISSUER = "https://kubernetes.default.svc.cluster.local"

_USERS: Mapping[str, tuple[str, str]] = {
    "admin": ("dranet-e2e", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
}


def node_name(number: int) -> str:
    """Name of a node; the first is number 0."""
    return f"{NODE_NAME}-{number + 1}" if number else NODE_NAME


def node_address(number: int) -> str:
    return str(IPv4Network(NODE_NETWORK)[number + 1])


def pod_subnet(number: int) -> str:
    """The addresses of one node's pods."""
    return f"10.88.{number}.0/24"


def users_of(nodes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the user and the group of each token, under the names of the authorizer's own roles."""
    return {**_USERS, **{f"kubelet-{node}": (f"system:node:{node}", "system:nodes") for node in nodes}}


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a cluster keeps its files, and what is switched on in it."""

    folder: Path
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    """Given to every program. A program does not start with a gate that it does not know."""
    has_audit: bool = False
    """The API server notes every request, without its body, in :attr:`audit_log`."""
    runtime_config: Sequence[str] = ()
    """API versions that the server does not serve by itself: ``resource.k8s.io/v1beta1=true``."""

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
    def audit_log(self) -> Path:
        """One JSON object (``audit.k8s.io/v1`` Event) in each line."""
        return self.folder / "audit.log"

    @property
    def audit_policy(self) -> Path:
        return self.folder / "audit-policy.yaml"

    @property
    def kubelet_client(self) -> tuple[Path, Path]:
        """Certificate and key by which kubelets know the API server, for ``logs`` and ``exec``."""
        return self.folder / "kubelet-client.crt", self.folder / "kubelet-client.key"

    @property
    def accounts_key(self) -> Path:
        """Signs the tokens of service accounts."""
        return self.folder / "service-accounts.key"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def read_token(self, user: str) -> str:
        """The token of a user whose kubeconfig was written."""
        return str(json.loads(self.kubeconfig(user).read_text())["users"][0]["user"]["token"])

    @property
    def gates(self) -> list[str]:
        pairs = ",".join(f"{name}={str(on).lower()}" for name, on in self.feature_gates.items())
        return [f"--feature-gates={pairs}"] if pairs else []


@dataclass(frozen=True, slots=True)
class KubeletPlan:
    """Where one node's kubelet keeps its files, and what it talks to."""

    cluster: Plan
    node: str
    runtime_socket: Path
    cgroup: str
    address: str = NODE_ADDRESS
    root: Path = Path("/var/lib/kubelet")
    static_pods: Path | None = None
    """Its folder of manifests; without one it has no static pods."""

    @property
    def config(self) -> Path:
        return self.cluster.folder / f"{self.node}.yaml"

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.kubeconfig(f"kubelet-{self.node}")


def etcd_flags(plan: Plan) -> list[str]:
    return [
        "--name=e2e",
        f"--data-dir={plan.folder / 'etcd'}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={_ETCD_PEERS}",
        f"--initial-advertise-peer-urls={_ETCD_PEERS}",
        f"--initial-cluster=e2e={_ETCD_PEERS}",
        "--unsafe-no-fsync",  # the cluster is thrown away
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
        "--allow-privileged=true",
        f"--kubelet-client-certificate={plan.kubelet_client[0]}",
        f"--kubelet-client-key={plan.kubelet_client[1]}",
        "--kubelet-preferred-address-types=InternalIP",
        "--enable-aggregator-routing=true",  # webhooks by the addresses of pods: there is no kube-proxy
        *(f"--runtime-config={item}" for item in plan.runtime_config),
        *(_audit_flags(plan) if plan.has_audit else ()),
        *plan.gates,
    ]


def _audit_flags(plan: Plan) -> list[str]:
    return [f"--audit-log-path={plan.audit_log}", f"--audit-policy-file={plan.audit_policy}"]


def build_audit_policy() -> dict[str, Any]:
    """Note each request once, with its answer's code."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }


def controller_manager_flags(plan: Plan) -> list[str]:
    return [
        f"--kubeconfig={plan.kubeconfig('kube-controller-manager')}",
        f"--service-account-private-key-file={plan.accounts_key}",
        f"--root-ca-file={plan.certificate}",
        "--use-service-account-credentials=true",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        *plan.gates,
    ]


def scheduler_flags(plan: Plan) -> list[str]:
    return [
        f"--kubeconfig={plan.kubeconfig('kube-scheduler')}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        *plan.gates,
    ]


def kubelet_flags(plan: KubeletPlan) -> list[str]:
    return [
        f"--config={plan.config}",
        f"--kubeconfig={plan.kubeconfig}",
        f"--root-dir={plan.root}",
        f"--cert-dir={plan.cluster.folder / f'pki-{plan.node}'}",
        f"--hostname-override={plan.node}",
        f"--node-ip={plan.address}",
        *plan.cluster.gates,
    ]


def build_kubelet_config(plan: KubeletPlan) -> dict[str, Any]:
    """Configure a kubelet whose node is a tree on this machine: no rule about swap, eviction or version
    1 of cgroups. Pods have cgroups of their own, since by these the suite finds what is inside."""
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{plan.runtime_socket}",
        "imageServiceEndpoint": f"unix://{plan.runtime_socket}",
        "address": plan.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plan.cluster.kubelet_client[0])},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.cgroup}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "resolvConf": "",  # what the machine's own points at is often below /run, which the tree covers
        "volumePluginDir": str(plan.cluster.folder / "volume-plugins"),
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "5s",
    }
    return config if plan.static_pods is None else {**config, "staticPodPath": str(plan.static_pods)}


def build_tokens(tokens: Mapping[str, str], users: Mapping[str, tuple[str, str]]) -> str:
    """The static token file: token, user, uid, groups."""
    rows = []
    for name, (user, group) in users.items():
        rows.append(f"{tokens[name]},{user},{user}" + (f',"{group}"' if group else ""))
    return "\n".join(rows) + "\n"


def build_kubeconfig(plan: Plan, token: str, server: str = f"https://{SERVICE_ADDRESS}:{API_PORT}") -> str:
    """A kubeconfig that needs no other file (JSON is YAML)."""
    authority = base64.b64encode(plan.certificate.read_bytes()).decode()
    cluster = {"server": server, "certificate-authority-data": authority}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": {"token": token}}],
    }
    return json.dumps(document, indent=1) + "\n"
