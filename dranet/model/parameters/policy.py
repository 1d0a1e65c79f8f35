"""The envelope of the parameters in an opaque config: their version, and a DeviceClass's policy.

A policy limits what claims on that class may set. It limits what a claim itself sets; the values that the
class gives are the administrator's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Literal

from dranet.model.parameters.decoder import AfterValidator, Field, check_unicode
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import Conflict, Part, walk_fields
from dranet.model.parameters.values import Text

API_VERSION = "dra.net/v1alpha1"
KIND = "NetworkConfig"


def field_path(value: str) -> str:
    """The path of a field of the parameters."""
    if value not in known_paths():
        raise ValueError(
            "must be the path of a field, such as interface.mtu or routes (lists and maps as a whole)"
        )
    return value


@cache
def known_paths() -> frozenset[str]:
    """Return the paths of all fields of the parameters, computed when the first policy is read."""
    return frozenset(path for path, _ in walk_fields(NetworkConfig))


FieldPath = Annotated[str, AfterValidator(field_path)]
"""A field of the parameters, and with it everything below it."""


class PolicyRule(Part):
    """One entry of ``policy.rules``: what a value must be where a claim sets it."""

    field: FieldPath = Field(
        description="the field that the rule is about", examples=["interface.rateLimit.egress.rate"]
    )
    expression: Annotated[str, Field(min_length=1), AfterValidator(check_unicode)] = Field(
        description="CEL over `value`, what the claim sets there (numbers without unit, lists and objects as "
        "such), and `claim.namespace`; true lets it pass",
        examples=['value <= 10000000000 || claim.namespace == "batch"'],
    )
    message: Text | None = Field(
        default=None,
        description="message for the author of the claim; absent: the expression",
        examples=["at most 10 Gbit/s"],
    )


class NetworkPolicy(Part):
    """``policy``: what claims on this DeviceClass may set. A claim cannot carry one."""

    allow: tuple[FieldPath, ...] | None = Field(
        default=None,
        description="a claim may set these fields and what is below them, and no others; `[]` means no field",
        examples=[["interface.name", "interface.addresses", "routes"]],
    )
    lock: tuple[FieldPath, ...] = Field(
        default=(),
        description="a claim may not set these fields, nor what is below them",
        examples=[["interface.vrf", "sysctls"]],
    )
    rules: tuple[PolicyRule, ...] = Field(
        default=(), description="conditions on the values that a claim sets; all of them must hold"
    )


class Envelope(Part):
    """The fields of an opaque config other than the parameters."""

    api_version: Literal["dra.net/v1alpha1"] | None = Field(
        default=None,
        alias="apiVersion",
        description="version of the parameters; goes with `kind`",
        examples=[API_VERSION],
    )
    kind: Literal["NetworkConfig"] | None = Field(
        default=None, description="goes with `apiVersion`", examples=[KIND]
    )
    policy: NetworkPolicy | None = Field(
        default=None, description="what claims may set; only in a DeviceClass"
    )

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.kind is None and self.api_version is not None:
            yield ("kind",), "is required with apiVersion"
        if self.api_version is None and self.kind is not None:
            yield ("apiVersion",), "is required with kind"


ENVELOPE_FIELDS = ("apiVersion", "kind", "policy")


def split_envelope(document: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """An opaque config as (what belongs into an :class:`Envelope`, the parameters)."""
    envelope = {name: value for name, value in document.items() if name in ENVELOPE_FIELDS}
    return envelope, {name: value for name, value in document.items() if name not in ENVELOPE_FIELDS}
