"""``dranet explain``: what people and programs are told, without a cluster and with one."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.explain import make_cases, make_classes, make_nodes
from dranet.cli.main import main
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.desk.cli.objects import capture_slices
from dranet.desk.explain.explain import ClusterView, explain
from dranet.desk.explain.explanation import Conclusion, Explanation
from dranet.desk.explain.subject import claim_subject
from dranet.settings import Settings
from testbed.apiserver.server import ApiServer
from tests.support.processor_time import measure

Json = dict[str, Any]
FIELDS = (
    "name", "driver", "pool", "devices", "attributes", "capacity", "requests", "exactly", "firstAvailable",
    "selectors", "cel", "count", "constraints", "matchAttribute", "taints", "sharedCounters", "value",
    "consumesCounters", "nodeSelector", "status", "resourceClaims", "tolerations", "allocation",
)  # fmt: skip
DATA = Path(__file__).parents[2] / "data"
CLUSTER = DATA / "explain" / "cluster"
IN_USE = DATA / "explain" / "in-use.yaml"
DGX = DATA / "dgx-h100" / "capture.json"
TAINT_RULE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "maintenance"},
    "spec": {
        "deviceSelector": {"driver": "dra.net"},
        "taint": {"key": "example.com/service", "effect": "NoSchedule"},
    },
}
Explained = tuple[int, str]
Explain = Callable[..., Explained]


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Explain:
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: object) -> Explained:
        code = main(["explain", *map(str, arguments)])
        return code, capsys.readouterr().out

    return run


def unwrapped(out: str) -> str:
    """Wherever its lines end."""
    return " ".join(out.split())


def read_objects() -> list[Json]:
    """Those of the folder, to be changed."""
    return [body for file in sorted(CLUSTER.iterdir()) for body in yaml.safe_load_all(file.read_text())]


def write(folder: Path, objects: list[Json]) -> Path:
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    return folder / "objects.yaml"


def find(objects: list[Json], kind: str, name: str) -> Json:
    return next(b for b in objects if (b["kind"], b["metadata"]["name"]) == (kind, name))


CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: train}
spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: dranet-rdma}}]}}
"""


def test_the_charts_classes_are_assumed_next_to_one_of_a_file(explained: Explain, tmp_path: Path) -> None:
    mine = "---\napiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: mine}\nspec: {}\n"
    (tmp_path / "a.yaml").write_text(CLAIM + mine)
    code, out = explained("claim/train", "-f", tmp_path / "a.yaml", "--capture", DGX)
    assert code == 0
    assert "DeviceClasses not given (-f FILE): dranet-rdma assumed" in unwrapped(out)


