"""Field and label selectors as the API server reads them (``apimachinery`` ``fields``, ``labels``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dranet.desk.kubeapi.errors import bad_request
from dranet.desk.kubeapi.kinds import Kind, get_field

_FIELD_TERM = re.compile(r"([^=!]+?)(!=|==|=)(.*)")
_SET_TERM = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_LABEL_TERM = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<op>!=|==|=)\s*(?P<value>[-\w.]*)")
_BETWEEN_TERMS = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class _Term:
    """``key`` must (or must not) have one of ``values``; ``values`` ``None`` asks for its presence."""

    key: str
    values: frozenset[str] | None
    negated: bool = False

    def matches(self, found: str | None) -> bool:
        hit = found is not None if self.values is None else found in self.values
        return hit is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All terms must match. An empty selector takes everything."""

    fields: tuple[_Term, ...] = ()
    labels: tuple[_Term, ...] = ()

    def matches(self, body: Mapping[str, Any]) -> bool:
        labels = body["metadata"].get("labels") or {}
        return all(term.matches(get_field(body, term.key)) for term in self.fields) and all(
            term.matches(labels.get(term.key)) for term in self.labels
        )


def parse_selector(kind: Kind, field_selector: str, label_selector: str) -> Selector:
    """Raises a 400 :class:`Refusal` for syntax errors and for fields that the kind cannot be selected by."""
    fields = tuple(_parse_field_term(kind, term) for term in field_selector.split(",") if term)
    labels = tuple(
        _parse_label_term(term.strip()) for term in _BETWEEN_TERMS.split(label_selector) if term.strip()
    )
    return Selector(fields, labels)


def _parse_field_term(kind: Kind, text: str) -> _Term:
    match = _FIELD_TERM.fullmatch(text)
    if match is None:
        raise bad_request(f"invalid field selector: {text!r}")
    key, operator, value = match.groups()
    if key not in kind.selectable:
        raise bad_request(f"field label not supported: {key}")
    return _Term(key, frozenset({value}), operator == "!=")


def _parse_label_term(text: str) -> _Term:
    if match := _SET_TERM.fullmatch(text):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return _Term(match["key"], values, match["op"] == "notin")
    if match := _LABEL_TERM.fullmatch(text):
        return _Term(match["key"], frozenset({match["value"]}), match["op"] == "!=")
    if re.fullmatch(r"!?[^\s=!,()]+", text):
        return _Term(text.removeprefix("!"), None, text.startswith("!"))
    raise bad_request(f"unable to parse label selector: {text!r}")
