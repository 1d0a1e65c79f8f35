"""What a container gets for the programs in it when it is created, and what becomes of its files."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver.containers import WorkloadFiles, WorkloadPack
from dranet.driver.start_gate import StartGate
from dranet.errors import ClaimError, DeviceError, DranetError, ProtocolError, Reason, StoreError
from dranet.model.claim import (
    AUTO,
    FOLDER,
    ClaimRef,
    Container,
    ContainerAdjustment,
    MemoryPolicy,
    Mount,
    NcclSettings,
    PodRef,
    PodSandbox,
    WorkloadSettings,
)
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, CharDevice, Gpu, NodeFacts
from dranet.model.plan import AddAddress, AttachPlan, PreparedClaim, PreparedDevice, RdmaAccess
from tests.data.layouts import read_layout, take_layout
from tests.driver.bench import Bench, sandbox
from tests.support.namespaces import Namespace

FACTS = read_layout("dgx-h100").facts
MACHINE = {decision.device.name: decision.device for decision in take_layout("dgx-h100")}
GPUS = [device for device in MACHINE.values() if device.kind is DeviceKind.GPU]
RAIL = next(device for device in MACHINE.values() if device.rdma_device == "mlx5_0")
POD = PodSandbox("sandbox", "trainer", "train", "pod-uid")
CPUINFO = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
BOTH = WorkloadSettings(NcclSettings(topology_file=True, config_file=True))


class Packer:
    """A driver's part that gives containers what they ask for; another one is a second instance."""

    def __init__(self, state_dir: Path, sysfs_root: Path = Path("/nowhere")) -> None:
        self.state_dir = state_dir
        self.gate = StartGate(state_dir)
        self.facts = FACTS
        self.gpus: Sequence[Device] = GPUS[:1]
        self.is_new_runtime = False
        self.pack = WorkloadPack(
            WorkloadFiles(state_dir),
            self.gate,
            sysfs_root,
            lambda: self.facts,
            lambda _pod_uid: self.gpus,
            lambda: self.is_new_runtime,
            self._write_procfs(state_dir.parent / f"{state_dir.name}-proc"),
        )

    def _write_procfs(self, root: Path) -> Path:
        root.mkdir(exist_ok=True)
        (root / "cpuinfo").write_text(CPUINFO)
        return root

    def container(self, *claim_uids: str, name: str = "main", **env: str) -> Container:
        mounts = tuple(self.gate.mount_for(uid) for uid in claim_uids)
        return Container("c", name, POD.id, mounts=mounts, env=env)

    def adjust(self, container: Container, *records: PreparedClaim) -> ContainerAdjustment:
        return self.pack.adjust(POD, container, records).without(container)

    def read(self, name: str, claim: str = "claim", container: str = "main") -> str:
        return (self.state_dir / "workload" / claim / container / name).read_text()


@pytest.fixture
def packer(tmp_path: Path) -> Packer:
    return Packer(tmp_path)


def a_record(uid: str = "claim", settings: WorkloadSettings = BOTH, device: Device = RAIL) -> PreparedClaim:
    plan = AttachPlan(device.name, (AddAddress(Address("10.0.0.1/24")),), f"net-{uid}")
    rdma = RdmaAccess((CharDevice("/dev/infiniband/uverbs0", 231, 192),))
    prepared = PreparedDevice("nic", "node", device, plan=plan, rdma=rdma, workload=settings)
    return PreparedClaim(
        ClaimRef("train", uid, uid), PodRef("train", "trainer", "pod-uid"), (prepared,), "boot"
    )


def shown(container: Container, adjustment: ContainerAdjustment) -> Container:
    """The container as the runtime shows it to the next plugin."""
    return replace(
        container,
        mounts=(*container.mounts, *adjustment.mounts),
        env={**container.env, **dict(adjustment.env)},
        memory_nodes=adjustment.memory_nodes,
    )


# --- who gets it ----------------------------------------------------------------------------------------


def test_a_container_that_names_the_claim_gets_its_files(packer: Packer) -> None:
    given = packer.adjust(packer.container("claim"), a_record())
    (mount,) = given.mounts
    assert mount == Mount(
        str(packer.state_dir / "workload/claim/main"),
        FOLDER,
        "bind",
        ("ro", "bind", "nosuid", "nodev", "noexec"),
    )
    assert given.env == (("NCCL_CONF_FILE", f"{FOLDER}/nccl.conf"),)
    assert "NCCL_IB_HCA==mlx5_0\n" in packer.read("nccl.conf")
    assert f"NCCL_TOPO_FILE={FOLDER}/topology.xml\n" in packer.read("nccl.conf")
    assert 'busid="0000:18:00.0"' in packer.read("topology.xml")
    assert f'busid="{GPUS[0].pci_address}"' in packer.read("topology.xml")


