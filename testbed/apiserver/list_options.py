"""What may be asked of a list and of a watch together (``metav1.ListOptions``).

Source: ``ValidateListOptions`` of ``apimachinery/pkg/apis/meta/internalversion/validation``; a streaming list
is served, as it is by default since Kubernetes 1.34."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dranet.desk.kubeapi.errors import Cause, Refusal, bad_request
from dranet.desk.kubeapi.formats import Causes, forbidden, unsupported
from dranet.desk.kubeapi.kinds import Kind, get_field

_MATCH = "resourceVersionMatch"
_NOT_OLDER = "NotOlderThan"
_EXACT = "Exact"


def require_list_options(query: Mapping[str, str], *, watches: bool) -> None:
    """Raises :class:`Refusal`, 422."""
    causes = list(_check_watch(query) if watches else _check_list(query))
    if causes:
        raise _refuse(causes)


def _check_list(query: Mapping[str, str]) -> Causes:
    match, version = query.get(_MATCH, ""), query.get("resourceVersion", "")
    if match and not version:
        yield forbidden(_MATCH, "is forbidden unless resourceVersion is provided")
    if match and query.get("continue"):
        yield forbidden(_MATCH, "is forbidden when continue is provided")
    if match and match not in (_EXACT, _NOT_OLDER):
        yield unsupported(_MATCH, match, (_EXACT, _NOT_OLDER, ""))
    if match == _EXACT and version == "0":
        yield forbidden(_MATCH, 'exact is forbidden for resourceVersion "0"')
    if query.get("sendInitialEvents"):
        yield forbidden("sendInitialEvents", "is forbidden for list")


def _check_watch(query: Mapping[str, str]) -> Causes:
    match, streams = query.get(_MATCH, ""), bool(query.get("sendInitialEvents"))
    if streams and match != _NOT_OLDER:
        yield forbidden(_MATCH, f"sendInitialEvents requires setting resourceVersionMatch to {_NOT_OLDER}")
    if match and not streams:
        yield forbidden(_MATCH, "is forbidden for watch unless sendInitialEvents is provided")
    if match and match != _NOT_OLDER:
        yield unsupported(_MATCH, match, (_NOT_OLDER,))
    if match and query.get("continue"):
        yield forbidden(_MATCH, "is forbidden when continue is provided")


def _refuse(causes: list[Cause]) -> Refusal:
    faults = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    entries = [{"reason": cause.type, "message": cause.message, "field": cause.field} for cause in causes]
    details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": entries}
    return Refusal(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {faults}', details)


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
