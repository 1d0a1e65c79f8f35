"""Tokens of expressions, and the one rule that the engine cannot apply itself: an unknown domain is an empty
map."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

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
    carries the default; ``X in device.attributes`` stays what it is. A name that ``cel.bind`` gives to a
    whole map is that map.
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
