"""Mistakes that people make in values: Helm refuses each with its place, its cause and a fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dranet.settings import Declaration
from tests.tools.manifests.chart.rendering import CHART, JsonObject, find, helm, refusal, render, settings_of
from tools.manifests.chart_settings import camel_case, free_settings
from tools.manifests.values import build_open_schema, plain

MISTAKES: list[JsonObject] = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: json.dumps(mistake["values"]))
def test_a_mistake_is_refused_with_its_place_and_a_fix(mistake: JsonObject) -> None:
    told = refusal(mistake["values"])
    wanted = mistake["says"] if isinstance(mistake["says"], list) else [mistake["says"]]
    assert [line for line in wanted if line not in told] == [], told
    assert told.count("\n* ") == len(wanted), "one mistake has one line"
    assert "additional properties" not in told


def test_the_schema_that_helm_applies_first_refuses_nothing() -> None:
    refusing = {
        "type",
        "enum",
        "pattern",
        "required",
        "additionalProperties",
        "minimum",
        "maximum",
        "maxLength",
    }

    def list_keywords(schema: JsonObject) -> set[str]:
        below = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
        below += [schema["items"]] if "items" in schema else []
        return set(schema).union(*map(list_keywords, below))

    schema = build_open_schema()
    assert json.loads((CHART / "values.schema.json").read_text()) == schema
    assert list_keywords(schema) & refusing == set()
    with helm.Chart.load(CHART) as chart:
        for mistake in MISTAKES:
            chart.validate_schema(mistake["values"])


@pytest.mark.parametrize("setting", list(free_settings()), ids=lambda setting: setting.name)
def test_a_setting_has_two_names_and_the_driver_reads_one(setting: Declaration) -> None:
    value = plain(setting.default)
    for name in (setting.name, camel_case(setting.name)):
        written = settings_of(find(render({"settings": {name: value}}), "ConfigMap"))
        assert written[setting.name] == value
        assert name == setting.name or name not in written


def test_a_pool_overrides_a_common_setting_under_either_name() -> None:
    values = {"settings": {"logLevel": "debug"}, "pools": [{"name": "a", "settings": {"log_level": "error"}}]}
    written = settings_of(find(render(values), "ConfigMap"))
    assert {key: value for key, value in written.items() if key.startswith("log")} == {"log_level": "error"}
