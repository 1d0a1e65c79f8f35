"""Kubernetes' function libraries, as far as the engine can be extended with them; the rest is in ``MISSING``.

Each module declares a table of :class:`Function`. The engine's checker knows every overload by its types, its
evaluator only by the kinds of its arguments: all messages are of one kind, and so are all lists. So the first
overload of each kind brings the implementation, and that one serves the others.
"""

from __future__ import annotations

from dranet.cel.library.declare import Function
from dranet.cel.library.network import ADDRESSES, URLS
from dranet.cel.library.regexes import REGEXES
from dranet.cel.library.values import LISTS, QUANTITIES, VERSIONS

__all__ = ["FUNCTIONS", "INCOMPLETE", "MISSING", "Function"]

FUNCTIONS: tuple[Function, ...] = (*QUANTITIES, *VERSIONS, *LISTS, *ADDRESSES, *URLS, *REGEXES)

MISSING = frozenset({"format", "authorizer", "image", "isImage", "jsonpatch", "mul", "div", "divInt"})
"""Names that Kubernetes' environment declares and this evaluator does not."""

_LIST = r"\((list|dyn)\b.*"
_TIMES = r"\(list\((uint|google\.protobuf\.\w+)\)\)"
INCOMPLETE = {
    "includes": r".*",
    "indexOf": _LIST,
    "lastIndexOf": _LIST,
    "sum": _TIMES,
    "min": _TIMES,
    "max": _TIMES,
}
"""Functions that Kubernetes has for more types than this evaluator, with the types as the engine has them."""
