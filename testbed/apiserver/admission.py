"""ValidatingAdmissionPolicies and their bindings, judged by the CEL engine that the project has.

``object``, ``oldObject``, ``request``, ``namespaceObject`` and ``variables`` are plain JSON to it, as they
are to Kubernetes' evaluator of policies; functions are those of 1.33 (:mod:`dranet.cel.library`). It has
several resources and rules, match conditions, variables, messages and their limits, failure policies, the
actions Deny and Warn, several bindings with selectors of namespaces. It lacks parameters (``paramKind``),
the ``authorizer``, audit annotations, object selectors, excluded rules, and Kubernetes' count of what an
evaluation costs (docs/guides/admission.md has figures of the real one). Without the engine (an optional
extra) no policy is enforced, and :attr:`Policies.enforced` is False."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dranet.cel.engine import Program, Value, Variables, bind, compile_program
from dranet.desk.kubeapi.errors import Refusal
from dranet.desk.kubeapi.objects import JsonObject

_ENGINE = "cel_expr_python"
_CODES = {"Invalid": 422, "Forbidden": 403}
"""By a validation's ``reason``; without one it is Invalid."""
_MESSAGE_MAX_BYTES = 5 * 1024
"""A message that an expression gives and that is longer does not count, nor does one of several lines."""
_OWNER_VERSIONS = ("v1", "v1beta1", "v1beta2")
"""Versions of ``resource.k8s.io``: a policy for one gets the others converted (``matchPolicy:
Equivalent``)."""
_VARIABLE = re.compile(r"\bvariables\.([A-Za-z_][A-Za-z0-9_]*)")
_INT64 = range(-(2**63), 2**63)


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
    namespace_object: JsonObject | None = None
    """The object's namespace, if it has one."""

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
        found = {"object": self.after, "oldObject": self.before, "namespaceObject": self.namespace_object}
        return {"request": request, **{name: _as_json_of_go(value) for name, value in found.items()}}


def _as_json_of_go(value: Any) -> Any:
    """A number beyond 64 bits is a float to the API server."""
    match value:
        case dict():
            return {name: _as_json_of_go(item) for name, item in value.items()}
        case list():
            return [_as_json_of_go(item) for item in value]
        case int() if value not in _INT64:
            return float(value) if abs(value) < 10**300 else float("inf")
    return value


class Failed(Exception):
    """An expression has no result."""


@dataclass(slots=True)
class Evaluation:
    """One object before one policy. Variables are looked at when something asks for them, once."""

    spec: JsonObject
    scope: dict[str, Any]
    _variables: dict[str, Any] = field(default_factory=dict)

    def evaluate(self, expression: str) -> Any:
        """Raises :class:`Failed`."""
        wanted = {name: self.get_variable(name) for name in _names_in(expression)}
        scope = {name: value for name, value in self.scope.items() if name in expression}
        try:
            values = bind(Variables.ADMISSION, {**_NOTHING, **scope, "variables": wanted})
            result = _compile(expression).eval(values)
        except RuntimeError as error:
            raise Failed(str(error)) from error
        if result.type().name() == "ERROR":
            raise Failed(str(result.value()))
        return _read(result)

    def get_variable(self, name: str) -> Any:
        if name not in self._variables:
            declared = {one["name"]: one["expression"] for one in self.spec.get("variables") or ()}
            if name not in declared:
                raise Failed(f"no such variable: {name}")
            self._variables[name] = self.evaluate(declared[name])
        return self._variables[name]


def _read(result: Value) -> Any:
    """The engine does not count a ``None`` that it hands over as one that is held; Python ends with a fatal
    error when more references are released than exist."""
    found = result.plain_value()
    for _ in range(_count_nulls(found)):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    return found


def _count_nulls(value: Any) -> int:
    match value:
        case dict():
            return sum(map(_count_nulls, value.values()))
        case list():
            return sum(map(_count_nulls, value))
    return int(value is None)


_NOTHING = dict.fromkeys(("object", "oldObject", "request", "namespaceObject"))


@cache
def _names_in(expression: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_VARIABLE.findall(expression)))


@cache
def _compile(expression: str) -> Program:
    return compile_program(expression, Variables.ADMISSION)


Complaint = tuple[str, str]
"""Reason and message."""


