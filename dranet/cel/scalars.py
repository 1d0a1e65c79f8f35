"""Kubernetes quantities and semantic versions: parsed, exact, comparable.

``CelError`` is defined here because parsing is the lowest thing that can fail.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dranet import quantity
from dranet.errors import ClaimError


class CelError(ClaimError):
    """A selector that cannot be compiled or evaluated; in a cluster it stops the scheduling of the pod."""

    cited = ""
    """The expression that the message ends with."""

    @property
    def cause(self) -> str:
        """The message for where the expression is told beside it."""
        return self.message.removesuffix(f": {self.cited}")


class NotJudged(CelError):
    """Nothing is said of the expression: a cluster may well accept and evaluate it."""


_UINT64 = range(2**64)


def parse_quantity(text: str) -> int:
    """A Kubernetes quantity in billionths; CelError if it is none."""
    try:
        return quantity.parse_quantity(text)
    except ValueError as error:
        raise CelError(str(error)) from None


class Semver(NamedTuple):
    """Semantic version 2.0.0; build metadata takes no part in comparison and is dropped."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, normalize: bool = False) -> Semver:
        match = _SEMVER_TEXT.fullmatch(_normalized(text) if normalize else text)
        tail = tuple(match[4].split(".")) if match and match[4] else ()
        numbers = (*match.groups()[:3], *filter(str.isdigit, tail)) if match else ()
        if not match or any(len(n) > 20 or int(n) not in _UINT64 for n in numbers):
            raise CelError(f"{text!r} is not a semantic version, e.g. 1.2.3")
        return cls(int(match[1]), int(match[2]), int(match[3]), tail)

    @property
    def canonical(self) -> str:
        base = f"{self.major}.{self.minor}.{self.patch}"
        return f"{base}-{'.'.join(self.prerelease)}" if self.prerelease else base

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """A release comes after its pre-releases; numeric identifiers before the others."""
        tail = tuple((not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in self.prerelease)
        return (self.major, self.minor, self.patch, not tail, tail)


_NUMBER = r"(0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER_TEXT = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


def _normalized(text: str) -> str:
    """Without a leading ``v``, with all three numbers and no leading zeros; a short one has no tail."""
    match = re.fullmatch(r"v?(\d+)(?:\.(\d+)(?:\.(\d+)([-+].*)?)?)?", text, re.ASCII | re.DOTALL)
    if not match:
        return text
    return ".".join((n or "").lstrip("0") or "0" for n in match.groups()[:3]) + (match[4] or "")
