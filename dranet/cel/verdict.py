"""One compiled yes-or-no expression: what the engine says of it, in words that name the mend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dranet.cel.domains import with_default_domains
from dranet.cel.engine import Program, Variables, compile_program
from dranet.cel.scalars import CelError

MAX_EXPRESSION_LENGTH = 10240
"""Of a selector, by ``resource.k8s.io/v1``; ours as well."""

_MISSING = frozenset(
    {"find", "findAll", "url", "isURL", "ip", "isIP", "cidr", "isCIDR", "includes", "sets", "lists", "format"}
    | {"isSorted", "sum", "min", "max", "indexOf", "lastIndexOf", "flatten", "slice", "distinct", "sortBy"}
    | {"range", "reverse", "transformList", "transformMap", "transformMapEntry", "authorizer"}
)
"""Names that Kubernetes' environment declares and this engine does not."""


class Dialect(NamedTuple):
    """The variables of an expression, and the words of its messages."""

    variables: Variables
    noun: str
    lacks: str
    """What is said of a key that is not there."""
    guard: str
    """How to guard against that."""
    cites: bool = False
    """Messages cite the expression: there are many, and they come from anywhere."""


_DEVICE_LACKS = "the device has no attribute or capacity"
_DEVICE_GUARD = "guard it with has(...) or .?name.orValue(...), or test device.driver first"
SELECTOR = Dialect(Variables.DEVICE, "selector", _DEVICE_LACKS, _DEVICE_GUARD, cites=True)
OPERATOR = Dialect(Variables.DEVICE_OLDER_FORM, "expression", _DEVICE_LACKS, _DEVICE_GUARD)
"""Of this node's operator, who may use DraNet's variable ``attributes``."""
VALUE = Dialect(
    Variables.VALUE, "expression", "value has no", "guard it with has(...) or .?name.orValue(...)"
)


class Verdict:
    """A compiled expression whose result is a bool. Make it with :meth:`compile`."""

    __slots__ = ("_dialect", "_program", "expression")

    def __init__(self, expression: str, program: Program, dialect: Dialect) -> None:
        self.expression = expression
        self._program = program
        self._dialect = dialect

    @classmethod
    def compile(cls, expression: str, dialect: Dialect = SELECTOR) -> Verdict:
        """Check and compile.

        Raises:
            CelError: too long, not CEL, a name that the dialect (or this evaluator) does not have, or a
                result that cannot be a bool.
        """
        noun = dialect.noun
        if len(expression) > MAX_EXPRESSION_LENGTH:
            raise CelError(f"{noun} has {len(expression)} characters, at most {MAX_EXPRESSION_LENGTH} count")
        result_type = _compile(expression, dialect).return_type().name()
        if result_type not in ("BOOL", "DYN"):
            tail = _cite(expression, dialect)
            raise CelError(f"{noun} must be a bool, not {result_type.lower()}{tail}")
        return cls(expression, _compile(with_default_domains(expression), dialect), dialect)

    def evaluate(self, variables: Mapping[str, Any]) -> bool:
        """The result for these variables.

        Raises:
            CelError: a key that is not there, a wrong type, a result that is not a bool.
        """
        noun, tail = self._dialect.noun, _cite(self.expression, self._dialect)
        try:
            value = self._program.eval(data=variables)
        except RuntimeError as error:
            raise CelError(f"{noun} cannot be evaluated: {error}{tail}") from error
        kind = value.type().name()
        if kind == "ERROR":
            raise self._failure(str(value.value()), tail)
        result = value.plain_value()
        if not isinstance(result, bool):
            raise CelError(f"{noun} must be a bool, not {kind.lower()}{tail}")
        return result

    def _failure(self, error: str, tail: str) -> CelError:
        missing = re.search(r'Key not found in map : "(.*)"', error)
        hint = self._dialect.guard if "Key not found" in error else ""
        if missing:
            return CelError(f"{self._dialect.lacks} {missing[1]!r}{tail}", hint=hint)
        return CelError(f"{self._dialect.noun} failed: {error}{tail}", hint=hint)


def _cite(expression: str, dialect: Dialect) -> str:
    return f": {expression}" if dialect.cites else ""


def _compile(expression: str, dialect: Dialect) -> Program:
    try:
        return compile_program(expression, dialect.variables)
    except RuntimeError as error:
        unknown = set(re.findall(r"undeclared reference to '([^']+)'", str(error)))
        missing = sorted(unknown & _MISSING)
        if missing:
            lacking = ", ".join(missing)
            raise CelError(
                f"{dialect.noun} cannot be judged here: this evaluator lacks Kubernetes' {lacking}"
            ) from error
        raise CelError(f"{dialect.noun} does not compile: {_places(str(error))}") from error


def _places(error: str) -> str:
    """Each complaint with its place, without the engine's drawing of the line."""
    places = re.findall(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(\d+):(\d+): (.*)$", error, re.MULTILINE)
    container = " (in container '')"
    told = (f"line {n}, column {column}: {text.removesuffix(container)}" for n, column, text in places)
    return "; ".join(told) or error
