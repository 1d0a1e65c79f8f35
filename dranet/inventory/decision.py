"""Publish or hold back: what ``filter`` decides of one device."""

from __future__ import annotations

from msgspec import Struct

from dranet.model.device import Device


class Decision(Struct, frozen=True):
    """Whether ``device`` is offered, and why (a clause that reads after its name)."""

    device: Device
    published: bool
    reason: str
    filter_failed: bool = False
    """The operator's filter could not be evaluated on it; it is held back, and counted."""
    warnings: tuple[str, ...] = ()
    """What the operator's rules could not do for it, one line each; none of it holds the device back."""
