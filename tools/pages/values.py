"""``docs/user/values.md``: the values of the chart as tables."""

from __future__ import annotations

from collections.abc import Iterator

from tools.manifests.values import FORMER, Value, in_one_line, list_values, walk
from tools.pages.page import fill, table


def values_page() -> str:
    former = table(("there", "here"), ((f"`{path}`", new) for path, new in FORMER.items()))
    return fill("values.md", sections="\n".join(_sections()), former=former)


def _sections() -> Iterator[str]:
    rows: dict[str, list[Value]] = {}
    section = ""
    for top in list_values():
        section = top.section or section
        rows.setdefault(section, []).append(top)
    for title, values in rows.items():
        lines = table(("value", "default", "meaning"), (_row(*each) for each in walk(values)))
        yield f"## {title}\n\n{lines}"


def _row(path: str, value: Value) -> tuple[str, str, str]:
    default = "" if value.is_object else f"`{in_one_line(value.default)}`"
    return f"`{path}`", default, value.help.replace("\n- ", "\n• ")
