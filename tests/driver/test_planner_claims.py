"""From a claim as the API server has it to the record: each shape that schedulers make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.cluster.claims import parse_claim
from dranet.errors import DranetError, ProtocolError, Reason
from dranet.model.claim import AUTO, ClaimRef, NcclSettings, PodRef, WorkloadSettings
from dranet.model.plan import AddRoute, MoveLink, PreparedClaim
from tests.driver.test_planner import Bench

Json = dict[str, Any]

OURS, OTHERS = "dra.net", "gpu.example.com"
POD = {"resource": "pods", "name": "pod", "uid": "pod-uid"}
SECOND = {"resource": "pods", "name": "second", "uid": "uid-2"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


def result(device: str, request: str = "nic", driver: str = OURS, **fields: Any) -> Json:
    return {"request": request, "driver": driver, "pool": "node", "device": device, **fields}


def config(source: str, *requests: str, driver: str = OURS, **parameters: Any) -> Json:
    entry: Json = {"source": source, "opaque": {"driver": driver, "parameters": parameters}}
    return {**entry, "requests": list(requests)} if requests else entry


def claim(
    *results: Json,
    configs: Sequence[Json] = (),
    requests: Sequence[Json] = (),
    pods: Sequence[Json] = (POD,),
    uid: str = "uid",
    **metadata: Any,
) -> Json:
    """As a GET answers it."""
    name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team", "uid": uid, **metadata},
        "spec": {"devices": {"requests": list(requests)}},
        "status": {
            "allocation": {
                "allocationTimestamp": "2026-05-01T12:00:00Z",
                "devices": {"results": list(results), "config": list(configs)},
                "nodeSelector": {"nodeSelectorTerms": [name]},
            },
            "reservedFor": list(pods),
        },
    }


def plan(bench: Bench, body: Json) -> PreparedClaim:
    return bench.plan(parse_claim(body))


def refusal(bench: Bench, body: Json) -> DranetError:
    with pytest.raises(DranetError) as caught:
        plan(bench, body)
    return caught.value


def moved_as(record: PreparedClaim) -> dict[str, str]:
    """Device -> its name in the pod."""
    moves = [(p.device, step) for p in record.plans for step in p.steps if isinstance(step, MoveLink)]
    return {device: step.pod_ifname for device, step in moves}


# --- what schedulers make ------------------------------------------------------------------------------


def test_a_claim_for_an_extended_resource_has_the_config_of_its_class_and_needs_nothing_else(
    bench: Bench,
) -> None:
    """KEP-5004: the scheduler makes it from ``resources.limits``, so there is no claim config."""
    body = claim(
        result("rail-0", "container-0-request-0"),
        configs=[config("FromClass", "container-0-request-0", interface={"name": "net1", "mtu": 9000})],
        requests=[{"name": "container-0-request-0", "exactly": {"deviceClassName": "rail", "count": 1}}],
        name="pod-extended-resources-x7k2p",
        annotations={"resource.kubernetes.io/extended-resource-claim": "true"},
    )
    record = plan(bench, body)

    assert record.claim == ClaimRef("team", "pod-extended-resources-x7k2p", "uid")
    assert record.pod == PodRef("team", "pod", "pod-uid")
    (device,) = record.devices
    assert (device.request, device.pool) == ("container-0-request-0", "node")
    assert moved_as(record) == {"rail-0": "net1"}


def test_the_alternative_that_won_has_its_own_configs_and_those_of_its_request(bench: Bench) -> None:
    """KEP-4816: the kubelet wants the main request back."""
    alternatives = [{"name": name, "deviceClassName": name} for name in ("fast", "slow")]
    body = claim(
        result("eth-1", "nic/slow"),
        configs=[
            config("FromClass", "nic/slow", interface={"mtu": 1400}),
            config("FromClaim", "nic", interface={"name": "net1"}),
            config("FromClaim", "nic/slow", routes=[{"destination": "10.1.0.0/16", "scope": 253}]),
            config("FromClaim", "nic/fast", interface={"name": "never"}),
        ],
        requests=[{"name": "nic", "firstAvailable": alternatives}],
    )
    record = plan(bench, body)

    (device,) = record.devices
    assert device.request == "nic"
    assert device.plan is not None
    assert device.plan.steps[0] == MoveLink("net1", mtu=1400)
    assert [s.route.destination for s in device.plan.steps if isinstance(s, AddRoute)] == ["10.1.0.0/16"]


def test_devices_and_configs_of_other_drivers_are_theirs(bench: Bench) -> None:
    body = claim(
        result("gpu-7", "gpu", OTHERS),
        result("eth-1", "nic"),
        configs=[
            config("FromClass", "gpu", driver=OTHERS, sharing={"strategy": "MPS"}),
            config("FromClaim", driver=OTHERS, anything=["goes"]),
            {"source": "FromClaim", "somethingNewer": {"driver": OURS}},
        ],
    )
    assert [device.device.name for device in plan(bench, body).devices] == ["eth-1"]


def test_devices_of_other_drivers_are_recorded_because_they_may_be_the_pods_gpus(bench: Bench) -> None:
    record = plan(bench, claim(result("eth-1"), result("gpu-0", "gpu", OTHERS, adminAccess=True)))
    ((request, driver, device, admin),) = [
        (other.request, other.driver, other.device, other.admin_access) for other in record.others
    ]
    assert (request, driver, device, admin) == ("gpu", OTHERS, "gpu-0", True)


def test_several_devices_of_one_request_are_all_prepared(bench: Bench) -> None:
    body = claim(
        result("rail-0"), result("eth-1"), configs=[config("FromClaim", "nic", interface={"mtu": 1400})]
    )
    record = plan(bench, body)
    assert [device.request for device in record.devices] == ["nic", "nic"]
    assert moved_as(record) == {"rail-0": "rail0", "eth-1": "eth1"}


@pytest.mark.parametrize("requests", [(), ("nic", "gpu")], ids=["emptied by the scheduler", "as written"])
def test_a_config_for_a_nic_and_a_gpu_is_the_nics_whatever_the_scheduler_made_of_its_requests(
    bench: Bench, requests: tuple[str, ...]
) -> None:
    both = [result("eth-1", "nic"), result("gpu-0", "gpu")]
    record = plan(bench, claim(*both, configs=[config("FromClaim", *requests, interface={"name": "net1"})]))
    assert moved_as(record) == {"eth-1": "net1"}


@pytest.mark.parametrize("requests", [(), ("gpu",)], ids=["emptied by the scheduler", "as written"])
def test_a_config_for_gpus_alone_is_refused_whatever_the_scheduler_made_of_its_requests(
    bench: Bench, requests: tuple[str, ...]
) -> None:
    asked = config("FromClaim", *requests, interface={"mtu": 9000})
    error = refusal(bench, claim(result("gpu-0", "gpu"), configs=[asked]))
    assert error.reason is Reason.UNSUPPORTED_CLAIM
    assert "gpu-0 is a GPU" in error.message


def test_what_a_class_says_of_its_network_devices_is_no_matter_of_a_gpu(bench: Bench) -> None:
    asked = config("FromClass", "gpu", interface={"mtu": 9000})
    assert plan(bench, claim(result("gpu-0", "gpu"), configs=[asked])).plans == ()


def test_a_config_of_unknown_origin_is_refused(bench: Bench) -> None:
    with pytest.raises(ProtocolError, match="FromNamespace"):
        plan(bench, claim(result("eth-1"), configs=[config("FromNamespace", "nic")]))


def test_a_device_that_is_gone_is_named(bench: Bench) -> None:
    error = refusal(bench, claim(result("unplugged")))
    assert error.reason is Reason.DEVICE_NOT_FOUND
    assert "unplugged" in error.message


def test_a_pool_that_is_published_no_more_is_answered_from_the_hardware(bench: Bench) -> None:
    body = claim({**result("eth-1"), "pool": "node-before-it-was-renamed"})
    (device,) = plan(bench, body).devices
    assert device.pool == "node-before-it-was-renamed", "the kubelet compares it with the allocation"


# --- who uses it ---------------------------------------------------------------------------------------


def test_one_nic_for_two_pods_is_refused_before_anything_is_read(bench: Bench) -> None:
    error = refusal(bench, claim(result("eth-1"), pods=[POD, SECOND]))
    assert error.reason is Reason.UNSUPPORTED_CLAIM
    assert "pod, second" in error.message
    assert bench.node.asked == []
    assert bench.store.get_all() == ()


@pytest.mark.parametrize(
    "shared", [result("gpu-0"), result("eth-1", adminAccess=True)], ids=["GPU", "admin access"]
)
def test_what_moves_nothing_may_have_several_pods(bench: Bench, shared: Json) -> None:
    record = plan(bench, claim(shared, pods=[POD, SECOND]))
    assert record.plans == ()
    assert record.pod.name == "pod"


def test_an_rdma_device_is_one_pods_also_where_it_has_no_interface(bench: Bench) -> None:
    """Its nodes go to the containers of the pod that the record names."""
    assert refusal(bench, claim(result("hca-0"), pods=[POD, SECOND])).reason is Reason.UNSUPPORTED_CLAIM


def test_a_nic_beside_a_gpu_makes_the_claim_one_pods(bench: Bench) -> None:
    both = [result("gpu-0", "gpu"), result("eth-1")]
    assert refusal(bench, claim(*both, pods=[POD, SECOND])).reason is Reason.UNSUPPORTED_CLAIM


# --- double allocation ---------------------------------------------------------------------------------


def test_a_device_that_the_allocation_has_twice_is_refused(bench: Bench) -> None:
    links = [config("FromClaim", f"nic{n}", interface={"type": "macvlan", "name": f"net{n}"}) for n in (1, 2)]
    one, two = (result("eth-1", f"nic{n}", shareID="s-1") for n in (1, 2))
    assert refusal(bench, claim(one, two, configs=links)).reason is Reason.DEVICE_BUSY
    other = {**two, "shareID": "s-2"}
    assert len(plan(bench, claim(one, other, configs=links)).plans) == 2


def test_what_is_held_for_another_claim_is_refused_with_its_pod_and_may_be_watched(bench: Bench) -> None:
    """Whichever instance of the driver prepared it: the store is one."""
    held = plan(bench, claim(result("eth-1"), uid="first"))
    bench.store.put(replace(held, sandbox_id="s", netns_path="/proc/1/ns/net"))

    error = refusal(bench, claim(result("eth-1"), uid="second", pods=[SECOND]))
    assert error.reason is Reason.DEVICE_BUSY
    assert "claim team/c (pod team/pod)" in error.message
    assert plan(bench, claim(result("eth-1", adminAccess=True), uid="third", pods=[SECOND])).plans == ()


def test_who_only_watches_holds_nothing(bench: Bench) -> None:
    plan(bench, claim(result("eth-1", adminAccess=True), uid="watcher"))
    assert plan(bench, claim(result("eth-1"), uid="user")).plans


def test_a_record_of_an_earlier_boot_holds_nothing(bench: Bench) -> None:
    held = plan(bench, claim(result("eth-1"), uid="first"))
    bench.store.put(replace(held, boot_id="earlier"))
    assert plan(bench, claim(result("eth-1"), uid="second", pods=[SECOND])).plans


# --- what is for the programs in the containers ---------------------------------------------------------


def test_what_class_and_claim_ask_for_the_containers_is_in_the_record(bench: Bench) -> None:
    body = claim(
        result("eth-1"),
        configs=[
            config("FromClass", nccl={"configFile": True, "gidIndex": 3}),
            config("FromClaim", nccl={"gidIndex": "auto", "topologyFile": True}, ucx={"netDevices": True}),
        ],
    )
    (device,) = plan(bench, body).devices
    nccl = NcclSettings(topology_file=True, config_file=True, gid_index=AUTO)
    assert device.workload == WorkloadSettings(nccl, ucx_net_devices=True)
    (kept,) = bench.store.get_by_pod("pod-uid")
    assert kept.devices[0].workload == device.workload


@pytest.mark.parametrize("source", ["FromClass", "FromClaim"])
def test_a_class_alone_may_ask_and_so_may_a_claim(bench: Bench, source: str) -> None:
    asked = config(source, nccl={"topologyFile": True}, ucx={"netDevices": True})
    (device,) = plan(bench, claim(result("eth-1"), configs=[asked])).devices
    assert device.workload == WorkloadSettings(NcclSettings(topology_file=True), ucx_net_devices=True)


def test_claims_of_one_pod_that_ask_for_different_things_of_which_there_is_one_are_refused(
    bench: Bench,
) -> None:
    plan(
        bench, claim(result("eth-1"), configs=[config("FromClaim", nccl={"configFile": True, "gidIndex": 3})])
    )
    other = config("FromClaim", nccl={"configFile": True, "gidIndex": "auto"}, interface={"name": "net2"})
    error = refusal(bench, claim(result("rail-0"), configs=[other], uid="uid-2"))
    assert "nccl.gidIndex: devices of the pod ask for auto and 3" in error.message
    assert error.reason is Reason.INVALID_CONFIG


def test_a_class_may_keep_the_settings_for_containers_to_itself(bench: Bench) -> None:
    locked = config("FromClass", policy={"lock": ["nccl", "memory"]}, nccl={"configFile": True})
    asked = config("FromClaim", nccl={"crossNic": 2}, memory={"policy": "bind"})
    text = refusal(bench, claim(result("eth-1"), configs=[locked, asked])).message
    assert "nccl.crossNic: must not be set by a claim: the DeviceClass locks nccl" in text
    assert "memory.policy: must not be set by a claim: the DeviceClass locks memory" in text
