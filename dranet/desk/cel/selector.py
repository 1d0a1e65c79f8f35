"""A device selector: compile once, match many devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from dranet.cel.engine import Variables, bind
from dranet.cel.expression import (
    OPERATOR,
    AttributeScalar,
    Expression,
    Version,
    attribute_value,
    device_variables,
)
from dranet.cel.tree import Call, Const, Name, Node, Select, iter_nodes
from dranet.cel.values import NotJudged, new_quantity

if TYPE_CHECKING:
    from dranet.desk.cel.uses import Use


Attributes = Mapping[str, AttributeScalar | Sequence[AttributeScalar]]
Capacity = Mapping[str, str | int]
"""Kubernetes quantities (``10Gi``, ``500m``)."""

_INTEGERS = ("isInteger", "asInteger")
_WHOLE = re.compile(r"[+-]?\d+([kMGTPE]i?|Ki|[eE]\+?\d+)?", re.ASCII)
"""A quantity that is written as a whole number."""


def check_differences(tree: Node) -> None:
    """Raises NotJudged for that in which Kubernetes and the engine differ.

    A quantity that is written as a fraction (``1.5Gi``, ``1000m``) is never an integer there; a sum of
    quantities on the right of ``==`` is an error; ``getMilliseconds`` returns a whole duration in
    milliseconds; every domain is a field of ``device.attributes``.
    """
    nodes = list(iter_nodes(tree))
    asks_for_integer = any(isinstance(node, Call) and node.function in _INTEGERS for node in nodes)
    for node in nodes:
        match node:
            case Call("_==_" | "_!=_", (_, Call("add" | "sub"))):
                raise NotJudged(
                    "cannot be judged here: a sum of quantities on the right of ==; put it on the left"
                )
            case Call("getMilliseconds"):
                raise NotJudged("cannot be judged here: the milliseconds of a duration")
            case Call("quantity", (Const(str() as text),)) if asks_for_integer and not _WHOLE.fullmatch(text):
                raise NotJudged(f"cannot be judged here: whether {text!r}, no whole number, is an integer")
            case Select(Name("device.attributes" | "device.capacity"), _, True):
                raise NotJudged(
                    'cannot be judged here: has() of a domain by field; use "domain" in device.attributes'
                )


_SELECTOR = OPERATOR._replace(
    variables=Variables.DEVICE, noun="selector", check_differences=check_differences
)


@lru_cache(maxsize=1024)
def _compile(expression: str) -> Expression:
    """Remembered: one selector of a class is asked for by every claim that names the class."""
    return Expression(expression, _SELECTOR)


_USES_OF_A_BINDING = 64
"""A binding costs as much as three evaluations, and one evaluation leaves about 200 bytes behind."""


class DeviceValues:
    """A device as the engine has it, converted once for any number of selectors.

    Raises:
        CelError: an invalid version or quantity.
    """

    __slots__ = ("_bound", "_uses", "_variables", "driver", "versions")

    def __init__(
        self,
        driver: str,
        attributes: Attributes,
        capacity: Capacity | None = None,
        allow_multiple: bool = False,
    ) -> None:
        values = {name: attribute_value(value) for name, value in attributes.items()}
        amounts = {name: new_quantity(str(value)) for name, value in (capacity or {}).items()}
        self._variables = device_variables(driver, values, amounts, allow_multiple)
        self.driver = driver
        self.versions = frozenset(_find_versions(driver, attributes))
        """Domain and name of attributes that are versions."""
        self._bound: object = None
        self._uses = 0

    def bound(self) -> object:
        """For one more evaluation. The engine keeps what an evaluation made until the binding is gone."""
        if self._uses % _USES_OF_A_BINDING == 0:
            self._bound = bind(Variables.DEVICE, self._variables)
        self._uses += 1
        return self._bound


def _find_versions(driver: str, attributes: Attributes) -> Iterator[tuple[str, str]]:
    for qualified, value in attributes.items():
        if isinstance(value, Version):
            domain, _, name = qualified.rpartition("/")
            yield domain or driver, name


class DeviceSelector:
    """A compiled selector. Make it with :meth:`compile`; it can be used for any number of devices."""

    __slots__ = ("_compiled", "_equals")

    def __init__(self, compiled: Expression) -> None:
        self._compiled = compiled
        self._equals: frozenset[tuple[str, str]] | None = None
        """Domain and name of what is asked to equal a literal; found when a device has a version."""

    @property
    def expression(self) -> str:
        """As it was given."""
        return self._compiled.expression

    @classmethod
    def compile(cls, expression: str) -> DeviceSelector:
        """Check and compile.

        Raises:
            CelError: too long, not CEL, a name that the dialect (or this evaluator) does not have, or a
                result that cannot be a bool.
        """
        return cls(_compile(expression))

    def find_uses(self) -> tuple[Use, ...]:
        """Which attributes and capacities it looks at."""
        from dranet.desk.cel.uses import find_uses

        return find_uses(self._compiled.tree())

    def find_comparisons(self) -> dict[str, object]:
        """Qualified attributes with a value that satisfies what each is compared with."""
        from dranet.desk.cel.uses import find_comparisons

        found = find_comparisons(self._compiled.tree())
        return {f"{use.domain}/{use.name}": value for use, value in found if use.table == "attributes"}

    def find_unsized(self) -> str:
        """The function for which an API server refuses it as too costly, where that is plain; else empty."""
        from dranet.desk.cel.unsized import find_unsized

        return find_unsized(self._compiled.tree())

    def find_literals(self) -> tuple[tuple[Use, object, bool], ...]:
        """Attributes and capacities that are compared just as they are, with which literals, and whether it
        is asked if they are equal."""
        from dranet.desk.cel.uses import find_literals

        return find_literals(self._compiled.tree())

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
        return self.accepts(DeviceValues(driver, attributes, capacity, allow_multiple))

    def accepts(self, device: DeviceValues) -> bool:
        """As :meth:`matches`, for a device that many selectors are asked about."""
        if device.versions:
            self._check_versions(device)
        return self._compiled.evaluate(device.bound())

    def _check_versions(self, device: DeviceValues) -> None:
        """Refuse to compare versions with text for equality, as Kubernetes does when it evaluates it."""
        if self._equals is None:
            found = self.find_literals()
            self._equals = frozenset((use.domain, use.name) for use, _, is_equality in found if is_equality)
        for domain, name in self._equals:
            if (domain or device.driver, name) in device.versions:
                what = f"selector cannot be judged here: {name!r} is a version, and compared with none"
                error = NotJudged(f"{what}: {self.expression}", hint="compare it with semver(...)")
                error.cited = self.expression
                raise error
