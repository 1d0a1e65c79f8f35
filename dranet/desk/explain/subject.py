"""What is to be explained: one claim, or all claims of a pod, of which some may not exist yet."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dranet.cel.values import CelError, parse_quantity
from dranet.desk.kubeapi.objects import JsonObject
from dranet.quantity import NANO

_IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"
_EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
_DEFAULT_NAMESPACE = "default"
_ENDED = ("Succeeded", "Failed")
_REFUSED = "Unschedulable"
_RETRIES = "when something changes that may help, as a claim that ends, and after five minutes at the latest"
"""Five minutes are the default of the scheduler's ``--pod-max-in-unschedulable-pods-duration``. It may refuse
a pod for which there is room: it counts an amount twice while it writes the allocation."""


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """One claim, and how the pod comes to it."""

    body: JsonObject
    pod_claim: str = ""
    """Its name in the pod's spec; empty without a pod, and for extended resources."""
    origin: str = ""
    """What the body was made from, where the claim itself does not exist yet."""

    @property
    def label(self) -> str:
        return label_of(self.body)

    @property
    def allocation(self) -> JsonObject | None:
        found: JsonObject | None = (self.body.get("status") or {}).get("allocation")
        return found

    @property
    def reserved_for(self) -> tuple[str, ...]:
        entries = (self.body.get("status") or {}).get("reservedFor") or ()
        return tuple(f"{entry['resource'].removesuffix('s')} {entry['name']}" for entry in entries)


@dataclass(frozen=True, slots=True)
class Subject:
    """All that is allocated together."""

    kind: str
    """``claim`` or ``pod``."""
    label: str
    """``namespace/name``."""
    claims: tuple[WantedClaim, ...]
    pod: JsonObject | None = None
    problems: tuple[tuple[str, str], ...] = ()
    """What is missing before anything can be allocated, each with a hint."""
    remarks: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        """That of the pod; empty for a pod of a file, and without one."""
        return _phase(self.pod) if self.pod else ""

    @property
    def waiting(self) -> tuple[WantedClaim, ...]:
        """The claims without an allocation."""
        return tuple(claim for claim in self.claims if claim.allocation is None)


