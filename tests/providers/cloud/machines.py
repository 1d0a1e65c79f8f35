"""The machines of ``tests/data/cloud``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

_FOLDER = Path(__file__).parents[2] / "data/cloud"


class Machine(Struct, frozen=True):
    name: str
    source: str
    provider: str
    node: dict[str, Any]
    answers: dict[str, Any]
    attributes: dict[str, Any]
    interfaces: dict[str, dict[str, Any]]


def read_machine(name: str) -> Machine:
    return Machine(name=name, **json.loads((_FOLDER / f"{name}.json").read_text()))


MACHINES = [read_machine(path.stem) for path in sorted(_FOLDER.glob("*.json"))]
