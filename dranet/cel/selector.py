"""A device selector: compile once, match many devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dranet.cel.domains import with_default_domains
from dranet.cel.engine import Program, compile_program, new_quantity, new_semver
from dranet.cel.scalars import CelError

MAX_EXPRESSION_LENGTH = 10240
"""Of a selector, by ``resource.k8s.io/v1``."""

_MISSING = frozenset(
    {"find", "findAll", "url", "isURL", "ip", "isIP", "cidr", "isCIDR", "includes", "sets", "lists", "format"}
    | {"isSorted", "sum", "min", "max", "indexOf", "lastIndexOf", "flatten", "slice", "distinct", "sortBy"}
    | {"range", "reverse", "transformList", "transformMap", "transformMapEntry", "authorizer"}
)
"""Names that Kubernetes' environment declares and this engine does not."""


@dataclass(frozen=True, slots=True)
class Version:
    """A device attribute of type version: semantic versioning 2.0.0, without a leading ``v``."""

    text: str


AttributeScalar = bool | int | str | Version
Attributes = Mapping[str, AttributeScalar | Sequence[AttributeScalar]]
Capacity = Mapping[str, str | int]
"""Kubernetes quantities (``10Gi``, ``500m``)."""


class DeviceSelector:
    """A compiled selector. Make it with :meth:`compile`; it can be used for any number of devices."""

    __slots__ = ("_program", "expression")

    def __init__(self, expression: str, program: Program) -> None:
        self.expression = expression
        self._program = program

    @classmethod
    def compile(cls, expression: str) -> DeviceSelector:
        """Check and compile.

        Raises:
            CelError: too long, not CEL, a name that the dialect (or this evaluator) does not have, or a
                result that cannot be a bool.
        """
        if len(expression) > MAX_EXPRESSION_LENGTH:
            raise CelError(
                f"selector has {len(expression)} characters, at most {MAX_EXPRESSION_LENGTH} count"
            )
        result_type = _compile(expression).return_type().name()
        if result_type not in ("BOOL", "DYN"):
            raise CelError(f"selector must be a bool, not {result_type.lower()}: {expression}")
        return cls(expression, _compile(with_default_domains(expression)))

    def matches(
        self,
        driver: str,
        attributes: Attributes,
        capacity: Capacity | None = None,
        allow_multiple: bool = False,
    ) -> bool:
        """Whether a device matches.

        Args:
            driver: the driver that publishes the device; also the domain of names without one.
            attributes: by qualified or bare name.
            capacity: likewise.
            allow_multiple: the device's ``allowMultipleAllocations``.

        Raises:
            CelError: an attribute that the device lacks, a wrong type, a result that is not a bool.
        """
        values = {name: _attribute(value) for name, value in attributes.items()}
        amounts = {name: new_quantity(str(value)) for name, value in (capacity or {}).items()}
        return self._evaluate(
            {
                "device.driver": driver,
                "device.attributes": _by_domain(driver, values),
                "device.capacity": _by_domain(driver, amounts),
                "device.allowMultipleAllocations": allow_multiple,
            }
        )

    def _evaluate(self, variables: Mapping[str, Any]) -> bool:
        try:
            value = self._program.eval(data=variables)
        except RuntimeError as error:
            raise CelError(f"selector cannot be evaluated: {self.expression}: {error}") from error
        kind = value.type().name()
        if kind == "ERROR":
            raise CelError(_explain(str(value.value()), self.expression), hint=_hint(str(value.value())))
        result = value.plain_value()
        if not isinstance(result, bool):
            raise CelError(f"selector must be a bool, not {kind.lower()}: {self.expression}")
        return result


def _compile(expression: str) -> Program:
    try:
        return compile_program(expression)
    except RuntimeError as error:
        text = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
        unknown = set(re.findall(r"undeclared reference to '([^']+)'", text))
        missing = sorted(unknown & _MISSING)
        if missing:
            raise CelError(
                f"selector cannot be judged here: this evaluator lacks Kubernetes' {', '.join(missing)}"
            ) from error
        raise CelError(f"selector does not compile: {text}") from error


def _explain(error: str, expression: str) -> str:
    missing = re.search(r'Key not found in map : "(.*)"', error)
    if missing:
        return f"the device has no attribute or capacity {missing[1]!r}: {expression}"
    return f"selector failed: {error}: {expression}"


def _hint(error: str) -> str:
    if "Key not found" in error:
        return "guard it with has(...) or .?name.orValue(...), or test device.driver first"
    return ""


def _by_domain(driver: str, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, slash, identifier = name.rpartition("/")
        domains.setdefault(domain if slash else driver, {})[identifier] = value
    return domains


def _attribute(value: AttributeScalar | Sequence[AttributeScalar]) -> Any:
    if isinstance(value, Version):
        return new_semver(value.text)
    if isinstance(value, (bool, int, str)):
        return value
    return [_attribute(item) for item in value]