def label_of(body: JsonObject) -> str:
    """``namespace/name`` of a namespaced object."""
    metadata = body["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName')}..."
    return f"{metadata.get('namespace') or _DEFAULT_NAMESPACE}/{name}"


def with_label(body: JsonObject) -> JsonObject:
    """The object with the namespace and the name of its label, also where a file omits them."""
    namespace, _, name = label_of(body).partition("/")
    return {**body, "metadata": {**body["metadata"], "namespace": namespace, "name": name}}


def find(bodies: Iterable[JsonObject], label: str) -> JsonObject | None:
    """Return the object with that label; the last of several, as ``kubectl apply`` would leave it."""
    return {label_of(body): body for body in bodies}.get(label)


def class_names(claim: JsonObject) -> Iterator[str]:
    """The DeviceClasses that a claim asks for, in its order."""
    for request in (claim["spec"].get("devices") or {}).get("requests") or ():
        options = [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ()
        yield from (option["deviceClassName"] for option in options)


def near_names(name: str, known: Iterable[str]) -> str:
    """A clause about names that are near in spelling, or about those that exist."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    return f"there is {shown}" if names else "none exists"


def claim_subject(claim: JsonObject, pods: Sequence[JsonObject] = ()) -> Subject:
    """One claim by itself; a pod that names others as well is pointed to."""
    label, name = label_of(claim), claim["metadata"].get("name")
    users = [
        label_of(pod)
        for pod in pods
        if _namespace(pod) == _namespace(claim)
        for entries in [pod["spec"].get("resourceClaims") or ()]
        if len(entries) > 1 and any(entry.get("resourceClaimName") == name for entry in entries)
    ]
    remarks = tuple(
        f"pod {user} has other claims besides this one, and gets all or none: dranet explain pod "
        f"{user.partition('/')[2]}"
        for user in users[:1]
    )
    wanted = WantedClaim(claim)
    problems = () if wanted.allocation else tuple(_find_deleted(wanted))
    return Subject("claim", label, (wanted,), problems=problems, remarks=remarks)


def template_subject(template: JsonObject) -> Subject:
    """A claim as it would be made from the template."""
    label = label_of(template)
    body = _claim_from(template, label.partition("/")[2], _namespace(template))
    return Subject("claim", label, (WantedClaim(body, origin="from the ResourceClaimTemplate of this name"),))


def pod_subject(
    pod: JsonObject,
    claims: Sequence[JsonObject],
    templates: Sequence[JsonObject],
    classes: Mapping[str, JsonObject],
) -> Subject:
    """The pod's claims in the order of its spec, then that of its extended resources."""
    problems: list[tuple[str, str]] = []
    wanted: list[WantedClaim] = []
    known = {label_of(claim): claim for claim in claims}
    for entry in pod["spec"].get("resourceClaims") or ():
        found = _resolve(pod, entry, known, {label_of(t): t for t in templates})
        if isinstance(found, WantedClaim):
            wanted.append(found)
            problems += [] if pod["spec"].get("nodeName") else _find_deleted(found)
        else:
            problems.append(found)
    wanted += _extended(pod, known, classes)
    problems += _find_bypass(pod, wanted)
    return Subject("pod", label_of(pod), tuple(wanted), pod, tuple(problems), tuple(_find_remarks(pod)))


def _find_deleted(claim: WantedClaim) -> list[tuple[str, str]]:
    """The scheduler lets no pod begin with a claim that is on its way out."""
    if not claim.body["metadata"].get("deletionTimestamp"):
        return []
    return [(f"ResourceClaim {claim.label} is being deleted", "wait until it is gone, then create it again")]


def _find_bypass(pod: JsonObject, claims: Iterable[WantedClaim]) -> list[tuple[str, str]]:
    """The scheduler allocates nothing for a pod that comes with its node; a bound one has its claims."""
    node = pod["spec"].get("nodeName")
    if not node or _phase(pod) in _ENDED or all(claim.allocation for claim in claims):
        return []
    what = (
        f"the pod names node {node} itself, so the scheduler does not see it and its claims are never "
        "allocated"
    )
    return [(what, f"choose the node by nodeSelector, kubernetes.io/hostname: {node}, in place of nodeName")]


def _phase(pod: JsonObject) -> str:
    return (pod.get("status") or {}).get("phase") or ""


def _find_remarks(pod: JsonObject) -> Iterator[str]:
    if _phase(pod) in _ENDED:
        yield f"the pod has ended ({_phase(pod)}), and its devices are released"
    gates = [str(gate["name"]) for gate in pod["spec"].get("schedulingGates") or ()]
    if gates:
        yield f"the scheduler does not try the pod before its scheduling gates are gone: {', '.join(gates)}"
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == _REFUSED:
            yield f"the scheduler reports: {str(condition.get('message') or '').rstrip('.')}"
            yield f"the scheduler tries the pod again {_RETRIES}"


def _resolve(
    pod: JsonObject,
    entry: JsonObject,
    claims: Mapping[str, JsonObject],
    templates: Mapping[str, JsonObject],
) -> WantedClaim | tuple[str, str]:
    """The claim that an entry of ``spec.resourceClaims`` stands for, or what is missing and a hint."""
    namespace, name = _namespace(pod), entry["name"]
    if entry.get("resourceClaimName"):
        label = f"{namespace}/{entry['resourceClaimName']}"
        if label in claims:
            return WantedClaim(claims[label], name)
        return _missing("ResourceClaim", label, claims, templates)
    made = _made_from_template(pod, name, claims)
    if made is not None:
        return WantedClaim(made, name)
    label = f"{namespace}/{entry.get('resourceClaimTemplateName') or ''}"
    if label not in templates:
        return _missing("ResourceClaimTemplate", label, templates, claims)
    body = _claim_from(templates[label], f"{pod['metadata'].get('name', 'pod')}-{name}", namespace)
    return WantedClaim(body, name, f"from the ResourceClaimTemplate {label.partition('/')[2]}")


def _claim_from(template: JsonObject, name: str, namespace: str) -> JsonObject:
    spec = template["spec"]
    metadata = {**(spec.get("metadata") or {}), "name": name, "namespace": namespace}
    return {"metadata": metadata, "spec": spec["spec"]}


def _missing(kind: str, label: str, known: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[str, str]:
    """The problem and its fix; ``others`` are those of the other of the two kinds."""
    namespace, _, name = label.partition("/")
    if label in others:
        other = "ResourceClaim" if kind.endswith("Template") else "ResourceClaimTemplate"
        return f"{name} is a {other}, not a {kind}", f"{other[0].lower()}{other[1:]}Name: {name}, in the pod"
    places = [other.partition("/")[::2] for other in known]
    elsewhere = [place for place, known_name in places if known_name == name]
    known_here = [known_name for place, known_name in places if place == namespace]
    fix = near_names(name, known_here) if known_here else f"namespace {namespace} has none"
    if elsewhere:
        fix = f"there is one in namespace {elsewhere[0]}; a pod takes those of its own namespace"
    return f"{kind} {label} does not exist", fix


def _made_from_template(pod: JsonObject, name: str, claims: Mapping[str, JsonObject]) -> JsonObject | None:
    """The claim that the claim controller has made for this entry."""
    for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        if status["name"] == name:
            return claims.get(f"{_namespace(pod)}/{status.get('resourceClaimName') or ''}")
    return next((claim for claim in claims.values() if _is_made_for(claim, pod, name)), None)


def _is_made_for(claim: JsonObject, pod: JsonObject, name: str) -> bool:
    metadata = claim["metadata"]
    annotations = metadata.get("annotations") or {}
    owners = metadata.get("ownerReferences") or ()
    return annotations.get("resource.kubernetes.io/pod-claim-name") == name and any(
        owner["kind"] == "Pod" and owner["name"] == pod["metadata"].get("name") for owner in owners
    )


def _namespace(body: JsonObject) -> str:
    return str(body["metadata"].get("namespace") or _DEFAULT_NAMESPACE)


# --- extended resources (KEP-5004) -------------------------------------------------------------------


def _extended(
    pod: JsonObject, claims: Mapping[str, JsonObject], classes: Mapping[str, JsonObject]
) -> Iterator[WantedClaim]:
    """The special claim that the scheduler makes for resources that a DeviceClass stands for; a bound pod
    that has none was served by a device plugin."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    made = claims.get(f"{_namespace(pod)}/{status.get('resourceClaimName') or ''}")
    if made is not None:
        yield WantedClaim(made)
    if made is not None or pod["spec"].get("nodeName"):
        return
    requests = list(_extended_requests(pod, classes))
    if requests:
        name = f"{pod['metadata'].get('name', 'pod')}-extended-resources"
        metadata = {"name": name, "namespace": _namespace(pod), "annotations": {_EXTENDED_ANNOTATION: "true"}}
        body = {"metadata": metadata, "spec": {"devices": {"requests": requests}}}
        names = ", ".join(dict.fromkeys(_extended_names(pod, classes)))
        yield WantedClaim(body, origin=f"for the extended resource {names}")


def _extended_requests(pod: JsonObject, classes: Mapping[str, JsonObject]) -> Iterator[JsonObject]:
    by_resource = classes_by_resource(classes)
    for container, resources in enumerate(iter_resources(pod)):
        ours = [(by_resource[name], amount) for name, amount in resources.items() if name in by_resource]
        for number, (class_name, amount) in enumerate(ours):
            exactly = {"deviceClassName": class_name, "count": amount}
            yield {"name": f"container-{container}-request-{number}", "exactly": exactly}


def _extended_names(pod: JsonObject, classes: Mapping[str, JsonObject]) -> Iterator[str]:
    known = classes_by_resource(classes)
    return (name for resources in iter_resources(pod) for name in resources if name in known)


def iter_resources(pod: JsonObject) -> Iterator[Mapping[str, int]]:
    """What each container asks for, in whole numbers; init containers first, as the scheduler counts."""
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        yield {name: number for name in sorted(amounts) if (number := _whole(amounts[name]))}


def _whole(amount: object) -> int:
    """0 for what is no whole number: not of devices."""
    try:
        number, rest = divmod(parse_quantity(str(amount)), NANO)
    except CelError:
        return 0
    return 0 if rest else max(number, 0)


def classes_by_resource(classes: Mapping[str, JsonObject]) -> dict[str, str]:
    """The DeviceClass that stands for each extended resource."""
    explicit = {(c.get("spec") or {}).get("extendedResourceName"): name for name, c in classes.items()}
    implicit = {f"{_IMPLICIT_RESOURCE}{name}": name for name in classes}
    return {**implicit, **{resource: name for resource, name in explicit.items() if resource}}
