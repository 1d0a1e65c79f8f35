"""Compiled boolean expressions, with the engine's errors in words that name the fix.

This node's operator may use Kubernetes' form and DraNet's older one, also in one expression. The older form
has a variable ``attributes``: a map from the qualified name (``dra.net/type``) to the Go struct
``v1.DeviceAttribute``, with the fields ``StringValue``, ``IntValue``, ``BoolValue`` and ``VersionValue``. As
in Go, a field that is not set reads as empty (``""``, 0, false), ``has()`` tests whether it is set, and a
name that is not in the map is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from dranet.cel.engine import Program, Value, Variables, bind, compile_program
from dranet.cel.values import CelError, NotJudged, new_attribute, new_semver

if TYPE_CHECKING:
    from dranet.cel.tree import Node

MAX_EXPRESSION_LENGTH = 10240
"""Limit of a selector in ``resource.k8s.io/v1``; we use it for every expression."""

_UNJUDGED = "cannot be judged here"
_ENGINE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError)
"""What exceptions of C++ become in Python. An error of the expression is a value, and none of them."""
_MACROS = frozenset({"transformMap", "transformMapEntry"})
"""Macros that the engine parses and cannot evaluate."""


class Dialect(NamedTuple):
    variables: Variables
    noun: str
    missing_key: str
    """Beginning of the message about a missing key."""
    guard: str
    """How to guard against that."""
    check_differences: Callable[[Node], None] | None = None
    """Raises NotJudged for what a cluster, which evaluates such expressions as well, sees otherwise. Messages
    cite them, because there are many."""


OPERATOR = Dialect(
    Variables.DEVICE_OLDER_FORM,
    "expression",
    "the device has no attribute or capacity",
    "guard it with has(...) or .?name.orValue(...), or test device.driver first",
)
"""Expressions of this node's operator, which may use DraNet's variable ``attributes``."""
VALUE = Dialect(
    Variables.VALUE, "expression", "value has no", "guard it with has(...) or .?name.orValue(...)"
)


class Expression:
    """An expression whose result is a bool, compiled once for any number of evaluations.

    Raises:
        CelError: too long, not CEL, a name that the dialect (or this evaluator) does not have, a result that
            cannot be a bool; MissingFeature where there is no engine.
    """

    __slots__ = ("_dialect", "_passes_tables_on", "_program", "expression")

    def __init__(self, expression: str, dialect: Dialect) -> None:
        noun = dialect.noun
        if len(expression) > MAX_EXPRESSION_LENGTH:
            raise CelError(f"{noun} has {len(expression)} characters, at most {MAX_EXPRESSION_LENGTH} count")
        try:
            expression.encode()
        except UnicodeEncodeError as error:
            raise CelError(f"{noun} is not Unicode text") from error
        from dranet.cel.checks import passes_table_on

        as_written = _compile(expression, dialect)
        result_type = _result_type(as_written, dialect)
        if result_type not in ("BOOL", "DYN"):
            tail = _cite(expression, dialect)
            raise CelError(f"{noun} must be a bool, not {result_type.lower()}{tail}")
        tree = _check_tree(expression, as_written, dialect)
        self.expression = expression
        self._dialect = dialect
        self._program = _compile(with_default_domains(expression), dialect)
        self._passes_tables_on = passes_table_on(tree)

    def tree(self) -> Node:
        """The expression as it was written, macros expanded."""
        from dranet.cel.tree import parse_tree

        return parse_tree(_compile(self.expression, self._dialect).serialize())

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """As :meth:`evaluate`, for values that are used once."""
        return self.evaluate(bind(self._dialect.variables, variables))

    def evaluate(self, bound: object) -> bool:
        """The result for a binding (:func:`dranet.cel.engine.bind`). Raises CelError for a key that is not
        there, a wrong type, a result that is not a bool."""
        try:
            return self._evaluate(bound)
        except CelError as error:
            error.cited = self.expression
            raise

    def _evaluate(self, bound: object) -> bool:
        noun, tail = self._dialect.noun, _cite(self.expression, self._dialect)
        try:
            value = self._program.eval(bound)
        except _ENGINE_ERRORS as error:
            if "Iteration budget" in str(error):
                raise NotJudged(f"{noun} {_UNJUDGED}: it takes more than 10,000 iterations{tail}") from error
            raise NotJudged(f"{noun} {_UNJUDGED}: the engine failed: {error}{tail}") from error
        kind = value.type().name()
        if kind == "ERROR":
            raise self._failure(_read_error(value), tail)
        if kind != "BOOL":  # asked for a null, the engine hands it over uncounted
            raise CelError(f"{noun} must be a bool, not {kind.lower()}{tail}")
        return bool(value.plain_value())

    def _failure(self, error: str, tail: str) -> CelError:
        missing = re.search(r'Key not found in map : "(.*)"', error)
        if missing and self._passes_tables_on:
            what = f"whether {missing[1]!r} is an unknown domain, which is an empty map"
            return NotJudged(f"{self._dialect.noun} {_UNJUDGED}: {what}{tail}")
        hint = self._dialect.guard if "Key not found" in error else ""
        if missing:
            return CelError(f"{self._dialect.missing_key} {missing[1]!r}{tail}", hint=hint)
        incomplete = _incomplete(_NO_OVERLOAD_FOUND, error)
        if incomplete:
            return NotJudged(f"{self._dialect.noun} {_UNJUDGED}: {incomplete}{tail}")
        if "_[?_]" in error:
            return NotJudged(f"{self._dialect.noun} {_UNJUDGED}: [?...] of what is no list and no map{tail}")
        if "index out of range" in error and "ndexOf(" in self.expression:  # there it is -1 beyond the end
            return NotJudged(f"{self._dialect.noun} {_UNJUDGED}: a place that the text does not have{tail}")
        kind = NotJudged if _UNJUDGED in error else CelError
        return kind(f"{self._dialect.noun} failed: {_STATUS.sub('', error)}{tail}", hint=hint)


def _result_type(program: Program, dialect: Dialect) -> str:
    try:
        return program.return_type().name()
    except _ENGINE_ERRORS as error:
        raise NotJudged(f"{dialect.noun} {_UNJUDGED}: the engine failed: {error}") from error


def _read_error(value: Value) -> str:
    """The engine cannot hand over all of its errors."""
    try:
        return str(value.value())
    except (TypeError, AssertionError):
        return "it is an error of the engine's own"


def _check_tree(expression: str, program: Program, dialect: Dialect) -> Node:
    """What the engine lets pass and a cluster does not. Loaded with the first expression."""
    from dranet.cel.checks import check_bounds, check_handed_over, find_bad_literal
    from dranet.cel.tree import parse_tree

    try:
        tree = parse_tree(program.serialize())
        check_bounds(tree)
        check_handed_over(tree)
        if dialect.check_differences is not None:
            dialect.check_differences(tree)
    except NotJudged as error:
        raise NotJudged(f"{dialect.noun} {error}{_cite(expression, dialect)}") from error
    fault = find_bad_literal(tree)
    if fault:
        raise CelError(f"{dialect.noun} does not compile: {fault}")
    return tree


def _cite(expression: str, dialect: Dialect) -> str:
    return f": {expression}" if dialect.check_differences is not None else ""


_NO_OVERLOAD = re.compile(r"no matching overload for '(?P<name>\w+)' applied to '(?P<types>.*)'")
_NO_OVERLOAD_FOUND = re.compile(r"No matching overloads found : (?P<types>\(.*?\))\.(?P<name>\w+)\(")


def _compile(expression: str, dialect: Dialect) -> Program:
    lacking = sorted(_MACROS.intersection(significant_tokens(expression)))
    if lacking:
        raise NotJudged(f"{dialect.noun} {_UNJUDGED}: this evaluator lacks Kubernetes' {lacking[0]}")
    try:
        return compile_program(expression, dialect.variables)
    except RuntimeError as error:
        missing = _find_missing(expression, str(error))
        if missing:
            raise NotJudged(f"{dialect.noun} {_UNJUDGED}: {missing}") from error
        raise CelError(f"{dialect.noun} does not compile: {_places(str(error))}") from error


def _find_missing(expression: str, error: str) -> str:
    """What of Kubernetes' environment a complaint is about that is not here; empty if it is about none."""
    if "recursion" in error:
        return "it is nested more than 32 levels deep"
    from dranet.cel.library import MISSING

    unknown = set(re.findall(r"undeclared reference to '([^']+)'", error))
    tokens = pairwise((*significant_tokens(expression), ""))
    if "device" in unknown and any(a == "device" and b not in (".", "[") for a, b in tokens):
        return "device is known by its fields only"
    missing = sorted({name for name in unknown if name.partition(".")[0] in MISSING})
    if missing:
        return f"this evaluator lacks Kubernetes' {', '.join(missing)}"
    return _incomplete(_NO_OVERLOAD, error)


