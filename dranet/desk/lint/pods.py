"""Pods: do claims, containers and network fit together?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import rules
from dranet.desk.lint.alignment import lint_pod_alignment
from dranet.desk.lint.demands import DemandKind, of_kind, read_demands, read_resources
from dranet.desk.lint.fields import find_unknown_pod_fields
from dranet.desk.lint.parameters import Asked, fixed_name, read_claim
from dranet.desk.lint.rules import LintFinding, find_misspelt, show, suggest
from dranet.desk.lint.scope import Key, Scope, claim_devices

_CLAIM, _TEMPLATE = "resourceClaimName", "resourceClaimTemplateName"


class PodClaim(NamedTuple):
    """One entry of ``spec.resourceClaims``, with what it asks for where that is known."""

    name: str
    path: str
    source: str
    """``ResourceClaim fast``; empty where it is not named."""
    spec: JsonObject | None
    asked: tuple[Asked, ...]
    is_valid: bool = True
    """The driver takes its parameters. Otherwise ``asked`` has none of them."""

    @property
    def has_network(self) -> bool:
        """It brings network devices of ours, as far as its classes are known."""
        return any(one.is_network for one in self.asked)


def lint_pod(
    spec: JsonObject, path: str, namespace: str, scope: Scope, pods: int = 1
) -> Iterator[LintFinding]:
    """A pod's spec, of a Pod or of a template from which ``pods`` pods are made."""
    yield from find_unknown_pod_fields(spec, path)
    claims = list(_read_claims(spec, path, namespace, scope))
    yield from _find_equal_claims(claims)
    for claim in claims:
        yield from _find_claim(claim, namespace, scope, pods)
    yield from _lint_use(spec, path, claims)
    yield from _lint_network(spec, path, claims)
    if claims and spec.get("nodeName"):
        fix = f"nodeSelector: {{kubernetes.io/hostname: {spec['nodeName']}}}"
        text = f"nodeName: {spec['nodeName']} with claims of the pod"
        yield LintFinding(rules.NODE_NAME, f"{path}.nodeName", text, fix)
    yield from _lint_containers(spec, path, claims)
    yield from _find_gpus_twice(spec, path, claims, scope)
    yield from lint_pod_alignment(spec, path, [(c.name, c.path, c.spec) for c in claims], scope)


def find_shared_claims(pods: Sequence[tuple[Key, JsonObject]]) -> Iterator[tuple[Key, LintFinding]]:
    """Pods (name and spec) after the first that name a ResourceClaim that another pod also names."""
    owners: dict[Key, Key] = {}
    for pod, spec in pods:
        for number, entry in enumerate(spec.get("resourceClaims") or ()):
            claim = entry.get(_CLAIM)
            if claim and owners.setdefault(Key(pod.namespace, claim), pod) != pod:
                other = owners[Key(pod.namespace, claim)].name
                text = f"ResourceClaim {claim} is also that of pod {other}"
                path = f"spec.resourceClaims[{number}].{_CLAIM}"
                yield pod, LintFinding(rules.CLAIM_SHARED, path, text, _TEMPLATE)


def _read_claims(spec: JsonObject, path: str, namespace: str, scope: Scope) -> Iterator[PodClaim]:
    for number, entry in enumerate(spec.get("resourceClaims") or ()):
        claim, template = entry.get(_CLAIM), entry.get(_TEMPLATE)
        found: JsonObject | None = None
        source = ""
        if claim and not template:
            source = f"ResourceClaim {claim}"
            found = (scope.claims.get(Key(namespace, claim)) or {}).get("spec")
        elif template and not claim:
            source = f"ResourceClaimTemplate {template}"
            of_template = scope.templates.get(Key(namespace, template)) or {}
            found = (of_template.get("spec") or {}).get("spec")
        asked, problems = read_claim(found, "spec", namespace, scope) if found else ([], [])
        where = f"{path}.resourceClaims[{number}]"
        yield PodClaim(entry["name"], where, source, found, tuple(asked), not problems)


def _find_equal_claims(claims: Sequence[PodClaim]) -> Iterator[LintFinding]:
    names = Counter(claim.name for claim in claims)
    for claim in {claim.name: claim for claim in claims}.values():
        if names[claim.name] > 1:
            text = f"{names[claim.name]} claims of the pod are called {show(claim.name)}"
            yield LintFinding(rules.REFUSED, claim.path, text, "a name for each")


