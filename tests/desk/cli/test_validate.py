"""``dranet validate``: files in, findings and exit codes out; nothing in a file makes it fail otherwise."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dranet.cli.main import main
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.desk.cli.objects import ClusterObjects, Source, _check_identity
from dranet.desk.cli.validate import build_scope, describe_rules
from dranet.desk.cli.validate_report import find_pod_templates, inspect
from dranet.desk.lint import RULES
from dranet.errors import SettingsError
from testbed.apiserver.server import ApiServer
from tests.data.layouts import CLAIMED_LAYOUTS, capture_file

ROOT = Path(__file__).parents[3]
MISTAKES = str(ROOT / "tests/data/validate/mistakes.yaml")
SCENARIOS = sorted((ROOT / "testbed" / "data" / "scenarios").glob("*.yaml"))
MEANT_TO_FAIL = ("broken", "greedy")
"""Claims of scenarios that show what is refused."""
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nic}
spec: {selectors: [{cel: {expression: 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'}}]}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: fast}
spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: nic}}]}}
"""
POD_SPEC = """
      resourceClaims: [{name: fast, resourceClaimName: fast}]
      containers: [{name: main, image: x, resources: {claims: [{name: fats}]}}]
"""

Validate = Callable[..., tuple[int, str]]


@pytest.fixture
def validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Validate:
    """Exit code and output for a file with this text."""

    def run(text: str, *arguments: str) -> tuple[int, str]:
        file = tmp_path / "objects.yaml"
        file.write_text(text)
        code = main(("validate", str(file), *arguments))
        return code, capsys.readouterr().out.replace(str(tmp_path), "")

    return run


def test_what_is_right_is_said_in_one_line(validate: Validate) -> None:
    assert validate(f"{CLASS}---{CLAIM}") == (0, "2 objects: nothing found\n")


def test_an_error_is_shown_with_its_place_and_the_mend(validate: Validate) -> None:
    code, text = validate(
        f"{CLASS}---{CLAIM.replace('deviceClassName: nic', 'deviceClassName: nic, count: 40')}"
    )

    assert code == 1
    assert text == (
        "ResourceClaim fast  /objects.yaml, document 2\n"
        "  error    spec.devices.requests  [too-many-devices]\n"
        "           asks for 40 devices at the least; a claim can have 32\n"
        "           fix: split it into several claims\n"
        "           why: It can never be allocated.\n"
        "\n"
        "2 objects: 1 error\n"
    )


def test_warnings_fail_only_if_they_are_to(validate: Validate) -> None:
    text = CLASS.replace(".rdma", ".linkSpeedMbps > 1")

    assert validate(text)[0] == 0
    assert validate(text, "--strict")[0] == 1


def test_programs_get_json(validate: Validate) -> None:
    code, text = validate(CLASS.replace("rdma", "rdmaa"), "-o", "json")
    document = json.loads(text)
    (found,) = document["objects"]

    assert code == 0
    assert document["summary"] == {"errors": 0, "warnings": 1, "notes": 0, "objects": 1} | {
        "devices": 0,
        "assumedClasses": [],
    }
    assert (found["kind"], found["name"], found["source"]) == (
        "DeviceClass",
        "nic",
        "/objects.yaml, document 1",
    )
    assert found["findings"][0] == {
        "severity": "warning",
        "rule": "attribute-unknown",
        "path": "spec.selectors[0].cel.expression",
        "what": "no device has dra.net/rdmaa",
        "why": "Where it is guarded the selector never matches, elsewhere it fails.",
        "fix": "did you mean rdma?",
    }


def test_a_field_of_the_wrong_type_is_one_finding(validate: Validate) -> None:
    code, text = validate(CLAIM.replace("[{name: nic, exactly: {deviceClassName: nic}}]", "5"))

    assert code == 1
    assert "[shape]" in text
    assert "must be a list" in text


def test_the_limits_of_the_api_are_kept(validate: Validate) -> None:
    code, text = validate(CLAIM.replace("{name: nic,", "{name: NIC_1,"))

    assert code == 1
    assert "[refused]" in text
    assert "RFC 1123 label" in text


def test_one_name_twice_is_said_at_both(validate: Validate) -> None:
    code, text = validate(f"{CLAIM}---{CLAIM}")

    assert code == 1
    assert text.count("[duplicate]") == 2


