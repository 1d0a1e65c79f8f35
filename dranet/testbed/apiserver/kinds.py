"""The kinds of objects that the API server stand-in serves: one table, read by all of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

JsonObject = dict[str, Any]

FieldPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """One served kind. ``fields`` are its selectable fields beside ``metadata.name`` and
    ``metadata.namespace``; ``counts_generation``: a change of the spec increments
    ``metadata.generation``."""

    group: str
    plural: str
    kind: str
    namespaced: bool = True
    has_status: bool = False
    counts_generation: bool = False
    fields: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    version: str = field(default="v1")

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_resource(self) -> str:
        """As error texts spell it: ``resourceclaims.resource.k8s.io``, ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def selectable(self) -> frozenset[str]:
        return frozenset(self.fields) | {"metadata.name", "metadata.namespace"}

    @property
    def all_subresources(self) -> tuple[str, ...]:
        return (("status",) if self.has_status else ()) + self.subresources


_RESOURCE = "resource.k8s.io"

PODS = Kind(
    "",
    "pods",
    "Pod",
    has_status=True,
    counts_generation=True,
    fields=("spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "status.phase", "status.podIP"),
    short_names=("po",),
    subresources=("binding",),
)
NODES = Kind(
    "",
    "nodes",
    "Node",
    namespaced=False,
    has_status=True,
    fields=("spec.unschedulable",),
    short_names=("no",),
)
EVENTS = Kind(
    "",
    "events",
    "Event",
    fields=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "type",
    ),
    short_names=("ev",),
)
NAMESPACES = Kind(
    "",
    "namespaces",
    "Namespace",
    namespaced=False,
    has_status=True,
    fields=("status.phase",),
    short_names=("ns",),
)
CONFIG_MAPS = Kind("", "configmaps", "ConfigMap", short_names=("cm",))
RESOURCE_SLICES = Kind(
    _RESOURCE,
    "resourceslices",
    "ResourceSlice",
    namespaced=False,
    counts_generation=True,
    fields=("spec.driver", "spec.nodeName", "spec.pool.name"),
)
RESOURCE_CLAIMS = Kind(_RESOURCE, "resourceclaims", "ResourceClaim", has_status=True)
RESOURCE_CLAIM_TEMPLATES = Kind(_RESOURCE, "resourceclaimtemplates", "ResourceClaimTemplate")
DEVICE_CLASSES = Kind(_RESOURCE, "deviceclasses", "DeviceClass", namespaced=False, counts_generation=True)

KINDS = (
    PODS,
    NODES,
    EVENTS,
    NAMESPACES,
    CONFIG_MAPS,
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    DEVICE_CLASSES,
)

_BY_RESOURCE = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}


def find_kind(group: str, version: str, plural: str) -> Kind | None:
    return _BY_RESOURCE.get((group, version, plural))


def get_field(body: Mapping[str, Any], dotted: str) -> str:
    """A selectable field as text: absent is empty, booleans in lower case, as a server compares them."""
    value: Any = body
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


# Discovery documents (metav1 APIVersions, APIGroupList, APIGroup, APIResourceList).

_VERSION = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.0-standin",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/none",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def build_discovery(path: str) -> JsonObject | None:
    """The discovery document at a path without trailing slash; ``None`` when there is none."""
    documents: dict[str, JsonObject] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_build_group(_RESOURCE)]},
        f"/apis/{_RESOURCE}": {"kind": "APIGroup", "apiVersion": "v1", **_build_group(_RESOURCE)},
        "/api/v1": _build_resource_list("", "v1"),
        f"/apis/{_RESOURCE}/v1": _build_resource_list(_RESOURCE, f"{_RESOURCE}/v1"),
        "/version": _VERSION,
    }
    return documents.get(path)


def _build_group(group: str) -> JsonObject:
    version = {"groupVersion": f"{group}/v1", "version": "v1"}
    return {"name": group, "versions": [version], "preferredVersion": version}


def _build_resource_list(group: str, group_version: str) -> JsonObject:
    resources = [entry for kind in KINDS if kind.group == group for entry in _iter_resources(kind)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }


def _iter_resources(kind: Kind) -> Iterator[JsonObject]:
    entry = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
        "shortNames": list(kind.short_names),
    }
    yield entry
    for subresource in kind.all_subresources:
        verbs = ["create"] if subresource == "binding" else ["get", "patch", "update"]
        name = f"{kind.plural}/{subresource}"
        yield {
            "name": name,
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs,
        }
