"""What an operator says of this node's devices: Kubernetes' form of an expression, and DraNet's older one.

The older form has a variable ``attributes``: a map from the qualified name (``dra.net/type``) to the Go
struct ``v1.DeviceAttribute``, with the fields ``StringValue``, ``IntValue``, ``BoolValue`` and
``VersionValue``. As in Go, a field that is not set reads as empty (``""``, 0, false), ``has()`` tells whether
it is set, and a name that is not in the map is an error. Both forms may stand in one expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from dranet.cel.domains import significant_tokens
from dranet.cel.opaque import new_attribute
from dranet.cel.selector import AttributeScalar, attribute_value, device_variables
from dranet.cel.verdict import OPERATOR, Verdict

_PLAIN_TEXT = re.compile(r"""(["'])([^"'\\\n]*)\1""")


class DeviceExpression:
    """A compiled expression about one device. Make it with :meth:`compile`; it can be used for any number."""

    __slots__ = ("_driver", "_names", "_verdict")

    def __init__(self, verdict: Verdict, driver: str) -> None:
        self._verdict = verdict
        self._driver = driver
        self._names = _older_names(significant_tokens(verdict.expression))

    @property
    def expression(self) -> str:
        """As it was given."""
        return self._verdict.expression

    @classmethod
    def compile(cls, expression: str, driver: str) -> DeviceExpression:
        """Check and compile, for devices that ``driver`` publishes.

        Raises:
            CelError: as :meth:`DeviceSelector.compile <dranet.cel.selector.DeviceSelector.compile>`.
        """
        return cls(Verdict.compile(expression, OPERATOR), driver)

    def matches(self, attributes: Mapping[str, AttributeScalar | Sequence[AttributeScalar]]) -> bool:
        """Whether it is true of a device with these attributes, by qualified name.

        Raises:
            CelError: an attribute that the device lacks, a wrong type, a result that is not a bool.
        """
        values = {name: attribute_value(value) for name, value in attributes.items()}
        variables = device_variables(self._driver, values)
        names = attributes.keys() if self._names is None else attributes.keys() & self._names
        variables["attributes"] = {name: new_attribute(attributes[name]) for name in names}
        return self._verdict.holds(variables)


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
