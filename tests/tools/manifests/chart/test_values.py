"""``values.yaml``, its schema and its page: whole, closed, and of one mind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from dranet import __version__
from dranet.desk.templates.chart_classes import CHART_CLASSES, PREFIX
from dranet.security.context import CAPABILITIES, MOUNTS
from tests.tools.manifests.chart.rendering import CHART, REPOSITORY
from tools.manifests.chart_files import POLICIES, build_chart_files
from tools.manifests.chart_settings import free_settings
from tools.manifests.pod_security import APPARMOR_TYPE, SELINUX_TYPE
from tools.manifests.tenant_policy import POWERFUL_PATHS
from tools.manifests.values import build_schema, list_values, mount_key, refused_values, walk
from tools.monitoring import DASHBOARDS, RULES
from tools.pages.chart import build_chart, render_plain_manifests, values_page

TEXT = (CHART / "values.yaml").read_text()
DEFAULTS = yaml.safe_load(TEXT)


GENERATED = build_chart(CHART)
PLAIN = render_plain_manifests(CHART)


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_the_file_of_the_chart_is_not_stale(name: str) -> None:
    assert (CHART / name).read_text() == GENERATED[name], "run `make docs`"


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_the_plain_manifest_is_not_stale(name: str) -> None:
    assert (REPOSITORY / "deploy" / name).read_text() == PLAIN[name], "run `make docs`"


def test_the_plain_manifests_are_those_that_kustomize_is_told() -> None:
    listed = yaml.safe_load((REPOSITORY / "deploy" / "kustomization.yaml").read_text())["resources"]
    found = {path.name for path in (REPOSITORY / "deploy").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == found


def test_the_chart_is_of_the_version_of_the_driver() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (__version__, __version__)
    assert about["kubeVersion"] == ">=1.34.0-0"


def test_nothing_of_the_chart_is_left_over_from_earlier() -> None:
    folder = CHART / "files"
    generated = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    by_hand = {f"monitoring/{file.name}" for file in (RULES, *DASHBOARDS)}
    assert generated == set(build_chart_files()) | by_hand


def test_defaults_are_valid_by_the_schema() -> None:
    Draft202012Validator.check_schema(build_schema())
    Draft202012Validator(build_schema()).validate(DEFAULTS)


def test_a_powerful_parameter_that_there_is_not_is_refused_by_name() -> None:
    """It would guard nothing, and nobody would know."""
    judge = Draft202012Validator(build_schema())
    for name, is_right in (("interface.hardwareAddr", True), ("interface.hardwareAddress", False)):
        values = {"admissionPolicies": {"tenants": {"fields": [name]}}}
        told = [error.message for error in judge.iter_errors(values)]
        assert any(f"'{name}' is not one of" in one for one in told) is not is_right


def walk_schema(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, part in schema.get("properties", {}).items():
        yield f"{path}{name}", part
        yield from walk_schema(part, f"{path}{name}.")


def test_every_value_has_a_place_in_the_schema_a_default_and_help() -> None:
    described = {path for path, part in walk_schema(build_schema()) if not part.get("deprecated")}
    declared = {path for path, _ in walk(list_values())}
    assert declared <= described
    parts_of_kubernetes = {
        path
        for path in described
        if path.startswith(("affinity.", "resources.", "topologyLabels.resources."))
    }
    assert described - declared == parts_of_kubernetes
    for path, part in walk_schema(build_schema()):
        assert len(part.get("description", "")) > 3 or path.endswith("]"), path
    for path in declared:
        value: Any = DEFAULTS
        for step in path.split("."):
            assert step in value, path
            value = value[step]


def test_every_object_of_the_schema_is_closed() -> None:
    """But for what Kubernetes or the driver itself checks."""
    open_ones = []
    for path, part in walk_schema(build_schema()):
        if part.get("properties") and part.get("additionalProperties") is not False:
            open_ones.append(path)
    assert open_ones == ["global"], "it is shared with other charts"
    free = {path for path, part in walk_schema(build_schema()) if part.keys() - {"description"} == {"type"}}
    free_objects = {path for path in free if dict(walk_schema(build_schema()))[path]["type"] == "object"}
    assert free_objects == {
        *(f"affinity.{kind}" for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")),
        *(f"deviceClasses.{key}.parameters" for key in ("all", "nic", "rdma", "rdmaOnly", "gpu")),
        *(
            f"{kind}.{key}"
            for kind in ("podMonitor", "serviceMonitor")
            for key in ("authorization", "tlsConfig")
        ),
    }


def test_every_key_of_the_values_file_has_its_help_above_it() -> None:
    lines = TEXT.splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"^ *(- )?[\w{]", line)]
    before = {number: lines[number - 1].strip() for number in keys}
    bare = [
        lines[number] for number in keys if not before[number].startswith("#") and before[number][-1:] != ","
    ]
    assert bare == []
    assert max(map(len, lines)) <= 110


def test_the_values_file_names_every_right_with_its_reason() -> None:
    text = re.sub(r"\s+", " ", TEXT.replace("#", " "))
    for capability in CAPABILITIES:
        assert f"{capability.why}. Without it {capability.without} - {capability.name} " in text
    for mount in MOUNTS:
        assert mount.path in text
        assert re.sub(r"\s+", " ", mount.why) in text


def test_defaults_that_the_code_declares_are_those_of_the_code() -> None:
    assert DEFAULTS["securityContext"]["capabilities"] == [one.name for one in CAPABILITIES]
    assert DEFAULTS["securityContext"]["appArmor"]["type"] == APPARMOR_TYPE
    assert DEFAULTS["securityContext"]["seLinuxType"] == SELINUX_TYPE
    assert DEFAULTS["mounts"] == {mount_key(mount): True for mount in MOUNTS if mount.feature}
    assert DEFAULTS["admissionPolicies"].keys() == {policy.key for policy in POLICIES}
    assert DEFAULTS["admissionPolicies"]["tenants"]["fields"] == list(POWERFUL_PATHS)
    assert DEFAULTS["deviceClasses"].keys() - {"create", "prefix", "extra"} == {
        one.key for one in CHART_CLASSES
    }


def test_the_help_of_a_class_has_its_name() -> None:
    about = {path: value.help for path, value in walk(list_values())}
    for one in CHART_CLASSES:
        assert f"Default name: {PREFIX}{one.suffix}." in about[f"deviceClasses.{one.key}"]


def test_every_setting_is_in_the_values_file_with_its_default() -> None:
    for setting in free_settings():
        assert re.search(rf"^#  {setting.name}: ", TEXT, re.MULTILINE), setting.name


def test_settings_copied_from_the_comments_are_the_defaults() -> None:
    """A reader takes the comment sign away."""
    lines = re.findall(r"^#(  \w+: .*)$", TEXT, re.MULTILINE)
    copied = yaml.safe_load("settings:\n" + "\n".join(lines))
    Draft202012Validator(build_schema()).validate(copied)


def test_examples_in_comments_are_valid() -> None:
    for path, value in walk(list_values()):
        if value.example:
            example: Any = yaml.safe_load(value.example)
            for step in reversed(path.split(".")):
                example = {step: example}
            Draft202012Validator(build_schema()).validate(example)


def test_the_page_has_every_value() -> None:
    page = values_page()
    assert all(f"| `{path}` |" in page for path, _ in walk(list_values()))


def test_refused_values_are_no_values() -> None:
    declared = {path for path, _ in walk(list_values())} | {
        f"settings.{setting.name}" for setting in free_settings()
    }
    assert not declared & refused_values().keys()
