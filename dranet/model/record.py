"""What the nouns are made of: see :mod:`dranet.dataclass`."""

from __future__ import annotations

from dranet.dataclass import Record

__all__ = ("Record",)
