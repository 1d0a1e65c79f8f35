"""Pages about the examples: every file has its row, every manifest in them is right."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from dranet.cli.main import main
from dranet.desk.doctor import catalogue
from tests.examples.table import CLASSES, FOLDER, REPOSITORY

DOCS = REPOSITORY / "docs"
MULTUS = "networking/sriov-and-multus.md"
GPUS = ("guides/gpus.md", "guides/gpus-by-nvidia-dra.md", "guides/gb200-gb300.md")
PAGES = ("guides/examples.md", "guides/migrate-from-dranet.md", MULTUS, *GPUS)
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
EXPRESSION = re.compile(r"`([^`]*device\.attributes\[[^`]*)`")


def read(page: str) -> str:
    return (DOCS / page).read_text()


def blocks() -> list[tuple[str, str]]:
    """Every block of whole manifests, and its page."""
    found = [(page, text) for page in PAGES for text in BLOCK.findall(read(page))]
    return [(page, text) for page, text in found if all("kind" in item for item in yaml.safe_load_all(text))]


def validate(file: Path) -> str:
    """What is said of it; empty where there is neither error nor warning."""
    with redirect_stdout(io.StringIO()) as said:
        code = main(["validate", "--strict", "--with", str(CLASSES), str(file)])
    return said.getvalue() if code else ""


def test_the_page_has_a_row_for_each_example() -> None:
    named = set(re.findall(r"\.\./\.\./examples/([^)]+)\)", read("guides/examples.md")))
    assert named == {str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.yaml")}


@pytest.mark.parametrize(("page", "text"), blocks())
def test_a_manifest_of_a_page_has_neither_errors_nor_warnings(page: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"{Path(page).stem}.yaml"
    file.write_text(text)
    assert validate(file) == ""


def test_the_check_sees_the_manifests() -> None:
    assert {page for page, _ in blocks()} == {MULTUS}


@pytest.mark.parametrize("expression", dict.fromkeys(EXPRESSION.findall(CODE.sub("", read(MULTUS)))))
def test_a_selector_of_the_page_about_sriov_is_one(expression: str, tmp_path: Path) -> None:
    if expression.endswith('orValue("")'):
        expression += ' == "0xffff"'  # named for what it is compared with
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "dra.net" && {expression}'}}]}
    item = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": spec,
    }
    file = tmp_path / "class.yaml"
    file.write_text(yaml.safe_dump(item))
    assert validate(file) == ""


def test_the_page_about_sriov_names_checks_that_the_doctor_has() -> None:
    table = read(MULTUS).partition("| check | finding |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert named
    assert named <= {check.entry.id for check in catalogue.CHECKS}
