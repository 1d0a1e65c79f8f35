"""The chart as it is published, and ``install.yaml``, which is that chart rendered with its defaults: both
with the image of the release."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tools.pages.chart import can_render, render_plain_manifests
from tools.project import REPOSITORY, Project
from tools.release.notes import list_changes

CHART = REPOSITORY / "charts/dranet"

_IMAGE = re.compile(r"^image:\n(?: .*\n|\n)+", re.MULTILINE)
"""The values of the image, with their comments."""


class ChartError(Exception):
    """The chart cannot be packaged; the text gives the reason and a fix."""


def stage_chart(folder: Path, project: Project, notes: str) -> Path:
    """Copy the chart below ``folder``, with the project's image as its default and the changes that Artifact
    Hub shows."""
    chart = folder / CHART.name
    shutil.copytree(CHART, chart)
    values = chart / "values.yaml"
    values.write_text(_IMAGE.sub(lambda match: _name_image(match[0], project.image), values.read_text()))
    changes = "".join(f"    - {json.dumps(change)}\n" for change in list_changes(notes))
    with (chart / "Chart.yaml").open("a") as about:
        about.write(f"  artifacthub.io/changes: |\n{changes}")
    return chart


def _name_image(values: str, image: str) -> str:
    """Return the values of the image with this one: by registry and repository where the chart has both."""
    registry, _, rest = image.partition("/")
    has_registry = re.search(r"^  registry:", values, re.MULTILINE) is not None
    wanted = {"registry": registry, "repository": rest} if has_registry else {"repository": image}
    for name, text in wanted.items():
        values, count = re.subn(rf"^(  {name}:) .*$", rf"\1 {text}", values, flags=re.MULTILINE)
        assert count == 1, f"values.yaml has no image.{name}"
    return values


def package_chart(chart: Path, folder: Path) -> Path:
    """Package a chart with Helm.

    Raises:
        ChartError: this machine has no Helm for it.
    """
    if not can_render():
        raise ChartError("the chart needs Helm's library (helm-python-sdk), which exists only for x86-64")
    import helm_python.chart

    return Path(helm_python.chart.package(chart, destination=folder))


def write_install(chart: Path) -> str:
    """Return the plain manifests as one file."""
    texts = render_plain_manifests(chart).values()
    body = "".join(text[text.index("---\n") :] for text in texts)
    return f"# dranet, for `kubectl apply -f`: the chart rendered with its defaults.\n{body}"
