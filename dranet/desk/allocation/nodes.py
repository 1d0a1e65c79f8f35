"""A node, and whether a ``NodeSelector`` selects it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """The node to allocate for."""

    name: str
    labels: Mapping[str, str]

    @classmethod
    def parse(cls, body: JsonObject) -> Node:
        """From a ``v1.Node``."""
        return cls(body["metadata"]["name"], body["metadata"].get("labels") or {})


def matches_node(selector: JsonObject, node: Node) -> bool:
    """A ``v1.NodeSelector``: terms are alternatives, the requirements of one term all hold."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ())


@dataclass(frozen=True, slots=True)
class Reach:
    """To which nodes a slice, or one device of it, reaches. If nothing is set it reaches none: that must be a
    field of the future."""

    node_name: str = ""
    node_selector: JsonObject | None = None
    all_nodes: bool = False

    @classmethod
    def parse(cls, body: JsonObject) -> Reach:
        """From the ``spec`` of a slice or from a device."""
        return cls(body.get("nodeName") or "", body.get("nodeSelector"), bool(body.get("allNodes")))

    def reaches(self, node: Node) -> bool:
        if self.node_name:
            return self.node_name == node.name
        return self.all_nodes or (self.node_selector is not None and matches_node(self.node_selector, node))


def _term_matches(term: JsonObject, node: Node) -> bool:
    expressions = [(r, node.labels) for r in term.get("matchExpressions") or ()]
    fields = [(r, {"metadata.name": node.name}) for r in term.get("matchFields") or ()]
    return bool(expressions or fields) and all(
        _requirement_holds(r, values) for r, values in expressions + fields
    )


def _requirement_holds(requirement: JsonObject, values: Mapping[str, str]) -> bool:
    value = values.get(requirement["key"])
    listed: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _compare(value, listed) > 0
        case "Lt":
            return _compare(value, listed) < 0
    return False


def _compare(value: str | None, listed: Sequence[str]) -> int:
    """The sign of the difference; zero, which is neither greater nor less, for what are no two numbers."""
    try:
        difference = int(value or "") - int(listed[0])
    except (ValueError, IndexError):
        return 0
    return (difference > 0) - (difference < 0)
