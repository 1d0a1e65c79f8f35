"""How the fields of a JSON object are declared: pydantic's words, for what needs no pydantic to be read.

Each name means what it means in pydantic, of which a test makes the same classes and compares. The driver
decodes claims without it, as it takes 10 MB and a tenth of a second (docs/decisions/011).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

UNSET: Any = object()
"""The default of a field that has none."""


class Ge(Struct, frozen=True):
    """A number must be at least this."""

    ge: int


class Le(Struct, frozen=True):
    """A number must be at most this."""

    le: int


class MinLen(Struct, frozen=True):
    """Text must have at least so many characters."""

    min_length: int


class MaxLen(Struct, frozen=True):
    """Text must have at most so many characters."""

    max_length: int


class BeforeValidator(Struct, frozen=True):
    """Makes of what is given what the type then judges; refuses by a ValueError."""

    func: Callable[[Any], Any]


class AfterValidator(Struct, frozen=True):
    """Makes the value of what the type has let pass; refuses by a ValueError."""

    func: Callable[[Any], Any]


class PlainSerializer(Struct, frozen=True):
    """Makes the JSON of a value."""

    func: Callable[[Any], Any]


class WithJsonSchema(Struct, frozen=True, eq=False):
    """The JSON schema of the value, where it does not follow from the type."""

    json_schema: Mapping[str, Any]


class FieldInfo(Struct, frozen=True, eq=False):
    """A field, or as a part of ``Annotated`` the limits of a value."""

    metadata: tuple[Any, ...]
    """The limits, and all that ``Annotated`` says at the field itself."""
    default: Any = UNSET
    default_factory: Callable[[], Any] | None = None
    alias: str | None = None
    """The name in JSON, where it is another one."""
    description: str | None = None
    examples: Sequence[Any] | None = None
    annotation: Any = None
    """The type."""

    def is_required(self) -> bool:
        """It has no default."""
        return self.default is UNSET and self.default_factory is None

    def make_default(self) -> Any:
        """What an absent field is."""
        if self.default_factory:
            return self.default_factory()
        return self.default.copy() if isinstance(self.default, dict) else self.default


def Field(  # noqa: N802 - as in pydantic
    *,
    ge: int | None = None,
    le: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    default: Any = UNSET,
    default_factory: Callable[[], Any] | None = None,
    alias: str | None = None,
    description: str | None = None,
    examples: Sequence[Any] | None = None,
) -> Any:
    """Declare a field as the value of a class attribute, or limits in ``Annotated``."""
    limits = ((Ge, ge), (Le, le), (MinLen, min_length), (MaxLen, max_length))
    metadata = tuple(kind(limit) for kind, limit in limits if limit is not None)
    return FieldInfo(metadata, default, default_factory, alias, description, examples)
