"""Attach and release that take longer than a hook: the driver dies behind an answer, with a part of it done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from dranet.marks import Step
from tests.survival.kill_points.armed import UNCOUNTED
from tests.survival.kill_points.bench import Bench, a_bench
from tests.survival.kill_points.pods_story import goes, goes_meanwhile, stays
from tests.survival.stage import Stage

NEVER = "never:1"
"""Armed for nothing: slow, and alive."""
_ATTACH = frozenset(
    {Step.ATTACH_LINK_FOUND, Step.ATTACH_LINK_MOVED, Step.ATTACH_STEPS_APPLIED, Step.ATTACH_VERIFIED}
)
_RELEASE = frozenset({Step.RELEASE_LINK_RESTORED, Step.RELEASE_LINK_HOME, Step.RELEASE_PLACE_CLEARED})
"""What has to come behind the answer, or the story tells nothing."""


async def die_behind_the_answer_of_an_attach(stage: Stage, claims: int) -> None:
    """The sandbox runs, and a part of its devices is in it: the next driver brings the others in."""
    async with a_bench(stage, claims, is_slow=True) as bench:
        come = [(await _rehearse(bench))[0] for _ in range(2)]
        for point in find_points(come, Step.ATTACH_BEFORE_ANSWER, _ATTACH):
            deed = partial(stays, bench, point)
            await bench.attempt(point, "the pod stays", deed, "killed behind an attach's answer")


async def die_behind_the_answer_of_an_attach_of_a_pod_that_is_deleted(stage: Stage, claims: int) -> None:
    """The same, and the pod is deleted before another driver comes: all devices are restored."""
    async with a_bench(stage, claims, is_slow=True) as bench:
        come = [(await _rehearse(bench))[0] for _ in range(2)]
        for point in find_points(come, Step.ATTACH_BEFORE_ANSWER, _ATTACH):
            deed = partial(goes_meanwhile, bench, point)
            await bench.attempt(point, "the pod goes meanwhile", deed, "killed behind an attach's answer")


async def die_behind_the_answer_of_a_release(stage: Stage, claims: int) -> None:
    """The sandbox is being removed, and a part of its devices is restored."""
    async with a_bench(stage, claims, is_slow=True) as bench:
        go = [(await _rehearse(bench))[1] for _ in range(2)]
        for point in find_points(go, Step.RELEASE_LINK_HOME, _RELEASE):
            await bench.attempt(
                point, "the pod goes", partial(goes, bench, point), "killed behind a stop's answer"
            )


async def _rehearse(bench: Bench) -> tuple[Sequence[str], Sequence[str]]:
    """The steps of a slow pod that comes, and of one that goes."""
    await bench.armed.arm(NEVER)
    return await bench.rehearse_steps()


def find_points(walks: Sequence[Sequence[str]], answer: Step, wanted: frozenset[Step]) -> Iterator[str]:
    """The first and the last time of each step of these walks after the first ``answer``.

    Raises:
        AssertionError: a wanted step never came by then.
    """
    counts = [Counter(steps[steps.index(answer) + 1 :]) for steps in walks]
    missed = sorted(step for step in wanted if not all(count[step] for count in counts))
    assert not missed, f"not behind {answer}: {', '.join(missed)}"
    for step in Step:
        fewest = min(count[step] for count in counts)
        if step.walk == answer.walk and fewest:
            yield f"{step}:1@{answer}"
            if fewest > 1 and step not in UNCOUNTED:
                yield f"{step}:{fewest}@{answer}"
