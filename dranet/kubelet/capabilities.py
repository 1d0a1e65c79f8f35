"""What the kubelet has shown that it can do: observed in its calls, never inferred from a version string.

A kubelet does not identify itself. Its calls show whether it registers us, which version of the DRA
service it took from our list, whether it opens the health stream and which version of that, and when it did
each the last time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace


class KubeletCapabilities(Struct, frozen=True):
    """Observed so far. Times are unix seconds, ``None``: it never happened; services are named as advertised
    at registration, empty: none yet."""

    asked_at: float | None = None
    """When it last asked who we are (``GetInfo``)."""
    registered: bool | None = None
    """Its last word; ``None`` since our registration socket was last made."""
    registered_at: float | None = None
    """When that word came."""
    registration_error: str = ""
    dra_service: str = ""
    """The version of the DRA service that it called last."""
    prepared_at: float | None = None
    """When it last called Prepare with a claim."""
    unprepared_at: float | None = None
    health_service: str = ""
    """The version of the health service that it opened last."""
    health_streams: int = 0
    """Health streams that are open now."""
    health_opened_at: float | None = None


class KubeletObserver:
    """Collects :class:`KubeletCapabilities`. For the event loop alone; ``clock`` gives unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen = KubeletCapabilities()
        self._health_streams = 0

    @property
    def capabilities(self) -> KubeletCapabilities:
        """All that was seen until now."""
        return replace(self._seen, health_streams=self._health_streams)

    def asked(self) -> None:
        """``GetInfo``."""
        self._seen = replace(self._seen, asked_at=self._clock())

    def notified(self, *, registered: bool, error: str) -> None:
        """``NotifyRegistrationStatus``."""
        self._seen = replace(
            self._seen, registered=registered, registered_at=self._clock(), registration_error=error
        )

    def reset(self) -> None:
        """Our registration socket was made again: whether the kubelet has registered it is not known yet."""
        self._seen = replace(self._seen, registered=None, registered_at=None, registration_error="")

    def prepares(self, service: str) -> None:
        """``NodePrepareResources`` with at least one claim."""
        self._seen = replace(self._seen, dra_service=service, prepared_at=self._clock())

    def unprepares(self, service: str) -> None:
        """``NodeUnprepareResources`` with at least one claim."""
        self._seen = replace(self._seen, dra_service=service, unprepared_at=self._clock())

    @contextmanager
    def watches_health(self, service: str) -> Iterator[None]:
        """One ``NodeWatchResources`` stream, while it is open."""
        self._seen = replace(self._seen, health_service=service, health_opened_at=self._clock())
        self._health_streams += 1
        try:
            yield
        finally:
            self._health_streams -= 1
