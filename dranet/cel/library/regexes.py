"""Kubernetes' ``find`` and ``findAll``, by the engine's own regular expressions: RE2, as in Go.

The engine's functions want a group that is the match; so the pattern's own groups are made not to capture.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any

from dranet.cel.library.declare import Function
from dranet.cel.values import CelError, NotJudged

_PIECE = re.compile(
    r"""
    (?P<literal> \\Q.*?(?:\\E|\Z) | \\. )
  | (?P<set> \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\] )
  | (?P<group> \((?:\?P?<\w+>|(?!\?)) )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def _find(text: str, pattern: str) -> str:
    return str(_run("first", text, pattern))


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    if _run("empty", "", pattern):
        raise NotJudged(f"cannot be judged here: findAll of {pattern!r}, which also matches the empty text")
    found: list[str] = _run("all", text, pattern)
    return found if limit < 0 else found[:limit]


def _run(what: str, text: str, pattern: str) -> Any:
    value = _programs()[what].eval(data={"text": text, "pattern": f"({without_groups(pattern)})"})
    if value.type().name() == "ERROR":
        raise CelError(f"Illegal regex: {pattern!r}")
    return value.plain_value()


def without_groups(pattern: str) -> str:
    """The pattern with groups that do not capture."""
    return "".join("(?:" if match["group"] else match[0] for match in _PIECE.finditer(pattern))


@cache
def _programs() -> dict[str, Any]:
    cel: Any = import_module("cel_expr_python.cel")
    config = cel.NewEnvConfigFromYaml("extensions: [{name: optional}, {name: regex}]")
    env = cel.NewEnv(config=config, variables={"text": cel.Type.STRING, "pattern": cel.Type.STRING})
    expressions = {
        "first": "regex.extract(text, pattern).orValue('')",
        "all": "regex.extractAll(text, pattern)",
        "empty": "text.matches('^' + pattern + '$')",
    }
    return {name: env.compile(expression) for name, expression in expressions.items()}


REGEXES = (
    Function("find", _find, [(("string", "string"), "string")]),
    Function(
        "findAll",
        _find_all,
        [(("string", "string"), "list<string>"), (("string", "string", "int"), "list<string>")],
    ),
)
