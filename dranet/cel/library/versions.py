"""Kubernetes' semver library; its comparisons are with those of quantities."""

from __future__ import annotations

from typing import Any

from dranet.cel.library.declare import Function, succeeds
from dranet.cel.opaque import SEMVER, new_semver, text_of
from dranet.cel.scalars import Semver

_TEXTS = (("string",), ("string", "bool"))


def _parse(value: Any) -> Semver:
    return Semver.parse(text_of(value, SEMVER))


VERSIONS = (
    Function("semver", new_semver, [(text, SEMVER) for text in _TEXTS], member=False),
    Function("isSemver", succeeds(new_semver), [(text, "bool") for text in _TEXTS], member=False),
    Function("major", lambda a: _parse(a).major, [((SEMVER,), "int")]),
    Function("minor", lambda a: _parse(a).minor, [((SEMVER,), "int")]),
    Function("patch", lambda a: _parse(a).patch, [((SEMVER,), "int")]),
)