class Policies:
    """Every policy with its bindings, in their order."""

    def __init__(self, manifests: Iterable[JsonObject] = ()) -> None:
        documents = list(manifests)
        self._policies = [one for one in documents if one.get("kind") == "ValidatingAdmissionPolicy"]
        self._bindings = [one for one in documents if one.get("kind") == "ValidatingAdmissionPolicyBinding"]
        self.enforced = bool(self._policies and self._bindings) and _has_engine()

    def review(self, write: Admission) -> list[str]:
        """What to warn of. Raises :class:`Refusal` for the first complaint that is to be denied; an
        expression that fails is one, unless the policy's ``failurePolicy`` is Ignore."""
        warnings: list[str] = []
        denied: Refusal | None = None
        for policy in self._policies if self.enforced else ():
            bindings = [one for one in self._bindings if _puts_in_force(one, policy, write)]
            complaints = list(iter_complaints(policy, write)) if bindings else []
            for binding, complaint in ((b, c) for b in bindings for c in complaints):
                actions = binding["spec"]["validationActions"]
                if "Deny" in actions and denied is None:
                    denied = _denied(policy, binding, write, complaint)
                if "Warn" in actions:
                    warnings.append(_warning(policy, binding, complaint))
        if denied is not None:
            raise denied
        return warnings


def _has_engine() -> bool:
    from importlib.util import find_spec  # only where there are policies

    return find_spec(_ENGINE) is not None


def judge(policy: JsonObject, write: Admission) -> Complaint | None:
    """The first thing that one policy has against a write; ``None`` when nothing, or when it is not about
    that."""
    return next(iter_complaints(policy, write), None)


def iter_complaints(policy: JsonObject, write: Admission) -> Iterator[Complaint]:
    """Everything that one policy has against a write."""
    spec = policy["spec"]
    rules = spec["matchConstraints"]["resourceRules"]
    if not any(_is_about(rule, write) for rule in rules):
        return
    evaluation = Evaluation(spec, write.build_variables())
    try:
        if not all(evaluation.evaluate(one["expression"]) for one in spec.get("matchConditions") or ()):
            return
    except Failed as failure:
        yield from _give_up(spec, failure)
        return
    for validation in spec["validations"]:
        try:
            if evaluation.evaluate(validation["expression"]) is not True:
                yield validation.get("reason", "Invalid"), _write_message(validation, evaluation)
        except Failed as failure:
            yield from _give_up(spec, failure)


def _give_up(spec: JsonObject, failure: Failed) -> Iterator[Complaint]:
    if spec.get("failurePolicy", "Fail") == "Fail":
        yield "Invalid", f"evaluation failed: {failure}"


def _write_message(validation: JsonObject, evaluation: Evaluation) -> str:
    """The expression's where it gives one that counts, else the fixed one, else the failed expression."""
    if expression := validation.get("messageExpression"):
        try:
            message = evaluation.evaluate(expression)
        except Failed:
            message = ""
        message = message.strip() if isinstance(message, str) else ""
        if message and "\n" not in message and len(message.encode()) <= _MESSAGE_MAX_BYTES:
            return message
    return str(validation.get("message") or f"failed expression: {validation['expression']}").strip()


def _is_about(rule: Mapping[str, Any], write: Admission) -> bool:
    wanted = (("apiGroups", write.group), ("resources", write.resource), ("operations", write.operation))
    if not all("*" in rule[key] or value in rule[key] for key, value in wanted):
        return False
    versions = rule["apiVersions"]
    is_same_kind = write.version in _OWNER_VERSIONS and not set(versions).isdisjoint(_OWNER_VERSIONS)
    return "*" in versions or write.version in versions or is_same_kind


def _puts_in_force(binding: JsonObject, policy: JsonObject, write: Admission) -> bool:
    spec = binding["spec"]
    if spec["policyName"] != policy["metadata"]["name"]:
        return False
    selector = (spec.get("matchResources") or {}).get("namespaceSelector")
    if not selector or not write.namespace:
        return True
    labels = ((write.namespace_object or {}).get("metadata") or {}).get("labels") or {}
    return all(_selects(one, labels) for one in selector.get("matchExpressions") or ()) and all(
        labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
    )


def _selects(requirement: JsonObject, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement["key"])
    match requirement["operator"]:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in requirement["values"]
    return value not in requirement["values"]


def _named(policy: JsonObject, binding: JsonObject) -> str:
    name, bound = policy["metadata"]["name"], binding["metadata"]["name"]
    return f"ValidatingAdmissionPolicy '{name}' with binding '{bound}'"


def _warning(policy: JsonObject, binding: JsonObject, complaint: Complaint) -> str:
    return f"Validation failed for {_named(policy, binding)}: {complaint[1]}"


def _denied(policy: JsonObject, binding: JsonObject, write: Admission, complaint: Complaint) -> Refusal:
    plural = write.resource.partition("/")[0]
    reason, why = complaint
    message = (
        f'{plural}.{write.group} "{write.name}" is forbidden: {_named(policy, binding)} denied request: {why}'
    )
    details = {"name": write.name, "group": write.group, "kind": plural}
    return Refusal(_CODES[reason], reason, message, details)
