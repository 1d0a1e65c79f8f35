"""What the documents point at is there, and lists in them are whole."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dranet import __version__
from dranet.cli.main import COMMANDS, NODE_COMMANDS, parse_arguments
from dranet.model.status import ConditionType, EventReason
from dranet.settings import DECLARATIONS
from tests.documents.blocks import REPOSITORY, list_pages
from tools.pages.conditions import CONDITIONS
from tools.pages.metrics import list_declared

PAGES = [page.relative_to(REPOSITORY) for page in list_pages()]


def links(page: Path) -> Iterator[str]:
    """Relative targets of the links of a page, without those in code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return (target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, without punctuation, dashes for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    broken = []
    for target in links(REPOSITORY / page):
        name, _, anchor = target.partition("#")
        aim = (REPOSITORY / page).parent / name if name else REPOSITORY / page
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            broken.append(target)
    assert broken == []


def test_the_check_sees_the_links() -> None:
    assert "docs/dev/architecture.md" in links(REPOSITORY / "README.md")


@pytest.mark.parametrize("folder", ["guides", "networking", "commands", "operations", "reference", "dev"])
def test_the_index_leads_to_every_page(folder: str) -> None:
    index = {target.partition("#")[0] for target in links(REPOSITORY / "docs/README.md")}
    pages = {f"{folder}/{page.name}" for page in (REPOSITORY / "docs" / folder).glob("*.md")}
    assert pages - index == set()


def test_the_index_of_decisions_has_every_record() -> None:
    folder = REPOSITORY / "docs/decisions"
    records = {page.name for page in folder.glob("0*.md")}
    assert {target for target in links(folder / "README.md") if "/" not in target} == records


def test_the_architecture_has_a_row_for_every_room() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|", (REPOSITORY / "docs/dev/architecture.md").read_text(), re.MULTILINE)
    rooms = {path.parent.name for path in (REPOSITORY / "dranet").glob("*/__init__.py")}
    assert rooms <= set(rows)


_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def words(page: Path) -> set[str]:
    """What stands in code font within the sentences of a page, where it is one word."""
    return set(re.findall(r"`([^`\s<$]+)`", _CODE.sub("", (REPOSITORY / page).read_text())))


_TOP = (
    "dranet",
    "testbed",
    "tools",
    "tests",
    "docs",
    "deploy",
    "charts",
    "examples",
    "e2e",
    "benchmarks",
    "proto",
    ".ci",
)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_that_the_page_names_is_there(page: Path) -> None:
    """By its path from here; a module may be named by the end of its path."""
    absent = []
    for word in words(page):
        if word.partition("/")[0] in _TOP and "/" in word:
            is_there = any(REPOSITORY.glob(word.rstrip("/")))
        else:
            is_there = not word.endswith(".py") or _is_the_end_of_a_path(word.removeprefix("../"))
        absent += [] if is_there else [word]
    assert absent == []


@cache
def _list_modules() -> tuple[Path, ...]:
    return tuple(path for top in _TOP for path in (REPOSITORY / top).rglob("*.py"))


def _is_the_end_of_a_path(name: str) -> bool:
    return any(path.match(name) for path in _list_modules())


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_setting_that_the_page_names_exists(page: Path) -> None:
    named = {
        word.removeprefix("settings.").removeprefix("DRANET_").lower()
        for word in words(page)
        if re.fullmatch(r"settings\.\w+|DRANET_[A-Z_]+", word)
    }
    assert named - DECLARATIONS.keys() - _NO_SETTINGS == set()


_NO_SETTINGS = {"json", "py", "memory_policy"}
"""Files called so, and a variable of containers."""


def test_the_check_sees_files_and_settings() -> None:
    install, architecture = words(Path("docs/guides/install.md")), words(Path("docs/dev/architecture.md"))
    assert {"settings.driver_name", "settings.kubelet_root"} <= install
    assert {"hooks.py", "driver/app.py", "dranet/desk/"} <= architecture


def test_every_page_that_names_the_image_names_this_version() -> None:
    named = {
        (str(page), version)
        for page in PAGES
        for version in re.findall(r"\bdranet[-:](\d+\.\d+\.\d+)", (REPOSITORY / page).read_text())
    }
    assert {page for page, _ in named} >= {"docs/guides/quickstart.md", "docs/dev/image.md"}
    assert {version for _, version in named} == {__version__}


def test_figures_of_the_front_page_are_those_of_the_page_about_performance() -> None:
    front = (REPOSITORY / "README.md").read_text()
    front = front.partition("## Proof")[2].partition("\n## ")[0]
    figures = set(re.findall(r"\b\d\.\d\d\b", front))
    assert len(figures) >= 3
    assert figures <= set(re.findall(r"\b\d\.\d\d\b", (REPOSITORY / "docs/dev/figures.md").read_text()))


def test_the_run_of_benchmarks_is_the_one_that_is_kept() -> None:
    run = (REPOSITORY / "benchmarks/README.md").read_text().partition("<!-- bench output begins -->")[2]
    kept = json.loads((REPOSITORY / "benchmarks/results/reference.json").read_text())["results"]
    shown = dict(re.findall(r"^(\S.*?)  +(-?\d[\d.]*)", run, re.MULTILINE))
    assert shown == {one["title"]: f"{one['ours']['median']:.1f}" for one in kept}


def commands(page: Path) -> Iterator[str]:
    """What the page has people type after ``dranet``, in its code blocks and within its sentences."""
    text = page.read_text()
    for block in _CODE.findall(text):
        yield from re.findall(r"(?:^|\| )(?:\$ )?(?:\.venv/bin/)?dranet ([a-z][^|>\n]*)", block, re.MULTILINE)
    yield from (
        " ".join(found.split()) for found in re.findall(r"`dranet ([a-z][^`]*)`", _CODE.sub("", text))
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_every_command_of_the_page_is_one(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    for command in set(commands(REPOSITORY / page)) - COMMANDS.keys():  # a name alone is not to be typed
        try:
            parse_arguments(shlex.split(command, comments=True))
        except SystemExit as end:  # 0 after --help
            refused += [f"dranet {command}: {capsys.readouterr().err}"] if end.code else []
    assert refused == []


def test_what_the_pages_run_in_the_driver_pod_is_in_the_image() -> None:
    run = {
        (str(page), command)
        for page in PAGES
        for command in re.findall(r"\bexec\b[^`\n]* -- dranet (\w+)", (REPOSITORY / page).read_text())
    }
    assert {"doctor", "devices", "prepared"} <= {command for _, command in run}
    assert {(page, command) for page, command in run if command not in NODE_COMMANDS} == set()


def test_the_check_sees_the_commands() -> None:
    seen = list(commands(REPOSITORY / "docs/commands/explain.md"))
    assert "pod trainer -n team-a -f -" in "".join(seen)
    assert "explain claim NAME" in seen


def test_every_metric_of_the_driver_is_described_and_no_other() -> None:
    page = (REPOSITORY / "docs/reference/metrics.md").read_text()
    described = re.findall(r"^\| `(dranet_\w+)` \|", page, re.MULTILINE)
    assert sorted(described) == sorted(declared.name for declared in list_declared())


def test_metrics_that_other_pages_name_exist() -> None:
    exported = {declared.name for declared in list_declared()}
    for page in PAGES:
        named = re.findall(
            r"\b(dranet_[a-z_]+_(?:total|seconds|devices|faults|state))\b", (REPOSITORY / page).read_text()
        )
        assert set(named) <= exported, page


def test_every_event_is_explained() -> None:
    page = (REPOSITORY / "docs/reference/status.md").read_text().partition("\n## Events\n")[2]
    assert [reason for reason in EventReason if f"`{reason}`" not in page] == []


def test_every_reason_of_a_verdict_is_explained_where_verdicts_are() -> None:
    page = (REPOSITORY / "docs/guides/alignment.md").read_text()
    reasons = {row.reason for row in CONDITIONS if row.type is ConditionType.ALIGNED}
    explained = set(re.findall(r"`(\w+)`", page)) | set(re.findall(r"\((\w+)\)", page))
    assert reasons - explained == set()
