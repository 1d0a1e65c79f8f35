"""The chart as it is published, and ``install.yaml``, which is that chart rendered with its defaults: both
with the image of the release."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tools.pages.chart import render_plain_manifests
from tools.project import REPOSITORY, Project
from tools.release.notes import list_changes

CHART = REPOSITORY / "charts/dranet"

_IMAGE = re.compile(r"^(image:\n(?: +.*\n|\n)*?  repository: )dranet$", re.MULTILINE)


def stage_chart(folder: Path, project: Project, notes: str) -> Path:
    """Copy the chart below ``folder``, with the project's image as its default and the changes that Artifact
    Hub shows."""
    chart = folder / CHART.name
    shutil.copytree(CHART, chart)
    values = chart / "values.yaml"
    text, count = _IMAGE.subn(rf"\g<1>{project.image}", values.read_text())
    assert count == 1, "values.yaml has no image.repository: dranet"
    values.write_text(text)
    changes = "".join(f"    - {json.dumps(change)}\n" for change in list_changes(notes))
    with (chart / "Chart.yaml").open("a") as about:
        about.write(f"  artifacthub.io/changes: |\n{changes}")
    return chart


def package_chart(chart: Path, folder: Path) -> Path:
    """Package a chart with Helm, which is a development dependency and exists only for x86-64."""
    import helm_python.chart

    return Path(helm_python.chart.package(chart, destination=folder))


def write_install(chart: Path) -> str:
    """Return the plain manifests as one file."""
    texts = render_plain_manifests(chart).values()
    body = "".join(text[text.index("---\n") :] for text in texts)
    return f"# dranet, for `kubectl apply -f`: the chart rendered with its defaults.\n{body}"