def test_a_container_that_names_no_claim_that_asks_gets_nothing(packer: Packer) -> None:
    quiet = a_record("quiet", WorkloadSettings())
    for container in (packer.container(), packer.container("quiet"), packer.container("somebody-elses")):
        assert packer.adjust(container, a_record(), quiet) == ContainerAdjustment()
    assert not (packer.state_dir / "workload").exists()


def test_the_files_are_of_all_devices_of_the_pod_and_lie_with_one_of_its_claims(packer: Packer) -> None:
    other = next(device for device in MACHINE.values() if device.rdma_device == "mlx5_3")
    records = (a_record("z"), a_record("b", BOTH, other), a_record("c", WorkloadSettings(BOTH.nccl)))
    (mount,) = packer.adjust(packer.container("z", "c"), *records).mounts
    assert mount.source == str(packer.state_dir / "workload/c/main")
    assert "NCCL_IB_HCA==mlx5_0,mlx5_3\n" in packer.read("nccl.conf", "c")


def test_a_nic_that_asks_for_nothing_is_in_no_list_and_brings_no_memory(packer: Packer) -> None:
    storage = next(d for d in MACHINE.values() if d.rdma_device and d.numa_node == 1)
    settings = WorkloadSettings(BOTH.nccl, ucx_net_devices=True, memory_policy="bind")
    quiet = a_record("storage", WorkloadSettings(), storage)
    given = packer.adjust(packer.container("claim", "storage"), a_record(settings=settings), quiet)
    conf = packer.read("nccl.conf")
    assert "NCCL_IB_HCA==mlx5_0\n" in conf
    assert (
        f"# Not for NCCL, as their parameters do not ask for this file:\n#   {storage.rdma_device} (net-s"
        in conf
    )
    assert ("UCX_NET_DEVICES", "mlx5_0:1") in given.env
    assert given.memory_nodes == "0"
    assert f'busid="{storage.pci_address}"' in packer.read("topology.xml"), "where it is NCCL may know"


def test_without_the_kind_of_the_processors_there_is_no_topology_and_the_file_says_why(
    tmp_path: Path,
) -> None:
    packer = Packer(tmp_path / "state")
    (tmp_path / "state").mkdir()
    (tmp_path / "state-proc/cpuinfo").write_text("processor\t: 0\n")
    packer.adjust(packer.container("claim"), a_record())
    assert "NCCL_TOPO_FILE=" not in packer.read("nccl.conf")
    assert "# No topology file: the node does not report the kind" in packer.read("nccl.conf")


def test_the_kind_of_the_processors_is_read_until_it_is_known(packer: Packer, tmp_path: Path) -> None:
    file = tmp_path.parent / f"{tmp_path.name}-proc/cpuinfo"
    file.unlink()
    packer.adjust(packer.container("claim"), a_record())
    assert "# No topology file: the node does not report" in packer.read("nccl.conf")
    file.write_text(CPUINFO)
    packer.adjust(packer.container("claim"), a_record())
    file.unlink()
    packer.adjust(packer.container("claim"), a_record())
    assert 'modelid="143"' in packer.read("topology.xml")


def test_a_pod_without_devices_on_pci_has_no_topology_and_the_file_says_why(packer: Packer) -> None:
    """It would tell nothing, and keep NCCL from the one that the machine may have."""
    packer.gpus = ()
    packer.adjust(packer.container("claim"), a_record(device=Device("veth", DeviceKind.NIC)))
    assert "NCCL_TOPO_FILE=" not in packer.read("nccl.conf")
    assert "# No topology file: no device of the pod is on PCI." in packer.read("nccl.conf")


def test_beside_amd_gpus_the_file_is_as_rccl_reads_it(packer: Packer) -> None:
    packer.facts = replace(FACTS, gpus=tuple(replace(gpu, vendor="amd") for gpu in FACTS.gpus))
    packer.adjust(packer.container("claim"), a_record())
    assert packer.read("topology.xml").startswith('<system version="2">')
    packer.gpus = ()
    packer.facts = replace(FACTS, gpus=(*FACTS.gpus, Gpu("0000:ff:00.0", "amd")))
    packer.adjust(packer.container("claim"), a_record())
    assert "# No topology file: NCCL and RCCL read different ones" in packer.read("nccl.conf")


