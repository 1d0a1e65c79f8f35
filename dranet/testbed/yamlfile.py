"""Hardware and scenario files: found by name or path, read strictly, refused with every fault at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dranet.errors import SettingsError

DATA = Path(__file__).parent / "data"
"""The files that the package ships."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class InvalidFile(SettingsError):
    """The file is absent, not YAML, or says something that does not fit; names every field."""


def find_file(name_or_path: str, folder: Path) -> Path:
    """``dgx-h100`` is looked up in ``folder``; anything with a slash or a suffix is a path.

    Raises:
        InvalidFile: with the names that exist.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return Path(name_or_path)
    path = folder / f"{name_or_path}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise InvalidFile(f"nothing is called {name_or_path}", hint=f"known are {known}; or give a path")
    return path


def read_model(path: Path, model: type[ModelT]) -> ModelT:
    """Read one YAML file into ``model``.

    Raises:
        InvalidFile: ``file: field.path[0]: why``, one for each fault.
    """
    import yaml  # testbed files only; the daemon never comes here

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise InvalidFile(f"{path}: not YAML: {error}") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidFile(f"{path}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """Every fault as ``field.path[0]: why``."""
    return "; ".join(
        f"{_path(item['loc'])}: {item['msg'].removeprefix('Value error, ')}" for item in error.errors()
    )


def _path(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(whole file)"
