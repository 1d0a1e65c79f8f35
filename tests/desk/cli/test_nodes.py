"""``dranet nodes``: files and a cluster in, a table or a document and an exit code out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranet.cli.main import main
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from testbed.apiserver.identity import User
from testbed.apiserver.server import ApiServer
from tests.data.layouts import capture_file
from tests.desk.fleet.objects import claim, device, driver_pod, event, node, resource_slice

CaptureFixture = pytest.CaptureFixture[str]
JsonObject = dict[str, Any]

NIC, GPU = device("nic-0"), device("gpu-0", "gpu")
MISALIGNED = {"TopologyAligned": ("False", "WorseThanPossible", "SYS to gpu-0: nic-1 is PIX to it and free")}
FLEET = [
    *(node(name) for name in ("a-0", "a-1", "b-0")),
    *(resource_slice(name, NIC, GPU) for name in ("a-0", "a-1", "b-0")),
    driver_pod("a-0"),
    driver_pod("a-1"),
    driver_pod("b-0", ready=False, waiting={"reason": "ImagePullBackOff"}),
    claim("train", "a-1", ["nic-0", "gpu-0"], MISALIGNED),
]
VIEWER = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "dranet-viewer"},
        "rules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates"],
                "verbs": ["get", "list", "watch"],
            },
            {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "viewers"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "dranet-viewer",
        },
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
    },
]
TABLE = """\
NODE  DRIVER           NICS  GPUS  CLAIMS  MISALIGNED  PROBLEMS
b-0   0.1.0 not ready  0/1   0/1   -       -           pod dranet-b-0 of the driver is not ready: ImagePullBackOff, 4 restarts
a-1   0.1.0            1/1   1/1   1/1     1           pod team-a/train-pod is misaligned: nic-0 is SYS to gpu-0: nic-1 is PIX to it and free
a-0   0.1.0            0/1   0/1   -       -

