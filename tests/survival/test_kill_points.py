"""The driver dies at each marked step of each walk, and what the next one makes of it is right.

Every step is met the first and the last time that its walk comes by. A step that no walk comes by fails by
name. The groups run beside each other, each in a private tree of its own; see ``kill_points/``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from dranet.failpoints import Failpoint
from tests.survival.environment import CONTAINERD, Outcome, Scene, Story, perform
from tests.survival.kill_points.handover_story import die_while_the_driver_is_updated
from tests.survival.kill_points.migrate_story import die_while_the_store_is_migrated
from tests.survival.kill_points.pods import HARDWARE, SETTINGS
from tests.survival.kill_points.pods_story import (
    die_while_a_pod_comes,
    die_while_a_pod_comes_that_is_deleted,
    die_while_a_pod_goes,
    die_while_containerd_works,
)
from tests.survival.kill_points.publish_story import die_while_slices_are_written
from tests.survival.kill_points.slow_story import (
    die_behind_an_answer_to_containerd,
    die_behind_the_answer_of_a_release,
    die_behind_the_answer_of_an_attach,
    die_behind_the_answer_of_an_attach_of_a_pod_that_is_deleted,
)
from tests.survival.table import TABLE

SECONDS = 600
"""For one group on a machine that does much else."""
SCENE = Scene(hardware=HARDWARE, settings=SETTINGS)

GROUPS: dict[str, tuple[Story, ...]] = {
    "three-claims-come": (Story(die_while_a_pod_comes, (3,)),),
    "three-claims-come-and-are-deleted": (Story(die_while_a_pod_comes_that_is_deleted, (3,)),),
    "three-slow-claims-come": (Story(die_behind_the_answer_of_an_attach, (3,)),),
    "three-slow-claims-come-and-are-deleted": (
        Story(die_behind_the_answer_of_an_attach_of_a_pod_that_is_deleted, (3,)),
        Story(die_behind_the_answer_of_a_release, (3,)),
    ),
    "three-claims-go": (Story(die_while_a_pod_goes, (3,)), Story(die_while_slices_are_written)),
    "one-claim": (
        Story(die_while_a_pod_comes, (1,)),
        Story(die_while_a_pod_comes_that_is_deleted, (1,)),
        Story(die_while_a_pod_goes, (1,)),
    ),
    "one-claim-upgrade": (
        Story(die_while_the_store_is_migrated, (1,)),
        Story(die_while_the_driver_is_updated, (1,)),
    ),
    "three-claims-upgrade": (
        Story(die_while_the_store_is_migrated, (3,)),
        Story(die_while_the_driver_is_updated, (3,)),
    ),
}
WALKS_OF: dict[Callable[..., object], Sequence[str]] = {
    die_while_a_pod_comes: ("prepare", "attach"),
    die_while_a_pod_goes: ("release",),
    die_while_slices_are_written: ("publish",),
    die_while_the_store_is_migrated: ("migrate",),
    die_while_the_driver_is_updated: ("hand-over",),
}
"""Whose steps a story wants to meet, each one (with three claims), or else it fails."""
IN_THE_MACHINE = {"functions"}
"""Needs SR-IOV: ``tests/machine/test_virtual_functions.py`` meets each step."""


@dataclass(frozen=True, slots=True)
class _Told:
    groups: dict[str, Future[dict[str, Outcome]]]

    def judge(self, group: str) -> None:
        outcomes = self.groups[group].result()
        for outcome in outcomes.values():
            TABLE.add(*outcome.rows)
        skipped = [outcome.skipped for outcome in outcomes.values() if outcome.skipped]
        if skipped:
            pytest.skip(skipped[0])
        errors = [
            f"{outcome.story}: {outcome.error or 'nothing was tried'}"
            for outcome in outcomes.values()
            if outcome.error or not outcome.rows
        ]
        assert not errors, "\n\n".join(errors)


@pytest.fixture(scope="module")
def told() -> Iterator[_Told]:
    """All groups, some at the same time."""
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        yield _Told({name: pool.submit(perform, stories, SCENE, SECONDS) for name, stories in GROUPS.items()})


def test_each_walk_has_its_story_with_one_claim_and_with_three() -> None:
    walks = {step.walk for step in Failpoint} - IN_THE_MACHINE
    assert {walk for walks in WALKS_OF.values() for walk in walks} == walks
    stories = {(story.tell, story.arguments) for group in GROUPS.values() for story in group}
    for tell in WALKS_OF:
        if tell is die_while_slices_are_written:  # no pod takes part
            assert (tell, ()) in stories
        else:
            assert {(tell, (1,)), (tell, (3,))} <= stories


@pytest.mark.testbed
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("group", GROUPS)
def test_a_driver_that_dies_at_any_step_leaves_what_the_next_one_makes_right(group: str, told: _Told) -> None:
    told.judge(group)


@pytest.mark.runtime
@pytest.mark.timeout(SECONDS + 60)
def test_a_driver_that_dies_beside_a_real_containerd_leaves_what_the_next_one_makes_right() -> None:
    stories = [Story(die_while_containerd_works, (1,)), Story(die_behind_an_answer_to_containerd, (3,))]
    scene = Scene(runtime=CONTAINERD, hardware=HARDWARE, settings=SETTINGS)
    _Told({CONTAINERD: _done(perform(stories, scene, SECONDS))}).judge(CONTAINERD)


def _done(outcomes: dict[str, Outcome]) -> Future[dict[str, Outcome]]:
    future: Future[dict[str, Outcome]] = Future()
    future.set_result(outcomes)
    return future
