"""A device taint (KEP-5055): what keeps the scheduler from a device, or moves pods away from it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class TaintEffect(StrEnum):
    """What a taint does; the API's spelling."""

    NONE = "None"
    """Nothing but to be seen; not known to every server."""
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(Struct, frozen=True):
    """One entry of ``devices[].taints``. The server notes the time (``timeAdded``) when there is none."""

    key: str
    """A label key, ``dra.net/link-down``."""
    effect: TaintEffect
    value: str = ""
    """A label value; why, in one word."""