def test_two_pods_with_one_claim_are_told(validate: Validate) -> None:
    pods = "---".join(
        f"\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:{POD_SPEC.replace('fats', 'fast')}"
        for name in ("a", "b")
    )
    text = validate(f"{CLAIM}---{pods}")[1]

    assert text.count("[claim-shared]") == 1


WORKLOADS = {
    "Deployment": ("apps/v1", "spec: {replicas: 2, template: {spec: SPEC}}", "spec.template.spec", True),
    "DaemonSet": ("apps/v1", "spec: {template: {spec: SPEC}}", "spec.template.spec", True),
    "Job": ("batch/v1", "spec: {template: {spec: SPEC}}", "spec.template.spec", False),
    "CronJob": (
        "batch/v1",
        "spec: {jobTemplate: {spec: {parallelism: 2, template: {spec: SPEC}}}}",
        "spec.jobTemplate.spec.template.spec",
        True,
    ),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        "spec: {replicatedJobs: [{replicas: 2, template: {spec: {template: {spec: SPEC}}}}]}",
        "spec.replicatedJobs[0].template.spec.template.spec",
        True,
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        "spec: {leaderWorkerTemplate: {size: 4, workerTemplate: {spec: SPEC}}}",
        "spec.leaderWorkerTemplate.workerTemplate.spec",
        True,
    ),
    "MPIJob": (
        "kubeflow.org/v2beta1",
        "spec: {mpiReplicaSpecs: {Worker: {replicas: 8, template: {spec: SPEC}}}}",
        "spec.mpiReplicaSpecs.Worker.template.spec",
        True,
    ),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_pod_templates_are_looked_at_wherever_they_are(validate: Validate, kind: str) -> None:
    version, body, path, shares = WORKLOADS[kind]
    spec = "{" + ", ".join(line.strip() for line in POD_SPEC.strip().splitlines()) + "}"
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: job}}\n{body.replace('SPEC', spec)}"
    code, said = validate(text)

    assert code == 1
    assert f"{path}.containers[0].resources.claims[0]  [claim-undeclared]" in said
    assert ("[claim-shared]" in said) is shares


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_fixed_address_in_a_template_of_several_pods_is_found(validate: Validate, kind: str) -> None:
    version, body, _, shares = WORKLOADS[kind]
    spec = "{containers: [{name: c, resources: {claims: [{name: a}]}}], resourceClaims: [CLAIM]}".replace(
        "CLAIM", "{name: a, resourceClaimTemplateName: fixed}"
    )
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: job}}\n{body.replace('SPEC', spec)}"
    code, said = validate(f"{FIXED_ADDRESS}---\n{text}")

    assert code == 0
    assert ("[address-shared]" in said) is shares
    assert ("all pods of this template get 10.0.0.5/24" in said) is shares


FIXED_ADDRESS = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: fixed}
spec:
  spec:
    devices:
      requests: [{name: nic, exactly: {deviceClassName: dranet-nic}}]
      config:
      - opaque: {driver: dra.net, parameters: {interface: {addresses: [10.0.0.5/24]}}}
