"""One compiled yes-or-no expression: what the engine says of it, in words that name the mend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dranet.cel.domains import with_default_domains
from dranet.cel.engine import Program, compile_program
from dranet.cel.scalars import CelError

MAX_EXPRESSION_LENGTH = 10240
"""Of a selector, by ``resource.k8s.io/v1``; ours as well."""

_MISSING = frozenset(
    {"find", "findAll", "url", "isURL", "ip", "isIP", "cidr", "isCIDR", "includes", "sets", "lists", "format"}
    | {"isSorted", "sum", "min", "max", "indexOf", "lastIndexOf", "flatten", "slice", "distinct", "sortBy"}
    | {"range", "reverse", "transformList", "transformMap", "transformMapEntry", "authorizer"}
)
"""Names that Kubernetes' environment declares and this engine does not."""


class Verdict:
    """A compiled expression whose result is a bool. Make it with :meth:`compile`."""

    __slots__ = ("_noun", "_program", "_tail", "expression")

    def __init__(self, expression: str, program: Program, noun: str, tail: str) -> None:
        self.expression = expression
        self._program = program
        self._noun = noun
        self._tail = tail

    @classmethod
    def compile(cls, expression: str, *, of_operator: bool = False) -> Verdict:
        """Check and compile.

        Args:
            expression: CEL.
            of_operator: an expression of this node's operator, who has only a few: DraNet's variable
                ``attributes`` is known, too, and messages do not cite the expression. Else a selector.

        Raises:
            CelError: too long, not CEL, a name that the dialect (or this evaluator) does not have, or a
                result that cannot be a bool.
        """
        noun, tail = ("expression", "") if of_operator else ("selector", f": {expression}")
        if len(expression) > MAX_EXPRESSION_LENGTH:
            raise CelError(f"{noun} has {len(expression)} characters, at most {MAX_EXPRESSION_LENGTH} count")
        result_type = _compile(expression, noun, of_operator).return_type().name()
        if result_type not in ("BOOL", "DYN"):
            raise CelError(f"{noun} must be a bool, not {result_type.lower()}{tail}")
        return cls(expression, _compile(with_default_domains(expression), noun, of_operator), noun, tail)

    def evaluate(self, variables: Mapping[str, Any]) -> bool:
        """The result for these variables.

        Raises:
            CelError: an attribute that the device lacks, a wrong type, a result that is not a bool.
        """
        try:
            value = self._program.eval(data=variables)
        except RuntimeError as error:
            raise CelError(f"{self._noun} cannot be evaluated: {error}{self._tail}") from error
        kind = value.type().name()
        if kind == "ERROR":
            text = str(value.value())
            raise CelError(f"{self._explain(text)}{self._tail}", hint=_hint(text))
        result = value.plain_value()
        if not isinstance(result, bool):
            raise CelError(f"{self._noun} must be a bool, not {kind.lower()}{self._tail}")
        return result

    def _explain(self, error: str) -> str:
        missing = re.search(r'Key not found in map : "(.*)"', error)
        if missing:
            return f"the device has no attribute or capacity {missing[1]!r}"
        return f"{self._noun} failed: {error}"


def _compile(expression: str, noun: str, of_operator: bool) -> Program:
    try:
        return compile_program(expression, with_older_form=of_operator)
    except RuntimeError as error:
        unknown = set(re.findall(r"undeclared reference to '([^']+)'", str(error)))
        missing = sorted(unknown & _MISSING)
        if missing:
            raise CelError(
                f"{noun} cannot be judged here: this evaluator lacks Kubernetes' {', '.join(missing)}"
            ) from error
        raise CelError(f"{noun} does not compile: {_places(str(error))}") from error


def _places(error: str) -> str:
    """Each complaint with its place, without the engine's drawing of the line."""
    places = re.findall(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(\d+):(\d+): (.*)$", error, re.MULTILINE)
    container = " (in container '')"
    told = (f"line {n}, column {column}: {text.removesuffix(container)}" for n, column, text in places)
    return "; ".join(told) or error


def _hint(error: str) -> str:
    if "Key not found" in error:
        return "guard it with has(...) or .?name.orValue(...), or test device.driver first"
    return ""
