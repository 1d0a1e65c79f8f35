"""Write the generated files in ``docs``, ``charts`` and ``deploy`` from declarations in the code
(``make docs``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dranet.desk.cli.validate import describe_rules
from dranet.model.attributes import (
    CATALOGUE,
    DOMAIN,
    MAX_ATTRIBUTES_PER_DEVICE,
    MAX_VALUE_BYTES,
    MAX_VALUES_PER_DEVICE,
    PLACES,
    Attribute,
)
from dranet.model.cloud_attributes import CLOUD_CATALOGUE
from dranet.settings import DECLARATIONS, Declaration
from dranet.view.options import default_text
from tools.pages.alerts import alerts_page
from tools.pages.chart import build_chart, can_render, refresh_values, render_plain_manifests, values_page
from tools.pages.cli import cli_page
from tools.pages.doctor import SCHEMA_NAME as DOCTOR_SCHEMA_NAME
from tools.pages.doctor import checks_page, doctor_schema
from tools.pages.examples import write_examples
from tools.pages.metrics import metrics_page
from tools.pages.page import fill, table
from tools.pages.parameters import SCHEMA_NAME, parameters_page, parameters_schema
from tools.pages.restored import restored_page
from tools.pages.rights import permissions_page, rights_page
from tools.project import read_project, write_urls


def attributes_page() -> str:
    shown = sorted(CATALOGUE, key=lambda a: (a.domain != DOMAIN, a.domain, a.name.lower()))
    head = ("attribute", "type", "meaning", "left out when", "stability", "place")
    return fill(
        "attributes.md",
        attributes=MAX_ATTRIBUTES_PER_DEVICE,
        values=MAX_VALUES_PER_DEVICE,
        bytes=MAX_VALUE_BYTES,
        catalogue=table(head, map(_describe_attribute, shown)),
        clouds=table(head[:3] + head[4:5], map(_describe_cloud_attribute, CLOUD_CATALOGUE)),
    )


def _describe_attribute(a: Attribute) -> tuple[str, ...]:
    kind = f"{a.type} or list" if a.has_list_form else str(a.type)
    place = "always" if a.essential else str(PLACES[a.qualified] + 1)
    return f"`{a.qualified}`", kind, a.meaning, a.omitted_when or "never", str(a.stability), place


def _describe_cloud_attribute(a: Attribute) -> tuple[str, ...]:
    return f"`{a.qualified}`", str(a.type), a.meaning, str(a.stability)


def settings_page() -> str:
    head = ("setting", "default", "meaning")
    rows = ((f"`{one.name}`", _default(one), one.description) for one in DECLARATIONS.values())
    return fill("settings.md", settings=table(head, rows))


def _default(setting: Declaration) -> str:
    text = default_text(setting.default)
    return f"`{text}`" if text else "-"


def validate_rules_page() -> str:
    return fill("validate-rules.md", rules=describe_rules())


def build_pages() -> Mapping[str, str]:
    """File below ``docs`` -> text."""
    reference = {
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
        "cli.md": cli_page(),
        "rights.md": rights_page(),
        "restored.md": restored_page(),
        "validate-rules.md": validate_rules_page(),
    }
    return {f"reference/{name}": text for name, text in reference.items()}


def main(folder: Path) -> None:
    repository = folder.parent
    about = repository / "pyproject.toml"
    about.write_text(write_urls(about.read_text(), read_project()))
    chart = repository / "charts" / "dranet"
    values = chart / "values.yaml"
    values.write_text(refresh_values(values.read_text()))  # before anything reads it
    for name, text in build_chart(chart).items():
        (chart / name).parent.mkdir(exist_ok=True)
        (chart / name).write_text(text)
    for name, text in build_pages().items():
        (folder / name).write_text(text)
    write_examples(folder)
    _write_manifests(chart, repository / "deploy")


def _write_manifests(chart: Path, folder: Path) -> None:
    """Render the plain manifests from the chart, which must be up to date."""
    if not can_render():
        print("deploy/*.yaml are unchanged: Helm's library is not installed (it exists only for x86-64)")
        return
    for name, text in render_plain_manifests(chart).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
