"""``values.yaml`` as people read it with ``helm show values``: every key with its help, as a comment above
it."""

from __future__ import annotations

import json
import re
import string
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from tools.manifests.values.chart import VALUES
from tools.manifests.values.settings import free_settings
from tools.manifests.values.value import Value

_WIDTH = 110
_QUANTITY = re.compile(r"[0-9]+(m|Mi|Gi)")
_HEAD = """\
# Values of the chart dranet. Every one has a default. image.repository is what most clusters must set: the
# default names no registry. How to install, update and remove: docs/user/install.md.
# Generated from tools/manifests/values/ by `make docs`; a test fails when it is stale.
"""


def render_values() -> str:
    return _HEAD + "\n".join(line for value in VALUES for line in _render(value, "")) + "\n"


def _render(value: Value, indent: str) -> Iterator[str]:
    if value.section:
        yield from ("", f"# ---- {value.section} ".ljust(_WIDTH, "-"))
    if not indent:
        yield ""
    yield from comment(value.help, indent)
    if value.name == "settings":
        yield from _comment_settings()
    if value.example:
        yield from (f"{indent}#   {line}" for line in value.example.splitlines())
    inline = f"{indent}{value.name}: {in_one_line({part.name: part.default for part in value.parts})}"
    if value.is_inline and len(inline) <= _WIDTH:
        yield inline
    elif value.is_object:
        yield f"{indent}{value.name}:"
        for part in value.parts:
            yield from _render(part, f"{indent}  ")
    elif value.reasons:
        yield f"{indent}{value.name}:"
        yield from _render_entries(value, f"{indent}  ")
    else:
        line = f"{value.name}: {in_one_line(value.default)}"
        yield from _wrap(line, indent, f"{indent}  ")


def _render_entries(value: Value, indent: str) -> Iterator[str]:
    for entry, (text, reason) in zip(value.default, value.reasons.items(), strict=True):
        yield from comment(reason, indent)
        yield f"{indent}- {in_one_line(entry)}"
        assert text.replace(" ", "") in in_one_line(entry).replace(" ", ""), "the reason of another entry"


def _comment_settings() -> Iterator[str]:
    yield "# All with their defaults:"
    for setting in free_settings():
        yield from comment(f"{setting.name}: {in_one_line(plain(setting.default))}", "", "  ")
        yield from comment(setting.description, "", "      ")


def comment(text: str, indent: str, inner: str = " ") -> Iterator[str]:
    """Wrapped; what stands on a line of its own stays there."""
    for line in text.splitlines():
        hanging = "  " if line.startswith("- ") else ""
        yield from _wrap(line, f"{indent}#{inner}", f"{indent}#{inner}{hanging}")


def _wrap(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def plain(default: object) -> object:
    """A setting's default as YAML knows it."""
    match default:
        case StrEnum():
            return default.value
        case tuple():
            return [plain(item) for item in default]
        case Path():
            return str(default)
        case float() if default.is_integer():
            return int(default)
        case None:
            return ""
    return default


def in_one_line(value: Any) -> str:
    """YAML as a person writes it: no quotes where none are needed."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {in_one_line(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(in_one_line(item) for item in value) + "]"
        case str():
            return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    if _QUANTITY.fullmatch(text):
        return True
    if not text or text[0] not in string.ascii_letters + "/":
        return False
    if text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n"):
        return False
    return not set(text) & set(":#,[]{}\"'&*!|>%@`\n")
