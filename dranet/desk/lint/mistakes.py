"""Selectors that do not compile: what was meant, for the mistakes that people make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from dranet.cel.domains import significant_tokens
from dranet.desk.lint.findings import suggest
from dranet.model.attributes import CATALOGUE

_MEMBERS = ("device.driver", "device.attributes", "device.capacity", "device.allowMultipleAllocations")
_TABLES = ("attributes", "capacity")
_WORDS = {"and": "&&", "or": "||", "not": "!", "like": ".startsWith(...) or .matches(...)"}
_QUALIFIED = re.compile(r"""["']([\w.-]+)/(\w+)["']""", re.ASCII)
_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_AMOUNTS = "'(kubernetes.Quantity, "
_DOMAINS = {attribute.name: attribute.domain for attribute in reversed(CATALOGUE)}


def find_mend(expression: str, complaint: str) -> str:
    """How the expression should have been written; empty where nobody can tell."""
    tokens = significant_tokens(expression)
    if _AMOUNTS in complaint:
        return "quantities compare with .isGreaterThan(...), .isLessThan(...) and .compareTo(...)"
    return _mend_look_up(tokens) or _mend_name(complaint) or _mend_operator(tokens)


def _mend_look_up(tokens: Sequence[str]) -> str:
    """``attributes["dra.net/rdma"]``, as in DraNet's filters, and ``device.attributes.rdma``."""
    for table, mark, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
        qualified = _QUALIFIED.fullmatch(name)
        if table in _TABLES and mark == "[" and qualified:
            return f'device.{table}["{qualified[1]}"].{qualified[2]}'
        if table == "attributes" and mark == "." and name in _DOMAINS:
            return f'device.attributes["{_DOMAINS[name]}"].{name}'
    return ""


def _mend_name(complaint: str) -> str:
    unknown = _UNDECLARED.search(complaint)
    if not unknown:
        return ""
    name = unknown[1]
    if f"device.{name}" in _MEMBERS:
        return f"device.{name}"
    return suggest(name, _MEMBERS) if name.startswith("device.") else ""


def _mend_operator(tokens: Sequence[str]) -> str:
    for before, word in pairwise(["", *tokens]):
        if word in _WORDS and before != ".":
            return f"{word} is written {_WORDS[word]}"
    for before, mark, after in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if mark == "=" and before not in ("=", "!", "<", ">") and after != "=":
            return "= is written =="
    return ""
