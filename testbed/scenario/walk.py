"""What the steps of one scenario share: the cluster, the host's state before, and a way to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dranet.errors import DranetError
from testbed.node.hoststate import HostState
from testbed.scenario.counterpart import Counterpart

Lines = tuple[str, ...]
"""What a step has seen, to be shown."""

_POLL_SECONDS = 0.05


class StepFailed(DranetError):
    """A step did not find what it expects; the text is for the reader of the scenario."""


@dataclass(slots=True)
class Walk:
    """What the steps of one scenario share."""

    cluster: Counterpart
    host_before: HostState
    """The host's network state before the first step."""
    patience: float = 1.0
    """How many times its own limit a step may take: a cluster that pulls images is slower than a testbed."""
    observation: str = ""
    """What the last look at an unfulfilled expectation saw."""

    async def eventually(self, look: Callable[[], Awaitable[str]]) -> None:
        """Look again until ``look`` has no complaint; the step's own time limit ends it."""
        while complaint := await look():
            self.observation = complaint
            await asyncio.sleep(_POLL_SECONDS)
        self.observation = ""
