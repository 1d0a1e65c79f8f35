"""Expressions as tokens. An unknown domain is an empty map: the one rule that the engine cannot be told."""

from __future__ import annotations

import re
from collections.abc import Sequence

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

    Kubernetes gives the outer map a default value. The engine takes plain dictionaries only, so the look-up
    carries the default; ``X in device.attributes`` stays what it is.
    """
    out: list[str] = []
    significant: list[str] = []
    closers: list[str] = []
    for match in _TOKEN.finditer(expression):
        text = match[0]
        out.append(text)
        if match.lastgroup == "skip":
            continue
        if text == "[":
            is_domain = _is_domain_map(significant) and not _is_optional(expression, match.end())
            out[-1] = "[?" if is_domain else "["
            closers.append(".orValue({})" if is_domain else "")
        elif text == "]" and closers:
            out[-1] += closers.pop()
        significant.append(text)
    return "".join(out)


def _is_domain_map(tokens: Sequence[str]) -> bool:
    if len(tokens) < 3 or tokens[-1] not in ("attributes", "capacity") or tokens[-3:-1] != ["device", "."]:
        return False
    return len(tokens) == 3 or tokens[-4] != "."


def _is_optional(expression: str, start: int) -> bool:
    rest = (m for m in _TOKEN.finditer(expression, start) if m.lastgroup != "skip")
    token = next(rest, None)
    return token is not None and token[0] == "?"
