"""Values that nobody thought of: what the schema takes is rendered into valid objects, or refused with a
sentence; what it does not take is refused with its place. Templates apply the schema, and agree with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dranet.errors import SettingsError
from dranet.settings import DECLARATIONS, load_settings
from tests.tools.manifests.chart import published
from tests.tools.manifests.chart.random_values import draw_from
from tests.tools.manifests.chart.rendering import (
    JsonObject,
    find,
    helm,
    parse,
    refusal,
    render,
    render_texts,
)
from tools.manifests.chart_settings import BIND_ADDRESS, camel_case, free_settings
from tools.manifests.values import build_schema, list_values, needed_values, walk

SCHEMA = build_schema()
_ADDRESS = {"type": "string", "pattern": BIND_ADDRESS}
_REPOSITORY = {"type": "string", "pattern": "^[a-z0-9]{1,9}(/[a-z0-9]{1,9}){0,3}$"}
JUDGE = Draft202012Validator(SCHEMA)
"""Templates judge these."""
DRAWN = json.loads(json.dumps(SCHEMA))
for name in ("bind_address", "bindAddress"):
    DRAWN["$defs"]["settings"]["properties"][name] = _ADDRESS
DRAWN["properties"]["extraObjects"]["items"] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata"],
}
DRAWN["properties"]["extraVolumeMounts"]["items"]["properties"] = {
    "name": {"enum": ["config"]},
    "mountPath": {"type": "string"},
}
DRAWN["properties"]["image"]["properties"]["repository"] = _REPOSITORY
VALUES = draw_from(DRAWN, DRAWN)
SETTINGS = draw_from(DRAWN["$defs"]["settings"], DRAWN)
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without making a failing example smaller, which takes minutes with values as large as these."""


@settings(max_examples=40, phases=QUICK)
@given(VALUES)
def test_what_the_schema_takes_is_rendered_or_refused_with_a_sentence(values: JsonObject) -> None:
    JUDGE.validate(values)
    try:
        texts = render_texts(values)
    except helm.HelmRenderError as error:
        if "\n* " in str(error):
            return
        raise
    for name, text in texts.items():
        for item in parse(text) if name not in ("NOTES.txt", "extraobjects.yaml") else ():
            published.check(item, minors=(37,))


@settings(max_examples=40, phases=QUICK)
@given(SETTINGS)
def test_the_driver_takes_every_setting_that_the_schema_takes(chosen: JsonObject) -> None:
    chosen = {key: value for key, value in chosen.items() if "_" not in key or camel_case(key) not in chosen}
    try:
        text = find(render({"settings": chosen}), "ConfigMap")["data"]["settings.yaml"]
    except helm.HelmRenderError as error:
        assert "settings.webhook_url: " in str(error), "it belongs to others"  # noqa: PT017 - not raised here
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "settings.yaml"
        file.write_text(text)
        try:
            read = load_settings({}, {}, file)
        except SettingsError as error:
            if "socket path" in str(error):  # the sum of several settings
                return
            raise
    snake = {camel_case(setting.name): setting.name for setting in free_settings()}
    for key, value in chosen.items():
        name = snake.get(key, key)
        found = getattr(read, name)
        assert found == DECLARATIONS[name].accept(value), name


@settings(max_examples=100, phases=QUICK)
@given(st.sampled_from([setting.name for setting in free_settings()]), st.text(max_size=12))
def test_the_schema_takes_no_text_that_the_driver_refuses(name: str, text: str) -> None:
    part = SCHEMA["$defs"]["settings"]["properties"][name]
    if part.get("type") == "array":
        return
    try:
        render_texts({"settings": {name: text}})
    except helm.HelmRenderError as error:
        if "\n* " in str(error):
            return
        raise
    try:
        load_settings({name: text}, {})
    except SettingsError as error:
        if "socket path" not in str(error):
            raise


