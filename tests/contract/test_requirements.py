"""The table of sentences is whole: each has a test that exists or a reason, each test a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.requirements import SENTENCES, Sentence

HERE = Path(__file__).parent
TESTS = HERE.parent


def names_of_tests(file: Path) -> Iterator[str]:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


CONTRACT = {
    name for file in HERE.glob("test_*.py") if file != Path(__file__) for name in names_of_tests(file)
}


@pytest.mark.parametrize(
    "sentence", SENTENCES, ids=lambda sentence: f"{sentence.section} {sentence.says[:60]}"
)
def test_a_sentence_has_tests_that_exist_or_a_reason(sentence: Sentence) -> None:
    assert bool(sentence.tests) != bool(sentence.why_none)
    for test in sentence.tests:
        file, _, name = test.rpartition("::")
        assert name in (set(names_of_tests(TESTS / file)) if file else CONTRACT), f"{test} does not exist"


def test_each_test_of_the_contract_proves_a_sentence() -> None:
    named = {test for sentence in SENTENCES for test in sentence.tests}
    assert CONTRACT - named == set()


def test_each_test_of_the_contract_says_which_section_it_is_about() -> None:
    for file in HERE.glob("test_*.py"):
        if file == Path(__file__):
            continue
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                said = ast.get_docstring(node) or ""
                assert said[:1].isdigit(), f"{file.name}::{node.name} names no section"


def test_no_sentence_stands_twice() -> None:
    said = [(sentence.section, sentence.says) for sentence in SENTENCES]
    assert len(set(said)) == len(said)
