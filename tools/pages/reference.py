"""Writes what is generated in ``docs/user``, ``charts`` and ``deploy`` from what code declares once
(``make docs``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dranet.settings import DECLARATIONS, Declaration
from dranet.view.flags import default_text
from tools.pages.alerts import alerts_page
from tools.pages.attributes import attributes_page
from tools.pages.chart import build_chart, can_render, render_plain_manifests
from tools.pages.doctor import SCHEMA_NAME as DOCTOR_SCHEMA_NAME
from tools.pages.doctor import checks_page, doctor_schema
from tools.pages.examples import write_examples
from tools.pages.metrics import metrics_page
from tools.pages.parameters import SCHEMA_NAME, parameters_page, parameters_schema
from tools.pages.permissions import permissions_page
from tools.pages.restored import restored_page
from tools.pages.rights import rights_page
from tools.pages.values import values_page

SETTINGS_HEAD = """# Settings of the driver

Generated from `dranet/settings.py` by `make docs`; a test fails when it is stale.

Later wins: default, file (`--config FILE`, YAML or JSON), environment, flag. Unknown keys are refused, and
bad settings stop the start with exit code 2, naming every bad key.

| flag | environment | key in the file | default | meaning |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """``docs/user/settings.md``."""
    return SETTINGS_HEAD + "".join(
        f"| `{setting.flag}` | `{setting.environment}` | `{setting.name}` | {_default(setting)} "
        f"| {setting.description} |\n"
        for setting in DECLARATIONS.values()
    )


def _default(setting: Declaration) -> str:
    text = default_text(setting.default)
    return f"`{text}`" if text else "-"


def build_pages() -> Mapping[str, str]:
    """File name below ``docs/user`` -> text."""
    return {
        "settings.md": settings_page(),
        "attributes.md": attributes_page(),
        "parameters.md": parameters_page(),
        SCHEMA_NAME: parameters_schema(),
        "metrics.md": metrics_page(),
        "alerts.md": alerts_page(),
        "doctor-checks.md": checks_page(),
        DOCTOR_SCHEMA_NAME: doctor_schema(),
        "permissions.md": permissions_page(),
        "values.md": values_page(),
        "rights.md": rights_page(),
        "restored.md": restored_page(),
    }


def main(folder: Path) -> None:
    for name, text in build_pages().items():
        (folder / name).write_text(text)
    write_examples(folder)
    repository = folder.parents[1]
    chart = repository / "charts" / "dranet"
    for name, text in build_chart(chart).items():
        (chart / name).parent.mkdir(exist_ok=True)
        (chart / name).write_text(text)
    _write_manifests(chart, repository / "deploy")


def _write_manifests(chart: Path, folder: Path) -> None:
    """After the chart, of which they are made."""
    if not can_render():
        print("deploy/*.yaml are left as they are: Helm's library is not installed (x86-64 alone)")
        return
    for name, text in render_plain_manifests(chart).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