def walk_objects(
    schema: JsonObject, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], JsonObject]]:
    """Every object with properties, and every leaf."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"]["settings"]
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        if not part.get("deprecated"):
            yield from walk_objects(part, (*path, name))


PLACES = dict(walk_objects(SCHEMA))
OBJECTS = [path for path, schema in PLACES.items() if schema.get("additionalProperties") is False]
LEAVES = [path for path, schema in PLACES.items() if not schema.get("properties")]


def nest(path: tuple[str, ...], value: Any) -> JsonObject:
    for step in reversed(path):
        value = {step: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("path", OBJECTS, ids=".".join)
def test_a_misspelt_key_is_refused_by_name(path: tuple[str, ...]) -> None:
    place = ".".join((*path, "qqq"))
    assert f"\n* {place}: there is no such value. " in refusal(nest((*path, "qqq"), 1))


def test_a_key_that_is_nearly_right_is_refused_with_the_right_one() -> None:
    """Every key with its last two letters exchanged."""
    for path, schema in PLACES.items():
        *_, last = path or ("",)
        wrong = last[:-2] + last[:-3:-1]
        if len(last) > 3 and wrong != last:
            told = refusal(nest((*path[:-1], wrong), schema.get("examples", [1])[0]))
            assert f"Did you mean {'.'.join(path)}?" in told, told


def test_a_value_of_the_wrong_kind_is_refused_with_its_place() -> None:
    assert len(LEAVES) > 100
    for path in LEAVES:
        told = refusal(nest(path, [[1]]))
        assert re.search(rf"^\* {re.escape('.'.join(path))}(\[0\])?: ", told, re.MULTILINE), told


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"args": {"filter": "true"}}, "args.filter is a value of DraNet's chart; here it is settings.fil"),
        ({"args": {"inventoryMaxPollInterval": "1m"}}, "here it is settings.rescan_seconds"),
        ({"logVerbosity": 4}, "logVerbosity is a value of DraNet's chart; here it is settings.log_level"),
        ({"metricsPort": 9000}, "metricsPort is a value of DraNet's chart; here it is settings.bind_address"),
        ({"kubeletRootDir": "/k"}, "here it is settings.kubelet_root"),
        ({"settings": {"node_name": "a"}}, "settings.node_name must not be set: the chart takes it"),
        ({"settings": {"procfs_root": "/p"}}, "settings.procfs_root must not be set: the chart sets it"),
        ({"pools": [{"name": "a", "settings": {"pod_uid": "1"}}]}, "pools[a].settings.pod_uid must not be"),
        ({"pools": [{"name": "a", "settings": {"driver_name": "b.c"}}]}, "the name is one for all pools"),
        ({"pools": [{"name": "a"}, {"name": "b"}]}, "pools: a and b can select the same node"),
        (
            {"pools": [{"name": "a", "nodeSelector": {"x": "1"}}, {"name": "b", "nodeSelector": {"y": "2"}}]},
            "pools: a and b can select the same node",
        ),
        ({"pools": [{"name": "a"}, {"name": "a"}]}, "pools: two have the name a"),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}, "one of maxSurge and maxUnavail"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}}, "must be more than 0"),
        (
            {"terminationGracePeriodSeconds": 29},
            "terminationGracePeriodSeconds: 29 is less than drain_seconds + 20 (30): the driver would",
        ),
        (
            {
                "terminationGracePeriodSeconds": 45,
                "pools": [{"name": "a", "settings": {"drain_seconds": 40}}],
            },
            "45 is less than drain_seconds + 20 (60) in pool a",
        ),
        (
            {"securityContext": {"seccomp": {"type": "Localhost"}}},
            "type Localhost needs the name of the profile",
        ),
        ({"securityContext": {"appArmor": {"localhostProfile": "x"}}}, "set type to Localhost"),
        (
            {"metrics": {"authentication": "kubernetes"}},
            "metrics.authentication: kubernetes needs metrics.tls",
        ),
        ({"metrics": {"tls": {"clientCASecretName": "a"}}}, "metrics.tls.clientCASecretName is used only"),
        ({"settings": {"metrics_tls_cert": "/a"}}, "metrics.tls.secretName sets it"),
        ({"deviceClasses": {"extra": [{"name": "dranet"}]}}, "deviceClasses: two have the name dranet"),
        ({"args": {"cloudProviderOptions": {}}}, "args.cloudProviderOptions is a value of DraNet's chart"),
        ({"args": {"unheardOf": 1}}, "args is a value of DraNet's chart; here there is `settings`"),
        (
            {"image": {"repository": "r.example:5000/a/dranet:1.0"}},
            'has a tag in it: write r.example:5000/a/dranet there, and "1.0" as image.tag',
        ),
        (
            {"image": {"repository": "r.example/dranet@sha256:aa"}},
            "has a digest in it: write r.example/dranet there, and what follows the @ as image.digest",
        ),
        ({"image": {"repository": "https://r.example/dranet"}}, "https://r.example/dranet is not the name"),
        ({"image": {"repository": "r.example/"}}, "image.repository: r.example/ is not the name of an image"),
        ({"settings": {"bind_address": 9177}}, "settings.bind_address: 9177 is not HOST:PORT with a port"),
        ({"settings": {"bind_address": ":0"}}, "settings.bind_address: :0 is not HOST:PORT with a port from"),
        (
            {"settings": {"attributes_file": "/x"}, "attributes": [{"set": {"a": 1}}]},
            "settings.attributes_file: /x would not be read, because the values have attributes too",
        ),
        (
            {
                "settings": {"attributes_file": "/x"},
                "pools": [{"name": "a", "attributes": [{"set": {"a": 1}}]}],
            },
            "settings.attributes_file: /x would not be read in pool a",
        ),
        (
            {"pools": [{"name": "a", "settings": {"bind_address": "::1:9177"}}]},
            "pools[a].settings.bind_address: ::1:9177 is not HOST:PORT",
        ),
        (
            {"securityContext": {"capabilities": ["CAP_NET_ADMIN"]}},
            "write NET_ADMIN in place of CAP_NET_ADMIN",
        ),
        ({"securityContext": {"capabilities": ["ALL"]}}, "ALL gives every capability"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name: create is false, so name"),
        (
            {"extraEnv": [{"name": "DRANET_LOG_LEVEL", "value": "debug"}]},
            "extraEnv: DRANET_LOG_LEVEL would override the settings; write settings.log_level",
        ),
        (
            {"admissionPolicies": {"slices": {"validationActions": ["Deny", "Warn"]}}},
            "admissionPolicies.slices.validationActions: Deny and Warn exclude each other",
        ),
        ({"extraVolumes": [{"name": "nri"}]}, "extraVolumes: nri is the name of a volume of the chart"),
        ({"enabled": True}, "enabled: only a chart that has this one as a dependency"),
        (
            {
                "podMonitor": {"enabled": True},
                "settings": {"bind_address": "127.0.0.1:9177"},
            },
            "podMonitor.enabled: Prometheus cannot reach 127.0.0.1:9177",
        ),
        ({"startupProbe": None}, "startupProbe is empty (null). Leave the key out for the default"),
        ({"settings": None}, "settings is empty (null)"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_together_are_refused_with_a_sentence(values: JsonObject, says: str) -> None:
    assert says in refusal(values)


def test_no_null_is_let_through_to_a_template_that_cannot_do_without() -> None:
    """Helm takes a value that is null away together with its default, and its schema does not see that."""
    paths = [path for path, value in walk(list_values()) if not value.is_object]
    needed = [path for path in paths if path in needed_values()]
    everything: JsonObject = {}
    for path in needed:
        merge(everything, nest(tuple(path.split(".")), None))
    message = refusal(everything)
    assert [path for path in needed if f"\n* {path} is empty (null)" not in message] == []
    harmless: JsonObject = {}
    for path in paths:
        if path not in needed:
            merge(harmless, nest(tuple(path.split(".")), None))
    for more in ({}, {name: {"enabled": True} for name in ("networkPolicy", "criticalPodsQuota")}):
        for item in render(merge(json.loads(json.dumps(harmless)), more)):
            published.check(item, minors=(37,))


def merge(into: JsonObject, more: JsonObject) -> JsonObject:
    for key, value in more.items():
        into[key] = merge(into.get(key) or {}, value) if isinstance(value, dict) else value
    return into


def test_all_that_is_wrong_is_said_at_once() -> None:
    wrong = {"logVerbosity": 2, "kubeletRootDir": "/k", "terminationGracePeriodSeconds": 20}
    assert refusal(wrong).count("\n* ") == 3
