"""The part of a ResourceClaim (``resource.k8s.io/v1``) that the driver reads."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field


class ClaimRef(Struct, frozen=True):
    """Which claim: a name can be reused, ``uid`` cannot."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodRef(Struct, frozen=True):
    """A pod that a claim is reserved for."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ConfigSource(StrEnum):
    """The author of an opaque config."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


class OpaqueConfig(Struct, frozen=True):
    """One entry of ``status.allocation.devices.config``; ``requests`` empty means all."""

    source: ConfigSource
    driver: str
    parameters: Mapping[str, Any]
    requests: tuple[str, ...] = ()


class AllocationResult(Struct, frozen=True):
    """One entry of ``status.allocation.devices.results``. ``request`` may be ``req`` or ``req/sub``."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None

    @property
    def main_request(self) -> str:
        """The request's own name without the alternative that won (KEP-4816)."""
        return self.request.partition("/")[0]


class Consumer(Struct, frozen=True):
    """One entry of ``status.reservedFor``."""

    resource: str
    name: str
    uid: str
    api_group: str = ""

    @property
    def is_pod(self) -> bool:
        return self.resource == "pods" and not self.api_group

    @property
    def is_pod_group(self) -> bool:
        """A PodGroup, in whose name all its pods use the claim (KEP-5729)."""
        return self.resource == "podgroups" and self.api_group == "scheduling.k8s.io"


class Claim(Struct, frozen=True):
    """A claim as fetched. ``allocated`` is false while ``status.allocation`` is absent."""

    ref: ClaimRef
    allocated: bool = False
    results: tuple[AllocationResult, ...] = ()
    configs: tuple[OpaqueConfig, ...] = ()
    reserved_for: tuple[Consumer, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    request_classes: Mapping[str, str] = field(default_factory=dict)
    """DeviceClass by request, or by ``request/alternative`` (KEP-4816), as ``results`` call it."""
    node_name: str = ""
    """The one node of which the allocation is; empty where its node selector has another form."""