"""


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (
            "requests: [NIC, GPU], constraints: [{matchAttribute: pcieRoot, requests: [nic, gpu]}]",
            [("refused", "did you mean resource.kubernetes.io/pcieRoot?")],
        ),
        (
            "requests: [NIC, GPU], constraints: [{matchAttribute: dra.net/pcieRoot, requests: [nic, gpu]}]",
            [("constraint-unknown", "did you mean resource.kubernetes.io/pcieRoot?")],
        ),
        (
            "requests: [NIC, GPU], constraints: [{matchAttribute: PLACE, requests: [nics, gpu]}]",
            [("request-unknown", "did you mean nic?")],
        ),
        (
            "requests: [NIC, GPU], constraint: [{matchAttribute: PLACE, requests: [nic, gpu]}]",
            [("unknown-field", "did you mean constraints?")],
        ),
        (
            "requests: [{name: nic, exactly: {deviceclassname: dranet-nic}}]",
            [("unknown-field", "did you mean deviceClassName?")],
        ),
        (
            "requests: [{name: nic, exactly: {deviceClassName: dranet-nic, selectors: [a]}}]",
            [("shape", "[{cel: {expression: ...}}]")],
        ),
        (
            "requests: [{name: nic, exactly: {deviceClassName: dranet-nic, count: '8'}}]",
            [("shape", "a number without quotes")],
        ),
        ("requests: [NIC, GPU]", [("unaligned", None)]),
        (  # a warning at the same field does not hide that the API server refuses it
            "requests: [NIC, GPU], constraints: [{matchAttribute: PLACE-, requests: [nic, gpu]}]",
            [("refused", None), ("constraint-unknown", "did you mean resource.kubernetes.io/pcieRoot?")],
        ),
    ],
)
def test_one_mistake_is_one_finding_with_its_fix(
    validate: Validate, devices: str, expected: list[tuple[str, str | None]]
) -> None:
    for name, value in {
        "NIC": "{name: nic, exactly: {deviceClassName: dranet-nic}}",
        "GPU": "{name: gpu, exactly: {deviceClassName: dranet-gpu}}",
        "PLACE": "resource.kubernetes.io/pcieRoot",
    }.items():
        devices = devices.replace(name, value)
    head = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\n"
    _, out = validate(f"{head}spec: {{devices: {{{devices}}}}}", "-o", "json")
    (found,) = json.loads(out)["objects"]
    assert [finding["rule"] for finding in found["findings"]] == [rule for rule, _ in expected]
    for finding, (_, fix) in zip(found["findings"], expected, strict=True):
        assert fix is None or finding["fix"] == fix


def test_a_claim_in_the_form_of_kubernetes_1_29_is_one_finding(validate: Validate) -> None:
    spec = "{containers: [{name: c, resources: {claims: [{name: a}]}}], resourceClaims: [{name: a, SOURCE}]}"
    pod = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}"
    _, out = validate(pod.replace("SOURCE", "source: {resourceClaimName: x}"), "-o", "json")
    (found,) = json.loads(out)["objects"]
    assert [finding["rule"] for finding in found["findings"]] == ["unknown-field"]


def test_other_files_are_known_and_not_judged(validate: Validate, tmp_path: Path) -> None:
    known = tmp_path / "class.yaml"
    known.write_text(CLASS.replace(".rdma", ".rdmaa"))

    code, text = validate(CLAIM, "--with", str(known))

    assert (code, text) == (0, "1 object: nothing found\n")


def test_the_template_that_a_compute_domain_makes_is_known_and_not_judged(validate: Validate) -> None:
    """NVIDIA's controller makes it after the file is applied."""
    text = (ROOT / "examples/gb200-compute-domain.yaml").read_text()
    renamed = text.replace("name: train-channel", "name: other", 1)

    assert ["claim-not-given" in validate(one)[1] for one in (text, renamed)] == [False, True]
    assert "ResourceClaimTemplate train-channel " not in validate(text)[1]


def test_selectors_are_tried_on_captures(validate: Validate) -> None:
    capture = ROOT / "tests" / "data" / "dgx-h100" / "capture.json"
    code, text = validate(CLASS.replace(".rdma", ".linkSpeedMbps > 1"), "--facts", str(capture))

    assert code == 1
    assert "[selector-fails]" in text
    assert "selectors tried on 20 devices" in text


def test_odds_and_claims_are_those_of_slices_and_captures(validate: Validate) -> None:
    data = ROOT / "tests" / "data"
    text = (data / "validate" / "unaligned.yaml").read_text()
    slices = ("--with", str(data / "oci-gb200" / "gpu-slices.yaml"))
    facts = ("--facts", str(data / "oci-gb200" / "capture.json"))
    code, out = validate(text, *slices, *facts, "-o", "json")
    findings = [finding for found in json.loads(out)["objects"] for finding in found["findings"]]

    assert code == 0
    assert [finding["rule"] for finding in findings] == ["unaligned", "alignment-by-chance"]
    for finding in findings:
        assert finding["what"].endswith("; by chance NODE in 1/2, SYS in 1/2 on inst-00000-oke-rdma")
        assert "dranet claim new --gpus 1 --nics 1: each NIC with a GPU on the same NUMA" in finding["fix"]


@pytest.mark.parametrize("arguments", [(), ("nowhere.yaml",)])
def test_bad_arguments_end_with_two(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("validate", *arguments)) == 2
    assert capsys.readouterr().err.startswith("dranet: ")


def test_files_can_be_named_as_for_kubectl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", MISTAKES]) == 1
    plain = capsys.readouterr().out
    assert main(["validate", "-f", MISTAKES]) == 1
    assert capsys.readouterr().out == plain
    assert main(["validate", "--with", MISTAKES]) == 2
    assert "nothing to look at: name a file (-f FILE" in capsys.readouterr().err


