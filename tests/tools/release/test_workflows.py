"""The workflows, judged by the linter of their language; and what no linter knows of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.release.go_tools import run_go_tool
from tools.project import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))


def lint(file: Path) -> str:
    """Return what actionlint finds. It checks shell scripts with shellcheck where that is installed."""
    done = run_go_tool("actionlint", "-no-color", "-pyflakes=", str(file))
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.process
@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.name))
def test_the_linter_of_workflows_finds_nothing(file: Path) -> None:
    assert lint(file) == ""


@pytest.mark.process
def test_the_linter_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    text = (REPOSITORY / ".github/workflows/release.yml").read_text()
    wrong.write_text(text.replace("needs.check.outputs.image", "needs.check.outputs.imgae"))
    assert 'property "imgae" is not defined' in lint(wrong)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.name))
def test_actions_are_pinned_by_their_commit_and_rights_are_few(file: Path) -> None:
    workflow: dict[str, Any] = yaml.safe_load(file.read_text())
    used = re.findall(r"uses: (\S+)(.*)$", file.read_text(), re.MULTILINE)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}: name its version"
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert ("permissions" in job) == (name == "publish")


def test_what_the_workflows_run_is_there() -> None:
    """Targets of make, and parts of the release."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for file in WORKFLOWS:
        named = set(re.findall(r"run: (?:\w+=\S+ )?make ([a-z-]+)", file.read_text()))
        assert named
        assert named <= targets
