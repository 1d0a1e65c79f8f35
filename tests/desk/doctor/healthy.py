"""A GPU node as it should be, as facts: every check is quiet about it. The cases change one thing each."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dranet.cluster.nodes import NodeDevice
from dranet.desk.doctor.checks import ClusterFacts, Surroundings
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import (
    CharDevice,
    Gpu,
    Host,
    Link,
    NodeFacts,
    NumaNode,
    PciFunction,
    RdmaDevice,
    RdmaPort,
)
from dranet.model.findings import (
    FlowFacts,
    GpuStack,
    HostFacts,
    HugePages,
    IdleState,
    KernelFacts,
    KubeletConfig,
    PciFacts,
    Process,
    RuntimeConfig,
    TuningFacts,
)
from dranet.settings import Settings

NICS = ("0000:18:00.0", "0000:38:00.0")
GPUS = ("0000:19:00.0", "0000:39:00.0")
LINKS = ("ens1", "ens2")
ROOTS, UPS = ("0000:15:01.0", "0000:35:01.0"), ("0000:16:00.0", "0000:36:00.0")
DOWN_TO_NIC, DOWN_TO_GPU = ("0000:17:00.0", "0000:37:00.0"), ("0000:17:01.0", "0000:37:01.0")
FAST = "32.0 GT/s PCIe"

KERNEL = KernelFacts(
    release="6.8.0-60-generic",
    config=tuple(
        (name, "y")
        for name in (
            "BPF_SYSCALL",
            "IFB",
            "IPVLAN",
            "MACVLAN",
            "NET_CLS_U32",
            "NET_NS",
            "NET_SCH_TBF",
            "NET_VRF",
            "VLAN_8021Q",
        )
    ),
    modules=("ib_core", "ib_uverbs", "nvidia", "nvidia_peermem"),
)

TUNING = TuningFacts(
    governors=("performance",),
    governor_driver="intel_pstate",
    idle_states=(IdleState("POLL", 0, True), IdleState("C1", 2, True), IdleState("C6", 170, False)),
    thp="madvise",
    thp_defrag="madvise",
    huge_pages=(HugePages(0, 2048, 512), HugePages(1, 2048, 512)),
    numa_balancing=0,
    swappiness=60,
    clock_is_synchronised=True,
)

HOST = HostFacts(
    kernel=KERNEL,
    pci=(
        *(PciFacts(a, "endpoint", True, None, 4096, True, "identity", FAST, 16, FAST, 16) for a in NICS),
        *(PciFacts(a, "endpoint", True, None, 512, True, "identity", FAST, 16, FAST, 16) for a in GPUS),
        *(PciFacts(a, "downstream port", True, 0, 512, True, "", FAST, 16, FAST, 16) for a in DOWN_TO_NIC),
        *(PciFacts(a, "downstream port", True, 0, 512, True, "", FAST, 16, FAST, 16) for a in DOWN_TO_GPU),
        *(PciFacts(a, "upstream port", True, None, 512, True, "", FAST, 16, FAST, 16) for a in UPS),
        *(PciFacts(a, "root port", True, 0x1D, 512, True, "", FAST, 16, FAST, 16) for a in ROOTS),
    ),
    tuning=TUNING,
    processes=(
        Process(900, "containerd", "unlimited"),
        Process(950, "nv-fabricmanager"),
        Process(960, "nvidia-persistenced"),
    ),
    gpus=GpuStack("575.57.08", True, 4),
    flows=tuple(FlowFacts(name, 0b1000, (3,), (3,)) for name in LINKS),
    runtime=RuntimeConfig(
        "/etc/containerd/config.toml", "containerd", True, "/run/nri/nri.sock", 5.0, True, ("/run/cdi",), 3
    ),
    kubelet=KubeletConfig("/var/lib/kubelet/config.yaml", "none", "", "static", "Static"),
    misc_devices=("rdma_cm",),
)


def _nic(index: int) -> PciFunction:
    return PciFunction(
        NICS[index],
        0x020000,
        0x15B3,
        0x1021,
        numa_node=index,
        root=f"pci0000:{ROOTS[index][5:7]}",
        path=(ROOTS[index], UPS[index], DOWN_TO_NIC[index], NICS[index]),
    )


def _gpu(index: int) -> PciFunction:
    return PciFunction(
        GPUS[index],
        0x030200,
        0x10DE,
        0x2330,
        numa_node=index,
        root=f"pci0000:{ROOTS[index][5:7]}",
        path=(ROOTS[index], UPS[index], DOWN_TO_GPU[index], GPUS[index]),
    )


def _link(index: int) -> Link:
    return Link(
        index + 2,
        LINKS[index],
        mac=f"0c:42:a1:00:00:0{index}",
        mtu=9000,
        pci_address=NICS[index],
        speed_mbps=400_000,
    )


def _adapter(index: int) -> RdmaDevice:
    port = RdmaPort(1, "ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)", (LINKS[index],))
    return RdmaDevice(
        f"mlx5_{index}",
        NICS[index],
        firmware="28.39.1002",
        board_id="MT_0000000838",
        ports=(port,),
        char_devices=(CharDevice(f"/dev/infiniband/uverbs{index}", 231, 192 + index),),
    )


NODE = NodeFacts(
    links=(_link(0), _link(1)),
    pci_functions=(_nic(0), _gpu(0), _nic(1), _gpu(1)),
    rdma_devices=(_adapter(0), _adapter(1)),
    gpus=tuple(Gpu(address, "nvidia", "H100") for address in GPUS),
    numa_nodes=(NumaNode(0, "0-55"), NumaNode(1, "56-111")),
    rdma_netns_exclusive=True,
)

CLUSTER = ClusterFacts(
    server_version="v1.36.1",
    kubelet_version="v1.35.4",
    runtime_version="containerd://2.1.4",
    resources=("nvidia.com/gpu",),
    others=(NodeDevice("gpu.nvidia.com", "node-a", "gpu-0", GPUS[0]),),
)

HEALTHY = Surroundings(
    settings=Settings(node_name="node-a"),
    node=NODE,
    host=HOST,
    offered=tuple(
        Device(f"pci-{index}", DeviceKind.NIC, ifname=LINKS[index], pci_address=NICS[index])
        for index in range(2)
    ),
    cluster=CLUSTER,
)


def with_host(seen: Surroundings = HEALTHY, **changes: Any) -> Surroundings:
    return replace(seen, host=replace(seen.host, **changes))


def with_tuning(**changes: Any) -> Surroundings:
    return with_host(tuning=replace(TUNING, **changes))


def with_kernel(**changes: Any) -> Surroundings:
    return with_host(kernel=replace(KERNEL, **changes))


def with_runtime(**changes: Any) -> Surroundings:
    assert HOST.runtime is not None
    return with_host(runtime=replace(HOST.runtime, **changes))


def with_node(**changes: Any) -> Surroundings:
    return replace(HEALTHY, node=replace(NODE, **changes))


def with_mlx5(count: int, channels: int, timeout_seconds: float | None = None) -> Surroundings:
    """More NICs on offer, with so many channels each; the runtime's timeout is this one or the default."""
    names = [f"rail{index}" for index in range(count)]
    links = tuple(
        Link(100 + index, name, driver="mlx5_core", queues=channels) for index, name in enumerate(names)
    )
    devices = tuple(Device(name, DeviceKind.NIC, ifname=name) for name in names)
    seen = replace(with_node(links=(*NODE.links, *links)), offered=(*HEALTHY.offered, *devices))
    return replace(seen, host=with_runtime(nri_timeout_seconds=timeout_seconds).host)


