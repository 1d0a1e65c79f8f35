"""The kinds of objects that are read here, and names that are spelt nearly as theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from dranet.desk.kubeapi.versions import CURRENT, GROUP

GROUP_OF: Mapping[str, str] = {
    **dict.fromkeys(
        ("ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "DeviceTaintRule"), GROUP
    ),
    **dict.fromkeys(("Pod", "Node"), ""),
}
"""The kinds that are read here. A kind of the same name in a group of others is another."""

CLUSTER_SCOPED = ("DeviceClass", "ResourceSlice", "Node", "DeviceTaintRule")
"""Those without a namespace."""

_OF_GROUP = tuple(kind for kind, group in GROUP_OF.items() if group == GROUP)
_NOT_READ = ("ResourcePoolStatusRequest",)
"""Further kinds of ``resource.k8s.io``."""

_NEAR_KINDS_OF_OTHERS = ("PodTemplate", "PodList", "NodeList")
_CORE = "v1"
_NEAR = 0.75
_LONGEST = 80


def is_read(body: Mapping[str, Any]) -> bool:
    """Whether it is of one of these kinds, in any version of ``resource.k8s.io``."""
    kind, api_version = body.get("kind"), str(body.get("apiVersion"))
    if GROUP_OF.get(str(kind)) == GROUP:
        return api_version.startswith(f"{GROUP}/")
    return kind in GROUP_OF and api_version == _CORE


class Misspelt(NamedTuple):
    """What is wrong with ``apiVersion`` or ``kind``."""

    field: str
    text: str
    fix: str


def find_misspelt_kind(body: Mapping[str, Any]) -> Misspelt | None:
    """What no API server knows in the type of this object. Groups of others, which have a dot in their names,
    may have any kinds."""
    kind, api_version = body["kind"], body["apiVersion"]
    if is_read(body):
        return None
    group = api_version.rpartition("/")[0]
    meant = kind if kind in GROUP_OF else _nearest(kind, GROUP_OF)
    if group == GROUP:
        return None if kind in _NOT_READ else _unknown_kind(kind, group, meant)
    if "." in group:
        is_near = _nearest(group, (GROUP,)) and GROUP_OF.get(meant) == GROUP
        return _misplaced(api_version, kind, meant) if is_near else None
    if not meant or kind in _NEAR_KINDS_OF_OTHERS:
        return None
    return _misplaced(api_version, kind, meant) if kind == meant else _unknown_kind(kind, group, meant)


def _version_of(kind: str) -> str:
    return CURRENT if GROUP_OF[kind] else _CORE


def _unknown_kind(kind: str, group: str, meant: str) -> Misspelt:
    owner = group or "Kubernetes"
    kinds = f"its kinds are {', '.join(_OF_GROUP)}"
    fix = f"did you mean {meant} (apiVersion: {_version_of(meant)})?" if meant else kinds
    return Misspelt("kind", f"{owner} has no kind {kind[:_LONGEST]!r}", fix)


def _misplaced(api_version: str, kind: str, meant: str) -> Misspelt:
    text = f"{api_version[:_LONGEST]!r} has no {kind[:_LONGEST]}"
    return Misspelt("apiVersion", text, f"did you mean {_version_of(meant)}?")


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(name[:_LONGEST].lower(), by_lower, n=1, cutoff=_NEAR)
    return by_lower[found[0]] if found else ""
