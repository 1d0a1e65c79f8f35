"""A fleet's objects -> what each node has and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dranet.desk.fleet.nodes import FleetNode, Use
from dranet.desk.fleet.read import FleetObjects, read_fleet
from tests.desk.fabric.fabrics import cable, change, swap, unplug
from tests.desk.fabric.slices import make_slices
from tests.desk.fleet.objects import claim, device, driver_pod, event, node, resource_slice

JsonObject = dict[str, Any]
NIC, RAIL, GPU = device("nic-0"), device("nic-1"), device("gpu-0", "gpu")
HEALTHY = resource_slice("a", NIC, RAIL, GPU)
DOWN = {"key": "dra.net/link-down", "value": "link-down", "effect": "NoSchedule"}


def read(
    *,
    slices: Sequence[JsonObject] = (HEALTHY,),
    claims: Sequence[JsonObject] | None = (),
    nodes: Sequence[JsonObject] | None = (node("a"),),
    pods: Sequence[JsonObject] | None = (driver_pod("a"),),
    rules: Sequence[JsonObject] = (),
    events: Sequence[JsonObject] = (),
) -> FleetNode:
    """The only node."""
    (found,) = read_fleet(FleetObjects(slices, claims, nodes, pods, rules, events), "dra.net")
    return found


def problems(found: FleetNode) -> list[tuple[str, str, str]]:
    return [(str(one.severity), one.reason, one.text) for one in found.problems]


def test_a_healthy_node_has_its_numbers_and_no_problem() -> None:
    found = read(claims=[claim("train", "a", ["nic-1", "gpu-0"])])

    assert problems(found) == []
    assert (found.nics, found.gpus) == (Use(1, 2), Use(1, 1))
    assert found.claims == found.prepared_claims == found.attached_claims == {"team-a/train"}
    assert (found.version, found.misaligned_pods) == ("0.1.0", ())


def test_gpus_of_a_vendors_driver_count_and_devices_of_others_do_not() -> None:
    vendor = resource_slice("a", device("gpu-0"), device("gpu-1"), driver="gpu.nvidia.com")
    other = resource_slice("a", device("cpu-0"), driver="dra.cpu")

    found = read(slices=[HEALTHY, vendor, other])
    assert (found.nics, found.gpus) == (Use(0, 2), Use(0, 3))


def test_admin_access_takes_no_device() -> None:
    assert read(claims=[claim("look", "a", ["nic-0"], adminAccess=True)]).nics == Use(0, 2)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {"nodes": [node("a", "Unknown")]},
            ("problem", "NodeNotReady", "the node is not ready: KubeletNotReady"),
        ),
        ({"nodes": [node("a", unschedulable=True)]}, ("warning", "NodeCordoned", "the node is cordoned")),
        (
            {"nodes": [], "pods": []},
            ("problem", "NodeGone", "no such Node, but its ResourceSlices are still there"),
        ),
        (
            {"pods": []},
            (
                "problem",
                "DriverAbsent",
                "no pod of the driver runs here, and its ResourceSlices are stale",
            ),
        ),
        (
            {"pods": [driver_pod("a", ready=False, waiting={"reason": "CrashLoopBackOff"})]},
            (
                "problem",
                "DriverNotReady",
                "pod dranet-a of the driver is not ready: CrashLoopBackOff, 4 restarts",
            ),
        ),
        (
            {"slices": []},
            ("warning", "NothingOffered", "the driver runs and has published no ResourceSlice"),
        ),
        (
            {"slices": [resource_slice("a", NIC, slices=2)]},
            (
                "problem",
                "PoolIncomplete",
                "pool a has 1 of 2 ResourceSlices: none of its devices is allocated",
            ),
        ),
        (
            {"slices": [resource_slice("a", NIC, generation=2), resource_slice("a", NIC)]},
            ("warning", "SlicesStale", "pool a has 1 ResourceSlice of an earlier generation"),
        ),
        (
            {"slices": [resource_slice("a", device("nic-0", "device", DOWN), RAIL)]},
            (
                "problem",
                "DeviceTainted",
                "1 device with the taint dra.net/link-down=link-down:NoSchedule (nic-0)",
            ),
        ),
        (
            {"slices": [resource_slice("a", device("nic-0", "device", {**DOWN, "effect": "None"}), RAIL)]},
            ("warning", "DeviceTainted", "1 device with the taint dra.net/link-down=link-down:None (nic-0)"),
        ),
        (
            {
                "rules": [
                    {
                        "kind": "DeviceTaintRule",
                        "metadata": {"name": "x"},
                        "spec": {
                            "deviceSelector": {"driver": "dra.net", "device": "nic-1"},
                            "taint": {"key": "maintenance", "effect": "NoExecute"},
                        },
                    }
                ]
            },
            ("problem", "DeviceTainted", "1 device with the taint maintenance:NoExecute (nic-1)"),
        ),
        (
            {"claims": [claim("train", "a", ["nic-9"])]},
            ("problem", "DeviceGone", "claim team-a/train has nic-9, which the node no longer offers"),
        ),
        (
            {
                "claims": [
                    claim(
                        "train",
                        "a",
                        ["nic-0"],
                        {
                            "Attached": ("False", "DeviceBusy", "net1 is taken"),
                            "Ready": ("False", "DeviceBusy", "net1 is taken"),
                        },
                    )
                ]
            },
            (
                "problem",
                "ClaimFailed",
                "claim team-a/train: nic-0 Attached False (DeviceBusy): net1 is taken",
            ),
        ),
        (
            {
                "claims": [
                    claim(
                        "train",
                        "a",
                        ["nic-0"],
                        {
                            "Ready": ("False", "DeviceReleased", ""),
                            "Released": ("False", "HostStateNotRestored", "mtu"),
                        },
                    )
                ]
            },
            (
                "problem",
                "NotReleased",
                "claim team-a/train: nic-0 Released False (HostStateNotRestored): mtu",
            ),
        ),
        (
            {
                "claims": [
                    claim("train", "a", ["nic-0"], {"TopologyAligned": ("False", "Worse", "SYS to gpu-0")})
                ]
            },
            ("warning", "Misaligned", "pod team-a/train-pod is misaligned: nic-0 is SYS to gpu-0"),
        ),
        (
            {"events": [event("a", "DHCPFailed", "no answer"), event("a", "DHCPFailed", "again", count=3)]},
            (
                "warning",
                "WarningEvent",
                "Event DHCPFailed (4 times), last about pod team-a/train: again",
            ),
        ),
    ],
)
def test_a_problem_is_found_and_is_the_only_one(changes: Any, wanted: tuple[str, str, str]) -> None:
    assert problems(read(**changes)) == [wanted]


def test_bandwidth_adds_up_over_the_claims_of_shared_nics_and_of_functions() -> None:
    port = {**device("port"), "capacity": {"dra.net/bandwidth": {"value": "100G", "requestPolicy": {}}}}
    function = {**device("vf"), "capacity": {"dra.net/bandwidth": {"value": "25G"}}}
    claims = [
        claim("a", "n1", ["port"], consumedCapacity={"dra.net/bandwidth": "2500M"}),
        claim("b", "n1", ["port"], consumedCapacity={"dra.net/bandwidth": "1G"}),
        claim("c", "n1", ["vf", "plain"]),
    ]
    slices = [resource_slice("n1", port, function, device("plain"))]
    (seen,) = read_fleet(FleetObjects(slices, claims), "dra.net")
    assert seen.bandwidth == Use(28_500_000_000, 125_000_000_000)


def test_a_released_device_is_no_problem() -> None:
    released = {"Ready": ("False", "DeviceReleased", ""), "Attached": ("False", "DeviceReleased", "")}
    found = read(claims=[claim("train", "a", ["nic-0"], released)])
    assert problems(found) == []
    assert found.claims == {"team-a/train"}
    assert not found.attached_claims


def test_events_of_other_components_and_of_alignment_which_the_claim_shows_do_not_count() -> None:
    foreign = {**event("a", "FailedMount", "x"), "reportingComponent": "kubelet"}
    assert problems(read(events=[foreign, event("a", "MisalignedTopology", "x")])) == []


@pytest.mark.parametrize("kind", ["Pod", "ResourceClaim"])
def test_an_event_of_an_object_that_is_gone_is_not_of_the_next_one_of_its_name(kind: str) -> None:
    found = event("a", "RunsWithoutDevices", "x", kind)
    train = claim("train", "a", ["nic-0"])
    train["metadata"]["uid"] = "u"
    (user,) = train["status"]["reservedFor"]
    user["name"] = "train"
    assert len(problems(read(claims=[train], events=[found]))) == 1
    train["metadata"]["uid"] = user["uid"] = "another"
    assert problems(read(claims=[train], events=[found])) == []


def test_what_may_not_be_read_makes_no_problem() -> None:
    found = read(claims=None, nodes=None, pods=None)
    assert problems(found) == []
    assert found.pods is None


def test_an_update_shows_both_versions_and_an_ending_pod_does_not_count() -> None:
    new, old = driver_pod("a"), driver_pod("a", ready=False)
    new["metadata"] = {**new["metadata"], "labels": {**new["metadata"]["labels"]}}
    new["metadata"]["labels"]["app.kubernetes.io/version"] = "0.2.0"
    old["metadata"] = {**old["metadata"], "deletionTimestamp": "2026-11-27T10:00:00Z"}

    found = read(pods=[new, old])
    assert (found.version, problems(found)) == ("0.1.0, 0.2.0", [])


def test_an_update_that_does_not_come_up_is_a_warning_while_the_driver_before_it_runs() -> None:
    waiting = driver_pod("a", ready=False, waiting={"reason": "ErrImagePull"})
    text = "pod dranet-a of the driver is not ready: ErrImagePull, 4 restarts; the one before it still runs"
    assert problems(read(pods=[driver_pod("a"), waiting])) == [("warning", "DriverNotReady", text)]


def test_problems_come_first_then_warnings_and_names_in_order() -> None:
    nodes = [node(name, unschedulable=name == "c") for name in "abcd"]
    slices = [resource_slice(name, NIC) for name in "abcd"]
    pods = [driver_pod(name, ready=name != "d") for name in "abcd"]

    found = read_fleet(FleetObjects(slices, [], nodes, pods), "dra.net")
    assert [one.name for one in found] == ["d", "c", "a", "b"]


def test_a_node_without_the_driver_is_shown_and_is_no_problem() -> None:
    found = read(slices=[], pods=[])
    assert (found.name, problems(found), found.nics) == ("a", [], Use())


def test_a_wrong_cable_is_a_warning_of_its_node_and_a_missing_or_slow_one_is_left_to_the_fabric() -> None:
    cabling = cable(nodes=4)
    swap(cabling, ("gpu-2", 3), ("gpu-2", 5))
    unplug(cabling, ("gpu-1", 0))
    change(cabling, ("gpu-0", 6), speed_mbps=200_000)
    found = read_fleet(FleetObjects(make_slices(cabling.values())), "dra.net")

    text = (
        "the cables of eth3 (leaf-0-5 Ethernet1/3) and eth5 (leaf-0-3 Ethernet1/3) are swapped: exchange "
        "the two cables at the node, or at leaf-0-5 Ethernet1/3 and leaf-0-3 Ethernet1/3"
    )
    assert {one.name: one.miscabled for one in found if one.miscabled} == {"gpu-2": (text,)}
    assert [problem for problem in problems(found[0]) if problem[1] == "Miscabled"] == [
        ("warning", "Miscabled", text)
    ]
