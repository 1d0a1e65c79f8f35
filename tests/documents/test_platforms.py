"""Pages about platforms: each fact has its source, and OpenShift allows what the chart asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.documents.blocks import REPOSITORY, list_blocks

FOLDER = REPOSITORY / "docs/platforms"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
SOURCES = ("](http", "tested", "default", "how Kubernetes' clients")
"""What a cell with a source has: a link, our tests, or a default that an earlier row has a link for."""


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def rows_with_sources(page: Path) -> Iterator[list[str]]:
    """The rows of the tables whose last column is called ``source``."""
    is_inside = False
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            is_inside = False
        elif cells(line)[-1] == "source":
            is_inside = True
        elif is_inside and not line.startswith("|-"):
            yield cells(line)


@pytest.mark.parametrize("page", [*PAGES, FOLDER / "README.md"], ids=lambda page: page.stem)
def test_every_fact_has_its_source(page: Path) -> None:
    rows = list(rows_with_sources(page))
    assert len(rows) >= 3
    assert [row for row in rows if not any(source in row[-1] for source in SOURCES)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_starts_with_what_to_do_and_whether_it_was_run(page: Path) -> None:
    first, verdict, *_ = [part for part in page.read_text().split("\n\n") if not part.startswith("#")]
    assert first.startswith(("Use ", "On nodes"))
    assert verdict.startswith(("**Not run by us", "**Tested in part"))


def test_the_table_has_a_row_for_every_page() -> None:
    table = (FOLDER / "README.md").read_text().partition("## At a glance")[2].partition("\n## ")[0]
    linked = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", table, re.MULTILINE)
    assert sorted(linked) == [page.name for page in PAGES]


def test_openshift_is_asked_to_allow_what_the_chart_needs_and_no_more() -> None:
    rendering = pytest.importorskip("tests.tools.manifests.chart.rendering")
    blocks = [yaml.safe_load(block.text) for block in list_blocks() if block.page.endswith("openshift.md")
              and block.language == "yaml"]  # fmt: skip
    allowed = next(block for block in blocks if block.get("kind") == "SecurityContextConstraints")
    values = next(block for block in blocks if "securityContext" in block)
    daemon_set = next(item for item in rendering.render(values) if item["kind"] == "DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    contexts = [one["securityContext"] for one in (*pod["initContainers"], *pod["containers"])]

    assert allowed["allowHostNetwork"] is pod["hostNetwork"]
    assert allowed["allowHostPID"] is pod.get("hostPID", False)
    assert allowed["allowHostIPC"] is pod.get("hostIPC", False)
    assert allowed["allowPrivilegedContainer"] is any(one.get("privileged", False) for one in contexts)
    assert allowed["allowPrivilegeEscalation"] is any(
        one.get("allowPrivilegeEscalation", True) for one in contexts
    )
    assert allowed["readOnlyRootFilesystem"] is all(one["readOnlyRootFilesystem"] for one in contexts)
    added = {name for one in contexts for name in one["capabilities"].get("add", [])}
    assert set(allowed["allowedCapabilities"]) == added
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= set(allowed["volumes"])
    assert allowed["allowHostDirVolumePlugin"] is ("hostPath" in kinds)