def _find_claim(claim: PodClaim, namespace: str, scope: Scope, pods: int) -> Iterator[LintFinding]:
    if not claim.source:
        text = f"claim {show(claim.name)} must name a claim or a template, and not both"
        yield LintFinding(rules.CLAIM_SOURCE, claim.path, text, f"{_TEMPLATE}, or {_CLAIM}")
        return
    kind, _, name = claim.source.partition(" ")
    if claim.spec is None:
        yield from _find_missing(claim, Key(namespace, name), scope)
    if kind == "ResourceClaim" and pods > 1:
        text = f"all pods of this template share {claim.source}"
        yield LintFinding(rules.CLAIM_SHARED, claim.path, text, f"{_TEMPLATE}: a claim for each pod")
    links = [one.config.interface for one in claim.asked if one.is_network]
    addresses = [str(address) for link in links for address in link.addresses or ()]
    if kind == "ResourceClaimTemplate" and pods > 1 and addresses:
        text = f"all pods of this template get {', '.join(addresses)}"
        fix = "interface.dhcp, or interface.ipam; docs/networking/ip-addressing.md has more ways"
        yield LintFinding(rules.ADDRESS_SHARED, claim.path, text, fix)


def _find_missing(claim: PodClaim, key: Key, scope: Scope) -> Iterator[LintFinding]:
    is_claim = claim.source.startswith("ResourceClaim ")
    known, others = (scope.claims, scope.templates) if is_claim else (scope.templates, scope.claims)
    if key in others:
        kind, field = ("ResourceClaimTemplate", _TEMPLATE) if is_claim else ("ResourceClaim", _CLAIM)
        yield LintFinding(rules.CLAIM_KIND, claim.path, f"{key.name} is a {kind}", f"{field}: {key.name}")
    elif known or scope.is_live:
        where = "in the cluster" if scope.is_live else "in the files"
        text = f"{claim.source} is not {where}, in namespace {key.namespace}"
        fix = _find_namesake(key, known)
        here = [other.name for other in known if other.namespace == key.namespace]
        rule = rules.CLAIM_MISSPELT if find_misspelt(key.name, here) else rules.CLAIM_NOT_PROVIDED
        yield LintFinding(rules.CLAIM_MISSING if scope.is_live else rule, claim.path, text, fix)


def _find_namesake(key: Key, known: Iterable[Key]) -> str:
    elsewhere = [other.namespace for other in known if other.name == key.name]
    if elsewhere:
        return f"there is one in namespace {elsewhere[0]}; a pod takes those of its own namespace"
    return suggest(key.name, [other.name for other in known if other.namespace == key.namespace])


def _containers(spec: JsonObject, path: str) -> Iterator[tuple[str, JsonObject]]:
    for key in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(key) or ()):
            yield f"{path}.{key}[{number}]", container


def _uses(container: JsonObject) -> Sequence[JsonObject]:
    return (container.get("resources") or {}).get("claims") or ()


def _lint_use(spec: JsonObject, path: str, claims: Sequence[PodClaim]) -> Iterator[LintFinding]:
    by_name = {claim.name: claim for claim in claims}
    used: set[str] = set()
    for where, container in _containers(spec, path):
        for number, use in enumerate(_uses(container)):
            at = f"{where}.resources.claims[{number}]"
            used.add(use["name"])
            claim = by_name.get(use["name"])
            if claim is None:
                fix = suggest(use["name"], by_name, f"claims of the pod are {', '.join(by_name) or 'none'}")
                text = f"the pod declares no claim {show(use['name'])}"
                yield LintFinding(rules.CLAIM_UNDECLARED, at, text, fix)
            elif claim.spec is not None and use.get("request"):
                yield from _find_request(use["request"], claim.spec, at)
    for claim in claims:
        if claim.name not in used:
            text = f"no container names claim {show(claim.name)}"
            fix = f"resources: {{claims: [{{name: {claim.name}}}]}} in a container"
            yield LintFinding(rules.CLAIM_UNUSED, claim.path, text, fix)