def test_without_a_known_gpu_the_file_has_the_network_devices_alone(packer: Packer) -> None:
    packer.gpus = ()
    packer.adjust(packer.container("claim"), a_record())
    assert 'class="0x03' not in packer.read("topology.xml")
    assert 'busid="0000:18:00.0"' in packer.read("topology.xml")


def test_whoever_the_container_runs_as_may_read_its_files_and_nobody_else_finds_them(packer: Packer) -> None:
    packer.adjust(packer.container("claim"), a_record())
    folder = packer.state_dir / "workload" / "claim" / "main"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent.parent, folder.parent, folder)]
    assert modes == [0o700, 0o700, 0o755]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}
    assert {path.name for path in folder.iterdir()} == {"nccl.conf", "topology.xml"}


# --- what the container has set itself ------------------------------------------------------------------


def test_a_config_file_of_its_own_stays_and_ours_lies_beside_it(packer: Packer) -> None:
    container = packer.container("claim", NCCL_CONF_FILE="/etc/mine.conf", NCCL_TOPO_FILE="/etc/mine.xml")
    given = packer.adjust(container, a_record())
    assert given.env == ()
    assert [mount.destination for mount in given.mounts] == [FOLDER]
    assert "NCCL_TOPO_FILE=" not in packer.read("nccl.conf")
    assert "\n# NCCL does not read this file: the container has one of its own.\n" in packer.read("nccl.conf")


def with_mounts(container: Container, *destinations: str) -> Container:
    volumes = (Mount("/their/volume", destination) for destination in destinations)
    return replace(container, mounts=(*container.mounts, *volumes))


@pytest.mark.parametrize("place", [FOLDER + "/", "/run/dranet/nccl", "//run/./dranet/nccl"])
def test_a_mount_of_its_own_at_our_place_stays(packer: Packer, place: str) -> None:
    container = with_mounts(packer.container("claim"), place)
    ucx = replace(BOTH, ucx_net_devices=True)
    given = packer.adjust(container, a_record(settings=ucx))
    assert given == ContainerAdjustment(env=(("UCX_NET_DEVICES", "mlx5_0:1"),))
    assert not (packer.state_dir / "workload").exists()


@pytest.mark.parametrize(
    "place", ["/etc/nccl.conf", "/etc/rccl.conf", "/root/.nccl.conf", "/home/me/.rccl.conf"]
)
def test_a_config_file_that_is_mounted_wins_and_ours_lies_beside_it(packer: Packer, place: str) -> None:
    """With the variable set NCCL would not read the one in the home, and prefer ours to that in /etc."""
    container = with_mounts(packer.container("claim"), place)
    for settings in (BOTH, WorkloadSettings(NcclSettings(topology_file=True))):
        given = packer.adjust(container, a_record(settings=settings))
        assert given.env == ()
        assert [mount.destination for mount in given.mounts] == [FOLDER]
    packer.adjust(container, a_record())
    assert "# NCCL does not read this file" in packer.read("nccl.conf")
    elsewhere = with_mounts(packer.container("claim"), "/data/nccl.conf", "/etc/nccl.conf.d", "/etc")
    assert packer.adjust(elsewhere, a_record()).env == (("NCCL_CONF_FILE", f"{FOLDER}/nccl.conf"),)
    assert "# NCCL does not read this file" not in packer.read("nccl.conf")


@pytest.mark.parametrize("place", ["/etc/ucx/ucx.conf", "/root/ucx.conf"])
def test_a_config_file_of_ucx_that_is_mounted_wins(packer: Packer, place: str) -> None:
    settings = WorkloadSettings(ucx_net_devices=True, fork_safe=True)
    given = packer.adjust(with_mounts(packer.container("claim"), place), a_record(settings=settings))
    assert given.env == (("RDMAV_FORK_SAFE", "1"),)


