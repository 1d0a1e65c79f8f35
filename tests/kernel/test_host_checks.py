"""What the doctor reads of a node: from trees as a kernel writes them, and from hostile ones."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.kernel import host_checks, host_trials
from dranet.kernel.host_checks import find_root, list_roce_links, read_host_facts
from dranet.kernel.netlink.socket import attribute, nested
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import Link, NodeFacts, PciFunction, RdmaDevice, RdmaPort
from dranet.model.findings import HugePages, IdleState, Manager, PciFacts, Process

ADDRESS = "0000:17:00.0"


def write(root: Path, files: dict[str, str | bytes]) -> PseudoFiles:
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return PseudoFiles(root, [])


# PCI


def config_space(*, port: int = 6, control: int = 0x2810, acs: int | None = None) -> bytes:
    """A function with a PCI Express capability at 0x70 behind a power management one at 0x40, and extended
    capabilities AER at 0x100 and ACS at 0x148."""
    space = bytearray(4096)
    struct.pack_into("<H", space, 0x06, 0x0010)
    space[0x34] = 0x40
    space[0x40:0x42] = bytes([0x01, 0x70])
    struct.pack_into("<BBH", space, 0x70, 0x10, 0, 2 | port << 4)
    struct.pack_into("<H", space, 0x78, control)
    struct.pack_into("<I", space, 0x100, 0x0001 | 2 << 16 | (0x148 if acs is not None else 0) << 20)
    if acs is not None:
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x1F, acs)
    return bytes(space)


def read_function(tmp_path: Path, content: bytes) -> PciFacts:
    base = f"bus/pci/devices/{ADDRESS}"
    files: dict[str, str | bytes] = {
        f"{base}/config": content,
        f"{base}/iommu_group/type": "DMA-FQ\n",
        f"{base}/max_link_width": "16\n",
    }
    return host_checks.read_pci(write(tmp_path, files), ADDRESS)


def test_the_config_space_tells_port_kind_read_requests_ordering_and_acs(tmp_path: Path) -> None:
    found = read_function(tmp_path, config_space(acs=0x1D))
    assert (found.port, found.acs_control, found.max_read_request) == ("downstream port", 0x1D, 512)
    assert (found.relaxed_ordering, found.is_readable) == (True, True)
    assert (found.iommu, found.max_width) == ("DMA-FQ", 16)


@pytest.mark.parametrize(
    ("control", "size", "relaxed"), [(0x5000, 4096, False), (0x0010, 128, True), (0x2000, 512, False)]
)
def test_read_requests_are_powers_of_two(tmp_path: Path, control: int, size: int, relaxed: bool) -> None:
    found = read_function(tmp_path, config_space(control=control))
    assert (found.max_read_request, found.relaxed_ordering) == (size, relaxed)
    assert found.acs_control is None, "it has no such capability"


def test_who_is_not_root_reads_64_bytes_and_is_told_nothing(tmp_path: Path) -> None:
    found = read_function(tmp_path, config_space(acs=0x1D)[:64])
    assert (found.is_readable, found.acs_control, found.port, found.max_read_request) == (
        False,
        None,
        "",
        None,
    )


def test_a_capability_list_that_goes_in_a_circle_ends(tmp_path: Path) -> None:
    space = bytearray(config_space(acs=0x1D))
    space[0x41] = 0x40
    struct.pack_into("<I", space, 0x100, 0x0001 | 0x100 << 20)
    found = read_function(tmp_path, bytes(space))
    assert (found.port, found.acs_control) == ("", None)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=st.binary(max_size=600))
def test_any_bytes_are_read_as_a_config_space(tmp_path: Path, content: bytes) -> None:
    found = read_function(tmp_path, content)
    assert found.address == ADDRESS
    assert found.is_readable == (len(content) > 64)


# Kernel and tuning


def test_the_configuration_comes_packed_from_proc_or_plain_from_boot(tmp_path: Path) -> None:
    text = b"# CONFIG_MACVLAN is not set\nCONFIG_NET_NS=y\nCONFIG_IPVLAN=m\nCONFIG_EXT4_FS=y\n"
    expected = (("IPVLAN", "m"), ("NET_NS", "y"))
    empty = PseudoFiles(tmp_path / "none", [])
    packed = write(tmp_path / "proc", {"config.gz": gzip.compress(text)})
    assert host_checks.read_kernel(empty, packed, None).config == expected
    plain = write(tmp_path / "root", {f"boot/config-{os.uname().release}": text + b"#" * 300_000})
    assert host_checks.read_kernel(empty, empty, plain).config == expected
    assert host_checks.read_kernel(empty, empty, None).config is None
    odd = write(tmp_path / "odd", {"config.gz": b"\x1f\x8bnothing"})
    assert host_checks.read_kernel(empty, odd, None).config is None


def test_of_the_command_line_only_what_concerns_us_is_kept(tmp_path: Path) -> None:
    line = "BOOT_IMAGE=/vmlinuz root=/dev/sda iommu=pt intel_iommu=on ignition.config.url=//x/?token=s3\n"
    procfs = write(tmp_path, {"cmdline": line})
    assert host_checks.read_kernel(procfs, procfs, None).command_line == "iommu=pt intel_iommu=on"


def test_tuning_is_read_as_the_kernel_says_it(tmp_path: Path) -> None:
    cpu = "devices/system/cpu"
    thp = "kernel/mm/transparent_hugepage"
    sysfs = write(
        tmp_path / "sys",
        {
            f"{cpu}/cpufreq/policy0/scaling_governor": "powersave\n",
            f"{cpu}/cpufreq/policy0/scaling_driver": "intel_pstate\n",
            f"{cpu}/cpufreq/policy0/energy_performance_preference": "balance_power\n",
            f"{cpu}/cpufreq/policy1/scaling_governor": "performance\n",
            f"{cpu}/cpu0/cpuidle/state0/name": "POLL\n",
            f"{cpu}/cpu0/cpuidle/state1/name": "C6\n",
            f"{cpu}/cpu0/cpuidle/state1/latency": "170\n",
            f"{cpu}/cpu0/cpuidle/state1/disable": "1\n",
            f"{thp}/enabled": "always [madvise] never\n",
            f"{thp}/defrag": "always defer [defer+madvise] madvise never\n",
            "devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages": "16\n",
        },
    )
    procfs = write(
        tmp_path / "proc",
        {
            "sys/vm/swappiness": "60\n",
            "sys/kernel/numa_balancing": "1\n",
            "swaps": "Filename\tType\tSize\n/dev/dm-1  partition 8 0 -2\n",
        },
    )
    found = host_checks.read_tuning(sysfs, procfs)
    assert (found.governors, found.governor_driver) == (("performance", "powersave"), "intel_pstate")
    assert found.energy_preferences == ("balance_power",)
    assert found.idle_states == (IdleState("POLL", 0, True), IdleState("C6", 170, False))
    assert (found.thp, found.thp_defrag) == ("madvise", "defer+madvise")
    assert found.huge_pages == (HugePages(1, 2048, 16),)
    assert (found.numa_balancing, found.swappiness, found.swaps) == (1, 60, ("/dev/dm-1",))


def test_the_clock_is_asked_of_the_kernel() -> None:
    assert host_checks.ask_clock() in (True, False)


# Processes


def test_only_the_nodes_own_processes_count(tmp_path: Path) -> None:
    limits = "Limit                     Soft Limit           Hard Limit           Units\n"
    procfs = write(
        tmp_path,
        {
            "812/comm": "containerd\n",
            "812/limits": f"{limits}Max locked memory         8388608    8388608   bytes\n",
            "900/comm": "nv-fabricmanage\n",
            "901/comm": "bash\n",
            "902/comm": "containerd\n",
            "902/limits": f"{limits}Max locked memory         8388608    8388608   bytes\n",
        },
    )
    assert host_checks.read_processes(procfs) is None, "a container's"
    write(tmp_path, {"2/comm": "kthreadd\n"})
    assert host_checks.read_processes(procfs) == (
        Process(812, "containerd", "8388608"),
        Process(900, "nv-fabricmanager"),
    ), "a second runtime with the same limit shows nothing new"


def test_names_that_the_kernel_cuts_are_still_told_apart() -> None:
    assert len({name[:15] for name in host_checks.NAMES}) == len(host_checks.NAMES)


# PFC and ECN


def test_pfc_is_in_the_answer_of_dcb_netlink() -> None:
    pfc = struct.pack("=BBBH", 8, 0b1000, 0, 0) + bytes(128)
    assert host_checks.parse_pfc(bytes(4) + nested(13, attribute(1, b"ets"), attribute(2, pfc))) == 0b1000
    assert host_checks.parse_pfc(bytes(4) + nested(13, attribute(1, b"ets"))) is None
    assert host_checks.parse_pfc(bytes(4)) is None


def test_a_link_without_dcb_tells_no_pfc() -> None:
    assert host_checks.read_pfc(["lo", "no-such-link"]) == {}


def test_ecn_is_read_where_the_driver_has_files_for_it(tmp_path: Path) -> None:
    enable = {f"class/net/eth0/ecn/roce_np/enable/{n}": "1\n" if n == 3 else "0\n" for n in range(8)}
    (found,) = host_checks.read_flows(write(tmp_path, dict(enable)), ["eth0"])
    assert (found.ecn_np, found.ecn_rp, found.pfc_priorities) == ((3,), None, None)


def test_roce_links_are_those_of_adapters() -> None:
    port = RdmaPort(1, link_layer="Ethernet", netdevs=("eth0",))
    infiniband = RdmaPort(1, link_layer="InfiniBand", netdevs=("ib0",))
    soft = RdmaDevice("rxe0", "", ports=(RdmaPort(1, link_layer="Ethernet", netdevs=("eth1",)),))
    node = NodeFacts(
        links=(Link(1, "eth0"), Link(2, "ib0"), Link(3, "eth1")),
        rdma_devices=(
            RdmaDevice("mlx5_0", ADDRESS, ports=(port,)),
            RdmaDevice("b", "x", ports=(infiniband,)),
            soft,
        ),
    )
    assert list_roce_links(node) == ["eth0"]


# Who else


LINKS = (Link(2, "eth0"), Link(3, "eth1"), Link(4, "eth2"))


def test_networkmanager_and_networkd_say_which_links_are_theirs(tmp_path: Path) -> None:
    files = {
        "run/NetworkManager/devices/2": "[device]\nmanaged=true\nconnection-uuid=1-2\n",
        "run/NetworkManager/devices/3": "[device]\nmanaged=false\n",
        "run/systemd/netif/links/3": "ADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/1.network\n",
        "run/systemd/netif/links/4": "ADMIN_STATE=unmanaged\n",
    }
    assert host_checks.read_managers(write(tmp_path, dict(files)), LINKS) == (
        Manager("NetworkManager", "eth0", "with a connection of its own"),
        Manager("systemd-networkd", "eth1", "by /etc/systemd/network/1.network"),
    )


def test_cni_configurations_name_links_and_functions(tmp_path: Path) -> None:
    chain = {"plugins": [{"type": "bridge"}, {"type": "host-device", "pciBusID": ADDRESS}, "odd", 3]}
    files = {
        "etc/cni/net.d/10-a.conflist": json.dumps(chain),
        "etc/cni/net.d/20-b.conf": '{"type": "macvlan", "master": "eth1"}',
        "etc/cni/net.d/30-c.conf": "[" * 100_000,
        "etc/cni/net.d/40-d.conf": '{"type": ["macvlan"], "master": {}}',
        "etc/cni/net.d/notes.txt": '{"type": "macvlan", "master": "eth9"}',
    }
    assert host_checks.read_managers(write(tmp_path, dict(files)), ()) == (
        Manager("/etc/cni/net.d/10-a.conflist", ADDRESS, "host-device"),
        Manager("/etc/cni/net.d/20-b.conf", "eth1", "macvlan"),
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_a_cni_configuration(text: bytes) -> None:
    assert all(plugin and link for plugin, link in host_checks.parse_cni(text))


# Kernel messages


def test_kernel_messages_about_nics_are_kept_with_their_time() -> None:
    record = "4,1234,5678901,-;mlx5_core 0000:17:00.0 eth0: Link up\n SUBSYSTEM=pci\n"
    assert host_trials.parse_record(record) == "5.678901 mlx5_core 0000:17:00.0 eth0: Link up"
    assert host_trials.parse_record("odd") == "0.000000"


def test_kernel_messages_are_bounded_and_chosen(tmp_path: Path) -> None:
    """A file in place of the device gives all at once, as no device does."""
    file = tmp_path / "kmsg"
    file.write_text("6,1,1000000,-;audit: user bob logged in\n")
    assert host_trials.read_kernel_messages(file) == []
    file.write_text("6,1,1000000,-;igb 0000:01:00.0: link is up\n")
    assert host_trials.read_kernel_messages(file) == ["1.000000 igb 0000:01:00.0: link is up"]


# All of it


def test_of_a_tree_that_has_nothing_nothing_is_said_and_nothing_fails(tmp_path: Path) -> None:
    found = read_host_facts(tmp_path / "sys", tmp_path / "proc", None, NodeFacts())
    assert (found.pci, found.processes, found.flows, found.warnings) == ((), None, (), ())
    assert [unseen.what for unseen in found.unseen] == [
        "the node's processes",
        "the node's files below /etc and /run, and the kubelet's",
    ]


def test_bridges_above_a_nic_are_read_with_it(tmp_path: Path) -> None:
    node = NodeFacts(
        links=(Link(2, "eth0", pci_address=ADDRESS),),
        pci_functions=(PciFunction(ADDRESS, 0x020000, 1, 2, path=("0000:16:00.0", ADDRESS)),),
    )
    found = read_host_facts(tmp_path, tmp_path, tmp_path, node)
    assert [function.address for function in found.pci] == ["0000:16:00.0", ADDRESS]
    assert found.unseen[0].what.startswith("PCI config space")


def test_the_nodes_files_are_looked_for_only_behind_the_nodes_own_processes(tmp_path: Path) -> None:
    assert find_root(tmp_path) is None
    write(tmp_path, {"2/comm": "kthreadd\n", "1/root/etc/hostname": "x"})
    assert find_root(tmp_path) == tmp_path / "1/root"
