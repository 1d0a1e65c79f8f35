"""``values.schema.json``: what Helm checks before it renders. Closed: a misspelt key is refused, with its
place."""

from __future__ import annotations

import json
from typing import Any

from tools.manifests.values.chart import FORMER, VALUES
from tools.manifests.values.settings import settings_schema
from tools.manifests.values.value import Value


def build_schema() -> dict[str, Any]:
    former = {
        name: {
            "deprecated": True,
            "description": "A value of DraNet's chart. Refused, with the name that it has here.",
        }
        for name in sorted({path.partition(".")[0] for path in FORMER})
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart dranet",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **{value.name: _schema_of(value) for value in VALUES},
            **former,
            "enabled": {
                "type": "boolean",
                "deprecated": True,
                "description": "Of charts that have this one as a part, which take it as its condition.",
            },
            "global": {
                "type": "object",
                "description": "Of charts that have this one as a part; not looked at.",
            },
        },
        "$defs": {"settings": settings_schema()},
    }


def render_schema() -> str:
    return json.dumps(build_schema(), indent=2) + "\n"


def _schema_of(value: Value) -> dict[str, Any]:
    described: dict[str, Any] = {"description": value.help}
    if not value.is_object:
        return {**described, **value.schema}
    return {
        **described,
        "type": "object",
        "additionalProperties": False,
        "properties": {part.name: _schema_of(part) for part in value.parts},
    }