@pytest.mark.parametrize("words", [["claim/train"], ["claim", "train"]])
def test_what_is_to_be_explained_may_come_after_the_files(
    words: list[str], explained: Explain, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(CLAIM)
    files, captures = ("-f", tmp_path / "a.yaml"), ("--capture", DGX)
    usual = explained(*words, *files, *captures)
    assert usual[0] == 0
    assert explained(*captures, *files, *words) == explained(*files, *captures, *words) == usual


def test_what_cannot_be_read_is_passed_over_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(CLAIM)
    (tmp_path / "beta.yaml").write_text(CLAIM.replace("/v1", "/v1beta1").replace("train", "old"))
    (tmp_path / "values.yaml").write_text("image: x\n")
    assert main(["explain", "claim/train", "-f", str(tmp_path), "--capture", str(DGX)]) == 0
    _, notes = capsys.readouterr()
    assert "beta.yaml, document 1: ResourceClaim: resource.k8s.io/v1beta1 is not read" in notes
    assert "values.yaml, document 1: apiVersion is missing" in notes
    assert notes.count("note: not read: ") == 2
    assert main(["explain", "claim/old", "-f", str(tmp_path / "beta.yaml")]) == 2


def test_a_pair_under_one_root_is_found_and_the_exit_code_is_zero(explained: Explain) -> None:
    code, out = explained("claim", "pair", "-f", CLUSTER, "--facts", DGX, DGX)

    assert code == 0
    assert "it can be allocated on 2 of 2 nodes" in out
    assert "2 nodes like dgx-00 (dgx-00-2): would give" in out
    assert "gpu-0000-1b-00-0" in out
    assert "pci-0000-18-00-0" in out


def test_a_claim_that_is_allocated_says_what_it_has_and_for_whom(explained: Explain) -> None:
    code, out = explained("claim", "rank-2", "-f", IN_USE)

    assert code == 0
    assert "claim team-b/rank-2: it is allocated, and reserved for pod rank-2" in out
    assert "gpu      gpu-0000-52-00-0  dgx-00  dra.net" in out


def test_a_device_that_is_tainted_and_in_use_is_told_as_tainted(explained: Explain, tmp_path: Path) -> None:
    """A node is drained while others run on it: to wait for them would help nobody."""
    objects = [*read_objects(), TAINT_RULE, *yaml.safe_load_all(IN_USE.read_text())]
    code, out = explained("claim", "pair", "-f", write(tmp_path, objects), "--facts", DGX)
    text = unwrapped(out)

    assert code == 1
    assert "but all 8 that match are tainted (example.com/service:NoSchedule of the DeviceTaintRule" in text
    assert "in use by" not in text


def test_what_two_things_keep_away_together_is_a_near_miss_of_both(
    explained: Explain, tmp_path: Path
) -> None:
    objects = [*read_objects(), TAINT_RULE, *yaml.safe_load_all(IN_USE.read_text())]
    holder = copy.deepcopy(find(objects, "ResourceClaim", "rank-2"))
    holder["metadata"]["name"] = "hog"
    names = [device["name"] for body in read_slices()[:1] for device in body["spec"]["devices"]]
    holder["status"]["allocation"]["devices"]["results"] = [
        {"request": "r", "driver": "dra.net", "pool": "dgx-00", "device": name} for name in names
    ]
    code, out = explained("claim", "pair", "-f", write(tmp_path, [*objects, holder]), "--facts", DGX)

    assert code == 1
    assert "it would fit if no other claim had devices and the taint" in unwrapped(out)


def test_devices_in_use_are_told_with_their_claims_and_the_nearest_one(explained: Explain) -> None:
    code, out = explained("claim", "pair", "-f", CLUSTER, IN_USE, "--facts", DGX)

    assert code == 1
    assert "-8  in use by team-b/rank-0 (pci-0000-18-00-0)" in out
    assert "pci-0000-9a-00-0 would fit, but is in use by team-c/storage" in out
    assert "fix: wait until team-c/storage is released" in out


def with_profile(name: str, **more: object) -> Json:
    return {"opaque": {"driver": "dra.net", "parameters": {"profile": name}}, **more}


SINCE = "2026-11-28T10:00:00Z"
REFUSED = "device pci-0000-40-00-0: profile acme.com/rail: webhook provider http://127.0.0.1:81: refused"


def test_profiles_are_told_with_who_names_them(explained: Explain, tmp_path: Path) -> None:
    """A name of the claim counts before that of the class, for the requests that it is for."""
    objects = read_objects()
    find(objects, "DeviceClass", "rdma-nic")["spec"]["config"] = [with_profile("acme.com/rail")]
    claim = find(objects, "ResourceClaim", "pair")
    other = {**with_profile("x"), "opaque": {"driver": "other.example.com", "parameters": {"profile": "x"}}}
    claim["spec"]["devices"]["config"] = [with_profile("acme.com/gpu", requests=["gpu"]), other]
    _, out = explained("claim", "pair", "-f", write(tmp_path, objects), "--facts", DGX)
    text = unwrapped(out)
    assert "request nic: profile acme.com/rail (named by DeviceClass rdma-nic) is given by the node's" in text
    assert "request gpu: profile acme.com/gpu (named by its config)" in text
    assert "profile x" not in text
    claim["spec"]["devices"]["config"] = [with_profile("acme.com/own")]
    _, out = explained("claim", "pair", "-f", write(tmp_path, objects), "--facts", DGX)
    assert "profile acme.com/own (named by its config)" in unwrapped(out)
    assert "acme.com/rail" not in out


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        ("False", REFUSED, f"The last try failed (ProviderUnavailable, since {SINCE}): {REFUSED}"),
        ("False", "the link is enslaved", ""),
        ("True", "", ". It was given"),
    ],
    ids=["failed", "something-else-failed", "given"],
)  # fmt: skip
def test_what_became_of_a_profile_is_told_from_the_claims_status(
    explained: Explain, tmp_path: Path, status: str, message: str, told: str
) -> None:
    claim = next(c for c in yaml.safe_load_all(IN_USE.read_text()) if c["metadata"]["name"] == "rank-1")
    devices = claim["status"]["allocation"]["devices"]
    devices["config"] = [with_profile("acme.com/rail", source="FromClass", requests=["nic"])]
    condition = {
        "type": "Prepared", "status": status, "reason": "ProviderUnavailable", "message": message,
        "lastTransitionTime": SINCE,
    }  # fmt: skip
    claim["status"]["devices"] = [{**devices["results"][1], "conditions": [condition]}]
    _, out = explained("claim", "rank-1", "-f", write(tmp_path, [claim]))
    text = unwrapped(out)
    assert (
        "request nic: profile acme.com/rail (named by its DeviceClass) is given by the node's profile" in text
    )
    assert told in text
    assert ("The last try" in text, "It was given" in text) == ("The last try" in told, "given" in told)


def test_whole_claims_are_the_nearest_miss_when_every_pair_is_taken(
    explained: Explain, tmp_path: Path
) -> None:
    others = list(yaml.safe_load_all(IN_USE.read_text()))
    last = others[-1]["status"]["allocation"]["devices"]["results"]
    last += [{**last[0], "device": f"gpu-0000-{bus}-00-0"} for bus in ("9d", "c3", "d1", "df")]
    code, out = explained("claim", "pair", "-f", write(tmp_path, [*read_objects(), *others]), "--facts", DGX)

    assert code == 1
    assert "gpu-0000-1b-00-0 and pci-0000-18-00-0 would fit, but are in use by team-b/rank-0" in out


def test_a_free_node_is_told_before_a_full_one(explained: Explain) -> None:
    code, out = explained("claim", "pair", "-f", CLUSTER, IN_USE, "--facts", DGX, DGX)

    assert code == 0
    assert "it can be allocated on 1 of 2 nodes" in out
    assert out.index("node dgx-00-2: would give") < out.index("node dgx-00: cannot satisfy request nic")


def test_one_node_alone_is_explained(explained: Explain) -> None:
    code, out = explained("claim", "pair", "-f", CLUSTER, IN_USE, "--facts", DGX, DGX, "--node", "dgx-00")

    assert code == 1
    assert "dgx-00-2" not in out


def test_a_class_that_matches_nothing_shows_what_the_device_says(explained: Explain) -> None:
    code, out = explained("claim", "fast", "-f", CLUSTER, "--facts", DGX)

    assert code == 1
    assert "selector 1 of DeviceClass nic-800g leaves none of 20" in unwrapped(out)
    assert "would fit, except for selector 1 of DeviceClass nic-800g (linkSpeedMbps is 400000)" in unwrapped(
        out
    )


def test_a_misspelt_class_gets_a_suggestion(explained: Explain) -> None:
    code, out = explained("claim", "misspelt", "-f", CLUSTER, "--facts", DGX)

    assert code == 1
    assert out == (
        "claim team-a/misspelt: request nic: DeviceClass rdma-nics does not exist\n"
        "fix: did you mean rdma-nic?\n"
    )


