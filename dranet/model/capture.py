"""A capture: all facts of one machine as a JSON document that another machine can read.

``dranet capture`` writes it, ``--facts`` and the setting ``facts_file`` read it, and ``tests/data`` is made
of it. Fields that hold their default are left out, so that a document contains only what the kernel reported.
A document is input from outside: whatever does not fit is refused with its place, and nothing is converted.
"""

from __future__ import annotations

import json
import re
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from dranet.errors import SettingsError
from dranet.model.facts import NodeFacts

FORMAT = "dranet.capture/1"
_MAX_PROBLEMS_SHOWN = 10
MAX_CAPTURE_BYTES = 64 * 1024 * 1024
"""A node with 10,000 links takes about 8 MiB."""

_INTEGERS = range(-(2**63), 2**64)
"""No fact of the kernel is wider than 64 bits, signed or not."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Capture(Struct, frozen=True):
    """``source`` describes where the facts come from: the captured machine, or the public documentation."""

    facts: NodeFacts
    source: str = ""


def encode_capture(capture: Capture) -> str:
    """The document, indented, keys in the order of ``model.facts``, with a final newline.

    It can always be written as UTF-8: bytes of a name that were no UTF-8 (surrogate escapes in Python)
    become ``\\udcXX`` escapes, which ``decode_capture`` turns back.
    """
    document = {"format": FORMAT, "source": capture.source, "facts": _encode(capture.facts)}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def decode_capture(text: str) -> Capture:
    """Read a document strictly.

    Raises:
        SettingsError: too large, not JSON, another format, or fields that do not fit; the first ten with
            their places.
    """
    if len(text) > MAX_CAPTURE_BYTES:
        raise SettingsError(f"the capture is larger than {MAX_CAPTURE_BYTES} bytes")
    document = _parse(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        declared = document.get("format") if isinstance(document, dict) else None
        found = "has no format" if declared is None else f"has format {_shown(declared)}"
        raise SettingsError(
            f"the capture {found}, this dranet reads {FORMAT!r}", hint="write it with dranet capture"
        )
    reading = _Reading()
    capture = reading.record(_Document, document, "")
    if reading.problems:
        raise SettingsError(f"the capture does not fit: {reading.summary()}")
    return Capture(capture.facts, capture.source)


class _Document(Struct, frozen=True):
    format: str
    facts: NodeFacts
    source: str = ""


class _Object(dict[str, Any]):
    """A JSON object that remembers names given twice: JSON allows it, and readers differ on which value
    wins."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        times = Counter(name for name, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = [name for name, count in times.items() if count > 1]


def _parse(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_Object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = "it is empty" if not text.strip() else str(error)
        raise SettingsError(f"the capture is not JSON: {why}", hint="write it with dranet capture") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _encode(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_encode(element) for element in value]
    if isinstance(value, str | int | None):
        return value
    return {
        name: _encode(held)
        for name, known in _known_fields(value.__class__).items()
        if (held := getattr(value, name)) != known.default
    }


@cache
def _known_fields(record: type) -> Mapping[str, FieldInfo]:
    return {field.name: field for field in fields(record)}


class _Reading:
    """One pass over a document: builds what fits and collects every problem."""

    def __init__(self) -> None:
        self.problems = 0
        self._shown: list[str] = []

    def summary(self) -> str:
        rest = self.problems - len(self._shown)
        return "; ".join([*self._shown, *([f"and {rest} more"] if rest else [])])

    def _note(self, place: str, problem: str) -> None:
        self.problems += 1
        if len(self._shown) < _MAX_PROBLEMS_SHOWN:
            self._shown.append(f"{place or 'the document'}: {problem}")

    def record(self, kind: type, raw: object, place: str) -> Any:
        """A dataclass from a JSON object; ``None`` once there is a problem in it."""
        if not isinstance(raw, _Object):
            return self._refuse(place, "an object", raw)
        before = self.problems
        values = dict(self._fields(_known_fields(kind), raw, place))
        return kind(**values) if self.problems == before else None

    def _fields(
        self, known: Mapping[str, FieldInfo], raw: _Object, place: str
    ) -> Iterator[tuple[str, object]]:
        for name in raw.twice:
            self._note(_below(place, name), "given twice")
        for name in (name for name in raw if name not in known):
            self._note(_below(place, name), "unknown field")
        for name, field in known.items():
            if name in raw:
                yield name, self.value(field.type, raw[name], _below(place, name))
            elif field.default is NODEFAULT:
                self._note(_below(place, name), "missing")

    def value(self, hint: Any, raw: object, place: str) -> object:
        """``raw`` as the annotation wants it: text, number, truth, tuple, record, or one of them or null."""
        if get_origin(hint) is tuple:
            if not isinstance(raw, list):
                return self._refuse(place, "a list", raw)
            inner = get_args(hint)[0]
            return tuple(self.value(inner, element, f"{place}[{index}]") for index, element in enumerate(raw))
        if get_origin(hint) in (Union, types.UnionType):
            inner = next(option for option in get_args(hint) if option is not types.NoneType)
            return None if raw is None else self.value(inner, raw, place)
        if hint not in _SCALARS:
            return self.record(hint, raw, place)
        wanted, fits = _SCALARS[hint]
        return raw if fits(raw) else self._refuse(place, wanted, raw)

    def _refuse(self, place: str, wanted: str, raw: object) -> Any:
        self._note(place, f"must be {wanted}, not {_shown(raw)}")


_SCALARS: Mapping[Any, tuple[str, Callable[[object], bool]]] = {
    str: ("text", lambda raw: isinstance(raw, str)),
    bool: ("true or false", lambda raw: isinstance(raw, bool)),
    int: ("a whole number of at most 64 bits", lambda raw: type(raw) is int and raw in _INTEGERS),
}


def _below(place: str, name: str) -> str:
    shown = name if name.isidentifier() and name.isascii() and len(name) < 50 else _shown(name)
    return f"{place}.{shown}" if place else shown


def _shown(raw: object) -> str:
    """What was found, short enough for a message and always writable."""
    if isinstance(raw, dict):
        return "an object"
    if isinstance(raw, list):
        return "a list"
    text = json.dumps(raw)
    return text if len(text) <= 40 else f"{text[:37]}..."
