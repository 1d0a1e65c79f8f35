"""What several devices of a pod ask for its containers, as one; what a container has set itself stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.claims.config import merge
from dranet.claims.plan.device import plan_device, plan_workload
from dranet.claims.workload import PodNic, build_environment, list_memory_nodes, merge_settings
from dranet.errors import ClaimError, Reason
from dranet.model.claim import AUTO, NO_WORKLOAD_SETTINGS, ClaimRef, NcclSettings, PodRef, WorkloadSettings
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice

RDMA = Device("ib0", DeviceKind.RDMA, rdma_device="mlx5_0", numa_node=0)
NICS = [
    PodNic(Device("a", DeviceKind.NIC, numa_node=1), "net1", "mlx5_1"),
    PodNic(Device("b", DeviceKind.NIC, numa_node=0), "net2", "mlx4_0", ports=(1, 2)),
    PodNic(Device("c", DeviceKind.NIC), "net3"),
]
FILES = ("nccl.conf", "topology.xml")
EVERYTHING = WorkloadSettings(NcclSettings(True, True), True, True, True, "bind")


def config(**parameters: object) -> NetworkConfig:
    return NetworkConfig.model_validate(parameters)


def record(*settings: WorkloadSettings) -> PreparedClaim:
    devices = tuple(
        PreparedDevice("nic", "node", RDMA, plan=AttachPlan("ib0"), workload=one) for one in settings
    )
    return PreparedClaim(ClaimRef("train", "c", "uid"), PodRef("train", "pod", "pod"), devices, "boot")


# --- from the parameters --------------------------------------------------------------------------------


def test_nothing_is_asked_where_nothing_is_said() -> None:
    assert plan_workload(config()) == NO_WORKLOAD_SETTINGS
    assert plan_workload(config(nccl={"topologyFile": False, "configFile": False})) == NO_WORKLOAD_SETTINGS


def test_every_parameter_is_a_wish() -> None:
    nccl = {
        "topologyFile": True,
        "configFile": True,
        "gidIndex": 3,
        "crossNic": "auto",
        "socketInterface": "eth0",
    }
    asked = config(
        nccl=nccl,
        ucx={"netDevices": True},
        rdma={"forkSafe": True, "hugePagesSafe": True},
        memory={"policy": "interleave"},
    )
    assert plan_workload(asked) == WorkloadSettings(
        NcclSettings(True, True, 3, AUTO, "eth0"), True, True, True, "interleave"
    )


def test_the_interface_of_the_default_route_is_no_wish_that_another_device_could_be_at_odds_with() -> None:
    plans = [
        plan_workload(config(nccl={"configFile": True, **more})) for more in ({}, {"socketInterface": "auto"})
    ]
    assert plans == [WorkloadSettings(NcclSettings(config_file=True))] * 2


def test_a_claim_turns_off_the_file_of_its_class_with_all_its_lines() -> None:
    of_class = {"nccl": {"topologyFile": True, "configFile": True, "gidIndex": 3, "socketInterface": "eth0"}}
    merged = merge(of_class, {"nccl": {"configFile": False}})
    assert plan_workload(config(**merged)) == WorkloadSettings(NcclSettings(topology_file=True))


def test_an_rdma_device_without_a_link_takes_all_of_it() -> None:
    asked = config(nccl={"configFile": True}, ucx={"netDevices": True}, memory={"policy": "bind"})
    assert plan_device(RDMA, None, asked, rdma_exclusive=False).steps == ()


def test_memory_near_a_device_of_which_nobody_knows_where_it_is_cannot_be_had() -> None:
    with pytest.raises(
        ClaimError, match=r"memory\.policy: the node does not report on which NUMA node"
    ) as caught:
        plan_device(
            replace(RDMA, numa_node=None), None, config(memory={"policy": "bind"}), rdma_exclusive=False
        )
    assert caught.value.reason is Reason.INVALID_CONFIG


def test_what_libibverbs_is_told_needs_a_device_with_rdma() -> None:
    plain = replace(RDMA, rdma_device="")
    with pytest.raises(ClaimError, match=r"rdma\.forkSafe: the device has no RDMA; rdma\.hugePagesSafe"):
        plan_device(plain, None, config(rdma={"forkSafe": True, "hugePagesSafe": True}), rdma_exclusive=False)


# --- several devices ------------------------------------------------------------------------------------


def test_what_one_device_asks_for_the_container_gets() -> None:
    merged = merge_settings(
        [
            record(WorkloadSettings(NcclSettings(topology_file=True)), NO_WORKLOAD_SETTINGS),
            record(WorkloadSettings(NcclSettings(config_file=True, gid_index=AUTO), memory_policy="bind")),
            record(WorkloadSettings(NcclSettings(config_file=True, gid_index=AUTO), fork_safe=True)),
        ]
    )
    nccl = NcclSettings(True, True, AUTO)
    assert merged == WorkloadSettings(nccl, fork_safe=True, memory_policy="bind")
    assert merge_settings([]) == merge_settings([record(NO_WORKLOAD_SETTINGS)]) == NO_WORKLOAD_SETTINGS


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (NcclSettings(gid_index=AUTO), NcclSettings(gid_index=0), "nccl.gidIndex: .* ask for auto and 0"),
        (NcclSettings(cross_nic=0), NcclSettings(cross_nic=2), "nccl.crossNic: .* ask for 0 and 2"),
        (
            NcclSettings(socket_interface="a"),
            NcclSettings(socket_interface="b"),
            "nccl.socketInterface: .* a and b",
        ),
    ],
)
def test_two_devices_that_ask_for_different_things_of_which_there_is_one_are_refused(
    one: NcclSettings, other: NcclSettings, text: str
) -> None:
    with pytest.raises(ClaimError, match=text):
        merge_settings([record(WorkloadSettings(one)), record(WorkloadSettings(other))])


def test_two_policies_of_memory_are_refused() -> None:
    with pytest.raises(ClaimError, match=r"memory\.policy: .* ask for bind and interleave"):
        merge_settings(
            [record(WorkloadSettings(memory_policy="bind"), WorkloadSettings(memory_policy="interleave"))]
        )


# --- variables ------------------------------------------------------------------------------------------


def test_variables_name_the_pods_devices_in_the_order_of_its_gpus() -> None:
    assert dict(build_environment(EVERYTHING, NICS, FILES, ())) == {
        "NCCL_CONF_FILE": "/var/run/dranet/nccl/nccl.conf",
        "UCX_NET_DEVICES": "mlx5_1:1,mlx4_0:1,mlx4_0:2,net3",
        "RDMAV_FORK_SAFE": "1",
        "RDMAV_HUGEPAGES_SAFE": "1",
    }


def test_a_topology_alone_is_named_by_a_variable() -> None:
    topology = WorkloadSettings(NcclSettings(topology_file=True))
    named = (("NCCL_TOPO_FILE", "/var/run/dranet/nccl/topology.xml"),)
    assert build_environment(topology, NICS, ("topology.xml",), ()) == named
    assert build_environment(topology, NICS, ("topology.xml",), ("NCCL_CONF_FILE",)) == (), (
        "a file of the container's own may name one, over which a variable would win"
    )


NAMES = ("NCCL_CONF_FILE", "NCCL_TOPO_FILE", "UCX_NET_DEVICES", "RDMAV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE")


@given(st.sets(st.sampled_from((*NAMES, "PATH", "IBV_FORK_SAFE"))), st.booleans())
def test_what_the_container_has_is_never_set(given_: set[str], has_config: bool) -> None:
    files = FILES if has_config else FILES[1:]
    names = [name for name, _ in build_environment(EVERYTHING, NICS, files, given_)]
    assert not set(names) & given_
    assert len(names) == len(set(names))
    assert ("RDMAV_FORK_SAFE" in names) == given_.isdisjoint({"RDMAV_FORK_SAFE", "IBV_FORK_SAFE"})
    assert ("UCX_NET_DEVICES" in names) == ("UCX_NET_DEVICES" not in given_)


def test_a_name_that_no_list_can_have_goes_by_its_interface() -> None:
    odd = [PodNic(Device("a", DeviceKind.NIC), "net1", "mlx5,0")]
    assert dict(build_environment(EVERYTHING, odd, (), ()))["UCX_NET_DEVICES"] == "net1"
    odder = [*odd, PodNic(Device("b", DeviceKind.NIC), "a,b:1"), PodNic(Device("c", DeviceKind.RDMA))]
    assert dict(build_environment(EVERYTHING, odder, (), ()))["UCX_NET_DEVICES"] == "net1"


def test_memory_comes_from_the_nodes_of_all_devices_of_the_pod() -> None:
    gpu = Device("gpu", DeviceKind.GPU, numa_node=3)
    assert list_memory_nodes(NICS, [gpu], None) == (0, 1, 3)
    assert list_memory_nodes([NICS[2]], (), None) == list_memory_nodes([NICS[2]], (), {0}) == ()


def test_a_node_without_memory_gives_none() -> None:
    assert list_memory_nodes(NICS, (), {1, 2}) == (1,)
    with pytest.raises(ClaimError, match=r"memory\.policy: .* NUMA nodes without memory: 0, 1") as caught:
        list_memory_nodes(NICS, (), {2})
    assert caught.value.reason is Reason.MISSING_FEATURE
