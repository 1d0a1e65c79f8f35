"""The decoder's complaints in the words of a claim: which field, and what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

from dranet.model.json_decoder import Fault, FaultKind, Path, ValidationError
from dranet.model.network_part import Part, fields_of

_P = TypeVar("_P", bound=Part)

_SHOWN_MAX = 80
_SHOWN_NUMBER_MAX = 10**_SHOWN_MAX


class Problem(Struct, frozen=True):
    """One mistake. ``text`` completes "<field path>: ..."."""

    path: Path
    text: str
    of_whole: bool = False
    """Another config may mend it: a field that another one contradicts, or one that is not there."""


def decode(part: type[_P], document: Mapping[str, object]) -> tuple[_P | None, list[Problem]]:
    """The object, or everything that is wrong with the document."""
    try:
        return part.model_validate(document), []
    except ValidationError as error:
        return None, [_explain(part, fault) for fault in error.faults]


def _explain(part: type[Part], fault: Fault) -> Problem:
    match fault.kind:
        case FaultKind.VALUE:
            return Problem(fault.path, f"{fault.text}, not {_show(fault.value)}")
        case FaultKind.UNKNOWN_FIELD:
            return Problem(fault.path, f"{fault.text}{_suggest(part, fault.path)}")
        case FaultKind.MISSING | FaultKind.CONFLICT:
            return Problem(fault.path, fault.text, of_whole=True)


def _suggest(part: type[Part], path: Path) -> str:
    """The field that an unknown one was perhaps meant to be."""
    from difflib import get_close_matches  # only who mistyped a name pays for it

    *outer, unknown = path
    for step in outer:
        field = fields_of(part).get(step) if isinstance(step, str) else None
        part = field.part if field and field.part else part
    known = {name.lower(): name for name in fields_of(part)}
    similar = get_close_matches(str(unknown)[:_SHOWN_MAX].lower(), known, n=1)
    return f"; did you mean {known[similar[0]]}?" if similar else ""


def _show(value: object) -> str:
    """A value as in JSON, short whatever it is."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() if abs(value) > _SHOWN_NUMBER_MAX:
            return "a number so long"
        case str() if len(value) > _SHOWN_MAX:
            return repr(value[:_SHOWN_MAX]) + "..."
        case int() | float() | str():
            return repr(value)
        case Mapping():
            return "an object"
        case _:
            return "a list"