@pytest.mark.socket
def test_a_live_cluster_knows_what_there_is(validate: Validate, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    arguments = ("--live", "--kubeconfig", str(kubeconfig))

    async def serve() -> list[tuple[int, str]]:
        async with ApiServer() as server:
            async with ApiClient(access_from_url(server.url)) as admin:
                await admin.create(paths.DEVICE_CLASSES, yaml.safe_load(CLASS))
            server.write_kubeconfig(kubeconfig)
            right = await asyncio.to_thread(validate, CLAIM, *arguments)
            wrong = await asyncio.to_thread(validate, CLAIM.replace("Name: nic", "Name: nik"), *arguments)
            return [right, wrong]

    right, wrong = asyncio.run(serve())
    assert right == (0, "1 object: nothing found\n")
    assert wrong[0] == 1
    assert "DeviceClass 'nik' does not exist\n           fix: did you mean nic?" in wrong[1]


@pytest.mark.socket
def test_objects_without_a_namespace_are_in_the_one_of_the_context_or_of_the_command(
    validate: Validate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    cluster = ("--live", "--kubeconfig", str(kubeconfig))
    pod = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:{POD_SPEC.replace('fats', 'fast')}"
    claim = yaml.safe_load(CLAIM)

    def in_context(namespace: str) -> None:
        written = json.loads(kubeconfig.read_text())
        written["contexts"][0]["context"]["namespace"] = namespace
        kubeconfig.write_text(json.dumps(written))

    async def serve() -> list[tuple[int, str]]:
        async with ApiServer() as server:
            async with ApiClient(access_from_url(server.url)) as admin:
                await admin.create(paths.NAMESPACES, {"metadata": {"name": "ml"}})
                await admin.create(paths.DEVICE_CLASSES, yaml.safe_load(CLASS))
                await admin.create(paths.resource_claims("ml"), claim)
            server.write_kubeconfig(kubeconfig)
            elsewhere = await asyncio.to_thread(validate, pod, *cluster)
            named = await asyncio.to_thread(validate, pod, *cluster, "-n", "ml")
            judged = []
            for namespace in ("ml", "default"):
                code = await asyncio.to_thread(main, ("validate", *cluster, "-n", namespace))
                judged.append((code, capsys.readouterr().out))
            in_context("ml")
            return [elsewhere, named, await asyncio.to_thread(validate, pod, *cluster), *judged]

    elsewhere, named, context, of_ml, of_default = asyncio.run(serve())
    assert elsewhere[0] == 1
    assert "there is one in namespace ml" in elsewhere[1]
    assert (named[0], context[0]) == (0, 0)
    assert of_ml[1].startswith("1 object")
    assert of_default[1].startswith("0 objects")


@pytest.mark.socket
def test_to_name_a_cluster_is_to_ask_it_and_each_device_counts_once(
    validate: Validate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    capture = str(ROOT / "tests" / "data" / "dgx-h100" / "capture.json")
    assert main(("devices", "-o", "slices", "--facts", capture)) == 0
    text = capsys.readouterr().out
    named = {**yaml.safe_load(text), "metadata": {"name": "dgx-00-1"}}
    (tmp_path / "slices.yaml").write_text(yaml.safe_dump(named))
    ways = ((), ("--with", str(tmp_path / "slices.yaml")))

    async def serve() -> list[tuple[int, str]]:
        async with ApiServer() as server:
            async with ApiClient(access_from_url(server.url)) as admin:
                await admin.create(paths.DEVICE_CLASSES, yaml.safe_load(CLASS))
                await admin.create(paths.RESOURCE_SLICES, named)
            server.write_kubeconfig(kubeconfig)
            cluster = ("--kubeconfig", str(kubeconfig))
            judged = [await asyncio.to_thread(validate, CLAIM, *cluster, *way) for way in ways]
            code = await asyncio.to_thread(main, ("validate", *cluster))
            return [*judged, (code, capsys.readouterr().out)]

    for code, said in asyncio.run(serve()):
        assert (code, said.endswith(", selectors tried on 20 devices: nothing found\n")) == (0, True), said


# --- what we ship ----------------------------------------------------------------------------------------


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Whatever in a document looks like a Kubernetes object."""
    if isinstance(value, dict):
        if "apiVersion" in value and "kind" in value:
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from objects_in(item)


def errors_in(bodies: list[dict[str, Any]], validate: Validate) -> dict[str, list[str]]:
    _, text = validate(yaml.safe_dump_all(bodies), "-o", "json")
    return {
        found["name"]: [f"{finding['path']}: {finding['what']}" for finding in found["findings"]]
        for found in json.loads(text)["objects"]
        for finding in found["findings"]
        if finding["severity"] == "error"
    }


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_scenarios_have_only_the_errors_that_they_show(file: Path, validate: Validate) -> None:
    bodies = list(objects_in(yaml.safe_load(file.read_text())))

    assert set(errors_in(bodies, validate)) <= set(MEANT_TO_FAIL)


def test_examples_have_no_errors(validate: Validate) -> None:
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        bodies = list(objects_in(list(yaml.safe_load_all(file.read_text()))))
        assert not bodies or errors_in(bodies, validate) == {}, file.name


@pytest.mark.parametrize(
    "file", [*SCENARIOS, *sorted((ROOT / "examples").rglob("*.yaml"))], ids=lambda file: file.stem
)
def test_no_selector_of_ours_stops_a_pod_on_a_mixed_node(file: Path, validate: Validate) -> None:
    bodies = [body for part in yaml.safe_load_all(file.read_text()) for body in objects_in(part)]

    text = validate(yaml.safe_dump_all(bodies))[1] if bodies else ""

    assert "[selector-fails]" not in text, text
    assert "[selector-may-fail]" not in text, text


@pytest.mark.parametrize("layout", CLAIMED_LAYOUTS)
@pytest.mark.parametrize(
    "asked", [(), ("--gpus", "2", "--nics", "2"), ("--rails",), ("--per-node",)], ids=" ".join
)
def test_what_dranet_claim_new_writes_has_no_warnings(
    layout: str, asked: tuple[str, ...], validate: Validate, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = ("--facts", str(capture_file(layout)))
    if main(["claim", "new", *facts, *asked]) != 0:
        assert layout in ("plain-server", "virtual-node")  # they have not that many GPUs
        return
    written = capsys.readouterr().out

    code, text = validate(written, "--strict", *facts)

    assert code == 0, text


def test_manifests_in_the_documentation_have_no_errors(validate: Validate) -> None:
    for page in PAGES:
        if page.name == "admission.md":
            continue  # whose claims are there to be refused
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            try:
                bodies = list(objects_in(list(yaml.safe_load_all(block))))
            except yaml.YAMLError:
                continue  # with "..." in it
            sound = [body for body in bodies if body.get("metadata") and "spec" in body]
            if sound:
                assert errors_in(sound, validate) == {}, page.name


def test_the_page_has_every_rule() -> None:
    page = (ROOT / "docs" / "reference" / "validate-rules.md").read_text()

    assert describe_rules() in page
    assert len({rule.name for rule in RULES}) == len(RULES)


# --- hostile files ---------------------------------------------------------------------------------------

WORDS_OF_THE_API = """
    spec devices requests name exactly firstAvailable selectors cel expression config opaque driver parameters
    constraints matchAttribute resourceClaims containers resources claims request template metadata replicas
    deviceClassName count hostNetwork securityContext capabilities add interface policy tolerations
"""
KEYS = st.sampled_from(WORDS_OF_THE_API.split())
SCALARS = st.none() | st.booleans() | st.integers(-5, 50) | st.floats(allow_nan=False) | st.text(max_size=6)
WORDS = st.sampled_from(["nic", "dra.net", "All", "true", 'device.attributes["dra.net"].x', "a/b", "\ud800"])
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)
KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "Pod", "Deployment", "ResourceSlice")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(KINDS), VALUES, VALUES), max_size=4))
@example([("Pod", {"containers": [{"name": "a", "securityContext": 5}]}, None)])
@example([("ResourceClaim", {"devices": {"requests": [{"name": "a", "exactly": {}}]}}, {"name": "x"})])
def test_any_document_is_judged_or_refused(documents: list[tuple[str, Any, Any]]) -> None:
    found = ClusterObjects()
    for kind, spec, metadata in documents:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
        try:
            _check_identity(body, Source("x"))
        except SettingsError:
            continue
        found.add(body, Source("x"))

    inspect(found, build_scope([found], "dra.net"))


NAMES = st.sampled_from(["nic", "gpu", "", "NIC", "a/b", "x" * 300, "\u00e4", "\ud800"])
EXPRESSIONS = st.sampled_from(
    [
        "true",
        'device.attributes["dra.net"].ifName == "x"',
        'cel.bind(a, device.attributes["dra.net"], a.b)',
        "1 +",
        "[1].indexOf(1) == 0",
        "lists.range(20000).all(x, true)",
        "(" * 300,
        'device.capacity["a"].b.isLessThan(quantity("1"))',
        "",
        "\ud800",
    ]
)
SELECTORS = st.lists(
    st.fixed_dictionaries({"cel": st.fixed_dictionaries({"expression": EXPRESSIONS})}), max_size=2
)
DEMAND = {
    "deviceClassName": NAMES,
    "selectors": SELECTORS,
    "count": st.none() | st.integers(-5, 10**20),
    "allocationMode": st.sampled_from([None, "All", "ExactCount", "Some"]),
    "tolerations": st.lists(st.fixed_dictionaries({"key": NAMES}), max_size=2),
}
REQUEST = st.fixed_dictionaries(
    {"name": NAMES, "exactly": st.fixed_dictionaries(DEMAND)}
) | st.fixed_dictionaries(
    {"name": NAMES, "firstAvailable": st.lists(st.fixed_dictionaries({"name": NAMES, **DEMAND}), max_size=2)}
)
CONFIG = st.fixed_dictionaries(
    {
        "requests": st.lists(NAMES, max_size=2),
        "opaque": st.fixed_dictionaries({"driver": st.just("dra.net"), "parameters": VALUES}),
    }
)
CONSTRAINT = st.fixed_dictionaries({"requests": st.lists(NAMES, max_size=2), "matchAttribute": NAMES})
CLAIM_SPECS = st.fixed_dictionaries(
    {
        "devices": st.fixed_dictionaries(
            {
                "requests": st.lists(REQUEST, max_size=3),
                "constraints": st.lists(CONSTRAINT, max_size=2),
                "config": st.lists(CONFIG, max_size=2),
            }
        )
    }
)
CLASS_SPECS = st.fixed_dictionaries({"selectors": SELECTORS, "config": st.lists(CONFIG, max_size=2)})
POD_CLAIM = st.fixed_dictionaries({"name": NAMES, "resourceClaimName": NAMES})
CONTAINER = st.fixed_dictionaries(
    {
        "name": NAMES,
        "resources": st.fixed_dictionaries(
            {"claims": st.lists(st.fixed_dictionaries({"name": NAMES}), max_size=2)}
        ),
        "securityContext": VALUES,
    }
)
POD_SPECS = st.fixed_dictionaries(
    {
        "resourceClaims": st.lists(POD_CLAIM, max_size=2),
        "containers": st.lists(CONTAINER, max_size=2),
        "hostNetwork": VALUES,
    }
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
@given(CLASS_SPECS, CLAIM_SPECS, POD_SPECS, st.booleans())
def test_any_well_shaped_objects_are_judged(of_class: Any, of_claim: Any, of_pod: Any, is_live: bool) -> None:
    found = ClusterObjects()
    for kind, spec in (("DeviceClass", of_class), ("ResourceClaim", of_claim), ("Pod", of_pod)):
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "nic"}, "spec": spec}
        found.add(body, Source("x"))

    assert len(inspect(found, build_scope([found], "dra.net", is_live=is_live))) == 3


@given(VALUES)
def test_templates_are_looked_for_in_anything(value: Any) -> None:
    for _ in find_pod_templates({"kind": "Any", "spec": value}):
        pass


def test_the_help_names_the_exit_codes() -> None:
    with redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit):
        main(("validate", "--help"))

    assert "Exit code: 0 without errors, 1 with an error" in " ".join(shown.getvalue().split())


# --- what is no object -----------------------------------------------------------------------------------


def test_what_cannot_be_read_is_a_finding_and_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = tmp_path / "chart"
    chart.mkdir()
    (chart / "a.yaml").write_text(f"{CLAIM}---\nkind: Pod\nmetadata: {{name: p}}\n---{TYPO}")
    (chart / "template.yaml").write_text("{{- if .Values.claim }}\nkind: Pod\n{{- end }}\n")
    (chart / "values.yaml").write_text("image: x\n")

    assert main(["validate", str(chart), "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    found = {
        (Path(one["source"]).name.partition(":")[0], finding["rule"]): finding["what"]
        for one in document["objects"]
        for finding in one["findings"]
    }
    assert document["summary"]["objects"] == 2
    assert found["a.yaml, document 2", "unreadable"].startswith("apiVersion is missing")
    assert ("template.yaml", "unreadable") in found
    assert ("values.yaml, document 1", "no-object") in found
    assert ("a.yaml, document 3", "class-misspelt") in found
    assert {finding["severity"] for one in document["objects"] for finding in one["findings"]} == {
        *("error", "warning", "note")
    }
    assert main(["validate", str(chart)]) == 1
    assert "not read  " in capsys.readouterr().out


def test_a_file_that_somebody_names_and_that_is_no_object_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM)
    (tmp_path / "values.yaml").write_text("image: x\n")
    assert main(["validate", str(tmp_path / "claim.yaml"), str(tmp_path / "values.yaml")]) == 1
    assert "error    [unreadable]" in capsys.readouterr().out


# --- kinds and groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "version", "field", "text", "fix"),
    [
        ("ResourceClaimTemplte", "resource.k8s.io/v1", "kind", "has no kind", "mean ResourceClaimTemplate ("),
        ("resourceclaim", "resource.k8s.io/v1", "kind", "has no kind", "did you mean ResourceClaim ("),
        ("Gadget", "resource.k8s.io/v1", "kind", "has no kind", "its kinds are ResourceSlice,"),
        ("Podd", "v1", "kind", "Kubernetes has no kind 'Podd'", "did you mean Pod (apiVersion: v1)?"),
        ("ResourceClaim", "resources.k8s.io/v1", "apiVersion", "has no", "did you mean resource.k8s.io/v1?"),
        ("resourceClaim", "resource.kubernetes.io/v1", "apiVersion", "has no", "mean resource.k8s.io/v1?"),
        ("ResourceClaim", "resource.k8s.io", "apiVersion", "has no", "did you mean resource.k8s.io/v1?"),
        ("DeviceClass", "v1", "apiVersion", "'v1' has no DeviceClass", "did you mean resource.k8s.io/v1?"),
        ("Pod", "apps/v1", "apiVersion", "'apps/v1' has no Pod", "did you mean v1?"),
    ],
)
def test_a_kind_or_group_that_is_nearly_a_known_one_is_an_error(
    kind: str, version: str, field: str, text: str, fix: str, validate: Validate
) -> None:
    code, out = validate(f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\n")

    assert code == 1
    assert f"error    {field}  [unknown-kind]" in out
    assert text in out
    assert fix in " ".join(out.split())


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("Deployment", "apps/v1"),
        ("PodTemplate", "v1"),
        ("ResourceQuota", "v1"),
        ("ResourceFlavor", "kueue.x-k8s.io/v1beta1"),
        ("ComputeDomain", "resource.nvidia.com/v1beta1"),
        ("NodeClaim", "karpenter.sh/v1"),
        ("ResourceClaim", "example.com/v1"),
        ("Pod", "example.com/v1"),
        ("ResourcePoolStatusRequest", "resource.k8s.io/v1alpha3"),
    ],
)
def test_kinds_of_other_groups_are_not_judged(kind: str, version: str, validate: Validate) -> None:
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: []\n"
    assert validate(text) == (0, "1 object: nothing found\n")


# --- older versions of the API ---------------------------------------------------------------------------

OLD = """\
# The claim of our trainers.
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaimTemplate
metadata: {name: old}
spec: {spec: {devices: {requests: [{name: nic, deviceClassName: dranet-rdma, count: 2}]}}}
"""
POD = """\
# A comment that stays.
apiVersion: v1
kind: Pod
metadata: {name: p}   # and this
spec: {containers: [{name: main, image: 'x'}]}
"""
TYPO = CLAIM.replace("deviceClassName: nic", "deviceClassName: dranet-rmda")


def test_an_older_object_is_an_error_and_the_rest_is_judged(validate: Validate) -> None:
    code, text = validate(f"{OLD}---{TYPO}")

    assert code == 1
    assert "error    apiVersion  [api-version]" in text
    assert "fix: resource.k8s.io/v1; dranet validate --convert FILE writes it so" in text
    assert "fix: did you mean dranet-rdma?" in text
    assert "2 objects: 1 error, 1 warning\n" in text


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("v1alpha2", "resource.k8s.io/v1alpha2 is an older version of the API"),
        ("v2", "resource.k8s.io/v2 is newer than this program, which knows resource.k8s.io/v1"),
        ("v2beta1", "resource.k8s.io/v2beta1 is newer than this program"),
        ("v1beta7", "there is no version resource.k8s.io/v1beta7 of the API"),
        ("1", "there is no version resource.k8s.io/1 of the API"),
    ],
)
def test_versions_that_cannot_be_read_are_called_what_they_are(
    version: str, text: str, validate: Validate
) -> None:
    code, out = validate(OLD.replace("v1beta1", version))

    assert code == 1
    assert text in out
    assert "fix: write it as resource.k8s.io/v1" in out
    assert ("no program can convert" in out) == (version == "v1alpha2")


def test_what_is_converted_is_valid_and_everything_else_passes_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], validate: Validate
) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(f"{OLD}---\n{POD}---\n{OLD.replace('name: old', 'name: new')}")
    assert main(("validate", "--convert", str(file))) == 0
    text, told = capsys.readouterr()

    first, second, third = text.split("---\n")
    assert first.startswith("# The claim of our trainers.\napiVersion: resource.k8s.io/v1\n")
    assert second == POD
    wanted = {"name": "nic", "exactly": {"deviceClassName": "dranet-rdma", "count": 2}}
    assert yaml.safe_load(third)["spec"]["spec"]["devices"]["requests"] == [wanted]
    assert told.count("converted ResourceClaimTemplate") == 2
    assert validate(text)[0] == 0


def test_items_of_lists_and_json_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, pod = yaml.safe_load(OLD), yaml.safe_load(POD)
    typed = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaimTemplateList", "items": [old]}
    for name, document in {
        "a.json": {"apiVersion": "v1", "kind": "List", "items": [pod, old]},
        "b.json": typed,
        "c.json": pod,
    }.items():
        (tmp_path / name).write_text(json.dumps(document))

    assert main(("validate", "--convert", str(tmp_path))) == 0
    plain, typed, same = yaml.safe_load_all(capsys.readouterr().out)
    assert plain["items"][0] == same == pod
    assert plain["items"][1] == typed["items"][0]
    assert plain["items"][1]["apiVersion"] == typed["apiVersion"] == "resource.k8s.io/v1"


def test_what_cannot_be_converted_passes_unchanged_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(OLD.replace("v1beta1", "v1alpha2"))

    assert main(("validate", "--convert", str(file))) == 1
    text, told = capsys.readouterr()
    assert yaml.safe_load(text) == yaml.safe_load(file.read_text())
    assert "cannot convert ResourceClaimTemplate old of resource.k8s.io/v1alpha2" in told
    assert "nothing" not in told


def test_the_converted_stream_has_one_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(OLD)

    assert main(("validate", "--convert", str(file), "-o", "json")) == 2
    assert capsys.readouterr() == (
        "",
        "dranet: --convert does not go with -o json: documents keep their text (leave -o out)\n",
    )


@pytest.mark.parametrize(
    "text", [POD, f"{POD}---\n{CLAIM}", f"---\n{POD}...\n---\n# end\n{POD}", "%YAML 1.1\n---\na: b\n"]
)
def test_a_stream_in_which_nothing_changes_means_the_same(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(text)

    assert main(("validate", "--convert", str(file))) == 0
    converted, told = capsys.readouterr()
    assert list(yaml.safe_load_all(converted)) == list(yaml.safe_load_all(text))
    assert "nothing: every object is as in v1" in told


# --- classes of the chart --------------------------------------------------------------------------------


def test_without_any_class_those_of_the_chart_are_assumed_and_named(validate: Validate) -> None:
    claim = CLAIM.replace("deviceClassName: nic", "deviceClassName: dranet-nic")
    config = "config: [{opaque: {driver: dra.net, parameters: {interface: {mtuu: 1}}}}]"

    note = "note: DeviceClasses not given (--with FILE): dranet-nic assumed as in the charts"
    assert validate(claim) == (0, f"1 object: nothing found\n{note}\n")
    assert validate(claim.replace("}]}}", f"}}], {config}}}}}"))[0] == 1
    assert validate(f"{CLASS}---{claim}") == (0, f"2 objects: nothing found\n{note}\n")
    assert "note:" not in validate(f"{CLASS}---{CLAIM}")[1]