def with_link(index: int, **changes: Any) -> Surroundings:
    links = list(NODE.links)
    links[index] = replace(links[index], **changes)
    return with_node(links=tuple(links))


def with_adapter(index: int, **changes: Any) -> Surroundings:
    adapters = list(NODE.rdma_devices)
    adapters[index] = replace(adapters[index], **changes)
    return with_node(rdma_devices=tuple(adapters))


def with_driver(driver: str, kernel: str = "") -> Surroundings:
    """The first adapter's function by another driver, on another kernel."""
    first, *others = NODE.pci_functions
    function = replace(first, driver=driver)
    adapters = (replace(NODE.rdma_devices[0], pci_address=function.address), *NODE.rdma_devices[1:])
    return with_node(pci_functions=(function, *others), rdma_devices=adapters, host=Host(kernel=kernel))


def in_exclusive_mode(seen: Surroundings) -> Surroundings:
    return replace(seen, node=replace(seen.node, rdma_netns_exclusive=True))


def with_soft_rdma() -> Surroundings:
    soft = RdmaDevice("rxe0", ports=(RdmaPort(1, "ACTIVE", "Ethernet", netdevs=(LINKS[0],)),))
    return with_node(rdma_devices=(*NODE.rdma_devices, soft))


def with_pci(address: str, **changes: Any) -> Surroundings:
    changed = (replace(facts, **changes) if facts.address == address else facts for facts in HOST.pci)
    return with_host(pci=tuple(changed))


def with_cluster(**changes: Any) -> Surroundings:
    return replace(HEALTHY, cluster=replace(CLUSTER, **changes))


def without(program: str) -> Surroundings:
    kept = tuple(process for process in HOST.processes or () if process.name != program)
    return with_host(processes=kept)


PLAIN = Surroundings(
    settings=Settings(node_name="node-a"),
    node=NodeFacts(
        links=(Link(2, "eth0", mtu=1500, pci_address="0000:00:03.0", speed_mbps=10_000),),
        pci_functions=(PciFunction("0000:00:03.0", 0x020000, 0x8086, 0x1521, path=("0000:00:03.0",)),),
    ),
    host=HostFacts(
        kernel=replace(KERNEL, modules=()),
        pci=(PciFacts("0000:00:03.0", "endpoint", True, iommu="DMA-FQ"),),
        tuning=replace(
            TUNING,
            governors=("powersave",),
            governor_driver="acpi-cpufreq",
            swaps=("/dev/sda2",),
            thp="never",
        ),
        processes=(Process(900, "containerd", "8388608"), Process(901, "irqbalance")),
        runtime=HOST.runtime,
    ),
    cluster=ClusterFacts("v1.36.1", "v1.36.1", "containerd://2.1.4"),
)
"""A node without GPUs and RDMA, tuned for nothing: nobody is to be told how to tune it."""
