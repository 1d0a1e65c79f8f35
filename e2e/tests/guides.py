"""Recipes of the documentation, as the tests run them."""

from __future__ import annotations

import re

import yaml

from e2e.objects import JsonObject
from e2e.tests.shell import REPOSITORY


def read_block(page: str, word: str) -> list[JsonObject]:
    """The objects of the one YAML block of ``docs/guides/PAGE`` that has this word."""
    text = (REPOSITORY / "docs/guides" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return [item for item in yaml.safe_load_all(found) if item]
