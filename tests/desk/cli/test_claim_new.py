"""``dranet claim new``: what is printed, where the hardware comes from, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import dranet
from dranet.cli.main import main
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.desk.templates.chart_classes import build_chart_classes, build_class
from testbed.apiserver.server import ApiServer
from tests.data.gpu_slices import FILES, slices_file
from tests.data.layouts import CLAIMED_LAYOUTS, capture_file, read_layout
from tools.pages.examples import MANIFESTS, print_out

REPOSITORY = Path(dranet.__file__).parents[1]
CaptureFixture = pytest.CaptureFixture[str]


WITHOUT_NICS = "h20-roce-lag"
"""The layout whose NICs are all in bonds."""


def run(capsys: CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main(["claim", "new", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def facts(layout: str) -> tuple[str, str]:
    return "--facts", str(capture_file(layout))


def documents(text: str) -> list[dict[str, Any]]:
    return [entry for entry in yaml.safe_load_all(text) if entry]


def test_no_class_of_a_vendor_is_made_for_gpus_of_ours(capsys: CaptureFixture) -> None:
    code, text, error = run(capsys, *facts("dgx-h100"), "--gpu-class", "gpu.nvidia.com")
    assert (code, text) == (1, "")
    assert "--gpu-class gpu.nvidia.com: that is a class of a vendor's driver, and the GPUs here are" in error
    assert "give the ResourceSlices of the vendor's driver with -f FILE" in error


@pytest.mark.parametrize(
    ("layout", "name"), [(layout, name) for layout, names in FILES.items() for name in names]
)
def test_a_file_with_the_slices_of_the_vendors_driver_is_of_the_captured_node(
    layout: str, name: str, capsys: CaptureFixture
) -> None:
    if layout == WITHOUT_NICS:
        return
    slices = slices_file(layout, name)
    code, text, error = run(capsys, *facts(layout), "-f", str(slices), "-o", "json")
    (node,) = {entry["spec"]["nodeName"] for entry in documents(slices.read_text(encoding="utf-8"))}
    template = next(o for o in json.loads(text)["items"] if o["kind"] == "ResourceClaimTemplate")
    gpus = [
        request for request in template["spec"]["spec"]["devices"]["requests"] if request["name"] == "gpu"
    ]
    wanted = "gpu.amd.com" if layout == "mi300x" else "gpu.nvidia.com"

    assert (code, node) == (0, read_layout(layout).facts.host.name), error
    assert {one["deviceClassName"] for gpu in gpus for one in alternatives(gpu)} == {wanted}


def alternatives(request: dict[str, Any]) -> list[dict[str, Any]]:
    return request.get("firstAvailable") or [request["exactly"]]


def test_the_yaml_is_what_kubectl_applies_with_the_reasons_above(capsys: CaptureFixture) -> None:
    code, text, error = run(capsys, *facts("dgx-h100"))

    assert (code, error) == (0, "")
    assert [entry["kind"] for entry in documents(text)] == [
        "ResourceClaimTemplate",
        "Pod",
    ], "the classes are those of the chart"
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("\n".join(comments))
    assert [line.split(":")[0] for line in comments if not line.startswith("#  ")] == [
        "# 1 GPU and 1 RDMA NIC for each pod.",
        "# Seen",
        "# Chosen",
        "# Expect",
        "# Distances",
        "# Assumed",
    ]
    assert "# Assumed: the cluster has the DeviceClasses dranet-rdma and dranet-gpu, as the" in text
    assert "# Expect: PIX on dgx-00, where 8 such pods fit" in text


def unwrapped(text: str) -> str:
    return " ".join(text.replace("\n#  ", "").split())


def test_json_is_a_list_of_the_same_objects(capsys: CaptureFixture) -> None:
    _, as_yaml, _ = run(capsys, *facts("azure-gb300"), "--gpus", "2", "--nics", "2")
    _, as_json, _ = run(capsys, *facts("azure-gb300"), "--gpus", "2", "--nics", "2", "-o", "json")

    assert json.loads(as_json)["kind"] == "List"
    assert json.loads(as_json)["items"] == documents(as_yaml)


def test_names_and_image_are_the_users(capsys: CaptureFixture) -> None:
    names = ("--name", "train", "-n", "team-a", "--class", "rail", "--gpu-class", "card", "--image", "i:1")
    _, text, _ = run(capsys, *facts("dgx-h100"), *names)
    nic, gpu, template, pod = documents(text)

    assert (nic["metadata"]["name"], gpu["metadata"]["name"]) == ("rail", "card")
    assert template["metadata"] == pod["metadata"] == {"name": "train", "namespace": "team-a"}
    assert pod["spec"]["containers"][0]["image"] == "i:1"
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "train"


def test_explain_says_what_else_was_tried(capsys: CaptureFixture) -> None:
    _, text, _ = run(capsys, *facts("infiniband-only"), "--gpus", "2", "--nics", "2", "--explain")
    tried = [line for line in text.splitlines() if line.startswith("# Tried: ")]

    assert len(tried) == 2
    assert "(chosen)" not in tried[0]
    assert "of 4 pods fit" in text
    _, out, error = run(capsys, *facts("infiniband-only"), "--explain", "-o", "json")
    assert json.loads(out)
    assert "# Tried: " in error


def test_slices_from_a_file_give_the_same_as_the_capture(tmp_path: Path, capsys: CaptureFixture) -> None:
    assert main(["devices", *facts("mi300x"), "--publish-gpus", "always", "-o", "slices"]) == 0
    file = tmp_path / "slices.yaml"
    file.write_text(capsys.readouterr().out)

    assert run(capsys, "-f", str(file))[1] == run(capsys, *facts("mi300x"))[1]


def test_the_resource_of_a_device_plugin_is_read_from_the_nodes_of_a_file(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    assert main(["devices", *facts("dgx-h100"), "--publish-gpus", "never", "-o", "slices"]) == 0
    slices = documents(capsys.readouterr().out)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "dgx-00"},
        "status": {"allocatable": {"cpu": "224", "amd.com/gpu": "0", "nvidia.com/gpu": "8"}},
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all([*slices, node]))
    code, text, error = run(capsys, "--gpus", "8", "--nics", "8", "-f", str(file))

    assert (code, error) == (0, "")
    *_, pod = documents(text)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert "# Expect: PIX on dgx-00, where 1 such pod fits." in text


def test_several_captures_are_one_cluster(capsys: CaptureFixture) -> None:
    _, text, _ = run(capsys, *facts("dgx-h100"), str(capture_file("azure-nd-h100-v5")))
    (claim,) = (entry for entry in documents(text) if entry["kind"] == "ResourceClaimTemplate")
    nic, _ = claim["spec"]["spec"]["devices"]["requests"]

    assert [one["name"] for one in nic["firstAvailable"]] == ["same-root", "same-numa", "any"]
    assert "# Seen: aks-h100-00000000-vmss000000: 8 GPUs" in text


def test_what_no_node_can_give_is_refused_with_what_one_could(capsys: CaptureFixture) -> None:
    code, text, error = run(capsys, *facts("hgx-b200"), "--nics", "9")

    assert (code, text) == (1, "")
    assert error == (
        "dranet: --nics 9 --rdma: the only node, b200-00, offers 8 RDMA NICs (mlx5_8 is the "
        "node's uplink: enp39s0f0np0 carries a default route) (--gpus 1 --nics 8 works)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--nics", "0"), "at least one NIC"),
        (("--gpus", "-1"), "no negative number"),
        (("--per-node", "--gpus", "4"), "--per-node takes all there is"),
        (("--name", "Train"), "--name Train: not a valid name"),
        (("--name", "a..b"), "--name a..b: not a valid name"),
        (("--name", "x" * 59), "is longer than 58 characters"),
        (("--namespace", "team.a"), "--namespace team.a: not a valid name (lower-case letters, digits and -"),
        (("--class", "x" * 254), "--class xxx"),
        (("--image", ""), "--image '': is empty"),
        (("--gpu-resource", "gpu"), "--gpu-resource gpu: not a valid name"),
        (("--gpu-resource", "nvidia.com/gpu", "--gpu-class", "h100"), "does not go with --gpu-class"),
        (("--each-numa", "--rails"), "--each-numa does not go with"),
        (("--facts", "/nonexistent.json"), "No such file"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...], wanted: str, capsys: CaptureFixture
) -> None:
    code, text, error = run(capsys, *facts("dgx-h100"), *arguments)

    assert (code, text) == (2, "")
    assert wanted in error


def test_the_usage_shows_which_options_go_together(capsys: CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "--help")
    assert "[[--per-node] [--rails] | --each-numa]" in capsys.readouterr().out


def test_the_class_of_rdma_nics_lets_them_lock_memory_and_no_other(capsys: CaptureFixture) -> None:
    """Of classes that are not the chart's."""
    nic, gpu, *_ = documents(run(capsys, *facts("dgx-h100"), "--class", "rail", "--gpu-class", "card")[1])
    plain, *_ = documents(run(capsys, *facts("plain-server"), "--gpus", "0", "--class", "plain")[1])

    opaque = {"driver": "dra.net", "parameters": {"rdma": {"memlock": "unlimited"}}}
    assert nic["spec"]["config"] == [{"opaque": opaque}]
    assert "config" not in {**gpu["spec"], **plain["spec"]}