@pytest.mark.parametrize(
    "place",
    [
        "/var/run/nvidia-topologyd/virtualTopology.xml",
        "/run/nvidia-topologyd/virtualTopology.xml",
        "/var/run/nvidia-topologyd",
    ],
)
def test_the_topology_that_a_cloud_gives_to_its_machines_wins(packer: Packer, place: str) -> None:
    packer.adjust(with_mounts(packer.container("claim"), place), a_record())
    conf = packer.read("nccl.conf")
    assert "NCCL_TOPO_FILE=" not in conf
    assert "# No topology file: the container has one mounted at /var/run/nvidia-topologyd/virt" in conf
    assert not (packer.state_dir / "workload/claim/main/topology.xml").exists()


@pytest.mark.parametrize("value", ["", "anything"])
def test_a_variable_that_is_there_stays_even_if_it_is_empty(packer: Packer, value: str) -> None:
    names = ("NCCL_CONF_FILE", "NCCL_TOPO_FILE", "NCCL_IB_HCA", "UCX_NET_DEVICES", "RDMAV_FORK_SAFE")
    settings = replace(BOTH, ucx_net_devices=True, fork_safe=True)
    given = packer.adjust(
        packer.container("claim", **dict.fromkeys(names, value)), a_record(settings=settings)
    )
    assert given.env == ()
    assert "NCCL_IB_HCA=" not in packer.read("nccl.conf")
    assert "NCCL_TOPO_FILE=" not in packer.read("nccl.conf")


def test_an_init_container_and_a_sidecar_have_files_of_their_own(packer: Packer) -> None:
    """Each with what its environment leaves open, for as long as the claim is there."""
    containers = [
        packer.container("claim", name="check", NCCL_IB_HCA="mlx5_9"),
        packer.container("claim", name="exporter", NCCL_TOPO_FILE="/mine.xml"),
        packer.container("claim", name="main"),
    ]
    mounts = [packer.adjust(container, a_record()).mounts[0] for container in containers]
    assert len({mount.source for mount in mounts}) == 3
    named = ("NCCL_IB_HCA=", "NCCL_TOPO_FILE=")
    found = [
        [f"\n{name}" in packer.read("nccl.conf", container=c.name) for name in named] for c in containers
    ]
    assert found == [[False, True], [True, False], [True, True]]
    packer.pack.remove("claim")
    assert not any(Path(mount.source).exists() for mount in mounts)


# --- two instances, and containers that come again --------------------------------------------------------


def test_the_second_instance_finds_the_work_done(packer: Packer) -> None:
    record = a_record(settings=WorkloadSettings(BOTH.nccl, True, True, True, "bind"))
    container = packer.container("claim")
    first = packer.adjust(container, record)
    files = {name: (packer.read(name), inode(packer, name)) for name in ("nccl.conf", "topology.xml")}
    second = Packer(packer.state_dir).adjust(shown(container, first), record)
    assert second == ContainerAdjustment()
    assert files == {name: (packer.read(name), inode(packer, name)) for name in files}, "not written again"


def inode(packer: Packer, name: str) -> int:
    return (packer.state_dir / "workload" / "claim" / "main" / name).stat().st_ino


def test_a_policy_of_memory_comes_once_though_the_runtime_does_not_show_it(packer: Packer) -> None:
    packer.is_new_runtime = True
    record = a_record(settings=WorkloadSettings(memory_policy="interleave"))
    first = packer.adjust(packer.container("claim"), record)
    assert first.memory_policy == MemoryPolicy("MPOL_INTERLEAVE", "0")
    assert packer.adjust(shown(packer.container("claim"), first), record) == ContainerAdjustment()


def test_a_file_that_somebody_removed_is_there_for_the_next_container(packer: Packer) -> None:
    packer.adjust(packer.container("claim"), a_record())
    (packer.state_dir / "workload/claim/main/nccl.conf").unlink()
    packer.adjust(packer.container("claim"), a_record())
    assert "NCCL_IB_HCA" in packer.read("nccl.conf")


def test_a_file_that_nobody_asks_for_any_more_goes(packer: Packer) -> None:
    packer.adjust(packer.container("claim"), a_record())
    packer.adjust(
        packer.container("claim"), a_record(settings=WorkloadSettings(NcclSettings(config_file=True)))
    )
    assert {path.name for path in (packer.state_dir / "workload/claim/main").iterdir()} == {"nccl.conf"}


# --- memory ---------------------------------------------------------------------------------------------


