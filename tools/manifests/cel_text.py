"""Fragments of CEL that the generators of admission policies share.

The expressions are for a ValidatingAdmissionPolicy on Kubernetes 1.34, which offers the libraries of 1.33 to
new policies: optionals, strings, sets, two-variable comprehensions, ``ip``, ``cidr`` and ``quantity``. CEL
has no ``cel.bind``, no recursion and no ``flatten`` there, and the order of a map's keys is undefined; so
lists of problems are texts, joined at each level."""

from __future__ import annotations

from collections.abc import Iterable

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}
_PLAIN_NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
_SHOWN_MAX = 80
"""Both match the paths in the driver's messages (``model.network_part``)."""


def quote(text: str) -> str:
    """A CEL string."""
    return "'" + "".join(_ESCAPES.get(character, character) for character in text) + "'"


def quote_all(texts: Iterable[str]) -> str:
    """A CEL list of strings."""
    return f"[{', '.join(map(quote, texts))}]"


def get(owner: str, name: str) -> str:
    """A field of a map; ``null`` if it is absent."""
    return f"{owner}[?{quote(name)}].orValue(null)"


def is_set(owner: str, name: str) -> str:
    """Whether a field is present and not ``null``."""
    return f"{get(owner, name)} != null"


def is_a(kind: str, owner: str, name: str) -> str:
    """Whether a field is present and of this type (``map``, ``list``, ``string`` ...)."""
    return f"type({get(owner, name)}) == {kind}"


def join(texts: str) -> str:
    """Join a list of texts, without the empty ones."""
    return f"{texts}.filter(t, t != '').join('; ')"


def key(name: str) -> str:
    """A user's own name in a path: after a dot if it is plain, otherwise quoted and truncated."""
    cut = f"({name}.size() > {_SHOWN_MAX} ? {name}.substring(0, {_SHOWN_MAX}) + '...' : {name})"
    return f"({name}.matches({quote(_PLAIN_NAME)}) ? '.' + {name} : '[\"' + {cut} + '\"]')"


def show(value: str) -> str:
    """Any JSON value, as part of a message."""
    return (
        f"(type({value}) == string ? '\\'' + {value} + '\\'' : type({value}) == map ? 'an object' : "
        f"type({value}) == list ? 'a list' : {value} == null ? 'null' : string({value}))"
    )


def chain(cases: Iterable[tuple[str, str]]) -> str:
    """The text (CEL) of the first condition that is true; empty if none is."""
    return "(" + "".join(f"{condition} ? {text} : " for condition, text in cases) + "'')"
