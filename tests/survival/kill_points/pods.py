"""The pods of the kill points: one claim, or three of which each takes another way through the driver.

===========  ==========================================================================================
``rail``     a NIC that moves, with RDMA device, rules, a route over two ways, limits, sysctls, interrupts
             and files for NCCL
``shared``   a macvlan on a NIC that stays, under a name that the node has, too; with an address from the IPAM
             plugin host-local, where this machine has it
``storage``  a NIC that moves, with an address from a DHCP server and a profile of a webhook provider
===========  ==========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from testbed.cluster import DRIVER_NAME, JsonObject
from testbed.isolation import WORK_DIR
from tests.support.cni_plugins import FOLDERS
from tests.support.objects import device_class
from tests.survival.objects import SHARE_SETTING, SHARED_NIC

HARDWARE = str(Path(__file__).with_name("three-nic.yaml"))
RAIL, STORAGE, UPLINK = "enp35s0np0", "enp65s0", "eno1"
RDMA = "mlx5_0"
"""Of :data:`RAIL`."""
STORAGE_MAC, STORAGE_ADDRESS = "3c:ec:ef:8d:02:41", "10.65.0.1"

_IPAM_FOLDER = WORK_DIR / "kill-points"
IPAM_DATA = _IPAM_FOLDER / "networks"
"""Where host-local keeps who has which address."""
IPAM_NETWORK = "shared"
_CNI_FOLDER = next((folder for folder in FOLDERS if (folder / "host-local").is_file()), None)
HAS_IPAM = _CNI_FOLDER is not None
PROVIDER_SOCKET = _IPAM_FOLDER / "provider.sock"
PROFILE = "jumbo"
SETTINGS = {
    **SHARE_SETTING,
    "webhook_url": f"unix://{PROVIDER_SOCKET}",
    "profile_provider": "webhook",
    "ipam_file": str(_IPAM_FOLDER / "ipam.json") if HAS_IPAM else "",
    "cni_bin_dirs": str(_CNI_FOLDER or ""),
}
"""Of the driver."""

_API = "resource.k8s.io/v1"
_NICS = {"rail": RAIL, "shared": SHARED_NIC, "storage": STORAGE}
_PARAMETERS: dict[str, JsonObject] = {
    "rail": {
        "interface": {
            "name": "net1",
            "mtu": 4000,
            "arpAnnounce": 2,
            "rateLimit": {"egress": {"rate": "100M"}, "ingress": {"rate": "50M"}},
        },
        "routes": [
            {"destination": "10.90.0.0/16", "gateway": "10.64.0.254"},
            {
                "destination": "10.91.0.0/16",
                "nextHops": [{"gateway": "10.64.0.253", "weight": 3}, {"gateway": "10.64.0.254"}],
            },
        ],
        "rules": [{"priority": 100, "mark": "0x10", "table": 1000}],
        "neighbors": [{"destination": "10.64.0.200", "hardwareAddr": "02:00:00:00:02:00"}],
        "ethtool": {"features": {"gro": False}},
        "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2},
        "cpuLocality": {"irq": True},
        "nccl": {"topologyFile": True, "configFile": True},
    },
    "shared": {
        "interface": {
            "name": UPLINK,
            "type": "macvlan",
            **({"ipam": IPAM_NETWORK} if HAS_IPAM else {"addresses": ["10.77.0.1/24"]}),
        }
    },
    "storage": {"profile": PROFILE, "interface": {"name": "net3", "dhcp": True}},
}
CLAIMS = {1: ("rail",), 3: ("rail", "shared", "storage")}

CLASSES: list[JsonObject] = [
    device_class(name, f'device.attributes["dra.net"].ifName == "{nic}"') for name, nic in _NICS.items()
]


def write_ipam_file() -> None:
    ipam = {"type": "host-local", "dataDir": str(IPAM_DATA), "ranges": [[{"subnet": "10.77.0.0/24"}]]}
    _IPAM_FOLDER.mkdir(parents=True, exist_ok=True)
    (_IPAM_FOLDER / "ipam.json").write_text(json.dumps({IPAM_NETWORK: {"cni": {"ipam": ipam}}}))


def build_pod(name: str, claims: int) -> list[JsonObject]:
    """A pod after its claims, which are called ``NAME-rail`` and so on."""
    kinds = CLAIMS[claims]
    return [*(_build_claim(f"{name}-{kind}", kind) for kind in kinds), _build_pod(name, kinds)]


def _build_claim(name: str, kind: str) -> JsonObject:
    opaque = {"driver": DRIVER_NAME, "parameters": _PARAMETERS[kind]}
    return {
        "apiVersion": _API,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": kind}}],
                "config": [{"opaque": opaque}],
            }
        },
    }


def _build_pod(name: str, kinds: Sequence[str]) -> JsonObject:
    resources = {"claims": [{"name": kind} for kind in kinds]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{"name": kind, "resourceClaimName": f"{name}-{kind}"} for kind in kinds],
            "containers": [
                {"name": "main", "image": "x", "command": ["sleep", "infinity"], "resources": resources}
            ],
        },
    }
