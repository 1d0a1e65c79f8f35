"""The checks of ``dranet doctor`` as a page, and the JSON schema of its output, from their declarations."""

from __future__ import annotations

import json
from typing import Any

from dranet.cli.doctor.command import FORMAT
from dranet.desk.doctor.catalogue import list_entries
from dranet.desk.doctor.checks import Entry
from dranet.model.findings import WORST_FIRST
from tools.pages.page import fill, table

SCHEMA_NAME = "doctor.schema.json"

_PARTS = {
    "driver": "The driver",
    "settings": "Settings",
    "api": "API server",
    "permissions": "Rights",
    "places": "Folders and sockets",
    "rights": "What the process may do on the node",
    "kernel": "Kernel",
    "runtime": "Container runtime",
    "kubelet": "Kubelet",
    "managers": "Two managers of one NIC",
    "gpus": "GPUs",
    "rdma": "RDMA",
    "gpudirect": "GPUDirect",
    "pcie": "PCIe",
    "rails": "Rails",
    "tuning": "Tuning (with GPUs, RDMA or links of 100 Gbit/s)",
    "view": "What cannot be seen",
}


def checks_page() -> str:
    entries = list_entries()
    parts = sorted({entry.part for entry in entries}, key=_rank)
    sections = (_section(_PARTS.get(part, part), [e for e in entries if e.part == part]) for part in parts)
    return fill("doctor-checks.md", sections="\n".join(sections))


def _rank(part: str) -> tuple[int, str]:
    known = list(_PARTS)
    return (known.index(part) if part in known else len(known), part)


def _section(title: str, entries: list[Entry]) -> str:
    rows = ((f"`{e.id}`", e.what, e.matters, e.fix) for e in entries)
    return f"## {title}\n\n{table(('id', 'checks', 'why it matters', 'how to fix it'), rows)}"


def doctor_schema() -> str:
    """Return ``docs/reference/doctor.schema.json``."""
    text = {"type": "string"}
    count = {"type": "integer"}
    severity = {"enum": [str(state) for state in WORST_FIRST]}
    finding = _object(part=text, severity=severity, seen=text, matters=text, fix=text, id=text)
    counts = _object(**{str(state): count for state in WORST_FIRST})
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What dranet doctor -o json prints",
        "description": "Fields are added, never removed, while the format stays the same.",
        **_object(
            format={"enum": [FORMAT]},
            version=text,
            driver=text,
            node=text,
            worst=severity,
            counts=counts,
            ignored={"type": "array", "items": text},
            findings={"type": "array", "items": finding},
        ),
    }
    return json.dumps(schema, indent=2) + "\n"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}
