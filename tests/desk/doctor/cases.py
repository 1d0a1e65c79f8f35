"""For each id of a check one node that triggers it, and how bad it is then."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from dranet.cluster.nodes import NodeDevice
from dranet.desk.doctor.checks import DevicePlugin, Surroundings
from dranet.model.device import Device, DeviceKind
from dranet.model.findings import (
    FlowFacts,
    GpuStack,
    HugePages,
    IdleState,
    KubeletConfig,
    Manager,
    Process,
    Severity,
    Unseen,
)
from dranet.settings import Lldp, Settings
from tests.desk.doctor.healthy import (
    DOWN_TO_GPU,
    HEALTHY,
    HOST,
    KERNEL,
    LINKS,
    NICS,
    in_exclusive_mode,
    with_adapter,
    with_cluster,
    with_driver,
    with_host,
    with_kernel,
    with_link,
    with_mlx5,
    with_node,
    with_pci,
    with_runtime,
    with_soft_rdma,
    with_tuning,
    without,
)

PROBLEM, WARNING, NOTE = Severity.PROBLEM, Severity.WARNING, Severity.NOTE


def with_rails(*rails: int, **expected: int) -> Surroundings:
    """NICs on these rails, in the order of their GPUs."""
    nics = tuple(
        Device(
            f"nic-{number}",
            DeviceKind.NIC,
            {
                "dra.net/ifName": f"eth{number}",
                "dra.net/rail": rail,
                "dra.net/switchName": f"leaf-{rail}",
                "dra.net/switchPortId": "swp7",
                "dra.net/nearestGpus": f"0000:{number:02x}:00.0",
            },
        )
        for number, rail in enumerate(rails)
    )
    return replace(HEALTHY, offered=nics, expected_rails=expected)


CASES: Mapping[str, tuple[tuple[Surroundings, Severity, str], ...]] = {
    "kernel-old": (
        (with_kernel(release="4.18.0-553.el8"), PROBLEM, "Linux 4.18.0-553.el8"),
        (with_kernel(release="5.2.1"), WARNING, "Linux 5.2.1"),
    ),
    "kernel-options": (
        (with_kernel(config=KERNEL.config[1:] if KERNEL.config else None), NOTE, "BPF_SYSCALL"),
        (with_kernel(config=()), PROBLEM, "NET_NS"),
    ),
    "runtime-old": (
        (with_cluster(runtime_version="containerd://1.6.33"), PROBLEM, "containerd 1.6.33"),
        (with_cluster(runtime_version="containerd://1.7.24~ds1"), NOTE, "containerd 1.7.24"),
        (with_cluster(runtime_version="cri-o://1.25.1"), PROBLEM, "cri-o 1.25.1"),
    ),
    "wrong-rail": (
        (
            with_rails(0, 1, 1, 2),
            WARNING,
            "eth2 is cabled to rail 1 (leaf-1 swp7), expected is a rail of its own",
        ),
        (with_rails(0, 1, eth0=0, eth1=3), WARNING, "rail 1 (leaf-1 swp7), expected is rail 3"),
    ),
    "rails-unordered": ((with_rails(1, 0, 2), NOTE, "eth0: rail 1 (leaf-1 swp7), eth1: rail 0"),),
    "lldp-silent": (
        (
            replace(
                with_node(links=tuple(replace(link, carrier=True) for link in HEALTHY.node.links)),
                settings=Settings(lldp=Lldp.LISTEN),
            ),
            NOTE,
            "no LLDP neighbor on",
        ),
    ),
    "nri-off": ((with_runtime(nri=False), PROBLEM, "/etc/containerd/config.toml"),),
    "nri-socket-elsewhere": ((with_runtime(nri_socket="/opt/nri.sock"), WARNING, "/opt/nri.sock"),),
    "nri-timeout-short": (
        (with_runtime(nri_timeout_seconds=1.0), WARNING, "1 s in"),
        (
            replace(
                with_runtime(nri_timeout_seconds=None),
                settings=Settings(hook_budget_seconds=1.9),
            ),
            WARNING,
            "2 s in",
        ),
    ),
    "hook-estimate": (
        (with_mlx5(8, 63), NOTE, "8 mlx5 NICs with 504 channels: some 3.5 s for all of them in one pod"),
        (with_mlx5(32, 16), NOTE, "32 mlx5 NICs with 512 channels: some 3.6 s"),
    ),
    "cdi-off": ((with_runtime(cdi=False), PROBLEM, "CDI is off"),),
    "cdi-folder-unread": (
        (with_runtime(cdi_dirs=("/etc/cdi",)), PROBLEM, "/etc/cdi"),
        (replace(HEALTHY, settings=Settings(cdi_dir=HEALTHY.settings.state_dir)), PROBLEM, "/run/cdi"),
    ),
    "memlock-low": (
        (with_host(processes=(Process(9, "containerd", "8388608"),)), NOTE, "may lock 8192 KiB"),
    ),
    "kubelet-old": ((with_cluster(kubelet_version="v1.33.2-eks-1"), PROBLEM, "v1.33.2"),),
    "kubelet-skew": (
        (with_cluster(server_version="v1.39.0"), WARNING, "API server v1.39.0"),
        (with_cluster(server_version="v1.34.3"), WARNING, "kubelet v1.35.4"),
    ),
    "kubelet-gate-off": (
        (
            with_host(kubelet=KubeletConfig("/c", feature_gates=(("DynamicResourceAllocation", False),))),
            PROBLEM,
            "/c",
        ),
    ),
    "topology-manager": (
        (with_host(kubelet=KubeletConfig("/c", "best-effort", "", "none", "None")), NOTE, "CPU manager none"),
    ),
    "networkmanager": (
        (with_host(managers=(Manager("NetworkManager", LINKS[0]),)), WARNING, LINKS[0]),
        (
            with_host(managers=(Manager("NetworkManager", LINKS[0], "without a connection"),)),
            NOTE,
            f"{LINKS[0]}, without a connection",
        ),
    ),
    "networkd": ((with_host(managers=(Manager("systemd-networkd", LINKS[1]),)), WARNING, LINKS[1]),),
    "cni-takes-link": (
        (with_host(managers=(Manager("/etc/cni/net.d/1.conf", LINKS[0], "macvlan"),)), WARNING, "macvlan"),
        (with_host(managers=(Manager("/etc/cni/net.d/1.conf", NICS[1], "host-device"),)), WARNING, NICS[1]),
    ),
    "device-plugin-overlap": (
        (replace(HEALTHY, plugins=(DevicePlugin("nvidia.com/sriov", NICS),)), WARNING, NICS[0]),
    ),
    "device-plugin-of-nics": (
        (with_cluster(resources=("nvidia.com/gpu", "rdma/hca_shared_devices_a")), NOTE, "rdma/hca_shared"),
    ),
    "dra-driver-overlap": (
        (
            with_cluster(others=(NodeDevice("nics.example.com", "a", "x", NICS[0]),)),
            WARNING,
            NICS[0],
        ),
    ),
    "rdma-shared-mode": ((with_node(rdma_netns_exclusive=False), NOTE, "shared"),),
    "rdma-verbs-missing": ((with_adapter(1, char_devices=()), WARNING, "mlx5_1"),),
    "rdma-cm-missing": ((with_host(misc_devices=()), NOTE, "no rdma_cm"),),
    "rdma-lost-with-link": (
        (with_driver("bnxt_en", "6.1.0-28-amd64"), WARNING, "mlx5_0 ends when its interface moves"),
        (with_soft_rdma(), NOTE, "rxe0 ends when its interface moves"),
    ),
    "rdma-immobile": (
        (in_exclusive_mode(with_driver("efa")), WARNING, "mlx5_0 cannot move: the driver efa cannot"),
        (in_exclusive_mode(with_soft_rdma()), NOTE, "rxe0 cannot move"),
    ),
    "rdma-ipoib-exclusive": ((in_exclusive_mode(with_link(0, kind="ipoib")), NOTE, "ens1"),),
    "gpudirect-no-path": (
        (
            with_host(kernel=replace(KERNEL, modules=("nvidia",)), gpus=GpuStack("550.1", False)),
            WARNING,
            "proprietary modules 550.1",
        ),
        (with_host(gpus=GpuStack()), NOTE, "not loaded"),
    ),
    "acs-redirect": (
        (with_pci(DOWN_TO_GPU[0], acs_control=0x1D), WARNING, f"at {DOWN_TO_GPU[0]}"),
        (with_pci(DOWN_TO_GPU[1], acs_control=0x08), WARNING, DOWN_TO_GPU[1]),
    ),
    "iommu-translates": ((with_pci(NICS[0], iommu="DMA-FQ"), WARNING, NICS[0]),),
    "fabric-manager-missing": ((without("nv-fabricmanager"), WARNING, "4 NVSwitches"),),
    "gpu-persistence": ((without("nvidia-persistenced"), NOTE, "does not run"),),
    "pcie-link-below": (
        (with_pci(NICS[0], width=8), WARNING, f"{NICS[0]} at x8 of x16"),
        (with_pci(NICS[1], speed="16.0 GT/s PCIe"), WARNING, "16 of 32 GT/s"),
    ),
    "pcie-settings-differ": (
        (with_pci(NICS[0], max_read_request=512), NOTE, "mlx5_0: 512 bytes"),
        (with_pci(NICS[0], relaxed_ordering=False), NOTE, "strict ordering"),
    ),
    "mtu-differs": ((with_link(1, mtu=4500), WARNING, "4500: ens2"),),
    "roce-mtu-small": ((with_link(1, mtu=1500), NOTE, "ens2 (1500 leaves 1024)"),),
    "speed-differs": ((with_link(1, speed_mbps=200_000), WARNING, "200000 Mbit/s: ens2"),),
    "firmware-differs": ((with_adapter(1, firmware="28.41.1000"), WARNING, "28.41.1000: mlx5_1"),),
    "pfc-differs": (
        (
            with_host(flows=(FlowFacts("ens1", 0b1000), FlowFacts("ens2", 0b0001))),
            WARNING,
            "priority 0: ens2",
        ),
    ),
    "pfc-off": ((with_host(flows=(FlowFacts("ens1", 0), FlowFacts("ens2", 0))), NOTE, "ens1, ens2"),),
    "ecn-off": ((with_host(flows=(FlowFacts("ens1", 8, (), (3,)),)), NOTE, "ECN is off on ens1"),),
    "cpu-governor": (
        (with_tuning(governors=("powersave",), governor_driver="acpi-cpufreq"), WARNING, "lowest clock"),
        (with_tuning(governors=("schedutil",), governor_driver="acpi-cpufreq"), NOTE, "schedutil"),
        (with_tuning(governors=("powersave",), energy_preferences=("power",)), NOTE, "power"),
    ),
    "c-states": ((with_tuning(idle_states=(IdleState("C6", 170, True),)), NOTE, "170 us from C6"),),
    "numa-balancing": ((with_tuning(numa_balancing=1), NOTE, "on"),),
    "swap-on": ((with_tuning(swaps=("/swap.img",)), NOTE, "/swap.img, swappiness 60"),),
    "thp-off": ((with_tuning(thp="never"), NOTE, "no transparent huge pages"),),
    "thp-stalls": ((with_tuning(thp="always", thp_defrag="always"), NOTE, "always"),),
    "hugepages-uneven": (
        (with_tuning(huge_pages=(HugePages(0, 2048, 512), HugePages(1, 2048, 0))), NOTE, "0 on node 1"),
    ),
    "irqbalance": ((with_host(processes=(*(HOST.processes or ()), Process(7, "irqbalance"))), NOTE, "runs"),),
    "clock-adrift": ((with_tuning(clock_is_synchronised=False), NOTE, "not synchronised"),),
    "not-visible": (
        (
            with_host(unseen=(Unseen("the node's processes", "this process namespace is not the node's"),)),
            NOTE,
            "processes",
        ),
        (with_host(runtime=None), NOTE, "the runtime's configuration"),
    ),
}
