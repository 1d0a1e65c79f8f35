"""A device as the engine sees it, and expressions about it by this node's operator.

Operators may use Kubernetes' form and DraNet's older one, also in one expression. The older form has a
variable ``attributes``: a map from the qualified name (``dra.net/type``) to the Go struct
``v1.DeviceAttribute``, with the fields ``StringValue``, ``IntValue``, ``BoolValue`` and ``VersionValue``. As
in Go, a field that is not set reads as empty (``""``, 0, false), ``has()`` tests whether it is set, and a
name that is not in the map is an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from dranet.cel.expression import OPERATOR, Expression, significant_tokens
from dranet.cel.values import new_attribute, new_semver


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
        """Whether it is true of a device with these attributes, by qualified name.

        Raises:
            CelError: an attribute that the device lacks, a wrong type, a result that is not a bool.
        """
        values = {name: attribute_value(value) for name, value in attributes.items()}
        variables = device_variables(self._driver, values)
        names = attributes.keys() if self._names is None else attributes.keys() & self._names
        variables["attributes"] = {name: new_attribute(attributes[name]) for name in names}
        return self._compiled.holds(variables)


def _older_names(tokens: Sequence[str]) -> Collection[str] | None:
    """The names that an expression in the older form looks up; ``None`` where it may want any of them.

    The engine takes several times as long for all attributes of a device as for the one that is asked for.
    """
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