def test_memory_is_bound_to_the_nodes_of_the_devices_unless_the_kubelet_has_said_where(
    packer: Packer,
) -> None:
    record = a_record(settings=WorkloadSettings(memory_policy="bind"))
    packer.gpus = (GPUS[0], GPUS[-1])
    assert packer.adjust(packer.container("claim"), record) == ContainerAdjustment(memory_nodes="0,1")
    pinned = replace(packer.container("claim"), memory_nodes="1")
    assert packer.adjust(pinned, record) == ContainerAdjustment()


def test_a_node_whose_slots_are_empty_gives_no_memory(tmp_path: Path) -> None:
    here = tmp_path / "sys/devices/system/node"
    here.mkdir(parents=True)
    packer = Packer(tmp_path, tmp_path / "sys")
    packer.gpus = (GPUS[0], GPUS[-1])
    record = a_record(settings=WorkloadSettings(memory_policy="bind"))
    (here / "has_memory").write_text("1\n")
    assert packer.adjust(packer.container("claim"), record).memory_nodes == "1"
    (here / "has_memory").write_text("2-3\n")
    with pytest.raises(ClaimError, match="NUMA nodes without memory: 0, 1"):
        packer.adjust(packer.container("claim"), record)


@pytest.mark.parametrize(
    ("policy", "mode"), [("preferred", "MPOL_PREFERRED_MANY"), ("interleave", "MPOL_INTERLEAVE")]
)
def test_a_policy_that_the_runtime_may_not_know_is_refused(packer: Packer, policy: str, mode: str) -> None:
    record = a_record(settings=WorkloadSettings(memory_policy=policy))
    with pytest.raises(ClaimError, match=r"needs a runtime with NRI 0\.12") as caught:
        packer.adjust(packer.container("claim"), record)
    assert caught.value.reason is Reason.MISSING_FEATURE
    packer.is_new_runtime = True
    given = packer.adjust(packer.container("claim"), record)
    assert given.memory_policy == MemoryPolicy(mode, "0")
    assert given.env == (("DRANET_MEMORY_POLICY", f"{policy}:0"),)


# --- GIDs -----------------------------------------------------------------------------------------------


