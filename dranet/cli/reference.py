"""Writes what is generated in ``docs/user`` and ``deploy`` from what code declares once (``make docs``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dranet.cli.attributes_page import attributes_page
from dranet.cli.examples import write_examples
from dranet.cli.parameters_page import SCHEMA_NAME, parameters_page, parameters_schema
from dranet.cli.permissions_page import build_manifests, permissions_page
from dranet.cli.run import default_text
from dranet.settings import DECLARATIONS, Declaration

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
        "permissions.md": permissions_page(),
    }


def main(folder: Path) -> None:
    for name, text in build_pages().items():
        (folder / name).write_text(text)
    write_examples(folder)
    manifests = folder.parents[1] / "deploy"
    manifests.mkdir(exist_ok=True)
    for name, text in build_manifests().items():
        (manifests / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
