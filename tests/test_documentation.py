"""What the documents point at is there, and lists in them are whole."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranet.cli.main import COMMANDS, parse_arguments
from dranet.cli.metrics_page import list_declared
from dranet.model.condition_table import CONDITIONS
from dranet.model.event_reason import EventReason
from dranet.model.status import ConditionType

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted(
    page.relative_to(REPOSITORY)
    for place in ("*.md", "docs/**/*.md", "benchmarks/*.md", "deploy/*.md", "tests/data/*.md")
    for page in REPOSITORY.glob(place)
)


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


_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


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


def test_the_check_sees_the_commands() -> None:
    seen = list(commands(REPOSITORY / "docs/user/explain.md"))
    assert "pod trainer -n team-a -f -" in "".join(seen)
    assert "explain claim NAME" in seen


def test_every_metric_of_the_driver_is_described_and_no_other() -> None:
    page = (REPOSITORY / "docs/user/metrics.md").read_text()
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
    page = (REPOSITORY / "docs/user/status.md").read_text().partition("\n## Events\n")[2]
    assert [reason for reason in EventReason if f"`{reason}`" not in page] == []


def test_every_reason_of_a_verdict_is_explained_where_verdicts_are() -> None:
    page = (REPOSITORY / "docs/user/alignment.md").read_text()
    reasons = {row.reason for row in CONDITIONS if row.type is ConditionType.ALIGNED}
    explained = set(re.findall(r"`(\w+)`", page)) | set(re.findall(r"\((\w+)\)", page))
    assert reasons - explained == set()