def _incomplete(pattern: re.Pattern[str], error: str) -> str:
    from dranet.cel.library import INCOMPLETE

    for match in pattern.finditer(error):
        name, types = match["name"], match["types"]
        if re.fullmatch(INCOMPLETE.get(name, "(?!)"), types):
            return f"this evaluator lacks Kubernetes' {name} of {types[1:-1]}"
    return ""


_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
"""The engine's own category of the error, which does not help a user."""
_NOISE = re.compile(r" \(in container ''\)| expecting \{.*\}| \[[A-Z_]+\]$")
_TOO_SHORT = "mismatched input '<EOF>'"


def _places(error: str) -> str:
    """Each complaint with its place, without the engine's drawing of the line and all that it expected."""
    places = re.findall(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(\d+):(\d+): (.*)$", error, re.MULTILINE)
    complaints = (f"line {n}, column {column}: {_NOISE.sub('', text)}" for n, column, text in places)
    return "; ".join(complaints).replace(_TOO_SHORT, "the expression ends too early") or error


class ValueExpression:
    """A demand on values. Raises as :class:`Expression`."""

    __slots__ = ("_compiled",)

    def __init__(self, expression: str) -> None:
        self._compiled = Expression(expression, VALUE)

    def holds(self, value: object, namespace: str) -> bool:
        """Whether it is true of a JSON value, lists and objects included. Raises as an evaluation."""
        return self._compiled.holds({"claim.namespace": namespace, "value": value})


# --- tokens, and the one rule that the engine cannot apply itself: an unknown domain is an empty map -----

_TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | //[^\n]* )
  | (?P<string>
        (?:[rR][bB]? | [bB][rR]) (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\n]*" | '[^'\n]*' )
      | [bB]? (?: \"{3}(?:\\.|.)*?\"{3} | '{3}(?:\\.|.)*?'{3} | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
  | (?P<word> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def significant_tokens(expression: str) -> list[str]:
    """The expression's words, texts and marks, without space and comments."""
    return [match[0] for match in _TOKEN.finditer(expression) if match.lastgroup != "skip"]


def with_default_domains(expression: str) -> str:
    """``device.attributes[X]`` -> ``device.attributes[?X].orValue({})``, and so for ``capacity``.

    The engine takes plain dictionaries only, so the look-up carries the default that Kubernetes gives the
    outer map; ``X in device.attributes`` stays. A name that ``cel.bind`` gives to a whole map is that map.
    """
    aliases = _find_aliases(significant_tokens(expression))
    out: list[str] = []
    significant: list[str] = []
    closers: list[str] = []
    for match in _TOKEN.finditer(expression):
        text = match[0]
        out.append(text)
        if match.lastgroup == "skip":
            continue
        if text == "[":
            is_domain = _is_domain_map(significant, aliases) and not _is_optional(expression, match.end())
            out[-1] = "[?" if is_domain else "["
            closers.append(".orValue({})" if is_domain else "")
        elif text == "]" and closers:
            out[-1] += closers.pop()
        significant.append(text)
    return "".join(out)


def _find_aliases(tokens: Sequence[str]) -> Collection[str]:
    """``a`` of ``cel.bind(a, device.attributes, ...)``."""
    binding = ("cel", ".", "bind", "(")
    places = (at + 4 for at in range(len(tokens)) if tuple(tokens[at : at + 4]) == binding)
    return {
        tokens[at]
        for at in places
        if tokens[at + 1 : at + 4] == [",", "device", "."]
        and tokens[at + 4 : at + 5] in (["attributes"], ["capacity"])
        and tokens[at + 5 : at + 6] == [","]
    }


def _is_domain_map(tokens: Sequence[str], aliases: Collection[str]) -> bool:
    if _is_in_brackets(tokens):
        return _is_domain_map(tokens[-4:-1], ())
    if tokens and tokens[-1] in aliases:
        return tokens[-2:-1] != ["."]
    if len(tokens) < 3 or tokens[-1] not in ("attributes", "capacity") or tokens[-3:-1] != ["device", "."]:
        return False
    return len(tokens) == 3 or tokens[-4] != "."


def _is_in_brackets(tokens: Sequence[str]) -> bool:
    """``(device.attributes)``, which is no call of a function."""
    before = (["", *tokens])[-6:-5]
    return tokens[-5:-4] == ["("] and tokens[-1] == ")" and not (before and before[0].isidentifier())


def _is_optional(expression: str, start: int) -> bool:
    rest = (m for m in _TOKEN.finditer(expression, start) if m.lastgroup != "skip")
    token = next(rest, None)
    return token is not None and token[0] == "?"


# --- expressions about devices --------------------------------------------------------------------------


class Version(Struct, frozen=True):
    """A device attribute of type version: semantic versioning 2.0.0, without a leading ``v``."""

    text: str


AttributeScalar = bool | int | str | Version


def device_variables(
    driver: str,
    attributes: Mapping[str, Any],
    capacity: Mapping[str, Any] = MappingProxyType({}),
    allow_multiple: bool = False,
) -> dict[str, Any]:
    """The variable ``device`` of the dialect, from the engine's values by qualified or bare name."""
    return {
        "device.driver": driver,
        "device.attributes": _by_domain(driver, attributes),
        "device.capacity": _by_domain(driver, capacity),
        "device.allowMultipleAllocations": allow_multiple,
    }


def attribute_value(value: AttributeScalar | Sequence[AttributeScalar]) -> Any:
    """The engine's value for an attribute; a sequence is a list."""
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Version):
        return new_semver(value.text)
    return [attribute_value(item) for item in value]


def _by_domain(driver: str, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, slash, identifier = name.rpartition("/")
        domains.setdefault(domain if slash else driver, {})[identifier] = value
    return domains


_PLAIN_TEXT = re.compile(r"""(["'])([^"'\\\n]*)\1""")


class DeviceExpression:
    """An expression about the devices that ``driver`` publishes. Raises as :class:`Expression`."""

    __slots__ = ("_compiled", "_driver", "_names")

    def __init__(self, expression: str, driver: str) -> None:
        self._compiled = Expression(expression, OPERATOR)
        self._driver = driver
        self._names = _older_names(significant_tokens(expression))

    def matches(self, attributes: Mapping[str, AttributeScalar | Sequence[AttributeScalar]]) -> bool:
        """Whether it is true of a device with attributes by qualified name. Raises as an evaluation."""
        values = {name: attribute_value(value) for name, value in attributes.items()}
        variables = device_variables(self._driver, values)
        names = attributes.keys() if self._names is None else attributes.keys() & self._names
        variables["attributes"] = {name: new_attribute(attributes[name]) for name in names}
        return self._compiled.holds(variables)


def _older_names(tokens: Sequence[str]) -> Collection[str] | None:
    """The names that an expression in the older form looks up; ``None`` where it may want any of them. The
    engine takes several times as long for all attributes of a device as for the one that is asked for."""
    names = set()
    for place, word in enumerate(tokens):
        if word == "attributes" and tokens[place - 1 : place] != ["."]:
            text = _PLAIN_TEXT.fullmatch(_looked_up(tokens, place))
            if text is None:
                return None
            names.add(text[2])
    return names


def _looked_up(tokens: Sequence[str], place: int) -> str:
    """``attributes["x"]``, and ``"x" in attributes`` where "x" is no part of a longer operand; else empty."""
    if tokens[place + 1 : place + 2] == ["["]:
        return tokens[place + 2] if tokens[place + 3 : place + 4] == ["]"] else ""
    before = ("", "", "", *tokens[:place])[-3:]
    return before[1] if before[2] == "in" and before[0] in ("", "(", "&", "|", "?", ":", ",") else ""