3 nodes: 1 with problems, 1 with warnings; 1 of 3 NICs and 1 of 3 GPUs allocated; 1 misaligned pod
"""  # noqa: E501


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """A file with it."""
    return write(tmp_path, FLEET)


def write(folder: Path, objects: Sequence[JsonObject]) -> str:
    file = folder / "fleet.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(file)


def run(capsys: CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main(["nodes", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_each_node_is_a_row_with_problems_first(fleet: str, capsys: CaptureFixture) -> None:
    assert run(capsys, "-f", fleet) == (1, TABLE, "")


def test_a_narrow_terminal_gets_problems_below_their_row(
    fleet: str, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, text, _ = run(capsys, "-f", fleet)
    assert max(map(len, text.splitlines())) <= 80
    assert (
        "b-0   0.1.0 not ready  0/1   0/1   -       -           pod dranet-b-0 of the" in text.splitlines()[1]
    )


def test_nodes_are_chosen_by_name_label_and_problem(fleet: str, capsys: CaptureFixture) -> None:
    def names(*arguments: str) -> list[str]:
        document = json.loads(run(capsys, *arguments, "-f", fleet, "-o", "json")[1])
        return [one["name"] for one in document["nodes"]]

    assert names() == ["b-0", "a-1", "a-0"]
    assert names("a-0", "b-0") == ["b-0", "a-0"]
    assert names("-l", "pool=a") == ["a-1", "a-0"]
    assert names("--problems") == ["b-0", "a-1"]
    assert names("--problems", "-l", "pool in (a)") == ["a-1"]
    assert run(capsys, "a-0", "-f", fleet)[0] == run(capsys, "a-1", "-f", fleet)[0] == 0
    assert run(capsys, "b-0", "-f", fleet)[0] == 1


def test_a_misspelt_name_or_selector_is_refused_with_what_was_meant(
    fleet: str, capsys: CaptureFixture
) -> None:
    code, _, error = run(capsys, "a-9", "-f", fleet)
    assert (code, error) == (1, "dranet: NotFound: node a-9 does not exist (did you mean a-1 or a-0?)\n")

    code, _, error = run(capsys, "-l", "pool=a=b", "-f", fleet)
    assert code == 2
    assert "--selector: 'pool=a=b' is not a requirement" in error


def test_wide_has_the_pods_and_every_problem(tmp_path: Path, capsys: CaptureFixture) -> None:
    cordoned = node("b-0", unschedulable=True)
    objects = [cordoned if body["kind"] == "Node" and body == node("b-0") else body for body in FLEET]
    text = run(capsys, "-f", write(tmp_path, objects), "-o", "wide")[1]

    row = text.splitlines()[1]
    assert "dranet-b-0  1       pod dranet-b-0 of the driver is not ready" in row
    assert row.endswith("; the node is cordoned")


def test_programs_get_json_or_yaml(fleet: str, capsys: CaptureFixture) -> None:
    document = json.loads(run(capsys, "-f", fleet, "-o", "json")[1])

    assert yaml.safe_load(run(capsys, "-f", fleet, "-o", "yaml")[1]) == document
    assert document["summary"] == {
        "nodes": 3,
        "withProblems": 1,
        "withWarnings": 1,
        "nics": {"allocated": 1, "offered": 3},
        "gpus": {"allocated": 1, "offered": 3},
        "bandwidth": {"allocated": 0, "offered": 0},
        "misalignedPods": 1,
    }
    assert document["nodes"][0]["driver"] == [
        {"pod": "dranet-b-0", "version": "0.1.0", "ready": False, "reason": "ImagePullBackOff, 4 restarts"}
    ]
    mine = ["team-a/train"]
    assert document["nodes"][1]["claims"] == {"allocated": mine, "prepared": mine, "attached": mine}
    assert document["nodes"][1]["misalignedPods"][0]["pod"] == "team-a/train-pod"
    assert document["nodes"][2]["problems"] == document["notLookedAt"] == []


def test_bandwidth_has_a_column_where_it_is_counted(tmp_path: Path, capsys: CaptureFixture) -> None:
    port = {**device("port"), "capacity": {"dra.net/bandwidth": {"value": "100G", "requestPolicy": {}}}}
    held = claim("a", "b", ["port"], consumedCapacity={"dra.net/bandwidth": "20G"})
    objects = [node("a"), node("b"), resource_slice("a", device("nic")), resource_slice("b", port), held]
    _, text, _ = run(capsys, "-f", write(tmp_path, objects))
    assert [line[26:37].strip() for line in text.splitlines()[:3]] == ["BANDWIDTH", "-", "20/100 Gb/s"]


def test_many_healthy_nodes_are_grouped_and_all_shows_each(tmp_path: Path, capsys: CaptureFixture) -> None:
    names = [f"n-{number:04}" for number in range(1000)]
    many = [made for name in names for made in (node(name), resource_slice(name, NIC, GPU), driver_pod(name))]
    file = write(tmp_path, [*many, *FLEET])

    lines = run(capsys, "-f", file)[1].splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["b-0", "a-1", "1001 like a-0"]
    assert "0/1001" in lines[3]
    assert lines[5].startswith("1003 nodes: 1 with problems, 1 with warnings; 1 of 1003 NICs")
    assert run(capsys, "-f", file, "--all")[1].count("0.1.0") == 1003


def test_captures_are_nodes_whose_driver_is_not_known(capsys: CaptureFixture) -> None:
    code, text, _ = run(capsys, "--capture", str(capture_file("dgx-h100")))
    assert code == 0
    assert text.splitlines()[1].split() == ["dgx-00", "?", "0/12", "0/8", "-", "-"]


STATUS_PATHS = {
    "ResourceClaim": lambda name: paths.resource_claim_status("team-a", name),
    "Pod": lambda name: paths.pod_status("dranet-system", name),
}


def stamped(status: JsonObject) -> JsonObject:
    """Conditions with the time that a server wants of them."""
    changed: JsonObject = json.loads(json.dumps(status))
    for entry in changed.get("devices", ()):
        for condition in entry["conditions"]:
            condition["lastTransitionTime"] = "2026-11-27T10:00:00Z"
    return changed


def test_a_cluster_without_the_driver_is_asked_about(tmp_path: Path, capsys: CaptureFixture) -> None:
    code, text, _ = run(capsys, "-f", write(tmp_path, [node("a")]))
    assert code == 0
    assert text.endswith("no node has a pod or a ResourceSlice of the driver: is it installed?\n")


@pytest.mark.socket
def test_the_viewer_role_is_enough_and_what_it_lacks_is_named(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Two pages of slices; an administrator sees Events as well, a stranger nothing."""
    kinds = {
        "Node": paths.NODES,
        "ResourceSlice": paths.RESOURCE_SLICES,
        "Pod": paths.pods("dranet-system"),
        "ResourceClaim": paths.resource_claims("team-a"),
        "Event": paths.events("team-a"),
    }
    more = [resource_slice(f"n-{number}", NIC) for number in range(600)]
    warning = event("a-0", "DHCPFailed", "no answer")

    async def serve() -> list[tuple[int, str, str]]:
        users = {"ann": User("ann"), "bob": User("bob")}
        async with ApiServer(users=users, manifests=VIEWER, tokens=["root"]) as server:
            for token in ("ann", "root", "bob"):
                server.write_kubeconfig(tmp_path / token, token=token)
            async with ApiClient.from_kubeconfig(tmp_path / "root") as admin:
                for name in ("dranet-system", "team-a"):
                    await admin.create(paths.NAMESPACES, {"metadata": {"name": name}})
                for body in [*FLEET, *more, warning]:
                    made = await admin.create(kinds[body["kind"]], body)
                    if path := STATUS_PATHS.get(body["kind"]):
                        name = body["metadata"]["name"]
                        await admin.replace(path(name), {**made, "status": stamped(body["status"])})
            answers = []
            for token in ("ann", "root", "bob"):
                cluster = ("--kubeconfig", str(tmp_path / token), "a-0", "a-1", "b-0")
                answers.append(await asyncio.to_thread(run, capsys, *cluster))
            as_ann = ("explain", "claim/train", "-n", "team-a", "--kubeconfig", str(tmp_path / "ann"))
            code = await asyncio.to_thread(main, as_ann)
            explained = capsys.readouterr()
            return [*answers, (code, explained.out, explained.err)]

    viewer, admin, stranger, explained = asyncio.run(serve())
    refused = "note: not looked at, because this user may not list them: devicetaintrules, events\n"
    assert viewer == (1, TABLE + refused, "")
    assert "Event DHCPFailed, last about pod team-a/train: no answer" in admin[1]
    assert stranger[:2] == (1, "")
    assert "may not list ResourceSlices" in stranger[2]
    assert "ClusterRole dranet-viewer has the rights" in stranger[2]
    assert explained[0] == 0
    assert "this user may not list DeviceTaintRules: their taints are not looked at" in explained[2]


def test_names_may_come_after_the_files(capsys: CaptureFixture) -> None:
    capture = ("--capture", str(capture_file("dgx-h100")))
    codes = [main(["nodes", "dgx-00", *capture]), main(["nodes", *capture, "dgx-00"])]
    first, second = capsys.readouterr().out.split("NODE ")[1:]
    assert codes[0] == codes[1]
    assert first == second
    assert main(["nodes", *capture, "nowhere.json"]) == 2
