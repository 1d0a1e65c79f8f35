"""Failpoints: each is described, reached at one place, and without a listener in production."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dranet
from dranet import failpoints
from dranet.failpoints import Failpoint

PRODUCT = Path(dranet.__file__).parent
WALKS = ["prepare", "attach", "release", "publish", "functions", "migrate", "hand-over"]
_REACHED = re.compile(r"(?<![\w.])reached\(\s*Failpoint\.(?P<name>\w+)\s*\)")
_CALLED = re.compile(r"(?<![\w.])reached\(|Failpoint\.\w|failpoints\.\w")


def iter_product() -> Iterator[tuple[Path, str]]:
    """Each module that may reach a failpoint, with its text."""
    for path in PRODUCT.rglob("*.py"):
        text = path.read_text()
        if path != PRODUCT / "failpoints.py" and "import Failpoint, reached" in text:
            yield path, text


def test_each_failpoint_is_described() -> None:
    (members,) = (
        node
        for node in ast.parse((PRODUCT / "failpoints.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Failpoint"
    )
    for member, text in zip(members.body, members.body[1:], strict=False):
        if isinstance(member, ast.Assign):
            assert isinstance(text, ast.Expr), f"{ast.unparse(member)} has no description"


def test_each_failpoint_is_reached_at_one_place() -> None:
    found = [match["name"] for _, text in iter_product() for match in _REACHED.finditer(text)]
    assert sorted(found) == sorted(failpoint.name for failpoint in Failpoint)


def test_no_module_reaches_a_failpoint_in_another_way() -> None:
    for path, text in iter_product():
        used = len(_CALLED.findall(text.replace("dranet.failpoints", "")))
        assert used == 2 * len(_REACHED.findall(text)), path
    importing = [path for path in PRODUCT.rglob("*.py") if "dranet.failpoints import" in path.read_text()]
    assert sorted(importing) == sorted(path for path, _ in iter_product())


def test_each_value_is_walk_and_step_and_the_name_says_the_same() -> None:
    for failpoint in Failpoint:
        assert failpoint.walk in WALKS
        walk, _, rest = failpoint.partition(":")
        assert failpoint.name == f"{walk.replace('-', '')}_{rest.replace('-', '_')}".upper()
    assert list(dict.fromkeys(failpoint.walk for failpoint in Failpoint)) == WALKS


def test_a_listener_hears_each_failpoint_until_it_is_removed() -> None:
    heard: list[Failpoint] = []
    failpoints.listen(heard.append)
    try:
        failpoints.reached(Failpoint.PREPARE_CLAIM_FETCHED)
        failpoints.reached(Failpoint.PREPARE_CLAIM_FETCHED)
    finally:
        failpoints.listen(None)
    failpoints.reached(Failpoint.ATTACH_LINK_MOVED)
    assert heard == [Failpoint.PREPARE_CLAIM_FETCHED, Failpoint.PREPARE_CLAIM_FETCHED]


def test_what_a_listener_raises_ends_the_walk() -> None:
    """So that a test without a process of its own can stop at a failpoint."""

    def refuse(failpoint: Failpoint) -> None:
        raise RuntimeError(failpoint)

    failpoints.listen(refuse)
    try:
        with pytest.raises(RuntimeError, match="attach:link-moved"):
            failpoints.reached(Failpoint.ATTACH_LINK_MOVED)
    finally:
        failpoints.listen(None)


@pytest.mark.process
def test_no_listener_is_registered_in_the_program() -> None:
    assert [path for path in PRODUCT.rglob("*.py") if "failpoints.listen(" in path.read_text()] == []
    program = (
        "import dranet.cli.run, dranet.driver.app\n"
        "from dranet import failpoints\nprint(failpoints._Registered.listener)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
