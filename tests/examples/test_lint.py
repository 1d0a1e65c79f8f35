"""Every example is right as it is written: for ``dranet validate``, for Kubernetes, and for its reader."""

from __future__ import annotations

import copy
import io
import re
from contextlib import redirect_stdout
from functools import cache
from typing import Any, ClassVar

import pytest
import yaml

from dranet.cli.main import main
from testbed.apiserver.admission import Admission, judge
from tests.data.gpu_drivers import device_classes
from tests.examples.controllers import make_pods
from tests.examples.shapes import SPECS, find_faults, find_templates
from tests.examples.table import (
    ALLOCATIONS,
    CLASSES,
    EXAMPLES,
    EXTENDED_RESOURCES,
    FOLDER,
    NO_PODS,
    REPOSITORY,
)
from tests.support.written_objects.schemas import find_definition_faults
from tools.manifests.parameters_policy import build_parameters_policy
from tools.pages.examples import MANIFESTS as GENERATED

JsonObject = dict[str, Any]

DGX_FACTS = str(REPOSITORY / "tests/data/dgx-h100/capture.json")
NAMES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml"))
MANIFESTS = [name for name in NAMES if name != "rails/attributes.yaml"]
WRITTEN = [name for name in NAMES if name not in GENERATED]
CORE = {
    "Pod": "io.k8s.api.core.v1.Pod",
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Service": "io.k8s.api.core.v1.Service",
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "Job": "io.k8s.api.batch.v1.Job",
    "DeviceClass": "io.k8s.api.resource.v1.DeviceClass",
    "ResourceClaim": "io.k8s.api.resource.v1.ResourceClaim",
    "ResourceClaimTemplate": "io.k8s.api.resource.v1.ResourceClaimTemplate",
}
VENDORS_CLASSES = {item["metadata"]["name"] for item in device_classes()}


@cache
def read(name: str) -> list[JsonObject]:
    return [item for item in yaml.safe_load_all((FOLDER / name).read_text()) if item]


def test_every_file_is_run_or_said_not_to_be() -> None:
    run = {example.file for example in (*EXAMPLES, *ALLOCATIONS)}
    assert sorted({*run, *NO_PODS, *EXTENDED_RESOURCES}) == NAMES


@pytest.mark.parametrize("name", MANIFESTS)
def test_an_example_has_neither_errors_nor_warnings(name: str) -> None:
    known = ["--with", str(CLASSES)]
    facts = ["--facts", DGX_FACTS, "--attributes-file", str(FOLDER / "rails/attributes.yaml")]
    command = ["validate", "--strict", *known, *(facts if name.startswith("rails/") else [])]
    with redirect_stdout(io.StringIO()) as said:
        code = main([*command, str(FOLDER / name)])
    assert code == 0, said.getvalue()


@pytest.mark.parametrize("name", MANIFESTS)
def test_an_example_is_valid_for_each_version_of_kubernetes(name: str) -> None:
    known = [item for item in read(name) if (item["apiVersion"], item["kind"]) not in SPECS]
    faults = [fault for item in known for fault in find_definition_faults(CORE[item["kind"]], item)]
    assert faults == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_objects_of_other_projects_have_known_fields_alone(name: str) -> None:
    others = [item for item in read(name) if (item["apiVersion"], item["kind"]) in SPECS]
    faults = [fault for item in others for fault in find_faults(item)]
    faults += [
        fault
        for item in others
        for template in find_templates(item)
        for fault in find_definition_faults("io.k8s.api.core.v1.PodTemplateSpec", template)
    ]
    assert faults == []


def test_a_new_pod_of_a_deployment_does_not_wait_for_a_device_that_the_old_one_has() -> None:
    """A rolling update starts the new pod first, which hangs where every device is taken."""
    found = {
        f"{name} {item['metadata']['name']}": item["spec"].get("strategy")
        for name in MANIFESTS
        for item in read(name)
        if item["kind"] == "Deployment"
    }
    assert found
    assert {name for name, strategy in found.items() if strategy != {"type": "Recreate"}} == set()