def test_the_gid_index_is_read_from_the_table_of_the_device(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for folder in ("gids", "gid_attrs/types"):
        (port / folder).mkdir(parents=True)
    for index, (gid, kind) in enumerate(
        (
            ("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2"),
            ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
            ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        )
    ):
        (port / "gids" / str(index)).write_text(f"{gid}\n")
        (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
    packer = Packer(tmp_path / "state", tmp_path / "sys")
    settings = WorkloadSettings(NcclSettings(config_file=True, gid_index=AUTO))
    (tmp_path / "state").mkdir()
    packer.adjust(packer.container("claim"), a_record(settings=settings))
    assert "NCCL_IB_GID_INDEX=3\n" in packer.read("nccl.conf")


# --- the pod's routes -----------------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("routes", "ifname"),
    [
        ("", ""),
        ("route add 10.9.0.0/16 dev eth0\n", ""),
        ("route add default via 10.1.0.1 dev eth0\n", "eth0"),
        (
            "route add default via 10.1.0.1 dev eth0 metric 9\nroute add default via 10.2.0.1 dev eth1\n",
            "eth1",
        ),
        ("route add default via fd01::9 dev eth1\n", "eth1"),
        (
            "route add default via fd01::9 dev eth1\nroute add default via 10.1.0.1 dev eth0 metric 4096\n",
            "eth0",
        ),
        ("route add default nexthop via 10.2.0.1 nexthop via 10.1.0.1\n", "eth0"),
        ("route add unreachable default\n", ""),
    ],
)
def test_the_interface_of_nccls_sockets_is_that_of_the_pods_default_route(
    packer: Packer, make_namespace: Callable[[], Namespace], routes: str, ifname: str
) -> None:
    pod = make_namespace()
    pod.ip_lines(
        "link add eth0 type veth peer name far0\nlink add eth1 type veth peer name far1\n"
        "link set far0 up\nlink set far1 up\nlink set eth0 up\nlink set eth1 up\n"
        "addr add 10.1.0.2/24 dev eth0\naddr add 10.2.0.2/24 dev eth1\naddr add fd01::2/64 dev eth1 nodad\n"
        + routes
    )
    settings = WorkloadSettings(NcclSettings(config_file=True))
    there = replace(POD, netns_path=str(pod.path))
    packer.pack.adjust(there, packer.container("claim"), [a_record(settings=settings)])
    wanted = f"NCCL_SOCKET_IFNAME=={ifname}\n" if ifname else "(NCCL_SOCKET_IFNAME): no default route"
    assert wanted in packer.read("nccl.conf")


def test_a_pod_whose_namespace_is_gone_leaves_the_interface_to_nccl(packer: Packer) -> None:
    settings = WorkloadSettings(NcclSettings(config_file=True))
    packer.adjust(packer.container("claim"), a_record(settings=settings))
    assert "NCCL_SOCKET_IFNAME=" not in packer.read("nccl.conf")


# --- what goes wrong ------------------------------------------------------------------------------------


def test_before_the_first_scan_a_container_has_to_wait(packer: Packer) -> None:
    packer.facts = NodeFacts()
    with pytest.raises(DeviceError, match="have not been read yet") as caught:
        packer.adjust(packer.container("claim"), a_record())
    assert caught.value.retryable


def test_a_file_that_cannot_be_written_is_an_error_and_what_lies_there_stays(packer: Packer) -> None:
    (packer.state_dir / "workload").write_text("mine")
    with pytest.raises(StoreError, match="files for containers") as caught:
        packer.adjust(packer.container("claim"), a_record())
    assert caught.value.retryable
    assert (packer.state_dir / "workload").read_text() == "mine"


@pytest.mark.parametrize("name", ["..", "a/b", ""])
def test_a_name_that_is_no_folder_never_becomes_one(packer: Packer, name: str) -> None:
    with pytest.raises(ProtocolError, match="cannot be part of a path"):
        packer.adjust(packer.container("claim", name=name), a_record())


def test_a_link_in_the_way_is_not_followed(packer: Packer, tmp_path: Path) -> None:
    packer.adjust(packer.container("claim"), a_record())
    target = tmp_path / "target"
    target.write_text("theirs")
    path = packer.state_dir / "workload/claim/main/nccl.conf"
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(DranetError, match="a symbolic link"):
        packer.adjust(packer.container("claim"), a_record())
    assert target.read_text() == "theirs"


# --- the end --------------------------------------------------------------------------------------------


def test_the_files_go_with_the_claim_and_only_they(packer: Packer) -> None:
    for uid in ("claim", "other"):
        packer.adjust(packer.container(uid), a_record(uid))
    assert packer.pack.list_claims() == {"claim", "other"}
    for left in (".lock", ".main.new"):  # the second is what a kill leaves of a file that was being written
        (packer.state_dir / "workload/claim" / left).touch()
    packer.pack.remove("claim")
    packer.pack.remove("claim")
    assert packer.pack.list_claims() == {"other"}


def test_files_that_cannot_be_removed_hold_up_no_pods_end(
    packer: Packer, caplog: pytest.LogCaptureFixture
) -> None:
    packer.adjust(packer.container("claim"), a_record())
    (packer.state_dir / "workload/claim/main/more").mkdir()
    packer.pack.remove("claim")
    assert "left behind" in caplog.text


# --- in the hook ----------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_a_container_whose_files_cannot_be_written_does_not_start_and_the_next_try_does(
    start: Callable[..., Bench], tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    bench = start()
    record = bench.prepare("eth1", "net1")
    asking = replace(record, devices=(replace(record.devices[0], workload=BOTH),))
    bench.store.put(asking)
    assert bench.run_sandbox(sandbox(pod))
    container = Container("c", "main", "sandbox-1", mounts=(bench.gate.mount_for("claim-uid"),))

    def create() -> ContainerAdjustment:
        return node.run(lambda: bench.hooks.create_container(sandbox(pod), container))

    (tmp_path / "workload").write_text("mine")
    with pytest.raises(StoreError, match="files for containers"):
        create()
    ((name, error),) = bench.told.refusals
    assert (name, error.reason) == ("pod", Reason.STORE_UNWRITABLE)
    assert bench.attachments.is_attached(asking, "sandbox-1"), "its NIC stays"
    (tmp_path / "workload").unlink()
    assert [mount.destination for mount in create().mounts] == [FOLDER]
    bench.files.sweep_leftovers()
    assert (tmp_path / "workload/claim-uid/main/nccl.conf").exists(), "of a record, so no leftover"
    bench.stop_sandbox(sandbox(pod))
    bench.store.delete("claim-uid")
    bench.files.sweep_leftovers()
    assert list((tmp_path / "workload").iterdir()) == []