def test_a_constraint_without_a_common_value_shows_both_sides_and_one_that_works(explained: Explain) -> None:
    azure = DATA / "azure-nd-h100-v5" / "capture.json"
    code, out = explained("claim", "pair", "-f", CLUSTER, "--facts", azure)

    assert code == 1
    assert "none of the 8 that match has the pcieRoot of a device that fits gpu (constraint 1)" in " ".join(
        out.split()
    )
    assert "pci0001:00  gpu-0001-00-00-0  -" in out
    assert "pci0101:00  -                 pci-0101-00-00-0" in out
    assert "fix: match resource.kubernetes.io/numaNode instead: it can be met here" in out


def test_a_selector_that_fails_says_on_what_and_that_it_ends_everything(explained: Explain) -> None:
    code, out = explained("claim", "careless", "-f", CLUSTER, "--facts", DGX)
    words = unwrapped(out)

    assert code == 1
    assert "device dra.net/dgx-00/pci-0000-29-00-1: the device has no attribute" in words
    assert "ends the attempt for the whole pod" in words
    assert "guard it with has(...)" in words


def test_a_selector_that_fails_otherwise_says_how(explained: Explain, tmp_path: Path) -> None:
    def divide(devices: Json, _: list[Json]) -> None:
        careless = {"cel": {"expression": 'device.attributes["dra.net"].numaNode / 0 == 1'}}
        devices["requests"][1]["exactly"]["selectors"] = [careless]

    code, out = explained("claim", "pair", "-f", variant(tmp_path, divide))

    assert code == 1
    assert "selector failed: divide by zero; that ends the attempt" in unwrapped(out)


def test_an_attribute_that_no_device_has_gets_a_suggestion(explained: Explain, tmp_path: Path) -> None:
    text = (CLUSTER / "classes.yaml").read_text().replace("linkSpeedMbps >=", "linkSpeedMbit >=")
    (tmp_path / "classes.yaml").write_text(text)
    _, out = explained(
        "claim", "careless", "-f", tmp_path / "classes.yaml", CLUSTER / "claims.yaml", "--facts", DGX
    )

    assert "no device of this node has linkSpeedMbit: did you mean linkSpeedMbps?" in out