class TestParametersPolicy:
    """What the chart's admission policy says at ``kubectl apply``."""

    POLICY = build_parameters_policy()[0]
    PLURALS: ClassVar = {
        "DeviceClass": "deviceclasses",
        "ResourceClaim": "resourceclaims",
        "ResourceClaimTemplate": "resourceclaimtemplates",
    }

    def judge(self, item: JsonObject) -> object:
        group, _, version = item["apiVersion"].partition("/")
        write = Admission(
            *("CREATE", group, version, self.PLURALS[item["kind"]], "default", item["metadata"]["name"]),
            user_info={"username": "somebody"},
            before=None,
            after=item,
        )
        return judge(self.POLICY, write)

    @pytest.mark.parametrize("name", MANIFESTS)
    def test_it_lets_every_example_pass(self, name: str) -> None:
        assert [
            self.judge(item) for item in read(name) if item["kind"] in self.PLURALS and self.judge(item)
        ] == []

    def test_it_would_see_a_mistake(self) -> None:
        (claim, *_) = copy.deepcopy(read("static-addresses.yaml"))
        claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["interface"]["mtu"] = 1
        assert "mtu" in str(self.judge(claim))


class TestShapes:
    (JOB_SET,) = (item for item in read("jobset.yaml") if item["kind"] == "JobSet")

    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            ({"replicatedJob": []}, "JobSet.spec.replicatedJob: unknown field"),
            ({"failurePolicy": {"maxRestarts": "3"}}, "JobSet.spec.failurePolicy.maxRestarts: is no int"),
            ({"replicatedJobs": {}}, "JobSet.spec.replicatedJobs: is a dict"),
            ({"replicatedJobs": [{"name": "a"}]}, "JobSet.spec.replicatedJobs[0].template: is missing"),
        ],
    )
    def test_what_is_not_in_a_shape_is_a_fault(self, change: JsonObject, fault: str) -> None:
        changed = copy.deepcopy(self.JOB_SET)
        changed["spec"].update(change)
        assert list(find_faults(changed)) == [fault]

    def test_pod_templates_are_found_where_they_are(self) -> None:
        (template,) = find_templates(self.JOB_SET)
        assert template["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "jobset"


class TestControllers:
    def test_every_example_has_pods_and_each_pod_with_a_claim_names_it_in_a_container(self) -> None:
        for example in EXAMPLES:
            pods = make_pods(read(example.file))
            assert [pod["metadata"]["name"] for pod in pods] == list(example.pods), example.file
            for pod in pods:
                entries = {entry["name"] for entry in pod["spec"].get("resourceClaims", ())}
                named = [
                    c for one in pod["spec"]["containers"] for c in one.get("resources", {}).get("claims", ())
                ]
                assert {claim["name"] for claim in named} == entries, (example.file, pod["metadata"]["name"])

    def test_an_indexed_job_tells_each_pod_its_index(self) -> None:
        first, second = make_pods(read("pytorch-ddp-job.yaml"))
        told = [pod["spec"]["containers"][0]["env"][-1] for pod in (first, second)]
        assert told == [{"name": "JOB_COMPLETION_INDEX", "value": index} for index in ("0", "1")]


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in NO_PODS])
def test_the_head_says_what_it_is_for_what_it_needs_how_to_check_it_and_what_to_change(name: str) -> None:
    head = (FOLDER / name).read_text().partition("\napiVersion")[0].splitlines()
    assert all(line.startswith("#") and len(line) <= 110 for line in head), head
    labels = re.findall(r"^# ([A-Z][a-z]+):", "\n".join(head), re.MULTILINE)
    assert labels == ["For", "Needs", "Check", "Change"]


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in NO_PODS])
def test_a_class_that_is_not_in_the_file_is_named_at_its_head(name: str) -> None:
    objects, text = read(name), (FOLDER / name).read_text()
    here = {item["metadata"]["name"] for item in objects if item["kind"] == "DeviceClass"}
    named = set(re.findall(r"deviceClassName: (\S+)", text)) - here
    head = text.partition("\napiVersion")[0]
    assert [one for one in named if one not in head] == []
    assert named <= {item["metadata"]["name"] for item in read(str(CLASSES))} | VENDORS_CLASSES


def test_classes_that_several_files_bring_are_the_same() -> None:
    """So that it does not matter which is applied first."""
    known = {item["metadata"]["name"]: item["spec"] for item in read(str(CLASSES))}
    for name in MANIFESTS:
        for item in read(name):
            if item["kind"] == "DeviceClass" and item["metadata"]["name"] in known:
                assert flat(item["spec"]) == flat(known[item["metadata"]["name"]]), name


def flat(spec: JsonObject) -> JsonObject:
    """With expressions on one line."""
    selectors = [{"cel": {"expression": " ".join(s["cel"]["expression"].split())}} for s in spec["selectors"]]
    return {**spec, "selectors": selectors}
