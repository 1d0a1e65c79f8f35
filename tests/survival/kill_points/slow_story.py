"""Attach and release that take longer than a hook: the driver dies behind an answer, amid its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from dranet.failpoints import Failpoint
from tests.survival.environment import Stage
from tests.survival.kill_points.bench import Bench, a_bench
from tests.survival.kill_points.pods_story import goes, goes_meanwhile, stays
from tests.survival.verification import Verdict

NEVER = "never:1"
"""Armed for nothing: slow, and alive."""
ATTACH = (
    Failpoint.ATTACH_LINK_FOUND,
    Failpoint.ATTACH_LINK_MOVED,
    Failpoint.ATTACH_SUBLINK_UNNAMED,
    Failpoint.ATTACH_SUBLINK_CREATED,
    Failpoint.ATTACH_STEPS_APPLIED,
    Failpoint.ATTACH_CPUS_SET,
    Failpoint.ATTACH_RDMA_MOVED,
    Failpoint.ATTACH_VERIFIED,
    Failpoint.ATTACH_GATE_STAGED,
    Failpoint.ATTACH_GATE_OPENED,
    Failpoint.ATTACH_METADATA_WRITTEN,
)
"""What goes on behind the answer to RunPodSandbox, up to the first container."""
RELEASE = (
    Failpoint.RELEASE_LINK_NAMED,
    Failpoint.RELEASE_LINK_TUNED,
    Failpoint.RELEASE_LINK_SETTLED,
    Failpoint.RELEASE_LINK_RESTORED,
    Failpoint.RELEASE_DEVICES_HOME,
    Failpoint.RELEASE_PLACE_CLEARED,
    Failpoint.RELEASE_GATE_CLOSED,
)
"""What goes on behind the answer to StopPodSandbox, which comes while the first link is on its way home."""


SAMPLE = (
    f"{Failpoint.ATTACH_LINK_FOUND}:1@{Failpoint.ATTACH_BEFORE_ANSWER}",
    f"{Failpoint.ATTACH_LINK_MOVED}:2@{Failpoint.ATTACH_BEFORE_ANSWER}",
    f"{Failpoint.ATTACH_VERIFIED}:1@{Failpoint.ATTACH_BEFORE_ANSWER}",
)
"""For a real runtime, where a try takes longer: one device is in the pod, two, all."""


async def die_behind_an_answer_to_containerd(stage: Stage, claims: int) -> None:
    """As on the stand-in, at some of the steps."""
    async with a_bench(stage, claims, is_slow=True) as bench:
        await _rehearse(bench)
        for point in SAMPLE:
            await _attempt(bench, point, "real runtime", stays)


async def die_behind_the_answer_of_an_attach(stage: Stage, claims: int) -> None:
    """The sandbox runs, and a part of its devices is in it: the next driver brings the others in."""
    async with a_bench(stage, claims, is_slow=True) as bench:
        walks = [(await _rehearse(bench))[0] for _ in range(2)]
        for step, _ in count_behind(walks, Failpoint.ATTACH_BEFORE_ANSWER, ATTACH):
            point = f"{step}:1@{Failpoint.ATTACH_BEFORE_ANSWER}"
            await _attempt(bench, point, "the pod stays", stays)


async def die_behind_the_answer_of_an_attach_of_a_pod_that_is_deleted(stage: Stage, claims: int) -> None:
    """The pod is deleted before another driver comes: all devices are restored."""
    async with a_bench(stage, claims, is_slow=True) as bench:
        walks = [(await _rehearse(bench))[0] for _ in range(2)]
        for step, number in count_behind(walks, Failpoint.ATTACH_BEFORE_ANSWER, ATTACH):
            point = f"{step}:{number}@{Failpoint.ATTACH_BEFORE_ANSWER}"
            await _attempt(bench, point, "the pod goes meanwhile", goes_meanwhile)


async def die_behind_the_answer_of_a_release(stage: Stage, claims: int) -> None:
    """The sandbox is being removed, and a part of its devices is restored."""
    async with a_bench(stage, claims, is_slow=True) as bench:
        walks = [(await _rehearse(bench))[1] for _ in range(2)]
        for step, _ in count_behind(walks, Failpoint.RELEASE_LINK_HOME, RELEASE):
            await _attempt(bench, f"{step}:1@{Failpoint.RELEASE_LINK_HOME}", "the pod goes", goes)


async def _rehearse(bench: Bench) -> tuple[Sequence[str], Sequence[str]]:
    """The steps of a slow pod that comes, and of one that goes."""
    await bench.armed.arm(NEVER)
    return await bench.rehearse_steps()


async def _attempt(
    bench: Bench, point: str, what: str, deed: Callable[[Bench, str], Awaitable[Verdict]]
) -> None:
    fault = f"killed behind an answer, in {point.partition(':')[0]}"
    await bench.attempt(point, what, partial(deed, bench, point), fault)


def count_behind(
    walks: Sequence[Sequence[str]], answer: Failpoint, wanted: Sequence[Failpoint]
) -> Iterator[tuple[Failpoint, int]]:
    """How often each step comes by after the first ``answer``, in each of these walks at least.

    Raises:
        AssertionError: one never does; names it.
    """
    counts = [Counter(steps[steps.index(answer) + 1 :]) for steps in walks]
    fewest = {step: min(count[step] for count in counts) for step in wanted}
    missed = sorted(step for step, number in fewest.items() if not number)
    assert not missed, f"failpoints that were not reached after {answer}: {', '.join(missed)}"
    yield from fewest.items()
