"""The CEL engine (cel-expr-python), set up for the device dialect at first use.

Its own configuration switches on the extensions that Kubernetes has, and comparisons across number types,
which its checker refuses and its evaluator knows. The rest is declared (:mod:`dranet.cel.library`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from dranet.cel.values import ATTRIBUTE, CIDR, IP, QUANTITY, CelError, descriptor_pool
from dranet.errors import Reason

_EXTENSIONS = ("sets", "lists", "two-var-comprehensions", "optional", "bindings")
_NOT_IN_POLICIES = ("lists", "bindings")
"""Extensions that selectors have and admission policies have not, or not on every version that we support."""
_NUMBERS = ("int", "uint", "double")
_ORDERED = ("bool", "string", "bytes", "duration", "timestamp")
_COMPARISONS = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
_TEXT_OF = (*_NUMBERS, *_ORDERED)
_OPAQUE_TEXTS = (IP, CIDR)
_TYPE_NAMES = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}


class Variables(Enum):
    DEVICE = "device"
    DEVICE_OLDER_FORM = "device, and attributes as in DraNet"
    """Also ``attributes``, a map of :func:`dranet.cel.values.new_attribute` values."""
    VALUE = "claim.namespace and value"
    """``namespace`` alone is a reserved word of CEL. ``value`` may be any JSON."""
    ADMISSION = "object, oldObject, request, namespaceObject and variables"
    """Variables of a ValidatingAdmissionPolicy, each as any JSON; no ``device``, ``params`` or
    ``authorizer``."""


class _Type(Protocol):
    def name(self) -> str: ...


class Value(Protocol):
    def type(self) -> _Type: ...
    def value(self) -> object: ...
    def plain_value(self) -> object: ...


class Program(Protocol):
    """What we use of the engine's ``Expression``."""

    def return_type(self) -> _Type: ...
    def eval(self, activation: object) -> Value: ...
    def serialize(self) -> bytes: ...


def compile_program(expression: str, variables: Variables) -> Program:
    """
    Raises:
        RuntimeError: the engine's complaint, with the place in the expression.
        CelError: MissingFeature, the engine is not installed.
    """
    program: Program = _environment(variables).compile(expression)
    return program


def bind(variables: Variables, values: Mapping[str, Any]) -> object:
    """Values for any number of programs about these variables, converted once: three times as fast."""
    return _environment(variables).Activation(values)


@cache
def _environment(variables: Variables) -> Any:
    try:
        cel: Any = import_module("cel_expr_python.cel")
    except ImportError as error:
        raise CelError(
            "CEL expressions need an engine that is not installed",
            hint="install the package cel-expr-python, which pip installs with dranet",
            reason=Reason.MISSING_FEATURE,
        ) from error
    from dranet.cel.library import FUNCTIONS, declare, to_text

    return cel.NewEnv(
        descriptor_pool=descriptor_pool(),
        config=cel.NewEnvConfigFromYaml(_configuration(variables)),
        variables=_declarations(cel, variables),
        functions=list(declare(cel, FUNCTIONS)),
        function_impls={_string_id(_OPAQUE_TEXTS[0]): to_text},
    )


def _configuration(variables: Variables) -> str:
    """``stdlib`` without what is declared again with more overloads; the evaluator has them all anyway."""
    lines = ["stdlib:", "  exclude_functions:"]
    lines += [f'  - name: "{name}"' for name in (*_COMPARISONS, "string")]
    left_out = _NOT_IN_POLICIES if variables is Variables.ADMISSION else ()
    extensions = (f"- name: {name}" for name in _EXTENSIONS if name not in left_out)
    lines += ["extensions:", *extensions, "- {name: strings, version: 2}", "functions:"]
    for name, word in _COMPARISONS.items():
        pairs = [(a, b) for a in _NUMBERS for b in _NUMBERS] + [(one, one) for one in _ORDERED]
        lines += _overloads(name, ((f"{word}_{a}_{b}", (a, b), "bool") for a, b in pairs))
    lines += _overloads(
        "string", ((_string_id(one), (one,), "string") for one in (*_TEXT_OF, *_OPAQUE_TEXTS))
    )
    return "\n".join(lines)


def _string_id(type_name: str) -> str:
    return f"{type_name.replace('.', '_')}_to_string"


def _overloads(name: str, rows: Iterator[tuple[str, tuple[str, ...], str]]) -> Iterator[str]:
    yield f'- name: "{name}"'
    yield "  overloads:"
    for identifier, parameters, result in rows:
        types = ", ".join(f"{{type_name: {_TYPE_NAMES.get(one, one)}}}" for one in parameters)
        yield f"  - {{id: {identifier}, args: [{types}], return: {{type_name: {result}}}}}"


def _declarations(cel: Any, variables: Variables) -> dict[str, Any]:
    string, by_name = cel.Type.STRING, cel.Type.Map
    if variables is Variables.ADMISSION:
        names = ("object", "oldObject", "request", "namespaceObject", "variables")
        return dict.fromkeys(names, cel.Type.DYN)
    if variables is Variables.VALUE:
        return {"claim.namespace": string, "value": cel.Type.DYN}
    declared = {
        "device.driver": string,
        "device.attributes": by_name(string, by_name(string, cel.Type.DYN)),
        "device.capacity": by_name(string, by_name(string, cel.Type(QUANTITY))),
        "device.allowMultipleAllocations": cel.Type.BOOL,
    }
    if variables is Variables.DEVICE_OLDER_FORM:
        declared["attributes"] = by_name(string, cel.Type(ATTRIBUTE))
    return declared
