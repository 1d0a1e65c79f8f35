"""What the Prometheus operator takes of a PodMonitor, a ServiceMonitor and a PrometheusRule, by its published
API (monitoring.coreos.com/v1), as far as the chart writes it. Written by hand, and closed: a field that is
not here is a fault of the chart or a gap of this file."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_DURATION: Schema = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}


def _closed(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


_METADATA = _closed(("name",), name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS)

_RELABEL = _closed(
    (),
    sourceLabels={"type": "array", "items": {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}},
    separator=_TEXT,
    targetLabel=_TEXT,
    regex=_TEXT,
    modulus={"type": "integer"},
    replacement=_TEXT,
    action={
        "enum": [
            "replace",
            "keep",
            "drop",
            "hashmod",
            "labelmap",
            "labeldrop",
            "labelkeep",
            "lowercase",
            "uppercase",
        ]
    },
)

_SECRET_KEY = _closed(("key",), name=_TEXT, key=_TEXT, optional={"type": "boolean"})
_SECRET_OR_MAP = _closed((), secret=_SECRET_KEY, configMap=_SECRET_KEY)

_ENDPOINT = _closed(
    (),
    path=_TEXT,
    port=_TEXT,
    scheme={"enum": ["http", "https"]},
    interval=_DURATION,
    scrapeTimeout=_DURATION,
    tlsConfig=_closed(
        (),
        ca=_SECRET_OR_MAP,
        cert=_SECRET_OR_MAP,
        keySecret=_SECRET_KEY,
        serverName=_TEXT,
        insecureSkipVerify={"type": "boolean"},
    ),
    authorization=_closed((), type=_TEXT, credentials=_SECRET_KEY),
    relabelings={"type": "array", "items": _RELABEL},
    metricRelabelings={"type": "array", "items": _RELABEL},
    honorLabels={"type": "boolean"},
)

_RULE = _closed(
    ("expr",),
    alert=_TEXT,
    record=_TEXT,
    expr={"type": ["string", "integer"]},
    **{"for": _DURATION, "keep_firing_for": _DURATION},
    labels=_TEXTS,
    annotations=_TEXTS,
)

CUSTOM_KINDS: dict[str, Schema] = {
    "PodMonitor": _closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": "PodMonitor"},
        metadata=_METADATA,
        spec=_closed(
            ("selector", "podMetricsEndpoints"),
            selector=_closed((), matchLabels=_TEXTS),
            namespaceSelector=_closed(
                (), any={"type": "boolean"}, matchNames={"type": "array", "items": _TEXT}
            ),
            podMetricsEndpoints={"type": "array", "items": _ENDPOINT, "minItems": 1},
        ),
    ),
    "ServiceMonitor": _closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": "ServiceMonitor"},
        metadata=_METADATA,
        spec=_closed(
            ("selector", "endpoints"),
            selector=_closed((), matchLabels=_TEXTS),
            namespaceSelector=_closed(
                (), any={"type": "boolean"}, matchNames={"type": "array", "items": _TEXT}
            ),
            endpoints={"type": "array", "items": _ENDPOINT, "minItems": 1},
        ),
    ),
    "PrometheusRule": _closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": "PrometheusRule"},
        metadata=_METADATA,
        spec=_closed(
            (),
            groups={
                "type": "array",
                "items": _closed(
                    ("name",),
                    name={"type": "string", "minLength": 1},
                    interval=_DURATION,
                    labels=_TEXTS,
                    limit={"type": "integer"},
                    rules={"type": "array", "items": _RULE},
                ),
            },
        ),
    ),
}
