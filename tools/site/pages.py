"""What Sphinx cannot know of ``docs``: the order of the pages, and where links lead that leave the folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from sphinx.application import Sphinx

from tools.project import REPOSITORY, read_project

DOCS = REPOSITORY / "docs"
INDEX = "README"

SECTIONS: Mapping[str, str] = {
    "guides": "Guides",
    "networking": "Networking",
    "platforms": "Platforms",
    "commands": "Commands",
    "operations": "Operations",
    "reference": "Reference",
    "dev": "Development",
}
"""Folders in the order of the sidebar, each with its caption."""

CHAPTERS: Mapping[str, str] = {"dev": "decisions/README"}
"""Pages that end a section and have pages of their own below them: one line of the sidebar that opens."""

INDEX_ENTRIES: Mapping[str, str] = {"operations/health": "!NIC down, !NICs down, !link down"}
"""By page, what people call it: the search then puts the page first."""

PROJECT = read_project()

_LINK = re.compile(r"(?<=\]\()((?:\.\./)+[^)\s#]*)(#[^)\s]*)?(?=\))")


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """Append the tables of contents that make the sidebar and the previous and next page."""
    if page == INDEX:
        source[0] += "".join(
            _contents([*list_pages(folder), *chapters(folder)], caption)
            for folder, caption in SECTIONS.items()
            if (DOCS / folder).is_dir()
        )
    elif page in CHAPTERS.values():
        source[0] += _contents(list_pages(str(PurePosixPath(page).parent)))


def add_index_entries(_: Sphinx, page: str, source: list[str]) -> None:
    """Put the entries below the title, where the search leads."""
    if page in INDEX_ENTRIES:
        title, rest = source[0].split("\n", 1)
        source[0] = "\n".join([title, "", f"```{{index}} {INDEX_ENTRIES[page]}", "```", rest])


def chapters(folder: str) -> list[str]:
    return [CHAPTERS[folder]] if folder in CHAPTERS else []


def list_pages(folder: str) -> list[str]:
    """Return the pages of a folder: in the order of the index, of the folder's README, then the rest."""
    found = {f"{folder}/{path.stem}" for path in (DOCS / folder).glob("*.md")} - {*CHAPTERS.values()}
    named = re.findall(rf"\]\(({folder}/[\w-]+)\.md", (DOCS / f"{INDEX}.md").read_text())
    own = f"{folder}/{INDEX}"
    if own in found:
        links = re.findall(r"\]\(([\w-]+)\.md", (DOCS / f"{own}.md").read_text())
        named += [own, *(f"{folder}/{name}" for name in links)]
    return [page for page in dict.fromkeys([*named, *sorted(found)]) if page in found]


def _contents(pages: Iterable[str], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", "```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])


def lead_outside_links_home(_: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files outside ``docs`` lead to the project's home, where the reader finds them."""
    folder = (DOCS / page).parent

    def lead(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        return PROJECT.page(str(target.relative_to(REPOSITORY))) + (link[2] or "")

    source[0] = _LINK.sub(lead, source[0])


def copy_index(app: Sphinx, failure: Exception | None) -> None:
    """Give the front page the name that web servers look for."""
    page = app.outdir / f"{INDEX}.html"
    if failure is None and page.exists():
        shutil.copyfile(page, app.outdir / "index.html")
