"""Every example: on which hardware it is run, with which settings, and what its pods must have been given.

The text at the head of an example says how a reader sees that it worked; this says it for a test.
``docs/guides/examples.md`` has a row for each file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import dranet
from tests.desk.templates.layout_clusters import Gpus

REPOSITORY = Path(dranet.__file__).parent.parent
FOLDER = REPOSITORY / "examples"
CLASSES = REPOSITORY / "deploy/deviceclasses.yaml"
"""As the chart brings them."""
_HARDWARE = REPOSITORY / "tests/examples/hardware"

DGX, SMALL, GB200 = "dgx-h100", "two-nic", "gb200"
SRIOV, INFINIBAND = str(_HARDWARE / "sriov.yaml"), str(_HARDWARE / "infiniband.yaml")

NO_PODS = ("rails/attributes.yaml",)
EXTENDED_RESOURCES = ("numa-node-classes.yaml",)
"""The testbed's scheduler makes no claims for extended resources: ``e2e/tests`` runs these on a real one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one pod must have been given, and no more."""

    nics: int = 0
    """NICs of the node that are in it now."""
    gpus: int = 0
    """Of this driver."""
    verbs: int | None = 0
    """RDMA devices, as ``/dev/infiniband/uverbsN``; ``None`` where the node's RDMA mode decides."""
    distance: Literal["PIX", "PXB", "NODE", ""] = ""
    """Of the verdict, which must be True for every device; empty where there is none to make."""
    environment: tuple[str, ...] = ()
    """Variables that the driver must have set in the first container."""
    shows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A command in the pod's network namespace, and what it must print."""


@dataclass(frozen=True, slots=True)
class Example:
    """One file and its pods by name."""

    file: str
    pods: Mapping[str, Wanted]
    hardware: str = DGX
    settings: Mapping[str, str] = field(default_factory=dict)
    link_kind: str = ""
    """A kind of link that the running kernel must know."""
    beside: Literal["", "vendor", "mig", "plugin", "dhcp"] = ""
    """Who else is on the node."""
    takes_node: bool = False
    """Each pod needs a node of its own: they run one after the other on the only one."""
    node_keeps: str = ""
    """A NIC that must still be on the node while the pods run."""
    reason: str = ""
    """Of the condition Ready of every device, where it matters."""


_PAIR = Wanted(nics=1, gpus=1, verbs=1, distance="PIX")
_PAIR_FOR_NCCL = Wanted(nics=1, gpus=1, verbs=1, distance="PIX", environment=("NCCL_CONF_FILE",))
_EIGHT = Wanted(nics=8, gpus=8, verbs=8, distance="PIX")
_EIGHT_FOR_NCCL = Wanted(nics=8, gpus=8, verbs=8, distance="PIX", environment=("NCCL_CONF_FILE",))
_NONE = Wanted()
_NIC = Wanted(nics=1, verbs=1, distance="PIX")
_WITHOUT_FIRST_NIC = {"filter": 'device.attributes["dra.net"].?pciAddress.orValue("") != "0000:18:00.0"'}
"""So that the first GPU and the first NIC on offer are no pair: only the claim brings one together."""


def _shared(kind: str, left: str, right: str) -> Example:
    def pod(address: str) -> Wanted:
        shows = {"ip -d address show net1": (kind, address), "tc qdisc show dev net1": ("rate 5Gbit",)}
        return Wanted(verbs=None, shows=shows)

    return Example(
        f"shared-nic-{kind}.yaml",
        {left: pod("10.77.0.1/24"), right: pod("10.77.0.2/24")},
        SMALL,
        {"shared_devices": 'device.attributes["dra.net"].?ifName.orValue("") == "enp35s0np0"'},
        link_kind=kind,
        node_keeps="enp35s0np0",
    )


