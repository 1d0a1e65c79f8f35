"""The kinds of objects that the API server stand-in serves: one table, read by all of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dranet.desk.kubeapi.objects import JsonObject

FieldPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Kind:
    """One served kind; each exists once and is compared by identity. ``fields`` are its selectable fields in
    addition to ``metadata.name`` and ``metadata.namespace``; ``counts_generation``: a change of the spec
    increments ``metadata.generation``."""

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
DEVICE_TAINT_RULES = Kind(
    _RESOURCE,
    "devicetaintrules",
    "DeviceTaintRule",
    namespaced=False,
    has_status=True,
    counts_generation=True,
)
POD_GROUPS = Kind("scheduling.k8s.io", "podgroups", "PodGroup", has_status=True, version="v1alpha3")

# Kept as they are, for those who install something; nothing here acts on them.
DAEMON_SETS = Kind(
    "apps", "daemonsets", "DaemonSet", has_status=True, counts_generation=True, short_names=("ds",)
)
SERVICE_ACCOUNTS = Kind("", "serviceaccounts", "ServiceAccount", short_names=("sa",))
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_INSTALLED = (
    DAEMON_SETS,
    SERVICE_ACCOUNTS,
    Kind(_RBAC, "clusterroles", "ClusterRole", namespaced=False),
    Kind(_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind(_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False),
    Kind(
        _ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
    ),
)

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
    DEVICE_TAINT_RULES,
    POD_GROUPS,
    *_INSTALLED,
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

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True)
class Review:
    """A question that is asked with a POST and stored nowhere."""

    group: str
    plural: str
    kind: str

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/v1/{self.plural}"


ACCESS_REVIEW = Review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
RULES_REVIEW = Review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview")
SUBJECT_REVIEW = Review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview")
TOKEN_REVIEW = Review("authentication.k8s.io", "tokenreviews", "TokenReview")
OTHERS_ACCESS_REVIEW = Review("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview")
REVIEWS = (ACCESS_REVIEW, RULES_REVIEW, SUBJECT_REVIEW, TOKEN_REVIEW, OTHERS_ACCESS_REVIEW)


def build_discovery(path: str) -> JsonObject | None:
    """The discovery document at a path without trailing slash; ``None`` if the path has none."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [_build_group(group, version) for group, version in _groups()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/api/v1":
        return _build_resource_list("", "v1", "v1")
    for group, version in _groups():
        if path == f"/apis/{group}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_build_group(group, version)}
        if path == f"/apis/{group}/{version}":
            return _build_resource_list(group, version, f"{group}/{version}")
    return None


def _groups() -> list[tuple[str, str]]:
    """Every named group with the one version that is served."""
    kinds = [(kind.group, kind.version) for kind in KINDS if kind.group]
    return list(dict.fromkeys([*kinds, *((review.group, "v1") for review in REVIEWS)]))


def _build_group(group: str, served: str) -> JsonObject:
    version = {"groupVersion": f"{group}/{served}", "version": served}
    return {"name": group, "versions": [version], "preferredVersion": version}


def _build_resource_list(group: str, version: str, group_version: str) -> JsonObject:
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    reviews = [review for review in REVIEWS if review.group == group]
    resources = [entry for kind in kinds for entry in _iter_resources(kind)]
    resources += [
        _build_entry(review.plural, review.kind, ["create"], namespaced=False) for review in reviews
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }


def _build_entry(name: str, kind: str, verbs: Sequence[str], *, namespaced: bool) -> JsonObject:
    return {
        "name": name,
        "singularName": "" if "/" in name else kind.lower(),
        "namespaced": namespaced,
        "kind": kind,
        "verbs": list(verbs),
    }


def _iter_resources(kind: Kind) -> Iterator[JsonObject]:
    entry = _build_entry(kind.plural, kind.kind, _VERBS, namespaced=kind.namespaced)
    yield {**entry, "shortNames": list(kind.short_names)}
    for subresource in kind.all_subresources:
        verbs = ["create"] if subresource == "binding" else ["get", "patch", "update"]
        yield _build_entry(f"{kind.plural}/{subresource}", kind.kind, verbs, namespaced=kind.namespaced)
