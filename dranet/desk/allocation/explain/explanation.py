"""Why a claim or a pod gets its devices or not, over all nodes, as frozen values: what ``explain`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from dranet.desk.allocation.explain.misses import Miss
from dranet.desk.allocation.explain.story import Given, NodeStory
from dranet.desk.allocation.explain.subject import Subject
from dranet.desk.allocation.outcome import Ending


class Verdict(Enum):
    """The one-word answer."""

    ALLOCATED = "allocated"
    """All of its claims have their devices."""
    POSSIBLE = "possible"
    """Some node could give them now."""
    IMPOSSIBLE = "impossible"
    """No node can."""
    BROKEN = "broken"
    """An error ends every attempt, on whatever node."""
    UNKNOWN = "unknown"
    """Something is asked for, or published, that cannot be judged here."""

    @property
    def is_good(self) -> bool:
        return self in (Verdict.ALLOCATED, Verdict.POSSIBLE)


Excluded = tuple[tuple[str, tuple[str, ...]], ...]
"""Reasons for which nodes are not looked at, each with the nodes."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with the same story; ``story`` and ``misses`` are those of the first."""

    story: NodeStory
    nodes: tuple[str, ...]
    misses: tuple[Miss, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    subject: Subject
    verdict: Verdict
    headline: str
    """One clause."""
    mend: str
    """What would most likely help; may be empty."""
    given: tuple[Given, ...]
    """What the claims have that are allocated already."""
    groups: tuple[NodeGroup, ...]
    """The most promising first."""
    excluded: Excluded
    remarks: tuple[str, ...] = ()
    """What to know of the answer."""

    def ending_in(self, *endings: Ending) -> Iterator[NodeGroup]:
        return (group for group in self.groups if group.story.ending in endings)


def group_stories(stories: Iterable[NodeStory]) -> list[list[NodeStory]]:
    """Stories that differ in names and values only, together."""
    groups: dict[object, list[NodeStory]] = {}
    for story in stories:
        groups.setdefault(_outline(story), []).append(story)
    return list(groups.values())


def _outline(story: NodeStory) -> object:
    """Which steps, and how many devices at each."""
    return (
        story.ending,
        story.reached,
        tuple((count, defect) for _, count, defect in story.pools),
        tuple(
            (
                r.claim,
                r.name,
                r.seen,
                r.satisfied,
                len(r.left),
                tuple((s.removal, s.what, len(s.devices)) for s in r.steps),
            )
            for r in story.requests
        ),
        tuple(constraint.index for constraint in story.constraints),
        tuple((given.claim, given.request, given.id[0]) for given in story.given),
        (story.failure.cause, story.failure.request) if story.failure else None,
    )