EXAMPLES = (
    Example("aligned-gpu-and-nic.yaml", {"trainer": _PAIR}, settings=_WITHOUT_FIRST_NIC),
    Example("dgx-h100/one-gpu-one-nic.yaml", {"1-gpu-1-nic": _PAIR}, settings=_WITHOUT_FIRST_NIC),
    Example(
        "dgx-h100/two-gpus-two-nics.yaml",
        {"2-gpus-2-nics": Wanted(nics=2, gpus=2, verbs=2, distance="PIX")},
        settings=_WITHOUT_FIRST_NIC,
    ),
    Example("dgx-h100/eight-gpus-eight-nics.yaml", {"8-gpus-8-nics": _EIGHT}),
    Example("dgx-h100/whole-node.yaml", {"whole-node": Wanted(nics=10, gpus=8, verbs=10)}),
    Example("dgx-h100/rails.yaml", {"8-gpus-8-nics-rails": _EIGHT}),
    Example("pytorch-ddp-job.yaml", {"ddp-0": _PAIR_FOR_NCCL, "ddp-1": _PAIR_FOR_NCCL}),
    Example("kubeflow-trainjob.yaml", {f"train-node-0-{n}": _PAIR_FOR_NCCL for n in range(2)}),
    Example("kubeflow-pytorchjob.yaml", {"train-master-0": _PAIR_FOR_NCCL, "train-worker-0": _PAIR_FOR_NCCL}),
    Example(
        "nccl-tests.yaml",
        {"nccl-tests-launcher-0": _NONE, **{f"nccl-tests-worker-{n}": _PAIR_FOR_NCCL for n in range(2)}},
    ),
    Example(
        "mpi-operator.yaml",
        {"all-to-all-launcher-0": _NONE, **{f"all-to-all-worker-{n}": _EIGHT_FOR_NCCL for n in range(2)}},
        takes_node=True,
    ),
    Example(
        "perftest.yaml",
        {"perftest-server": Wanted(nics=1, verbs=1), "perftest-client-0": Wanted(nics=1, verbs=1)},
    ),
    Example("jobset.yaml", {f"train-node-0-{n}": _PAIR_FOR_NCCL for n in range(2)}),
    Example("leaderworkerset.yaml", {"serve-0": _PAIR_FOR_NCCL, "serve-0-1": _PAIR_FOR_NCCL}),
    Example("kueue.yaml", {"queued-0": _EIGHT}),
    Example(
        "kuberay-raycluster.yaml",
        {"ray-head": _NONE, "ray-gpu-0": _PAIR_FOR_NCCL, "ray-gpu-1": _PAIR_FOR_NCCL},
    ),
    Example(
        "kuberay-rayjob.yaml",
        {"train-head": _NONE, "train-gpu-0": _PAIR_FOR_NCCL, "train-gpu-1": _PAIR_FOR_NCCL},
    ),
    Example(
        "nixl.yaml",
        {
            f"{role}-0": Wanted(nics=1, gpus=1, verbs=1, distance="PIX", environment=("UCX_NET_DEVICES",))
            for role in ("prefill", "decode")
        },
    ),
    Example(
        "rails/pod.yaml",
        {
            "two-rails": Wanted(
                nics=2,
                gpus=2,
                verbs=2,
                distance="PIX",
                shows={
                    "ip rule": ("100:\tfrom 10.64.0.0/24 lookup 100", "101:\tfrom 10.64.1.0/24 lookup 101"),
                    "ip route show table 101": ("10.64.0.0/16 via 10.64.1.254 dev net1",),
                    "ip address show net0": ("10.64.0.1/24",),
                },
            )
        },
        settings={"attributes_file": str(FOLDER / "rails/attributes.yaml")},
    ),
    Example(
        "static-addresses.yaml",
        {
            name: Wanted(
                nics=1,
                verbs=1,
                shows={
                    "ip address show net1": (f"10.20.0.{n}/24", f"fd00:20::{n}/64", "mtu 9000"),
                    "ip route": ("10.21.0.0/16 via 10.20.0.254 dev net1",),
                },
            )
            for n, name in ((1, "first"), (2, "second"))
        },
        SMALL,
    ),
    Example(
        "nvme-of.yaml",
        {"nvme-of": Wanted(nics=1, verbs=1, shows={"ip address show storage0": ("10.65.0.10/24",)})},
        SMALL,
    ),
    Example(
        "dhcp.yaml",
        {"dhcp-0": Wanted(nics=1, verbs=1, shows={"ip address show net1": ("10.64.0.50/24",)})},
        SMALL,
        beside="dhcp",
    ),
    _shared("macvlan", "left", "right"),
    _shared("ipvlan", "east", "west"),
    Example("rdma-only.yaml", {"verbs": Wanted(verbs=1)}, INFINIBAND, reason="RDMAOnlyDeviceReady"),
    Example(
        "sriov-vf.yaml",
        {"vf": Wanted(nics=1, gpus=1, distance="PIX", shows={"ip address show net1": ("10.30.0.5/24",)})},
        SRIOV,
        node_keeps="enp163s0np0",
    ),
    Example(
        "beside-sriov-and-multus.yaml",
        {"both": Wanted(nics=1, shows={"ip address show claim0": ("10.30.0.6/24",)})},
        SRIOV,
        {"filter": 'device.attributes["dra.net"].?sriovPfAddress.orValue("") != "0000:81:00.0"'},
        beside="plugin",
        node_keeps="enp129s0v0",
    ),
    Example(
        "nvidia-dra-driver.yaml",
        {"trainer": Wanted(nics=1, verbs=1, distance="PIX", environment=("NCCL_CONF_FILE",))},
        settings=_WITHOUT_FIRST_NIC,
        beside="vendor",
    ),
    Example(
        "dgx-h100/nvidia-one-gpu-one-nic.yaml",
        {"1-gpu-1-nic": _NIC},
        settings=_WITHOUT_FIRST_NIC,
        beside="vendor",
    ),
    Example(
        "dgx-h100/nvidia-two-gpus-two-nics.yaml",
        {"2-gpus-2-nics": Wanted(nics=2, verbs=2, distance="PIX")},
        settings=_WITHOUT_FIRST_NIC,
        beside="vendor",
    ),
    Example(
        "dgx-h100/nvidia-eight-gpus-eight-nics.yaml",
        {"8-gpus-8-nics": Wanted(nics=8, verbs=8, distance="PIX")},
        beside="vendor",
    ),
    Example(
        "mig.yaml",
        {"half": Wanted(nics=1, verbs=1, distance="PIX", environment=("NCCL_CONF_FILE",))},
        settings=_WITHOUT_FIRST_NIC,
        beside="mig",
    ),
    Example(
        "gb200-nvl72/nvidia-two-gpus-two-nics.yaml",
        {"2-gpus-2-nics": Wanted(nics=2, verbs=2, distance="NODE")},
        GB200,
        beside="vendor",
    ),
    Example(
        "gb200-nvl72/nvidia-whole-node-rails.yaml",
        {"whole-node-rails": Wanted(nics=4, verbs=4, distance="NODE")},
        GB200,
        beside="vendor",
    ),
    Example(
        "gb200-compute-domain.yaml",
        {
            f"train-tray-0-{n}": Wanted(
                nics=4,
                verbs=4,
                distance="NODE",
                environment=("NCCL_CONF_FILE",),
                shows={"ip address show net3": ("10.64.3.1/24",)},
            )
            for n in range(2)
        },
        GB200,
        beside="vendor",
        takes_node=True,
    ),
    Example(
        "gpu-operator.yaml",
        {"trainer": Wanted(nics=8, verbs=8, distance="PIX", environment=("NCCL_CONF_FILE",))},
        settings={"publish_gpus": "never"},
        beside="plugin",
    ),
    Example(
        "dgx-h100/nic-of-each-numa-node.yaml",
        {"1-gpu-1-nic-each-numa": Wanted(nics=2, verbs=2)},
        settings={"publish_gpus": "never"},
        beside="plugin",
    ),
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """An example on the slices of a layout, as far as the allocation."""

    file: str
    layout: str
    pods: int
    """How many have room on :attr:`nodes`."""
    distance: str
    """Of each NIC to its GPU."""
    gpus: Gpus = Gpus.VENDOR
    has_lists: bool = False
    """Our driver publishes lists, and the cluster compares them."""
    nodes: int = 1


ALLOCATIONS = (
    Allocation("azure-nd-h100-v5/one-gpu-one-nic.yaml", "azure-nd-h100-v5", 8, "NODE", Gpus.OURS),
    Allocation(
        "azure-nd-h100-v5/nvidia-one-gpu-one-nic.yaml", "azure-nd-h100-v5", 8, "NODE", Gpus.VENDOR_NO_ROOT
    ),
    Allocation(
        "azure-nd-h100-v5/nvidia-whole-node-rails.yaml", "azure-nd-h100-v5", 1, "NODE", Gpus.VENDOR_NO_ROOT
    ),
    Allocation("azure-gb300/nvidia-one-gpu-one-nic.yaml", "azure-gb300", 4, "NODE"),
    Allocation("azure-gb300/nvidia-two-gpus-two-nics.yaml", "azure-gb300", 2, "NODE"),
    Allocation("azure-gb300/nvidia-whole-node-rails.yaml", "azure-gb300", 1, "NODE"),
    Allocation("gb200-nvl72/nvidia-one-gpu-one-nic.yaml", "gb200-nvl72", 8, "NODE", nodes=2),
    Allocation("gb200-nvl72/nvidia-one-gpu-one-nic-lists.yaml", "gb200-nvl72", 4, "NODE", has_lists=True),
    Allocation("gb200-nvl72/nvidia-two-gpus-two-nics.yaml", "gb200-nvl72", 2, "NODE"),
    Allocation("gb200-nvl72/nvidia-whole-node-rails.yaml", "gb200-nvl72", 2, "NODE", nodes=2),
    Allocation("oci-gb200/nvidia-one-gpu-two-nics.yaml", "oci-gb200", 4, "NODE"),
    Allocation("oci-gb200/nvidia-whole-node-rails.yaml", "oci-gb200", 1, "NODE"),
    Allocation("mi300x/amd-one-gpu-one-nic.yaml", "mi300x", 8, "PXB"),
    Allocation("gb200-compute-domain.yaml", "gb200-nvl72", 2, "NODE", nodes=2),
    Allocation("gb200-compute-domain.yaml", "oci-gb200", 2, "NODE", nodes=2),
)
"""For machines that the testbed does not have, and for several nodes."""
