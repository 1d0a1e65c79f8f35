"""Pages on security: what they promise is shown by tests that exist, and their figures are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dranet.security.context import CAPABILITIES, MOUNTS
from dranet.security.seccomp import CHOSEN, EVERYDAY, FALLBACKS, RULES, SyscallRule

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


def count(*rules: SyscallRule) -> int:
    return len({call for rule in rules for call in rule.calls if not rule.errno})


@pytest.fixture(scope="module")
def threats() -> str:
    return (DOCS / "dev/threat-model.md").read_text()


def test_every_test_that_shows_an_answer_exists(threats: str) -> None:
    sources = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    names = set(re.findall(r"`(test_\w+)`", threats))
    assert names
    assert sorted(name for name in names if f"def {name}(" not in sources) == []


def test_every_file_of_tests_that_shows_an_answer_exists(threats: str) -> None:
    paths = set(re.findall(r"`tests/([\w/*.]+)`", threats))
    assert paths
    assert sorted(path for path in paths if not list(TESTS.glob(path))) == []


def test_the_figures_are_those_of_the_code() -> None:
    page = (DOCS / "guides/security.md").read_text()
    names = ", ".join(f"`{capability.name}`" for capability in CAPABILITIES)
    assert f"| {len(CAPABILITIES)}: {names} |" in page
    chosen = count(*CHOSEN)
    assert f"{count(*EVERYDAY)} that it needs, {chosen} more" in page
    assert f"{count(*FALLBACKS)} fallbacks" in page
    assert count(*RULES) == count(*EVERYDAY) + chosen + count(*FALLBACKS)
    writable = sum(not mount.read_only for mount in MOUNTS)
    assert f"| {len(MOUNTS)}, of which {writable} can be written |" in page
