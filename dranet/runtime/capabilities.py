"""What the container runtime has shown of itself: asked and seen, never inferred from its version."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class EventForm(StrEnum):
    """How the runtime reports pods."""

    STATE_CHANGE = "StateChange"
    """One call for all events (before NRI 0.12)."""
    OWN_CALL = "a call for each event"


class RuntimeCapabilities(Struct, frozen=True):
    """Capabilities of the runtime on the present connection, or on the last one."""

    name: str = ""
    """Empty until the first connection."""
    version: str = ""
    request_timeout_seconds: float | None = None
    """How long it waits for a hook; ``None`` where it is not sent (before NRI 0.7)."""
    event_form: EventForm | None = None
    """``None`` until it has reported a pod."""
    shows_our_mounts: bool = False
    """A container has come with a mount of one of our CDI devices: it reads our CDI specs, and plugins see
    what they add. False may only mean that no such container came yet."""
    nri_version: str = ""
    """Empty where it is not sent (before NRI 0.12)."""
