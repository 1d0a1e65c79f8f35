"""Which optional fields of a slice the API server keeps: asked of it, never inferred from a version.

A slice with the field is created as a dry run, at the start and again when the server may be another one;
what a real write showed counts more. Why, and what follows:
``docs/decisions/025-what-the-api-server-keeps.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct, field

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, Backoff, JsonObject
from dranet.cluster.messages import check_stored
from dranet.cluster.slice_plan import Feature, find_features, fit_prefix, read_page
from dranet.errors import ClusterError, DranetError, Reason
from dranet.model.device import TaintEffect

UNPROCESSABLE = 422
"""The status of an answer that judges the object."""

FORBIDDEN = 403


class Support(StrEnum):
    """What becomes of an optional field."""

    KEPT = "kept"
    DROPPED = "dropped"
    REFUSED = "refused"
    """The whole slice is, with the field in it."""
    UNKNOWN = "unknown"
    """The server answers no dry run; a real write will show it."""


class FieldSupport(Struct, frozen=True):
    feature: Feature
    support: Support

    @property
    def is_usable(self) -> bool:
        """Whether to send it: also where only a write can show it."""
        return self.support in (Support.KEPT, Support.UNKNOWN)


class ApiCapabilities(Struct, frozen=True):
    """What one asking has found. Iterates over all features, in the order of :class:`Feature`."""

    found: Mapping[Feature, Support] = field(default_factory=dict)

    def __iter__(self) -> Iterator[FieldSupport]:
        return (FieldSupport(feature, self[feature]) for feature in Feature)

    def __getitem__(self, feature: Feature) -> Support:
        return self.found.get(feature, Support.UNKNOWN)

    @property
    def unusable(self) -> frozenset[Feature]:
        return frozenset(finding.feature for finding in self if not finding.is_usable)

    def or_else(self, earlier: ApiCapabilities) -> ApiCapabilities:
        """Fill in an earlier finding where this one has none."""
        known = {feature: support for feature, support in self.found.items() if support != Support.UNKNOWN}
        return ApiCapabilities({**earlier.found, **known})

    def but(self, support: Support, features: Collection[Feature]) -> ApiCapabilities:
        return ApiCapabilities({**self.found, **dict.fromkeys(features, support)})


_SAMPLES: Mapping[Feature, JsonObject] = {
    Feature.TAINTS: {"taints": [{"key": "dra.net/probe", "effect": TaintEffect.NO_SCHEDULE.value}]},
    Feature.OBSERVED_TAINTS: {"taints": [{"key": "dra.net/probe", "effect": TaintEffect.NONE.value}]},
    Feature.SHARED_DEVICES: {"allowMultipleAllocations": True},
    Feature.BANDWIDTH: {
        "allowMultipleAllocations": True,  # the policy is invalid without it
        "capacity": {"dra.net/probe": {"value": "1", "requestPolicy": {"default": "1"}}},
    },
    Feature.LIST_ATTRIBUTES: {"attributes": {"dra.net/probe": {"ints": [0, 1]}}},
    Feature.COUNTERS: {"consumesCounters": [{"counterSet": "probe", "counters": {"probe": {"value": "1"}}}]},
}

_QUESTIONS = (
    (Feature.TAINTS, Feature.SHARED_DEVICES, Feature.BANDWIDTH, Feature.COUNTERS),
    (Feature.OBSERVED_TAINTS,),
    (Feature.LIST_ATTRIBUTES,),
)
"""Asked together is what a server can drop and be left with a valid device. A list that is dropped leaves
an attribute without a value, and an effect that is not known is an invalid one: both cost the slice, and
are asked alone."""


_MANY = 1000
"""More slices than probes are ever stored at a time by a server that takes dry runs for real."""


async def ask_capabilities(client: ApiClient, driver: str, node: str) -> ApiCapabilities:
    """Ask the API server, with three requests or little more. Nothing is stored.

    Raises:
        ClusterError: no answer for now, or none to us, whom the server does not know (401).
        ProtocolError: an answer that is no object of the API.
    """
    found: dict[Feature, Support] = {}
    for question in _QUESTIONS:
        answer = await _ask(client, driver, node, question)
        if Support.REFUSED in answer.values() and len(question) > 1:
            for feature in question:
                answer |= await _ask(client, driver, node, (feature,))
        found |= answer
    if set(found.values()) == {Support.REFUSED} and await _refuses_all(client, driver, node):
        return ApiCapabilities()
    return ApiCapabilities(found)


def build_probe(driver: str, node: str, features: Collection[Feature]) -> JsonObject:
    """A slice of one device with these fields. Were it ever stored, it would be of no use to the scheduler
    (its pool is never complete, and older than any), and the publisher would delete it for its name."""
    device: JsonObject = {"name": "probe"}
    for feature in features:
        device |= _SAMPLES[feature]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": fit_prefix(f"probe-{driver}-{node}-")},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 0, "resourceSliceCount": _MANY},
            "devices": [device],
        },
    }


async def _ask(
    client: ApiClient, driver: str, node: str, features: Collection[Feature]
) -> dict[Feature, Support]:
    """What becomes of ``features`` in one slice together."""
    probe = build_probe(driver, node, features)
    try:
        answer = await client.create(paths.RESOURCE_SLICES, probe, dry_run=True)
    except ClusterError as error:
        if error.reason is not Reason.API_INVALID and error.status != FORBIDDEN:
            raise
        # 422 refuses the slice; another 4xx may refuse dry runs as such (a webhook without support) or this
        # one alone (a policy). Without any right to create slices a write reports so.
        return dict.fromkeys(features, Support.REFUSED if error.status == UNPROCESSABLE else Support.UNKNOWN)
    kept = find_features(read_page(check_stored(answer, "the dry run of a slice")))
    return {feature: Support.KEPT if feature in kept else Support.DROPPED for feature in features}


async def _refuses_all(client: ApiClient, driver: str, node: str) -> bool:
    """Whether a slice without any optional field is refused as well: by a policy of the cluster, then, and
    the refusal does not concern the fields."""
    try:
        await client.create(paths.RESOURCE_SLICES, build_probe(driver, node, ()), dry_run=True)
    except ClusterError as error:
        return error.status == UNPROCESSABLE
    return False


_log = logging.getLogger(__name__)


class CapabilityFollower:
    """``ask`` asks the server once; ``on_news`` hears when what is known has changed. ``again`` spaces the
    askings after the first, in seconds: longer and longer while the answer stays the same."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[ApiCapabilities]],
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
        self.features: ApiCapabilities | None = None
        """``None`` before the server has answered."""
        self._contradicted = False

    def doubt(self) -> None:
        """The server may be another one now: ask, in a while."""
        self._wanted.set()

    def note_lost(self, features: Collection[Feature], support: Support) -> None:
        """A real write showed what becomes of these fields. Where a dry run had another result there are
        several servers that differ, as while they are upgraded, so it is asked again later."""
        self.features = (self.features or ApiCapabilities()).but(support, features)
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
            if self._contradicted:  # the dry run would answer the same again
                await asyncio.sleep(self._again.next_seconds())
            self._wanted.clear()
            try:
                answer = await self._ask()
            except DranetError as error:  # also a ProtocolError: a proxy's error page
                _log.debug("asking for the features of the API server failed, trying again: %s", error)
                self._wanted.set()
                patience = error.retry_after_seconds if isinstance(error, ClusterError) else 0.0
                await asyncio.sleep(max(patience, self._retry.next_seconds()))
            else:
                self._take(answer)
                await asyncio.sleep(self._again.next_seconds())

    def _take(self, answer: ApiCapabilities) -> None:
        self._retry.reset()
        if self._contradicted and self.features is not None:
            answer = answer.or_else(self.features)
        changed = answer != self.features
        if changed and not self._contradicted:
            self._again.reset()
        self._contradicted = False
        self.features = answer
        self._known.set()
        if changed:
            self._on_news()


class MissingCapabilities:
    """Which fields we want to publish and the server does not keep: logged once, when it begins and when it
    ends. ``on_change`` hears the feature gates concerned."""

    def __init__(self, on_change: Callable[[frozenset[str]], None]) -> None:
        self._on_change = on_change
        self._missing: frozenset[Feature] = frozenset()

    def update(self, wanted: frozenset[Feature], features: ApiCapabilities) -> None:
        missing = wanted & features.unusable
        for feature in sorted(missing - self._missing):
            verb = "drops" if features[feature] is Support.DROPPED else "refuses"
            _log.warning(
                "slices are published without %s: the API server %s them; its feature gate %s is off, or it "
                "is older than the gate",
                *(feature, verb, feature.gate),
            )
        for feature in sorted(wanted & self._missing - missing):
            _log.info("slices are published with %s now", feature)
        if missing != self._missing:
            self._missing = missing
            self._on_change(frozenset(feature.gate for feature in missing))
