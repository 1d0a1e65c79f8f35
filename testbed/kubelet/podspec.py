"""A Pod object, read as the stand-in kubelet needs it. Init containers and probes are ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from testbed.kubelet.nouns import JsonObject, PodFailure
from testbed.runtime.contract import SandboxSpec

EXTENDED_RESOURCES = "extended-resources"
"""Our name for the claim that a scheduler makes for extended resources (KEP-5004)."""

_IDLE = ("sleep", "infinity")


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container; ``claims`` are its (pod claim name, request or empty)."""

    name: str
    image: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    claims: tuple[tuple[str, str], ...]
    counted: tuple[tuple[str, int], ...] = ()
    """Extended resources, which device plugins have, with how many."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. ``claim_names`` maps its own names of claims to ResourceClaim objects, empty where the
    object is still to be made; a claim that turned out not to be needed is left out."""

    sandbox: SandboxSpec
    containers: tuple[ContainerView, ...]
    claim_names: Mapping[str, str]
    template_claims: frozenset[str]
    """Those of ``claim_names`` that must be owned by the pod."""
    deleting: bool
    status: JsonObject

    @property
    def uid(self) -> str:
        return self.sandbox.uid

    @property
    def namespace(self) -> str:
        return self.sandbox.namespace

    @property
    def name(self) -> str:
        return self.sandbox.name

    def get_resolved_claims(self) -> dict[str, str]:
        """Pod claim name -> ResourceClaim name.

        Raises:
            PodFailure: a claim made from a template does not exist yet.
        """
        for pod_claim, claim in self.claim_names.items():
            if not claim:
                raise PodFailure(
                    "FailedPrepareDynamicResources", f"claim {pod_claim!r} was not made from its template yet"
                )
        return dict(self.claim_names)


def parse_pod(pod: JsonObject) -> PodView:
    """The parts of a Pod (``v1``) that a kubelet acts on."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    claims = _parse_claims(spec, status)
    templated = {c["name"] for c in spec.get("resourceClaims", ()) if c.get("resourceClaimTemplateName")}
    extended = status.get("extendedResourceClaimStatus")
    if extended:
        claims[EXTENDED_RESOURCES] = extended["resourceClaimName"]
        templated.add(EXTENDED_RESOURCES)
    return PodView(
        sandbox=SandboxSpec(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            annotations=dict(metadata.get("annotations", {})),
            labels=dict(metadata.get("labels", {})),
            host_network=bool(spec.get("hostNetwork")),
        ),
        containers=tuple(_parse_container(container, extended or {}) for container in spec["containers"]),
        claim_names=claims,
        template_claims=frozenset(templated),
        deleting=bool(metadata.get("deletionTimestamp")),
        status=status,
    )


def _parse_claims(spec: JsonObject, status: JsonObject) -> dict[str, str]:
    made = {
        entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses", ())
    }
    found: dict[str, str] = {}
    for entry in spec.get("resourceClaims", ()):
        name = entry["name"]
        if entry.get("resourceClaimName"):
            found[name] = entry["resourceClaimName"]
        elif name not in made:
            found[name] = ""
        elif made[name]:
            found[name] = made[name]
    return found


def _parse_container(container: JsonObject, extended: JsonObject) -> ContainerView:
    asked = container.get("resources", {}).get("claims", ())
    claims = [(claim["name"], claim.get("request", "")) for claim in asked]
    claims += [
        (EXTENDED_RESOURCES, mapping["requestName"])
        for mapping in extended.get("requestMappings", ())
        if mapping["containerName"] == container["name"]
    ]
    return ContainerView(
        name=container["name"],
        image=container.get("image", ""),
        command=(*container.get("command", ()), *container.get("args", ())) or _IDLE,
        env=tuple((entry["name"], entry["value"]) for entry in container.get("env", ()) if "value" in entry),
        claims=tuple(claims),
        counted=tuple(_parse_counted(container)),
    )


def _parse_counted(container: JsonObject) -> Iterator[tuple[str, int]]:
    limits = container.get("resources", {}).get("limits", {})
    return ((name, int(count)) for name, count in limits.items() if "/" in name)
