"""The everyday system calls of the driver's seccomp profile, each taken away in turn: somebody misses it.

About two hundred starts of the driver: with ``make test-runtime`` alone. What may be refused unseen on this
machine is in the profile as a fallback, with the reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.security.seccomp import EVERYDAY, FALLBACKS, RULES, SyscallRule
from testbed.containerd.fetch import Toolchain
from testbed.driver.pod import driver_in_a_pod
from testbed.driver.process import DriverFailed
from testbed.runtime.contract import RuntimeFailure
from tests.runtime import fail_closed
from tests.runtime.conftest import ALL_LANES
from tests.runtime.fail_closed import Pod
from tests.runtime.private_node import in_own_private_node
from tests.runtime.rights import Trial

ANSWERED_OTHERWISE = ("clone3",)
"""Not let through, but answered so that libc goes on."""
CALLS = [(rule, call) for rule in EVERYDAY for call in rule.calls if call not in ANSWERED_OTHERWISE]
AT_ONCE = 8
"""So many on one testbed."""
PARTS = [CALLS[start : start + AT_ONCE] for start in range(0, len(CALLS), AT_ONCE)]


def without_call(rule: SyscallRule, call: str) -> tuple[SyscallRule, ...]:
    left = replace(rule, calls=tuple(name for name in rule.calls if name != call))
    return tuple(rule if rule.name != left.name else left for rule in RULES if rule != left or left.calls)


@pytest.fixture(params=range(len(PARTS)))
def part(request: pytest.FixtureRequest) -> list[tuple[SyscallRule, str]]:
    return PARTS[int(request.param)]


async def find_what_is_odd(trial: Trial, rule: SyscallRule, call: str) -> list[str]:
    try:
        await trial.start(rules=without_call(rule, call))
        return await trial.tell_whole_story()
    except (DriverFailed, RuntimeFailure, TimeoutError) as failed:
        return [str(failed) or "not in time"]


if os.environ.get(ALL_LANES):

    @pytest.mark.runtime
    @pytest.mark.usefixtures("part")
    @in_own_private_node
    def test_no_everyday_call_is_missed_by_nobody(
        toolchain: Toolchain, folder: Path, part: list[tuple[SyscallRule, str]]
    ) -> None:
        async def take_away(pod: Pod) -> None:
            trial = Trial(pod)
            unmissed = []
            for rule, call in part:
                odd = await find_what_is_odd(trial, rule, call)
                if not odd:
                    unmissed.append(call)
                await trial.tidy_up()
            assert unmissed == []

        fail_closed.play(driver_in_a_pod(toolchain), folder, take_away)

    @pytest.mark.runtime
    @in_own_private_node
    def test_nothing_is_odd_with_the_whole_profile(toolchain: Toolchain, folder: Path) -> None:
        async def tell(pod: Pod) -> None:
            trial = Trial(pod)
            await trial.start()
            assert await trial.tell_whole_story() == []

        fail_closed.play(driver_in_a_pod(toolchain), folder, tell)


def test_no_call_is_in_two_groups_but_for_its_arguments() -> None:
    calls = [call for rule in (*EVERYDAY, *FALLBACKS) for call in rule.calls]
    assert len(calls) == len(set(calls))
