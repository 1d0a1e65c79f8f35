"""ValidatingAdmissionPolicies, judged by the CEL engine that the project has.

``object``, ``oldObject``, ``request`` and ``variables`` are plain JSON to it, as they are to Kubernetes where
a policy matches several versions. Not played: parameters, namespace selectors, audit annotations, message
expressions. Without the engine (an optional extra) no policy is enforced, and :attr:`Policies.enforced` says
so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from dranet.testbed.apiserver.errors import Refusal
from dranet.testbed.apiserver.kinds import JsonObject

_ENGINE = "cel_expr_python"
_CODES = {"Invalid": 422, "Forbidden": 403}
"""By a validation's ``reason``; without one it is Invalid."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One write that is about to happen. ``resource`` has its subresource behind a slash; ``before`` is
    ``None`` on creation and ``after`` on deletion."""

    operation: str
    """CREATE, UPDATE or DELETE."""
    group: str
    version: str
    resource: str
    namespace: str
    name: str
    user_info: JsonObject
    before: JsonObject | None
    after: JsonObject | None

    def build_variables(self) -> dict[str, Any]:
        resource, _, subresource = self.resource.partition("/")
        request = {
            "operation": self.operation,
            "namespace": self.namespace,
            "name": self.name,
            "resource": {"group": self.group, "version": self.version, "resource": resource},
            "subResource": subresource,
            "userInfo": self.user_info,
        }
        return {"object": self.after, "oldObject": self.before, "request": request}


class _Value(Protocol):
    def plain_value(self) -> Any: ...


class _Program(Protocol):
    """What we use of the engine, which has no type information."""

    def eval(self, *, data: Mapping[str, Any]) -> _Value: ...


@cache
def _compile(expression: str) -> _Program:
    cel = import_module(f"{_ENGINE}.cel")
    names = ("ext_bindings", "ext_optional", "ext_strings")
    bindings, optional, strings = (import_module(f"{_ENGINE}.ext.{name}") for name in names)
    environment = cel.NewEnv(
        variables=dict.fromkeys(("object", "oldObject", "request", "variables"), cel.Type.DYN),
        extensions=[optional.ExtOptional(), strings.ExtStrings(2), bindings.ExtBindings()],
    )
    program: _Program = environment.compile(expression)
    return program


class Policies:
    """Every policy that has a binding with the action Deny, in their order."""

    def __init__(self, manifests: Iterable[JsonObject] = ()) -> None:
        documents = list(manifests)
        bound = {
            document["spec"]["policyName"]
            for document in documents
            if document.get("kind") == "ValidatingAdmissionPolicyBinding"
            and "Deny" in document["spec"]["validationActions"]
        }
        self._policies = [
            document
            for document in documents
            if document.get("kind") == "ValidatingAdmissionPolicy" and document["metadata"]["name"] in bound
        ]
        self.enforced = bool(self._policies) and _has_engine()

    def review(self, write: Admission) -> None:
        """Raises :class:`Refusal` for the first policy that says no; an expression that fails is a no."""
        if not self.enforced:
            return
        for policy in self._policies:
            complaint = judge(policy, write)
            if complaint is not None:
                raise _denied(policy, write, complaint)


def _has_engine() -> bool:
    from importlib.util import find_spec  # only where there are policies

    return find_spec(_ENGINE) is not None


def judge(policy: JsonObject, write: Admission) -> tuple[str, str] | None:
    """What one policy has against a write, reason and message; ``None`` when nothing, or when it is not about
    that."""
    spec = policy["spec"]
    rules = spec["matchConstraints"]["resourceRules"]
    if not any(_is_about(rule, write) for rule in rules):
        return None
    scope = {**write.build_variables(), "variables": {}}
    try:
        for condition in spec.get("matchConditions") or ():
            if not _evaluate(condition["expression"], scope):
                return None
        for variable in spec.get("variables") or ():
            scope["variables"][variable["name"]] = _evaluate(variable["expression"], scope)
        for validation in spec["validations"]:
            if not _evaluate(validation["expression"], scope):
                why = validation.get("message") or f"failed expression: {validation['expression']}"
                return (validation.get("reason", "Invalid"), why)
    except RuntimeError as error:  # failurePolicy: Fail
        return ("Invalid", f"evaluation failed: {error}")
    return None


def _evaluate(expression: str, scope: Mapping[str, Any]) -> Any:
    return _compile(expression).eval(data=scope).plain_value()


def _is_about(rule: Mapping[str, Any], write: Admission) -> bool:
    wanted = (
        ("apiGroups", write.group),
        ("apiVersions", write.version),
        ("resources", write.resource),
        ("operations", write.operation),
    )
    return all("*" in rule[key] or value in rule[key] for key, value in wanted)


def _denied(policy: JsonObject, write: Admission, complaint: tuple[str, str]) -> Refusal:
    plural = write.resource.partition("/")[0]
    name, (reason, why) = policy["metadata"]["name"], complaint
    message = (
        f'{plural}.{write.group} "{write.name}" is forbidden: '
        f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {why}"
    )
    details = {"name": write.name, "group": write.group, "kind": plural}
    return Refusal(_CODES[reason], reason, message, details)
