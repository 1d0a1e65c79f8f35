"""Which claims of a call can be claims at all: their names become parts of paths, here and in the API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dranet.model.claim import ClaimRef

UID_MAX_CHARACTERS = 128
"""An API server's UIDs have 36. With what is put around it a file name of 255 bytes still holds it."""
NAME_MAX_CHARACTERS = 253
"""Of an object and of a namespace (``k8s.io/apimachinery/pkg/util/validation``: DNS subdomain)."""

_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_SHOWN_CHARACTERS = 80


def sort_refs(refs: Sequence[ClaimRef]) -> tuple[tuple[ClaimRef, ...], Mapping[str, str]]:
    """The claims to work on, each once, and by UID why another one cannot be worked on.

    A UID that comes twice, for the same claim, is one claim; for two, none of them can be trusted.
    """
    good: dict[str, ClaimRef] = {}
    bad: dict[str, str] = {}
    for ref in refs:
        if ref.uid in bad:
            continue
        complaint = _find_fault(ref)
        if not complaint and good.setdefault(ref.uid, ref) != ref:
            complaint = f"two claims have the UID {ref.uid}: {good.pop(ref.uid)} and {ref}"
        if complaint:
            bad[ref.uid] = complaint
    return tuple(good.values()), bad


def _find_fault(ref: ClaimRef) -> str:
    """Empty if an API server could have made it."""
    texts = (
        ("UID", ref.uid, _UID, UID_MAX_CHARACTERS),
        ("name", ref.name, _NAME, NAME_MAX_CHARACTERS),
        ("namespace", ref.namespace, _NAME, NAME_MAX_CHARACTERS),
    )
    for what, text, pattern, most in texts:
        if len(text) > most or not pattern.fullmatch(text):
            return f"{text[:_SHOWN_CHARACTERS]!r} cannot be the {what} of a claim"
    return ""
