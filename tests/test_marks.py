"""Marked steps: each is reached at the one place that its text names, and nobody listens in production."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dranet
from dranet import marks
from dranet.marks import Step

PRODUCT = Path(dranet.__file__).parent
WALKS = ["prepare", "attach", "release", "publish", "migrate", "hand-over"]
_PLACE = re.compile(r"``(?P<module>[\w/]+\.py)``: \S")
_REACHED = re.compile(r"marks\.reached\(\s*marks\.Step\.(?P<name>\w+)\s*\)")
_NAMED = re.compile(r"(?<!\w)marks\.\w")
"""The module, and not a word of a sentence or another's attribute."""


def read_texts() -> dict[str, str]:
    """What is said of each member, by name."""
    (step,) = (
        node
        for node in ast.parse((PRODUCT / "marks.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Step"
    )
    texts: dict[str, str] = {}
    for member, text in zip(step.body, step.body[1:], strict=False):
        if isinstance(member, ast.Assign):
            assert isinstance(text, ast.Expr), f"{ast.unparse(member)} says nothing"
            assert isinstance(member.targets[0], ast.Name)
            texts[member.targets[0].id] = ast.literal_eval(text.value)
    return texts


def iter_places() -> Iterator[tuple[str, str]]:
    """Each step that is reached in the product, and the module."""
    for path in PRODUCT.rglob("*.py"):
        for found in _REACHED.finditer(path.read_text()):
            yield found["name"], str(path.relative_to(PRODUCT))


def test_each_step_is_reached_at_the_one_place_that_its_text_names() -> None:
    told = {name: match["module"] for name, text in read_texts().items() if (match := _PLACE.match(text))}
    assert set(told) == {step.name for step in Step}, "each text begins with its module"
    assert sorted(iter_places()) == sorted(told.items())


def test_no_module_reaches_a_step_in_another_way() -> None:
    for path in PRODUCT.rglob("*.py"):
        text = path.read_text()
        assert len(_NAMED.findall(text)) == 2 * len(_REACHED.findall(text)) or path == PRODUCT / "marks.py"
        assert "dranet.marks" not in text


def test_each_value_is_walk_and_step_and_the_name_says_the_same() -> None:
    for step in Step:
        assert step.walk in WALKS
        walk, _, rest = step.partition(":")
        assert step.name == f"{walk.replace('-', '')}_{rest.replace('-', '_')}".upper()
    assert list(dict.fromkeys(step.walk for step in Step)) == WALKS


def test_whoever_listens_hears_each_step_until_it_listens_no_more() -> None:
    heard: list[Step] = []
    marks.listen(heard.append)
    try:
        marks.reached(Step.PREPARE_CLAIM_FETCHED)
        marks.reached(Step.PREPARE_CLAIM_FETCHED)
    finally:
        marks.listen(None)
    marks.reached(Step.ATTACH_LINK_MOVED)
    assert heard == [Step.PREPARE_CLAIM_FETCHED, Step.PREPARE_CLAIM_FETCHED]


def test_what_a_listener_raises_ends_the_walk() -> None:
    """So that a test without a process of its own can stop at a step."""

    def refuse(step: Step) -> None:
        raise RuntimeError(step)

    marks.listen(refuse)
    try:
        with pytest.raises(RuntimeError, match="attach:link-moved"):
            marks.reached(Step.ATTACH_LINK_MOVED)
    finally:
        marks.listen(None)


def test_nobody_listens_in_the_program() -> None:
    assert [path for path in PRODUCT.rglob("*.py") if "listen(" in path.read_text() and _listens(path)] == []
    program = "import dranet.cli.run, dranet.driver.app\nfrom dranet import marks\nprint(marks._Ear.listener)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def _listens(path: Path) -> bool:
    return re.search(r"\bmarks\.listen\(", path.read_text()) is not None