def _find_request(name: str, spec: JsonObject, path: str) -> Iterator[LintFinding]:
    known = [request["name"] for request in claim_devices(spec).get("requests") or ()]
    if name not in known:
        fix = suggest(name, known, f"requests are {', '.join(known) or 'none'}")
        yield LintFinding(rules.REQUEST_UNKNOWN, f"{path}.request", f"there is no request {show(name)}", fix)


def _lint_network(spec: JsonObject, path: str, claims: Sequence[PodClaim]) -> Iterator[LintFinding]:
    networked = [claim.name for claim in claims if claim.has_network]
    if spec.get("hostNetwork") is True and networked:
        text = f"hostNetwork: true with network devices of claim {', '.join(networked)}"
        yield LintFinding(
            rules.HOST_NETWORK, f"{path}.hostNetwork", text, "hostNetwork: false, or drop the claim"
        )
    owners: dict[str, PodClaim] = {}
    for claim in claims:
        for name in dict.fromkeys(filter(None, map(fixed_name, claim.asked))):
            other = owners.setdefault(name, claim)
            if other is not claim:
                text = (
                    f"claims {show(other.name)} and {show(claim.name)} both bring an interface {show(name)}"
                )
                fix = "give one of them another interface.name"
                yield LintFinding(rules.IFNAME, claim.path, text, fix)


def _lint_containers(spec: JsonObject, path: str, claims: Sequence[PodClaim]) -> Iterator[LintFinding]:
    by_name = {claim.name: claim for claim in claims}
    for where, container in _containers(spec, path):
        named = [by_name[use["name"]] for use in _uses(container) if use["name"] in by_name]
        security = container.get("securityContext")
        security = security if isinstance(security, dict) else {}
        if named and security.get("privileged") is True:
            text = f"container {show(container['name'])} is privileged and uses claim {named[0].name}"
            yield LintFinding(rules.PRIVILEGED, f"{where}.securityContext.privileged", text)
        elif any(map(_wants_memlock, named)) and not _may_lock(security):
            text = f"container {show(container['name'])} may lock no more memory than the runtime lets it"
            fix = "rdma.memlock: unlimited in the claim's parameters, or capability IPC_LOCK"
            yield LintFinding(rules.MEMLOCK, where, text, fix)


def _find_gpus_twice(
    spec: JsonObject, path: str, claims: Sequence[PodClaim], scope: Scope
) -> Iterator[LintFinding]:
    """Find GPUs by a claim next to those of an extended resource, of a device plugin or of a DeviceClass."""
    resources = [one.demand for one in read_resources(spec, path, scope)]
    for claim in claims:
        demands = read_demands(_without_admin_access(claim.spec or {}), claim.path, scope)
        for resource in of_kind(resources, DemandKind.GPU) if of_kind(demands, DemandKind.GPU) else ():
            where = next(
                (
                    f"{at}.resources"
                    for at, container in _containers(spec, path)
                    if _asks(container, resource.name)
                ),
                path,
            )
            request = of_kind(demands, DemandKind.GPU)[0].name
            text = (
                f"asks for {resource.name}: {resource.number} and for GPUs by request {request} of claim "
                f"{claim.name}: the pod gets both"
            )
            fix = f"leave {resource.name} out; or the request, if a device plugin gives the GPUs"
            yield LintFinding(rules.GPU_TWICE, where, text, fix)


def _without_admin_access(spec: JsonObject) -> JsonObject:
    """Without the requests that only watch devices."""
    devices = claim_devices(spec)
    requests = [r for r in devices.get("requests") or () if not (r.get("exactly") or {}).get("adminAccess")]
    return {**spec, "devices": {**devices, "requests": requests}}


def _asks(container: JsonObject, resource: str) -> bool:
    resources = container.get("resources") or {}
    return any(resource in (resources.get(key) or {}) for key in ("limits", "requests"))


def _wants_memlock(claim: PodClaim) -> bool:
    """It surely brings RDMA, and no limit with it."""
    return claim.is_valid and any(one.brings_rdma and one.config.rdma.memlock is None for one in claim.asked)


def _may_lock(security: JsonObject) -> bool:
    capabilities = security.get("capabilities")
    added = capabilities.get("add") if isinstance(capabilities, dict) else None
    return isinstance(added, list) and any(one in ("IPC_LOCK", "CAP_IPC_LOCK", "ALL") for one in added)
