"""Keep what is known of the API server's features fresh: asked at start, and again when the server may be
another.

Nothing is asked while nothing happens. What a real write showed counts more than what a dry run said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection

from dranet.cluster.backoff import Backoff
from dranet.cluster.features import ApiFeatures, Feature, Support
from dranet.errors import ClusterError, DranetError

_log = logging.getLogger(__name__)


class FeatureFollower:
    """``ask`` asks the server once; ``on_news`` hears when what is known has changed. ``again`` spaces the
    askings after the first, in seconds: longer and longer while the answer stays the same."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[ApiFeatures]],
        on_news: Callable[[], None],
        *,
        again: Backoff | None = None,
        retry: Backoff | None = None,
    ) -> None:
        self._ask = ask
        self._on_news = on_news
        self._again = again or Backoff(300.0, 3600.0)
        self._retry = retry or Backoff(5.0, 300.0)
        self._wanted = asyncio.Event()
        self._known = asyncio.Event()
        self._answer: ApiFeatures | None = None
        self._contradicted = False

    @property
    def features(self) -> ApiFeatures | None:
        """What is known; ``None`` before the first answer."""
        return self._answer

    def doubt(self) -> None:
        """The server may be another one now: ask, in a while."""
        self._wanted.set()

    def note_lost(self, features: Collection[Feature], support: Support) -> None:
        """A real write showed what becomes of these fields. Where a dry run had said otherwise there are
        several servers that differ, as while they are upgraded, so it is asked again later."""
        self._answer = (self._answer or ApiFeatures()).but(support, features)
        self._contradicted = True
        self._wanted.set()
        self._on_news()

    async def wait_known(self, seconds: float) -> None:
        """Return with the first answer, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._known.wait()

    async def run(self) -> None:
        """Ask now, and then each time that there is doubt, until cancelled."""
        self._known.clear()
        self._again.reset()
        self._contradicted = False
        self._wanted.set()
        while True:
            await self._wanted.wait()
            if self._contradicted:  # the dry run would say the same again
                await asyncio.sleep(self._again.next_seconds())
            self._wanted.clear()
            try:
                answer = await self._ask()
            except DranetError as error:  # a ProtocolError, too: a proxy's error page is an answer of a kind
                _log.debug("asking for the features of the API server failed, trying again: %s", error)
                self._wanted.set()
                patience = error.retry_after_seconds if isinstance(error, ClusterError) else 0.0
                await asyncio.sleep(max(patience, self._retry.next_seconds()))
            else:
                self._take(answer)
                await asyncio.sleep(self._again.next_seconds())

    def _take(self, answer: ApiFeatures) -> None:
        self._retry.reset()
        if self._contradicted and self._answer is not None:
            answer = answer.or_else(self._answer)
        changed = answer != self._answer
        if changed and not self._contradicted:
            self._again.reset()
        self._contradicted = False
        self._answer = answer
        self._known.set()
        if changed:
            self._on_news()


class MissingFeatures:
    """Which fields we want to publish and the server does not keep: told once, when it begins and when it
    ends. ``on_change`` hears the feature gates concerned."""

    def __init__(self, on_change: Callable[[frozenset[str]], None]) -> None:
        self._on_change = on_change
        self._missing: frozenset[Feature] = frozenset()

    def update(self, wanted: frozenset[Feature], features: ApiFeatures) -> None:
        missing = wanted & features.unusable
        for feature in sorted(missing - self._missing):
            _log.warning(
                "slices are published without %s: the API server %s them; its feature gate %s is off, or it "
                "is older than the gate",
                feature,
                _VERBS[features[feature]],
                feature.gate,
            )
        for feature in sorted(wanted & self._missing - missing):
            _log.info("slices are published with %s now", feature)
        if missing != self._missing:
            self._missing = missing
            self._on_change(frozenset(feature.gate for feature in missing))


_VERBS = {Support.DROPPED: "drops", Support.REFUSED: "refuses"}
