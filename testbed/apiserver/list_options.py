"""What may be asked of a list and of a watch together (``metav1.ListOptions``).

Source: ``ValidateListOptions`` of ``apimachinery/pkg/apis/meta/internalversion/validation``; a streaming list
is played as served, as it is by default since Kubernetes 1.34."""

from __future__ import annotations

from collections.abc import Mapping

from dranet.desk.kubeapi.errors import Cause, Refusal
from dranet.desk.kubeapi.formats import Causes, forbidden, unsupported

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
