"""The judge of the survival suite can fail: what is broken by hand it sees, and names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.survival.environment import Outcome, Scene, Story, perform
from tests.survival.faults import by_hand
from tests.survival.reporting import tell

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(200)]

STORIES = [
    by_hand.no_fault,
    by_hand.a_changed_mtu_is_not_restored,
    by_hand.a_cdi_spec_that_stays_is_not_restored,
    by_hand.a_file_for_a_container_that_stays_is_not_restored,
    by_hand.a_pod_that_does_not_run_is_lost,
    by_hand.a_pod_without_its_link_is_bare_and_lost_and_its_status_wrong,
    by_hand.a_link_that_is_down_or_without_address_is_bare,
    by_hand.a_status_that_says_too_much_is_wrong,
    by_hand.a_nic_that_is_moved_away_is_lost,
]


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, Outcome]:
    return perform([Story(story) for story in STORIES], Scene())


@pytest.mark.parametrize("story", [story.__name__ for story in STORIES])
def test_the_judge_sees(story: str, outcomes: Mapping[str, Outcome]) -> None:
    tell(outcomes[story])
