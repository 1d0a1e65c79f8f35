"""A capture: all facts of one machine as a JSON document that another machine can read.

``dranet capture`` writes it, ``--facts`` and the setting ``facts_file`` read it, and ``tests/data`` is made
of it. Fields that hold their default are left out, so that a document says only what the kernel said. A
document is input from outside: unknown fields, wrong types and wrong versions are refused with their place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dranet.errors import SettingsError
from dranet.model.facts import NodeFacts

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT = "dranet.capture/1"
MAX_PROBLEMS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Capture:
    """``source`` says where the facts come from, in words: captured from which machine, or from which
    public documentation."""

    facts: NodeFacts
    source: str = ""


def encode_capture(capture: Capture) -> str:
    """The document, indented, keys in the order of ``model.facts``, with a final newline."""
    facts = _adapter().dump_python(capture.facts, mode="json", exclude_defaults=True)
    document = {"format": FORMAT, "source": capture.source, "facts": facts}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def decode_capture(text: str) -> Capture:
    """Read a document strictly.

    Raises:
        SettingsError: not JSON, another format, or fields that do not fit; the first ten with their places.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the capture is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise SettingsError(
            f"the capture has format {found!r}, this dranet reads {FORMAT!r}",
            hint="write it with dranet capture",
        )
    unknown = sorted(document.keys() - {"format", "source", "facts"})
    if unknown:
        raise SettingsError(f"the capture has unknown fields: {', '.join(map(repr, unknown))}")
    source = document.get("source", "")
    if not isinstance(source, str):
        raise SettingsError("the capture's source must be text")
    return Capture(_decode_facts(document.get("facts")), source)


def _decode_facts(raw: Any) -> NodeFacts:
    try:
        return _adapter().validate_json(json.dumps(raw), strict=True, extra="forbid")
    except ValueError as error:  # pydantic's ValidationError is one
        raise SettingsError(f"the capture does not fit: {_problems(error)}") from error


def _problems(error: ValueError) -> str:
    details = error.errors(include_url=False, include_input=False)  # type: ignore[attr-defined]
    lines = [f"{_place(detail['loc'])}: {detail['msg']}" for detail in details]
    shown = lines[:MAX_PROBLEMS_SHOWN]
    rest = len(lines) - len(shown)
    return "; ".join([*shown, *([f"and {rest} more"] if rest else [])])


def _place(location: tuple[str | int, ...]) -> str:
    return "facts" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


@cache
def _adapter() -> TypeAdapter[NodeFacts]:
    from pydantic import TypeAdapter  # costs what only a capture has to pay

    return TypeAdapter(NodeFacts)
