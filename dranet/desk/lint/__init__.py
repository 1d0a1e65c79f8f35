"""What is wrong with claims, templates, classes and pods, before any of them is applied (pure).

Objects are JSON whose fields have the types of the API; the reader of files makes sure of that. What else is
known of a cluster is a :class:`Scope`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dranet.desk.kubeapi.known_kinds import CLUSTER_SCOPED
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.versions import (
    CURRENT,
    GROUP,
    NOT_CONVERTED,
    can_convert,
    convert,
    has_other_version,
)
from dranet.desk.lint import rules
from dranet.desk.lint.alignment import lint_claim_alignment
from dranet.desk.lint.capacities import lint_capacities
from dranet.desk.lint.fields import find_unknown_fields
from dranet.desk.lint.parameters import lint_class_config, lint_parameters
from dranet.desk.lint.pods import find_shared_claims, lint_pod
from dranet.desk.lint.requests import lint_requests
from dranet.desk.lint.rules import RULES, LintFinding, LintRule, LintSeverity
from dranet.desk.lint.scope import Key, Sample, Scope, iter_alternatives, read_devices
from dranet.desk.lint.selectors import lint_class_selectors, lint_request_selectors

__all__ = [
    "RULES",
    "Key",
    "LintFinding",
    "LintRule",
    "LintSeverity",
    "Sample",
    "Scope",
    "find_shared_claims",
    "key_of",
    "lint_object",
    "lint_pod",
    "read_devices",
]

_NEWER = re.compile(rf"{re.escape(GROUP)}/v([2-9]|[1-9][0-9]+)((alpha|beta)[0-9]+)?")
_DEFAULT_NAMESPACE = "default"


def key_of(body: JsonObject) -> Key:
    """Its namespace and name; a file without a namespace means the default one."""
    metadata = body.get("metadata") or {}
    namespace = metadata.get("namespace") or _DEFAULT_NAMESPACE
    return Key("" if body.get("kind") in CLUSTER_SCOPED else namespace, metadata.get("name") or "")


def lint_object(body: JsonObject, scope: Scope) -> Iterator[LintFinding]:
    """What is wrong with one ResourceClaim, ResourceClaimTemplate, DeviceClass or Pod.

    What is written as in an older version of the API is judged as what it means in v1.
    """
    if has_other_version(body):
        yield from _find_other_version(body)
        if not can_convert(body):
            return
    written, body = body, convert(body)
    namespace, spec = key_of(body).namespace, body.get("spec") or {}
    yield from find_unknown_fields(body if has_other_version(written) else written)
    match body.get("kind"):
        case "ResourceClaim":
            yield from _lint_claim(spec, "spec", namespace, scope)
        case "ResourceClaimTemplate":
            yield from _lint_claim(spec.get("spec") or {}, "spec.spec", namespace, scope)
        case "DeviceClass":
            yield from lint_class_selectors(body, scope)
            yield from lint_class_config(body, scope)
        case "Pod":
            is_scheduled = bool((body.get("status") or {}).get("phase"))
            spec = {**spec, "nodeName": ""} if is_scheduled else spec  # the scheduler has written it
            yield from lint_pod(spec, "spec", namespace, scope)


def _find_other_version(body: JsonObject) -> Iterator[LintFinding]:
    version = body["apiVersion"]
    fix = f"write it as {CURRENT}"
    if can_convert(body):
        text = f"{version} is an older version of the API"
        fix = f"{CURRENT}; dranet validate --convert FILE writes it so"
    elif version in NOT_CONVERTED:
        text = f"{version} is an older version of the API"
        fix = f"{fix}: no program can convert {version}"
    elif _NEWER.fullmatch(version):
        text = f"{version} is newer than this program, which knows {CURRENT}"
    else:
        text = f"there is no version {version} of the API"
    yield LintFinding(rules.API_VERSION, "apiVersion", text, fix)


def _lint_claim(spec: JsonObject, path: str, namespace: str, scope: Scope) -> Iterator[LintFinding]:
    yield from lint_requests(spec, path, scope)
    yield from lint_capacities(spec, path, scope)
    for alternative in iter_alternatives(spec, path):
        yield from lint_request_selectors(alternative, scope)
    yield from lint_parameters(spec, path, namespace, scope)
    yield from lint_claim_alignment(spec, path, scope)