def test_a_class_of_the_chart_is_not_written_anew_under_another_meaning(capsys: CaptureFixture) -> None:
    """``dranet-rdma-only`` would select every RDMA NIC from then on, for all claims that name it."""
    code, text, _ = run(capsys, *facts("infiniband-only"), "--gpus", "0", "--class", "dranet-rdma-only")

    assert code == 0
    assert "DeviceClass" not in [entry["kind"] for entry in documents(text)]


def test_more_than_a_claim_has_room_for_is_refused_with_the_flag_that_solves_it(
    capsys: CaptureFixture,
) -> None:
    code, _, error = run(capsys, *facts("aws-p5"), "--gpus", "8", "--nics", "32")
    assert code == 1
    assert "it takes 40 devices, and 32 are the most in a claim (--per-node takes all" in error

    code, _, error = run(capsys, *facts("aws-p5"), "--gpus", "6", "--nics", "32")
    assert code == 1
    assert "(ask for fewer devices, or for all: --per-node takes all" in error


@pytest.mark.parametrize(
    ("layout", "asked"), [("dgx-h100", "--gpus 1 --nics 4"), ("aws-p5", "--gpus 4 --nics 20")]
)
def test_the_reason_names_the_alternatives_that_are_written_alone(
    layout: str, asked: str, capsys: CaptureFixture
) -> None:
    _, text, _ = run(capsys, *facts(layout), *asked.split())
    chosen = " ".join(text.replace("#", "").split()).partition("Chosen: ")[2].partition(". ")[0]
    assert ("same-root" in text) == ("below the same PCIe root complex" in chosen)
    assert "same-numa" in text
    assert "on the same NUMA node" in chosen


