"""The check that keeps old words out of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.words import REPOSITORY, check_paths, check_text, list_clean, main, read_table

TABLE = read_table()


def words(source: str, path: str = "dranet/x.py") -> list[tuple[int, str]]:
    return [(found.line, found.word) for found in check_text(path, source, TABLE)]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def find_lack() -> None: ...\n", "find_lack"),
        ("class LinkWish: ...\n", "LinkWish"),
        ("class NRIWish: ...\n", "NRIWish"),
        ("def f(given: int) -> None: ...\n", "given"),
        ("told_at = 1\n", "told_at"),
        ("self.held_back = 1\n", "held_back"),
        ("import os as roster\n", "roster"),
        ("async def tell_reason() -> None: ...\n", "tell_reason"),
    ],
)
def test_a_name_is_found_where_it_is_defined(source: str, name: str) -> None:
    assert words(source) == [(1, name)]


@pytest.mark.parametrize(
    "source",
    [
        "from hypothesis import given\n",
        "print(given, x.told, lacks())\n",
        "blacks = slackening = 1\n",
        "workers = 2\n",
        "parts = path.parts\n",
    ],
)
def test_names_that_are_only_used_and_parts_of_words_are_not_reported(source: str) -> None:
    assert words(source) == []


def test_a_module_is_named_by_its_file_or_its_package() -> None:
    assert words("", "dranet/kernel/wishes.py") == [(1, "wishes")]
    assert words("", "dranet/lifelines/__init__.py") == [(1, "lifelines")]
    assert words("", "dranet/kernel/netlink/socket.py") == []


def test_only_modules_and_classes_may_not_be_called_workers() -> None:
    assert words("", "dranet/workers.py") == [(1, "workers")]
    assert words("class Workers: ...\n") == [(1, "Workers")]


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("The reason is told.", "told"),
        ("Of a shared device: its share.", "Of"),
        ("Return it. Of the others, none.", "Of"),
        ("Whether somebody has it.", "somebody"),
        ("For who reads it.", "For who"),
        ("It lies there.", "lies"),
        ("The device stands there.", "stands"),
        ("Raise if there is none.", "is none"),
        ("It waits, too.", "too"),
        ("Read it once more.", "once more"),
        ("It waits as long as it can.", "as long as"),
        ("It is there no more.", "no more"),
        ("All but for one.", "but for"),
        ("Whole or not at all.", "Whole or not at all"),
        ("It is given back.", "given back"),
        ("The NIC comes home.", "comes home"),
        ("It runs for ever.", "for ever"),
    ],
)
def test_a_pattern_is_found_in_docstrings_comments_and_messages(sentence: str, word: str) -> None:
    assert words(f'"""{sentence}"""\n') == [(1, word)]
    assert words(f"# {sentence}\n") == [(1, word)]
    assert words(f'raise ValueError("{sentence}")\n') == [(1, word)]
    assert words(f'log(f"{sentence} {{1}}")\n')[0] == (1, word)


@pytest.mark.parametrize(
    "sentence",
    [
        "Of course.",
        "A stand-in stands for the server, alongside others besides this.",
        "A user who may read it.",
        "Keep no more than five, no more and no less.",
        "The alignment verdict.",
        "It is called `tell` or ``said so``.",
        "Too many.",
        "Outlies, foretold.",
    ],
)
def test_good_english_is_not_reported(sentence: str) -> None:
    assert words(f'"""{sentence}"""\n') == []


def test_strings_of_one_word_are_data() -> None:
    assert words('KEY = "told"\n') == []


def test_a_match_over_the_end_of_a_line_is_found_on_the_line_of_its_last_word() -> None:
    assert words('"""One.\n\nIt waits as\nlong as it can.\n"""\n') == [(4, "as long as")]
    assert words("x = 1\n# It waits as\n# long as it can.\n") == [(3, "as long as")]
    assert words('log(\n    "Read it once "\n    "more"\n)\n') == [(3, "once more")]


def test_each_use_has_its_line() -> None:
    assert words('"""It is told.\n\nNot here.\nIt is told.\n"""\n') == [(1, "told"), (4, "told")]


def test_the_alignment_verdict_keeps_its_name() -> None:
    assert words("class Verdict: ...\n", "dranet/claims/alignment.py") == []
    assert words("class Verdict: ...\n", "dranet/driver/health.py") == [(1, "Verdict")]


def test_the_command_prints_the_place_and_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "module.py"
    file.write_text("x = 1\n# read anew\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{file}:2: anew -> again\n"
    file.write_text("# read again\n")
    assert main([str(file)]) == 0


@pytest.mark.slow
def test_the_paths_that_are_listed_as_clean_exist_and_are_clean() -> None:
    paths = list_clean()
    assert [path for path in paths if not path.exists()] == []
    assert [str(found) for found in check_paths(paths, TABLE)] == []
    assert REPOSITORY / "tools/words.py" in paths or REPOSITORY / "tools" in paths


def test_sentences_of_markdown_are_read_without_code_and_targets() -> None:
    page = """# What it tells

Nothing
is told `told` [here](told.md).

```text
it is told
```

| a | it lies there |
|---|---|
- one: first
- Of no use
<!-- said -->
"""
    assert words(page, "docs/x.md") == [(1, "tells"), (4, "told"), (10, "lies"), (13, "Of")]


def test_comments_of_yaml_are_read() -> None:
    values = "# All of it\n# is given back.\nkey: told  # told\n  # It is told.\n"
    assert words(values, "charts/x.yaml") == [(2, "given back"), (4, "told")]
