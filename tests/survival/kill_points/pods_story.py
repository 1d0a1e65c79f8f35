"""Prepare, attach and release: the driver dies at each step of a pod that comes, and of one that goes."""

from __future__ import annotations

from functools import partial

from dranet.failpoints import Failpoint
from tests.survival.environment import Stage
from tests.survival.kill_points.armed import find_points
from tests.survival.kill_points.bench import Bench, a_bench, steps_of
from tests.survival.kill_points.pods import HAS_IPAM
from tests.survival.verification import Verdict

_OF_THREE = frozenset(
    {
        Failpoint.PREPARE_PROFILE_NOTED,
        Failpoint.PREPARE_PROFILE_OBTAINED,
        Failpoint.PREPARE_LEASE_TAKEN,
        Failpoint.ATTACH_SUBLINK_UNNAMED,
        Failpoint.ATTACH_SUBLINK_CREATED,
        Failpoint.RELEASE_SUBLINK_DELETED,
        Failpoint.RELEASE_LEASES_ENDED,
        Failpoint.RELEASE_PROFILE_RETURNED,
    }
)
"""What a pod with one claim, whose NIC moves, does not come by."""
_OF_IPAM = frozenset(
    {Failpoint.PREPARE_ADDRESS_NOTED, Failpoint.PREPARE_ADDRESS_TAKEN, Failpoint.RELEASE_ADDRESS_RETURNED}
)


def _without(claims: int) -> frozenset[Failpoint]:
    ipam = frozenset() if claims > 1 and HAS_IPAM else _OF_IPAM
    return ipam | (_OF_THREE if claims == 1 else frozenset())


async def die_while_a_pod_comes(stage: Stage, claims: int) -> None:
    """The pod runs, whole, once another driver is there."""
    async with a_bench(stage, claims) as bench:
        rehearsals = [(await bench.rehearse())[0] for _ in range(2)]
        for point in find_points(rehearsals, steps_of("prepare", "attach", without=_without(claims))):
            await bench.attempt(point, "the pod stays", partial(stays, bench, point))


async def die_while_a_pod_comes_that_is_deleted(stage: Stage, claims: int) -> None:
    """The pod is deleted while no driver is there: nothing of it is left once another one is."""
    async with a_bench(stage, claims) as bench:
        rehearsals = [(await bench.rehearse())[0] for _ in range(2)]
        for point in find_points(rehearsals, steps_of("prepare", "attach", without=_without(claims))):
            await bench.attempt(point, "the pod goes meanwhile", partial(goes_meanwhile, bench, point))


async def die_while_a_pod_goes(stage: Stage, claims: int) -> None:
    """The pod goes, and the host is as it was."""
    async with a_bench(stage, claims) as bench:
        rehearsals = [(await bench.rehearse())[1] for _ in range(2)]
        wanted = steps_of("release", without=_without(claims)) | {Failpoint.ATTACH_STATUS_WRITTEN}
        for point in find_points(rehearsals, wanted):
            await bench.attempt(point, "the pod goes", partial(goes, bench, point))


async def _die(bench: Bench, point: str) -> str:
    """The pod at which it died."""
    await bench.armed.arm(point)
    name = await bench.add_pod()
    try:
        await bench.armed.wait_killed(point)
    except AssertionError as error:
        raise AssertionError(f"{error}; {await bench.describe(name)}") from error
    return name


async def stays(bench: Bench, point: str) -> Verdict:
    """The driver dies; another one comes; the pod runs whole, and goes."""
    name = await _die(bench, point)
    await bench.start_driver()
    await bench.stage.wait_running(name)
    verdict = await bench.judge(name)
    if not verdict.is_clean:
        return verdict
    await bench.delete_pod(name)
    return await bench.judge()


async def goes_meanwhile(bench: Bench, point: str) -> Verdict:
    """The driver dies, the pod is deleted, and another driver comes."""
    name = await _die(bench, point)
    await bench.delete_while_dead(name)
    await bench.start_driver()
    await bench.delete_pod(name)
    return await bench.judge()


async def goes(bench: Bench, point: str) -> Verdict:
    """The driver dies while a running pod is deleted."""
    name = await bench.add_running_pod()
    await bench.armed.arm(point)
    await bench.stage.testbed.delete_pod(name)
    await bench.armed.wait_killed(point)
    await bench.start_driver()
    await bench.delete_pod(name)
    return await bench.judge()


SAMPLE = (
    (stays, f"{Failpoint.PREPARE_RECORD_COMMITTED}:1"),
    (stays, f"{Failpoint.PREPARE_BEFORE_ANSWER}:1"),
    (stays, f"{Failpoint.ATTACH_PLACE_COMMITTED}:1"),
    (stays, f"{Failpoint.ATTACH_LINK_MOVED}:1"),
    (stays, f"{Failpoint.ATTACH_VERIFIED}:1"),
    (stays, f"{Failpoint.ATTACH_BEFORE_ANSWER}:1"),
    (stays, f"{Failpoint.ATTACH_BEFORE_CONTAINER}:1"),
    (goes, f"{Failpoint.RELEASE_LINK_HOME}:1"),
    (goes, f"{Failpoint.RELEASE_PLACE_CLEARED}:1"),
    (goes, f"{Failpoint.RELEASE_RECORD_DELETED}:1"),
)
"""For a real runtime, where a try takes longer. A NIC of the testbed is a veth and dies with its namespace:
no step is among them after which a link is in a pod that ends before another driver is there."""


async def die_while_containerd_works(stage: Stage, claims: int) -> None:
    """The same on a real runtime, at some of the steps."""
    async with a_bench(stage, claims) as bench:
        await bench.rehearse()
        for deed, point in SAMPLE:
            await bench.attempt(point, "real runtime", partial(deed, bench, point))