def test_the_charts_classes_are_assumed_next_to_one_of_a_file(capsys: CaptureFixture, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump(build_class("mine", "true")))
    code, text, _ = run(capsys, *facts("dgx-h100"), "-f", str(mine))
    assert code == 0
    assert [entry["kind"] for entry in documents(text)] == ["ResourceClaimTemplate", "Pod"]
    assert "Assumed: the cluster has the DeviceClass" in " ".join(text.replace("#", "").split())


def test_an_alternative_that_can_never_match_is_left_out(capsys: CaptureFixture) -> None:
    """A DGX H100 has one NIC with a link below the root of a GPU, and five on its NUMA node."""
    template, _ = documents(run(capsys, *facts("dgx-h100"), "--nics", "9")[1])
    assert template["metadata"]["name"] == "1-gpu-9-nics"
    devices = template["spec"]["spec"]["devices"]
    rungs = {
        request["name"]: [one["name"] for one in request.get("firstAvailable", ())]
        for request in devices["requests"]
    }

    assert rungs.pop("gpu") == []
    assert rungs.pop("nic-0") == ["same-root", "same-numa", "any"]
    assert [rungs[f"nic-{number}"] for number in range(1, 5)] == [["same-numa", "any"]] * 4
    assert [rungs[f"nic-{number}"] for number in range(5, 9)] == [[]] * 4
    assert [constraint["requests"] for constraint in devices["constraints"]] == [
        ["nic-0/same-root", "gpu"],
        [*(f"nic-{number}/same-numa" for number in range(5)), "gpu"],
    ]


