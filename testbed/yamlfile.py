"""Hardware and scenario files: found by name or path, read strictly, refused with every fault at once."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dranet.errors import SettingsError
from testbed.faults import explain, required_fields

DATA = Path(__file__).parent / "data"
"""The files that the package ships."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class InvalidFile(SettingsError):
    """The file is absent, not YAML, or has something that does not fit; names every field."""


def find_file(name_or_path: str, folder: Path) -> Path:
    """``dgx-h100`` is looked up in ``folder``; anything with a slash or ``.yaml`` is a path.

    Raises:
        InvalidFile: with the names that exist.
    """
    known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        if not Path(name_or_path).exists():
            raise InvalidFile(f"{name_or_path}: No such file", hint=f"or give a name; known are {known}")
        return Path(name_or_path)
    path = folder / f"{name_or_path}.yaml"
    if not path.exists():
        raise InvalidFile(f"nothing is called {name_or_path}", hint=f"known are {known}; or give a path")
    return path


def read_model(path: Path, model: type[ModelT]) -> ModelT:
    """Read one YAML file into ``model``.

    Raises:
        InvalidFile: ``file:line:column: why`` where it is not YAML, else ``file: field.path[0]: why`` for
            each fault.
    """
    data = _parse(path, _read(path))
    if data is None:
        needs = ", ".join(required_fields(model))
        raise InvalidFile(f"{path}: the file is empty; needs {needs}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidFile(f"{path}: {explain(error, model)}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")  # whatever the terminal speaks
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path}: not UTF-8 text", hint="save it as UTF-8") from error


def _parse(path: Path, text: str) -> object:
    import yaml  # testbed files only; the daemon never comes here

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InvalidFile(f"{place}: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        *above, line = text[: error.position].split("\n")
        place = f"{path}:{len(above) + 1}:{len(line) + 1}"
        raise InvalidFile(f"{place}: {error.reason} (U+{ord(text[error.position]):04X})") from error
    except ValueError as error:  # a date or a number in form, but not in fact: 2026-02-30
        raise InvalidFile(
            f"{path}: {error}", hint="put quotes around what is not a date or number"
        ) from error
