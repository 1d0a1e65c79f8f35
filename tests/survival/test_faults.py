"""Whatever goes wrong: no pod starts bare, no NIC or pod is lost, the host is as it was at the end, and
claims say what is so.

On the stand-in runtime. All faults befall one testbed, one after the other; one that fails leaves the rest to
a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.survival.environment import Outcome, Scene, Story, perform
from tests.survival.faults import clock, disk, many, node_life, peers, stopped, versions
from tests.survival.faults.common import SETTINGS
from tests.survival.reporting import tell

SECONDS = 600
pytestmark = [pytest.mark.testbed, pytest.mark.timeout(SECONDS + 20)]

STORIES = {
    story.name: story
    for story in (
        Story(peers.runtime_restart),
        Story(peers.kubelet_restart),
        Story(peers.api_server_away),
        Story(stopped.stopped_in_a_hook),
        Story(node_life.reboot),
        Story(node_life.namespace_unpinned),
        Story(node_life.namespace_gone),
        Story(node_life.link_deleted),
        Story(node_life.rdma_gone),
        Story(disk.full_disk),
        Story(disk.read_only_store),
        Story(disk.no_byte_to_any_file),
        Story(disk.no_descriptors),
        Story(clock.clock_step),
        Story(versions.downgrade),
        Story(versions.upgrade),
        Story(many.many_pods, (200,)),
    )
}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Mapping[str, Outcome]:
    """Of the chosen tests of this file."""
    items = (item for item in request.session.items if item.path == request.path)
    chosen = [str(item.callspec.params["story"]) for item in items if isinstance(item, pytest.Function)]
    return perform([STORIES[name] for name in chosen], Scene(settings=SETTINGS), SECONDS)


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_after(story: str, outcomes: Mapping[str, Outcome]) -> None:
    tell(outcomes[story])
