"""Facts of every shape, drawn from the annotations of ``model.facts``: a new field is covered as it comes."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct

from dranet.model.facts import NodeFacts

KERNEL_TEXT = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, codec=None, categories=["Cs"]),
    ),
    max_size=12,
)
"""What names read from the kernel can hold: any text, and a surrogate escape for each byte that is none."""

_INTEGERS = st.integers(-(2**63), 2**64 - 1)


def facts_of_any_shape(
    text: st.SearchStrategy[str] = KERNEL_TEXT, versions: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[NodeFacts]:
    """Every field of every record may be anything that its annotation allows.

    Args:
        text: what the texts hold.
        versions: what the fields that tell the version of a driver, firmware or kernel hold.
    """
    return _records(NodeFacts, _Texts(text, text if versions is None else versions))


@dataclass(frozen=True)
class _Texts:
    usual: st.SearchStrategy[str]
    versions: st.SearchStrategy[str]

    def of(self, field: str) -> st.SearchStrategy[str]:
        return self.versions if field in ("driver_version", "firmware", "kernel") else self.usual


def _records(kind: type[Struct], texts: _Texts) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: _values(hints[name], name, texts) for name in kind.__struct_fields__})


def _values(hint: Any, field: str, texts: _Texts) -> st.SearchStrategy[Any]:
    if get_origin(hint) is tuple:
        return st.lists(_values(get_args(hint)[0], field, texts), max_size=2).map(tuple)
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(option for option in get_args(hint) if option is not types.NoneType)
        return st.none() | _values(inner, field, texts)
    scalars: dict[Any, st.SearchStrategy[Any]] = {str: texts.of(field), bool: st.booleans(), int: _INTEGERS}
    return scalars[hint] if hint in scalars else _records(hint, texts)