def test_what_cannot_be_judged_is_unknown_and_no_success(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    request = find(objects, "ResourceClaim", "pair")["spec"]["devices"]["requests"][0]
    request["exactly"]["derivedAttributes"] = [{"name": "x", "expression": "1"}]
    code, out = explained("claim", "pair", "-f", write(tmp_path, objects), "--facts", DGX, "-o", "json")

    assert code == 1
    assert json.loads(out)["verdict"] == "unknown"
    assert "derivedAttributes is not modelled here" in out


def test_a_template_is_taken_as_a_claim_made_from_it(explained: Explain) -> None:
    code, out = explained("claim", "gpu-with-nic", "-f", CLUSTER, "--facts", DGX)

    assert code == 0
    assert "this explains the one from the ResourceClaimTemplate of this name" in unwrapped(out)


def variant(folder: Path, change: Callable[[Json, list[Json]], None]) -> Path:
    """One node of the usual kind and the usual objects, changed: called with the claim's devices and all."""
    nodes, slices = make_nodes(1)
    objects = [*read_objects(), *nodes, *slices]
    change(find(objects, "ResourceClaim", "pair")["spec"]["devices"], objects)
    return write(folder, objects)


def test_a_taint_of_a_rule_on_all_devices_is_told_with_the_rule(explained: Explain, tmp_path: Path) -> None:
    rule = {**TAINT_RULE, "apiVersion": "resource.k8s.io/v1beta2"}
    file = variant(tmp_path, lambda _, objects: objects.append(rule))
    code, out = explained("claim", "team-a/pair", "-f", file)

    assert code == 1
    assert "-8  tainted example.com/service:NoSchedule of the DeviceTaintRule maintenance" in out
    assert "gpu-0000-1b-00-0 and pci-0000-18-00-0 would fit, but are tainted" in out
    assert "fix: clear the taint, or tolerate it in all requests" in out


def test_a_pool_that_is_not_complete_is_told_and_would_be_enough(explained: Explain, tmp_path: Path) -> None:
    def expect_another_slice(_: Json, objects: list[Json]) -> None:
        objects[-1]["spec"]["pool"]["resourceSliceCount"] = 2

    code, out = explained("claim", "pair", "-f", variant(tmp_path, expect_another_slice))

    assert code == 1
    assert "pool dra.net/dgx-00 (20 devices here) is incomplete: 1 of 2 slices" in out
    assert "pool dra.net/dgx-00 would be enough, once all of its slices are published" in out


def test_every_alternative_of_a_ladder_has_its_own_story(explained: Explain, tmp_path: Path) -> None:
    def ask_for_too_much(devices: Json, _: list[Json]) -> None:
        near = {"name": "near", "deviceClassName": "nic-800g"}
        far = {"name": "far", "deviceClassName": "rdma-nic", "count": 13}
        devices["requests"][1] = {"name": "nic", "firstAvailable": [near, far]}

    code, out = explained("claim", "pair", "-f", variant(tmp_path, ask_for_too_much))
    words = unwrapped(out)

    assert code == 1
    assert (
        "request nic/near wants 1 device, but selector 1 of DeviceClass nic-800g leaves none of 20" in words
    )
    assert "request nic/far wants 13 devices, but selector 1 of DeviceClass rdma-nic leaves 12 of 20" in words
    assert "gpu and nic/far have 8 values in common" in words


def test_all_devices_cannot_be_had_while_one_is_in_use(explained: Explain, tmp_path: Path) -> None:
    def ask_for_all(devices: Json, objects: list[Json]) -> None:
        devices["requests"][0]["exactly"]["allocationMode"] = "All"
        devices["constraints"] = []
        objects += yaml.safe_load_all(IN_USE.read_text())

    code, out = explained("claim", "pair", "-f", variant(tmp_path, ask_for_all))

    assert code == 1
    assert "wants all devices that match, but 4 of the 8 that match are in use" in unwrapped(out)


def test_a_cluster_without_slices_says_so(explained: Explain, tmp_path: Path) -> None:
    code, out = explained(
        "claim", "pair", "-f", variant(tmp_path, lambda _, objects: objects.remove(objects[-1]))
    )

    assert code == 1
    assert "node dgx-00: no driver publishes devices for it" in out


# --- pods --------------------------------------------------------------------------------------------


def test_all_claims_of_a_pod_are_told_together(explained: Explain) -> None:
    code, out = explained("pod", "trainer", "-f", CLUSTER, "--facts", DGX)

    assert code == 0
    assert "pod team-a/trainer with 2 claims" in out
    assert "trainer-pair  gpu      gpu-0000-1b-00-0" in out
    assert "storage       nic      pci-0000-29-00-0" in out
    assert "note: there is no claim team-a/trainer-pair yet: this explains the one from" in out


def test_of_two_requests_of_one_name_it_says_whose_is_meant(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    spec = {
        "devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "rdma-nic", "count": 12}}]}
    }
    find(objects, "ResourceClaim", "storage")["spec"] = spec
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert code == 1
    assert "cannot give its devices: request nic of claim storage wants 12 devices" in unwrapped(out)


def test_the_claim_that_was_made_from_a_template_is_found(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    made = copy.deepcopy(find(objects, "ResourceClaim", "pair"))
    made["metadata"]["name"] = "trainer-pair-x7k2p"
    pod = find(objects, "Pod", "trainer")
    pod["status"] = {"resourceClaimStatuses": [{"name": "pair", "resourceClaimName": "trainer-pair-x7k2p"}]}
    _, out = explained("pod", "trainer", "-f", write(tmp_path, [*objects, made]), "--facts", DGX)

    assert "trainer-pair-x7k2p  gpu" in out
    assert "there is no claim" not in out


def test_a_claim_that_a_pod_names_and_nobody_made_is_what_is_missing(
    explained: Explain, tmp_path: Path
) -> None:
    objects = [body for body in read_objects() if body["metadata"]["name"] != "storage"]
    find(objects, "ResourceClaim", "fast")["metadata"]["name"] = "storage2"
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert code == 1
    assert "pod team-a/trainer: ResourceClaim team-a/storage does not exist" in out
    assert "fix: did you mean storage2?" in out


def test_what_the_driver_could_not_do_for_an_allocated_claim_is_quoted(
    explained: Explain, tmp_path: Path
) -> None:
    objects = list(yaml.safe_load_all(IN_USE.read_text()))
    claim = find(objects, "ResourceClaim", "rank-2")
    result = claim["status"]["allocation"]["devices"]["results"][0]
    failed = {
        "type": "Prepared",
        "status": "False",
        "reason": "DHCPFailed",
        "message": "no DHCP lease on eth1",
    }
    device = {key: result[key] for key in ("driver", "pool", "device")}
    claim["status"]["devices"] = [{**device, "conditions": [failed]}]
    code, out = explained("claim", "rank-2", "-f", write(tmp_path, objects), "--capture", DGX)

    assert code == 0
    reported = (
        f"note: the driver reports Prepared False for {device['device']}: DHCPFailed: no DHCP lease on eth1"
    )
    assert reported in unwrapped(out)
    claim["status"]["devices"].append({**device, "device": "other", "conditions": [failed]})
    _, out = explained("claim", "rank-2", "-f", write(tmp_path, objects), "--capture", DGX)
    assert f"Prepared False for {device['device']} and other: DHCPFailed" in unwrapped(out)
    assert out.count("the driver reports") == 1
    failed |= {"type": "Ready", "reason": "DeviceReleased"}
    assert "the driver reports" not in explained("claim", "rank-2", "-f", write(tmp_path, objects))[1]


def test_a_pod_whose_claim_kubernetes_has_not_created_is_told_where_the_reason_is(
    explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    find(objects, "Pod", "trainer")["status"] = {"phase": "Pending"}
    _, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--capture", DGX)

    assert "note: Kubernetes has not created claim team-a/trainer-pair of this pod: its Events" in unwrapped(
        out
    )


def test_a_pod_that_is_on_its_node_and_has_not_started_is_pointed_to_its_events(
    explained: Explain, tmp_path: Path
) -> None:
    objects = list(yaml.safe_load_all(IN_USE.read_text()))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "rank", "namespace": "team-b"},
        "spec": {"nodeName": "dgx-00", "resourceClaims": [{"name": "a", "resourceClaimName": "rank-2"}]},
        "status": {"phase": "Pending"},
    }
    _, out = explained(
        "pod", "rank", "-n", "team-b", "-f", write(tmp_path, [*objects, pod]), "--capture", DGX
    )
    assert "note: the pod has not started; kubectl describe pod rank -n team-b shows its Events" in out
    pod["status"] = {"phase": "Running"}
    _, out = explained(
        "pod", "rank", "-n", "team-b", "-f", write(tmp_path, [*objects, pod]), "--capture", DGX
    )
    assert "has not started" not in out


def test_a_template_in_another_namespace_is_found(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    find(objects, "ResourceClaimTemplate", "gpu-with-nic")["metadata"]["namespace"] = "team-z"
    _, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--capture", DGX)

    assert "fix: there is one in namespace team-z; a pod takes those of its own namespace" in unwrapped(out)


def test_objects_of_files_without_a_namespace_are_in_the_one_of_the_command(
    explained: Explain, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(CLAIM)
    code, out = explained("claim/train", "-n", "ml", "-f", tmp_path / "a.yaml", "--capture", DGX)
    assert (code, out.partition(":")[0]) == (0, "claim ml/train")


def test_extended_resources_are_a_claim_as_well(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    resources = find(objects, "Pod", "trainer")["spec"]["containers"][0]["resources"]
    resources["limits"] = {"example.com/rdma-nic": "2", "cpu": "4"}
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert code == 0
    assert "this explains the one for the extended resource example.com/rdma-nic" in unwrapped(out)
    assert out.count("container-0-request-0") == 2


def test_a_bound_pod_without_a_claim_for_its_extended_resource_was_served_by_a_device_plugin(
    explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    resources = {"limits": {"example.com/rdma-nic": "1"}}
    spec = {"nodeName": "dgx-00", "containers": [{"name": "c", "image": "i", "resources": resources}]}
    find(objects, "Pod", "trainer")["spec"] = spec

    assert explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX) == (
        0,
        "pod team-a/trainer: it has no claims\n",
    )


@pytest.mark.parametrize(("amount", "number"), [("0", 0), (0, 0), ("500m", 0), ("2000m", 2), (1, 1)])
def test_extended_resources_are_counted_in_whole_devices(
    amount: object, number: int, explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    resources = find(objects, "Pod", "trainer")["spec"]["containers"][0]["resources"]
    resources["limits"] = {"example.com/rdma-nic": amount}
    _, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert out.count("container-0-request-0") == number


def test_a_claim_on_its_way_out_is_given_to_no_pod(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    find(objects, "ResourceClaim", "storage")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    file = write(tmp_path, objects)
    for kind, name in (("pod", "trainer"), ("claim", "storage")):
        code, out = explained(kind, name, "-f", file, "--facts", DGX)

        assert code == 1
        assert "ResourceClaim team-a/storage is being deleted\nfix: wait until it is gone" in out

    with_claims_of(objects, "storage")["spec"]["nodeName"] = "dgx-00"
    assert explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)[0] == 0


def test_a_pod_that_the_scheduler_does_not_try_says_so(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    find(objects, "Pod", "trainer")["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert code == 0
    assert (
        "note: the scheduler does not try the pod before its scheduling gates are gone: example.com/quota"
        in out
    )


def test_a_claim_points_to_the_pod_that_has_others_beside_it(explained: Explain) -> None:
    _, out = explained("claim", "storage", "-n", "team-a", "-f", CLUSTER, "--facts", DGX)

    assert "pod team-a/trainer has other claims besides this one" in out


def test_nodes_that_the_pod_cannot_use_are_left_out_with_the_reason(
    explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    find(objects, "Pod", "trainer")["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "dgx-00"}
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX, DGX)

    assert code == 0
    assert "1 node not looked at (dgx-00-2): not selected by the pod's nodeSelector" in out


def test_a_pod_that_fits_no_node_is_told_why_in_the_first_line(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    find(objects, "Pod", "trainer")["spec"]["nodeSelector"] = {"zone": "a"}
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert code == 1
    assert "no node may run it: not selected by the pod's nodeSelector" in unwrapped(out)
    assert "fix: " not in out


@pytest.mark.parametrize(("tolerates", "code"), [(False, 1), (True, 0)])
def test_a_node_object_counts_over_a_capture_and_its_cordon_for_who_does_not_tolerate_it(
    tolerates: bool, code: int, explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "dgx-00"},
        "spec": {"unschedulable": True},
    }
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    find(objects, "Pod", "trainer")["spec"]["tolerations"] = [toleration] if tolerates else []
    found, out = explained("pod", "trainer", "-f", write(tmp_path, [*objects, node]), "--facts", DGX)

    assert found == code
    assert ("the node is cordoned" in out) is not tolerates


def test_a_pod_with_an_allocated_claim_is_bound_to_its_node(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    taken = next(yaml.safe_load_all(IN_USE.read_text()))
    storage = find(objects, "ResourceClaim", "storage")
    storage["status"] = copy.deepcopy(taken["status"])
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX, DGX)

    assert code == 0
    assert "(dgx-00-2): claim team-a/storage is allocated on node dgx-00" in out
    assert "storage  gpu      gpu-0000-1b-00-0  dgx-00" in out[out.index("allocated already") :]


def with_claims_of(objects: list[Json], *names: str) -> Json:
    """The pod, with nothing but these claims, all of which are allocated on dgx-00."""
    taken = next(yaml.safe_load_all(IN_USE.read_text()))
    for name in names:
        find(objects, "ResourceClaim", name)["status"] = copy.deepcopy(taken["status"])
    pod = find(objects, "Pod", "trainer")
    pod["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in names]
    return pod


def test_a_pod_that_waits_although_its_claim_is_allocated_is_told_why(
    explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    with_claims_of(objects, "storage")["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "dgx-00-2"}
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX, DGX)

    assert code == 1
    assert "no node may run it: not selected by the pod's nodeSelector; claim team-a/storage is" in unwrapped(
        out
    )
    assert "(dgx-00-2): claim team-a/storage is allocated on node dgx-00" in out
    assert "gpu-0000-1b-00-0" in out


def test_a_pod_that_runs_on_a_cordoned_node_has_its_devices(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    with_claims_of(objects, "storage")["spec"]["nodeName"] = "dgx-00"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "dgx-00"}}
    objects.append({**node, "spec": {"unschedulable": True}})
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert (code, "it is allocated" in out) == (0, True)


def test_a_pod_that_comes_with_its_node_is_told_that_nobody_allocates_its_claims(
    explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    find(objects, "Pod", "trainer")["spec"]["nodeName"] = "dgx-00"
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert code == 1
    assert "the pod names node dgx-00 itself, so the scheduler does not see it" in unwrapped(out)
    assert "fix: choose the node by nodeSelector, kubernetes.io/hostname: dgx-00" in out


def test_what_the_scheduler_reports_is_beside_what_is_possible_now(
    explained: Explain, tmp_path: Path
) -> None:
    """It may have tried before there was room, and does not try again at once."""
    objects = read_objects()
    pod = find(objects, "Pod", "trainer")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"] = {"conditions": [{**condition, "message": "0/2 nodes are available: 2 cannot allocate."}]}
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)
    text = unwrapped(out)

    assert code == 0
    assert "note: the scheduler reports: 0/2 nodes are available: 2 cannot allocate note:" in text
    assert "note: the scheduler tries the pod again when something changes that may help" in text

    pod["status"]["conditions"] = [{**condition, "status": "True", "reason": "", "message": ""}]
    assert "the scheduler reports" not in explained("pod", "trainer", "-f", write(tmp_path, objects))[1]


def test_of_a_pod_that_has_ended_it_says_so(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    pod = find(objects, "Pod", "trainer")
    pod["spec"]["nodeName"], pod["status"] = "dgx-00", {"phase": "Succeeded"}
    _, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--facts", DGX)

    assert "note: the pod has ended (Succeeded), and its devices are released" in out


def test_labels_that_nobody_gave_are_not_held_against_a_node(explained: Explain, tmp_path: Path) -> None:
    """Slices tell of nodes, too, but of their names alone."""
    slices = [body for body in read_slices() if body["spec"]["nodeName"] == "dgx-00"]
    objects = [*read_objects(), *slices]
    find(objects, "Pod", "trainer")["spec"]["nodeSelector"] = {
        "zone": "a",
        "kubernetes.io/hostname": "dgx-00",
    }
    code, out = explained("pod", "trainer", "-f", write(tmp_path, objects))

    assert code == 0
    assert "note: no Node objects were given" in out


def read_slices() -> list[Json]:
    """As the driver would publish them on two nodes."""
    return capture_slices([DGX, DGX], Settings()).slices


# --- what the driver keeps to itself, and how it is printed ---------------------------------------------


def test_a_device_that_is_held_back_is_a_near_miss_with_the_reason(
    explained: Explain, tmp_path: Path
) -> None:
    objects = read_objects()
    request = find(objects, "ResourceClaim", "fast")["spec"]["devices"]["requests"][0]["exactly"]
    expression = 'device.attributes["dra.net"].?ifName.orValue("") == "eno3"'
    request |= {"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]}
    anything = {**copy.deepcopy(find(objects, "DeviceClass", "gpu")), "spec": {}}
    anything["metadata"]["name"] = "any"
    code, out = explained("claim", "fast", "-f", write(tmp_path, [*objects, anything]), "--facts", DGX)

    assert code == 1
    assert "pci-0000-0b-00-0 would fit, but the driver holds it back: is the node's uplink" in " ".join(
        out.split()
    )


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_a_narrow_terminal_is_not_run_over(
    columns: int, explained: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out = explained("claim", "pair", "-f", CLUSTER, IN_USE, "--facts", DGX)

    longest = max(len(word) for word in out.split())
    assert max(map(len, out.splitlines())) <= max(columns, longest + 16)


def test_names_from_objects_cannot_reach_the_terminal(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    find(objects, "DeviceClass", "nic-800g")["spec"]["selectors"][0]["cel"]["expression"] += (
        ' && "\x1b" == ""'
    )
    _, out = explained("claim", "fast", "-f", write(tmp_path, objects), "--facts", DGX)

    assert "\x1b" not in out
    assert "\\x1b" in out


def test_programs_get_everything_that_people_do(explained: Explain) -> None:
    code, out = explained("claim", "pair", "-f", CLUSTER, IN_USE, "--facts", DGX, "-o", "json")
    told = json.loads(out)

    assert (code, told["verdict"], told["possible"]) == (1, "impossible", False)
    (group,) = told["nodes"]
    assert group["nodes"] == ["dgx-00"]
    assert [(r["request"], r["blocked"]) for r in group["requests"]] == [("gpu", False), ("nic", True)]
    steps = {step["by"]: len(step["devices"]) for step in group["requests"][1]["removed"]}
    assert steps == {"CLASS_SELECTOR": 8, "IN_USE": 8, "CONSTRAINT": 4}
    assert group["nearestMisses"][0]["devices"] == ["dra.net/dgx-00/pci-0000-9a-00-0"]


UNCONSTRAINED = ("claim", "unconstrained", "-f", DATA / "explain" / "unconstrained.yaml", CLUSTER)


def test_a_misaligned_pair_is_shown_with_a_better_one_and_the_claim_for_it(explained: Explain) -> None:
    code, out = explained(*UNCONSTRAINED, IN_USE, "--facts", DGX)

    assert code == 0
    assert out.partition("\n\n")[2].splitlines() == [
        "node dgx-00: would give",
        "    REQUEST  DEVICE            POOL    DRIVER   DISTANCE",
        "    gpu      gpu-0000-9d-00-0  dgx-00  dra.net",
        "    nic      pci-0000-29-00-0  dgx-00  dra.net  SYS to gpu-0000-9d-00-0",
        "    misaligned: SYS, and PIX is the best of this node; pci-0000-aa-00-0 is NODE to gpu-0000-9d-00-0",
        "    (free)",
        "    fix: dranet claim new --gpus 1 --nics 1 writes a claim that waits for PIX (constraints:",
        "         [{matchAttribute: resource.kubernetes.io/pcieRoot, requests: [nic, gpu]}])",
    ]


def test_programs_get_the_distances_too(explained: Explain) -> None:
    _, out = explained(*UNCONSTRAINED, IN_USE, "--facts", DGX, "-o", "json")
    (node,) = json.loads(out)["nodes"]
    gpu, nic = node["gives"]

    assert "distance" not in gpu
    assert (nic["gpu"], nic["distance"]) == ("dra.net/dgx-00/gpu-0000-9d-00-0", "SYS")
    fix = node["alignment"].pop("fix")
    assert node["alignment"] == {
        "distances": ["SYS"],
        "best": ["PIX"],
        "better": [
            {
                "nic": "dra.net/dgx-00/pci-0000-aa-00-0",
                "gpu": "dra.net/dgx-00/gpu-0000-9d-00-0",
                "distance": "NODE",
            }
        ],
        "heldBy": [],
        "assumption": None,
    }
    assert fix.startswith("dranet claim new --gpus 1 --nics 1 ")


CHANCE = "note: no constraint relates gpu and nic; by chance PIX in 1/10"


def test_a_near_pair_without_a_constraint_is_called_chance(explained: Explain) -> None:
    code, out = explained(*UNCONSTRAINED, "--capture", DGX)

    assert code == 0
    assert "aligned: PIX, the best of this node" in out
    assert CHANCE in unwrapped(out)
    assert "dranet claim new --gpus 1 --nics 1 --gpu-class gpu --class rdma-nic: constraints:" in unwrapped(
        out
    )
    (remark,) = json.loads(explained(*UNCONSTRAINED, "--capture", DGX, "-o", "json")[1])["remarks"]
    assert remark.startswith(CHANCE.removeprefix("note: "))
    assert "by chance" not in explained("claim", "pair", "-f", CLUSTER, "--capture", DGX)[1]


def test_a_misaligned_pair_without_a_constraint_has_the_proposal_once(explained: Explain) -> None:
    _, out = explained(*UNCONSTRAINED, IN_USE, "--capture", DGX)

    assert CHANCE in unwrapped(out)
    assert out.count("dranet claim new") == 1


def test_gpus_and_nics_of_different_claims_of_a_pod_are_chance(explained: Explain, tmp_path: Path) -> None:
    objects = read_objects()
    pod = find(objects, "Pod", "trainer")
    for name, device_class in (("gpus", "gpu"), ("nics", "rdma-nic")):
        requests = [{"name": "one", "exactly": {"deviceClassName": device_class}}]
        metadata = {"name": name, "namespace": pod["metadata"]["namespace"]}
        objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": metadata,
                "spec": {"devices": {"requests": requests}},
            }
        )
    pod["spec"]["resourceClaims"] = [{"name": n, "resourceClaimName": n} for n in ("gpus", "nics")]
    _, out = explained("pod", "trainer", "-f", write(tmp_path, objects), "--capture", DGX)

    assert "no constraint can relate the GPUs of claim gpus and the NICs of claim nics" in unwrapped(out)


TEMPLATE_AND_POD = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: nics}
spec: {spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: dranet-nic}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c}], resourceClaims: [{name: x, FIELD: NAME}]}
"""


@pytest.mark.parametrize(
    ("field", "name", "problem", "fix"),
    [
        ("resourceClaimName", "nics", "nics is a ResourceClaimTemplate", "resourceClaimTemplateName: nics"),
        ("resourceClaimTemplateName", "train", "train is a ResourceClaim", "resourceClaimName: train"),
    ],
)
def test_a_template_named_as_a_claim_is_pointed_out_and_the_other_way_round(
    field: str, name: str, problem: str, fix: str, explained: Explain, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(CLAIM + TEMPLATE_AND_POD.replace("FIELD", field).replace("NAME", name))
    code, out = explained("pod/p", "-f", tmp_path / "a.yaml", "--capture", DGX)
    assert code == 1
    assert f"pod default/p: {problem}, not a ResourceClaim" in unwrapped(out)
    assert f"fix: {fix}, in the pod" in unwrapped(out)


def test_a_request_in_the_form_of_v1beta1_is_answered_with_that_of_v1(
    explained: Explain, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(CLAIM.replace("exactly: {deviceClassName: dranet-rdma}", "count: 2"))
    code, out = explained("claim/train", "-f", tmp_path / "a.yaml", "--capture", DGX)

    assert code == 1
    assert "request nic: count belongs below exactly, as in exactly.count" in unwrapped(out)
    assert "fix: dranet validate --convert FILE" in out


@pytest.mark.socket
def test_a_cluster_that_does_not_answer_is_named_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:  # bound, and nothing listens
        taken.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{taken.getsockname()[1]}"
        kubeconfig = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
        assert main(["explain", "pod/trainer", "--kubeconfig", str(tmp_path / "config")]) == 1
    told = capsys.readouterr().err
    assert f"no answer from {server}: connection refused (is the cluster up" in told
    assert "Errno" not in told


def test_an_allocated_claim_has_its_distance_where_slices_are_known(explained: Explain) -> None:
    _, out = explained("claim", "rank-2", "-f", IN_USE, "--facts", DGX, "-o", "json")
    document = json.loads(out)

    assert [device.get("distance") for device in document["allocated"]] == [None, "PIX"]
    assert (document["alignment"]["best"], document["alignment"]["better"]) == (["PIX"], [])
    assert json.loads(explained("claim", "rank-2", "-f", IN_USE, "-o", "json")[1])["alignment"] is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("claim", "pair", "-f", DGX), "name a capture with --capture"),
        (
            ("claim", "pair", "-f", CLUSTER, "--facts", DGX, "--node", "dgx"),
            "no such node (did you mean dgx-00",
        ),
        (("claim", "pair", "-f", "/nowhere.yaml"), "/nowhere.yaml: No such file"),
        (("claim", "pair", "-f", CLUSTER, "--facts", "/nowhere.json"), "--capture /nowhere.json"),
        (("claim",), "claim: name one claim or pod"),
        (("claim", "a", "b"), "claim a b: name one claim or pod"),
        (("deployment", "x"), "deployment cannot be explained (kinds are pod and claim)"),
        (("clam", "pair"), "clam cannot be explained (did you mean claim"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said_with_exit_code_2(
    arguments: tuple[object, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *map(str, arguments)]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("claim", "pairs", "-f", CLUSTER),
            "ResourceClaim default/pairs does not exist (did you mean pair?)",
        ),
        (("claim", "pair", "-n", "team-b", "-f", CLUSTER), "there is one in namespace team-a: -n team-a"),
        (("pod", "trianer", "-n", "team-a", "-f", CLUSTER), "did you mean trainer?"),
        (("pod", "x", "-n", "team-b", "-f", CLUSTER), "namespace team-b has none"),
        (("pod", "x", "-f", CLUSTER), "Pod default/x does not exist"),
        (("claim", "trainer", "-f", CLUSTER), "there is a pod of this name: dranet explain pod trainer"),
        (("pod", "pair", "-f", CLUSTER), "there is a claim of this name: dranet explain claim pair"),
        (("claim", "team-b/pair", "-f", CLUSTER), "there is one in namespace team-a: -n team-a"),
    ],
)
def test_what_does_not_exist_is_not_found_and_what_is_near_is_named(
    arguments: tuple[object, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *map(str, arguments)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("dranet: NotFound: ")
    assert why in told


@pytest.mark.parametrize(
    "words",
    [
        ("claim/pair",),
        ("claims", "pair"),
        ("resourceclaim", "pair"),
        ("resourceclaims.resource.k8s.io/pair",),
        ("claim", "team-a/pair"),
    ],
)
def test_kinds_have_the_names_that_kubectl_knows(explained: Explain, words: tuple[str, ...]) -> None:
    assert explained(*words, "-f", CLUSTER, "--capture", DGX) == explained(
        "claim", "pair", "-f", CLUSTER, "--facts", DGX
    )


@pytest.mark.parametrize("words", [("po", "trainer"), ("pods/trainer",), ("pod/trainer",)])
def test_so_has_the_pod(explained: Explain, words: tuple[str, ...]) -> None:
    assert explained(*words, "-f", CLUSTER, "--facts", DGX) == explained(
        "pod", "trainer", "-f", CLUSTER, "--facts", DGX
    )


def test_as_yaml_it_is_the_same_document(explained: Explain) -> None:
    arguments = ("claim", "pair", "-f", CLUSTER, "--facts", DGX, "-o")
    assert yaml.safe_load(explained(*arguments, "yaml")[1]) == json.loads(explained(*arguments, "json")[1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 40) | st.sampled_from(["", "x", "gpu", "All", "-1", "1Gi"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=2),
    max_leaves=5,
)


@pytest.mark.slow
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_whatever_the_objects_say_the_answer_is_a_verdict_or_a_refusal(
    data: st.DataObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, slices = make_nodes(1)
    slices[0]["spec"]["devices"] = slices[0]["spec"]["devices"][:4]
    objects = [*read_objects(), *yaml.safe_load_all(IN_USE.read_text()), *slices]
    for _ in range(data.draw(st.integers(1, 4))):
        spoil(data, data.draw(st.sampled_from(objects)))
    kind, name = data.draw(st.sampled_from([("claim", "pair"), ("pod", "trainer"), ("claim", "storage")]))
    (tmp_path / "spoilt.json").write_text(json.dumps(objects))

    assert main(["explain", kind, name, "-n", "team-a", "-f", str(tmp_path / "spoilt.json")]) in (0, 1, 2)
    capsys.readouterr()


def spoil(data: st.DataObject, body: Any) -> None:
    """One value somewhere below becomes another, goes or comes."""
    while True:
        keys: list[Any] = list(body) if isinstance(body, dict) else list(range(len(body)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(body[key], dict | list) and data.draw(st.integers(0, 5)):
            body = body[key]
            continue
        if isinstance(body, dict) and data.draw(st.booleans()):
            key = data.draw(st.sampled_from([key, *FIELDS]))
        body[key] = data.draw(JSON)
        return


# --- a cluster, and many nodes -------------------------------------------------------------------------


@pytest.mark.socket
def test_a_live_cluster_is_explained_and_what_files_would_add_to_it(
    explained: Explain, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"

    async def serve() -> Explained:
        async with ApiServer() as server:
            async with ApiClient(access_from_url(server.url)) as admin:
                await _fill(admin)
            server.write_kubeconfig(kubeconfig)
            arguments = ("--kubeconfig", kubeconfig, "-n", "team-a")
            code, out = await asyncio.to_thread(explained, "claim", "pair", *arguments)
            assert (code, out.splitlines()[0]) == (
                0,
                "claim team-a/pair: it can be allocated on the only node",
            )
            code, out = await asyncio.to_thread(explained, "pod", "trainer", *arguments, "-f", CLUSTER)
            for context, found in (("team-a", 0), ("empty", 1)):
                written = json.loads(kubeconfig.read_text())
                written["contexts"][0]["context"]["namespace"] = context
                (tmp_path / context).write_text(json.dumps(written))
                own = ("--kubeconfig", tmp_path / context)
                assert (await asyncio.to_thread(explained, "claim", "pair", *own))[0] == found
                named = (*own, "--namespace", "team-a")
                assert (await asyncio.to_thread(explained, "claim", "pair", *named))[0] == 0
            async with ApiClient(access_from_url(server.url)) as admin:
                await admin.create("/apis/resource.k8s.io/v1/devicetaintrules", TAINT_RULE)
            tainted = await asyncio.to_thread(explained, "claim", "pair", *arguments)
            assert tainted[0] == 1
            assert "tainted example.com/service:NoSchedule of the DeviceTaintRule maintenance" in tainted[1]
            return code, out

    code, out = asyncio.run(serve())
    assert code == 0
    assert "pod team-a/trainer with 2 claims: it can be allocated on the only node" in out


async def _fill(admin: ApiClient) -> None:
    nodes, slices = make_nodes(1)
    await admin.create(paths.NAMESPACES, {"metadata": {"name": "team-a"}})
    await admin.create(paths.NODES, nodes[0])
    await admin.create(paths.RESOURCE_SLICES, slices[0])
    for body in read_objects():
        match body["kind"]:
            case "DeviceClass":
                await admin.create(paths.DEVICE_CLASSES, body)
            case "ResourceClaim":
                await admin.create(paths.resource_claims("team-a"), body)


def test_eight_requests_on_a_hundred_nodes_are_explained_in_a_second() -> None:
    """Of this machine by itself; here with ten times as much, as others may run beside."""
    nodes, slices = make_nodes(100)
    for name, (claim, others) in make_cases(slices).items():
        world = ClusterView(slices, make_classes(), [claim, *others], nodes)
        explanations: list[Explanation] = []
        took = measure(lambda: explanations.append(explain(claim_subject(claim), world)))  # noqa: B023  # called here

        assert took < 2000, name
        (explanation,) = explanations
        expected = Conclusion.POSSIBLE if name == "can be allocated" else Conclusion.IMPOSSIBLE
        assert explanation.conclusion is expected, name
        assert sum(len(group.nodes) for group in explanation.groups) == 100
