"""Text from a machine, made safe to show: on a screen, in a picture, on a page."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape every character of ``text`` that is not printable or could move the cursor: ``\\x1b``.

    The kernel lets an interface name hold any byte but white space, ``/`` and ``:``.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
