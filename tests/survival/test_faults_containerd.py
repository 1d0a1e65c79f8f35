"""Whatever goes wrong that is a matter of the runtime, on a real containerd and runc.

As ``test_faults.py`` has it for the stand-in.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.survival.environment import CONTAINERD, Outcome, Scene, Story, perform
from tests.survival.faults import many, node_life, peers, stopped
from tests.survival.faults.common import SETTINGS
from tests.survival.reporting import tell

SECONDS = 480
pytestmark = [pytest.mark.runtime, pytest.mark.timeout(SECONDS + 20)]

STORIES = {
    story.name: story
    for story in (
        Story(peers.runtime_restart),
        Story(peers.runtime_crash),
        Story(peers.kubelet_restart),
        Story(stopped.stopped_in_a_hook),
        Story(node_life.reboot),
        Story(node_life.namespace_unpinned),
        Story(node_life.namespace_gone),
        Story(node_life.link_deleted),
        Story(many.many_pods, (20,)),
    )
}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Mapping[str, Outcome]:
    """Of the chosen tests of this file."""
    items = (item for item in request.session.items if item.path == request.path)
    chosen = [str(item.callspec.params["story"]) for item in items if isinstance(item, pytest.Function)]
    return perform([STORIES[name] for name in chosen], Scene(CONTAINERD, settings=SETTINGS), SECONDS)


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_after(story: str, outcomes: Mapping[str, Outcome]) -> None:
    tell(outcomes[story])