def test_without_a_cluster_it_says_where_else_the_hardware_can_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    code, text, error = run(capsys)

    assert (code, text) == (2, "")
    assert "no cluster to ask" in error
    assert "-f FILE, or --capture CAPTURE" in error


@pytest.mark.socket
def test_a_cluster_gives_the_same_as_its_slices_and_captures_beside_it_are_added(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    assert main(["devices", *facts("dgx-h100"), "-o", "slices"]) == 0
    published = documents(capsys.readouterr().out)
    cluster = ("--kubeconfig", str(tmp_path / "kubeconfig"))

    async def serve() -> list[tuple[int, str, str]]:
        async with ApiServer() as server:
            async with ApiClient(access_from_url(server.url)) as admin:
                for body in published:
                    await admin.create(paths.RESOURCE_SLICES, body)
                for body in build_chart_classes():
                    await admin.create(paths.DEVICE_CLASSES, body)
            server.write_kubeconfig(tmp_path / "kubeconfig")
            beside = (*cluster, *facts("azure-nd-h100-v5"))
            return [await asyncio.to_thread(run, capsys, *way) for way in (cluster, beside)]

    alone, beside = asyncio.run(serve())
    assert "because the cluster has it: DeviceClass dranet-rdma and dranet-gpu" in unwrapped(alone[1])
    assert documents(alone[1]) == documents(run(capsys, *facts("dgx-h100"))[1])
    both = run(capsys, *facts("dgx-h100"), str(capture_file("azure-nd-h100-v5")))
    assert documents(beside[1]) == documents(both[1])


def test_rails_of_unlike_nodes_are_written_node_by_node(capsys: CaptureFixture) -> None:
    both = (*facts("hgx-b200"), str(capture_file("dgx-h100")), "--per-node", "--rails")
    code, _, error = run(capsys, *both)
    assert (code, "write one claim for each kind of node: --node b200-00" in error) == (1, True)

    alone = run(capsys, *facts("hgx-b200"), "--per-node", "--rails")
    assert run(capsys, *both, "--node", "b200-00") == alone
    assert alone[0] == 0
    assert "--node b200: no such node (did you mean b200-00?)" in run(capsys, *both, "--node", "b200")[2]


@pytest.mark.parametrize("layout", CLAIMED_LAYOUTS)
def test_what_is_generated_passes_validate(layout: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    """Tried on the devices of the same machine."""
    number = 0
    for arguments in (
        ("--gpus", "0"),
        (),
        ("--gpus", "2", "--nics", "2"),
        ("--per-node",),
        ("--per-node", "--rails"),
    ):
        code, text, _ = run(capsys, *facts(layout), *arguments)
        if code:
            continue
        number += 1
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        assert main(["validate", "--strict", *facts(layout), str(file)]) == 0, capsys.readouterr().out
        capsys.readouterr()
    assert number >= 2


def test_a_node_whose_nics_are_all_in_bonds_has_none_to_claim(capsys: CaptureFixture) -> None:
    """They are offered where ``shared_devices`` says so."""
    code, text, error = run(capsys, *facts(WITHOUT_NICS))
    assert (code, text) == (1, "")
    assert error == (
        "dranet: no node offers a NIC (mlx5_bond_0 cannot move into a pod: the kernel pins bond0 to the "
        "node's network namespace; shared_devices may offer it as the parent of links on top; 3 more such)\n"
    )


def test_files_without_slices_are_named(tmp_path: Path, capsys: CaptureFixture) -> None:
    file = tmp_path / "classes.yaml"
    file.write_text(yaml.safe_dump(build_class("dranet-nic", "true")))

    code, _, error = run(capsys, "-f", str(file))
    assert (code, f"{file} has no ResourceSlices" in error) == (2, True)
    assert f"{file}, {file} have no ResourceSlices" in run(capsys, "-f", str(file), str(file))[2]
    assert run(capsys, *facts("dgx-h100"), "-f", str(file), "--no-rdma")[0] == 0


@pytest.mark.parametrize("name", MANIFESTS)
def test_an_example_is_what_the_command_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("COLUMNS", raising=False)

    assert (REPOSITORY / "examples" / name).read_text() == print_out(MANIFESTS[name]), "run `make docs`"


COUNTED = (
    "--shared-devices",
    'device.attributes["dra.net"].?rdmaDevice.orValue("") == "mlx5_4"',
    "--default-bandwidth",
    "1G",
)
OWN_TYPE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "shared-nic"},
    "spec": {
        "selectors": [
            {"cel": {"expression": 'device.driver == "dra.net" && device.allowMultipleAllocations'}}
        ],
        "config": [{"opaque": {"driver": "dra.net", "parameters": {"interface": {"type": "ipvlan"}}}}],
    },
}


def test_bandwidth_is_requested_of_a_shared_nic_with_a_link_on_top(capsys: CaptureFixture) -> None:
    code, text, _ = run(capsys, "--gpus", "0", "--bandwidth", "25G", *facts("dgx-h100"), *COUNTED)
    assert code == 0
    (template, _) = documents(text)
    devices = template["spec"]["spec"]["devices"]
    (exactly,) = (request["exactly"] for request in devices["requests"])
    assert exactly["capacity"] == {"requests": {"dra.net/bandwidth": "25G"}}
    assert exactly["selectors"] == [{"cel": {"expression": "device.allowMultipleAllocations"}}]
    assert devices["config"][0]["opaque"]["parameters"] == {"interface": {"type": "macvlan"}}
    assert "enough for 16 such pods" in text


def test_bandwidth_next_to_a_gpu_names_the_distance(capsys: CaptureFixture) -> None:
    _, text, _ = run(capsys, "--bandwidth", "25G", *facts("dgx-h100"), *COUNTED)
    assert "# Expect: PIX on dgx-00." in text
    assert "1 GPU and 25G of a shared NIC for each pod" in text


def test_a_class_that_sets_the_type_of_the_link_is_left_alone(capsys: CaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "class.json"
    file.write_text(json.dumps(OWN_TYPE))
    _, text, _ = run(
        capsys, "--gpus", "0", "--bandwidth", "25G", "--class", "shared-nic", *facts("dgx-h100"), *COUNTED,
        "-f", str(file),
    )  # fmt: skip
    (template, _) = documents(text)
    assert "config" not in template["spec"]["spec"]["devices"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--bandwidth", "900G", *COUNTED), "no shared NIC has so much (the most is 400G)"),
        (("--bandwidth", "1G"), "shared_devices and default_bandwidth offer shared NICs"),
        (("--bandwidth", "1500", *COUNTED), "whole megabits per second"),
        (("--bandwidth", "25G", "--nics", "2", *COUNTED), "for one share of one NIC"),
    ],
)
def test_bandwidth_that_no_nic_has_is_refused(
    arguments: tuple[str, ...], complaint: str, capsys: CaptureFixture
) -> None:
    code, text, error = run(capsys, *arguments, *facts("dgx-h100"))
    assert (code != 0, text) == (True, "")
    assert complaint in error
