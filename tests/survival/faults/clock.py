"""Somebody sets the wall clock, a day forth and two back, while pods with leases and statuses run."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from testbed.cluster import JsonObject
from tests.survival.environment import Stage
from tests.survival.faults import stepping_driver
from tests.survival.faults.common import begin, end
from tests.survival.objects import Way

DAY_SECONDS = 86400
SCRIPT = str(Path(stepping_driver.__file__))


async def clock_step(stage: Stage) -> None:
    """The driver alone sees the steps, so its times differ from everybody else's, too."""
    if stage.driver.is_running:
        await stage.driver.stop(30)
    offset = stage.testbed.places.work_dir / "clock-offset"
    offset.write_text("0")
    await stage.start_driver(command=(sys.executable, SCRIPT, str(offset)))
    await begin(stage)
    for number, seconds in enumerate((DAY_SECONDS, -DAY_SECONDS), 1):
        offset.write_text(str(seconds))
        name = f"stepped{number}"
        await stage.add_pod(name, Way.SHARED, number=1 + number)
        await stage.wait_running(name)
        await stage.assert_well()
        told = _times_of(await stage.testbed.fetch_claim(f"{name}-1"))
        assert any(round(seconds / DAY_SECONDS) == round(away / DAY_SECONDS) for away in told), told
        await stage.delete_pods("moved")
        await stage.add_pod("moved")
        await stage.wait_running("moved")
    await end(stage, "clock step, a day forth and two back", tries=2)
    await stage.driver.stop(30)


def _times_of(claim: JsonObject) -> list[float]:
    """Seconds from now of each condition's time."""
    return [
        (datetime.fromisoformat(condition["lastTransitionTime"]) - datetime.now(UTC)).total_seconds()
        for entry in claim["status"]["devices"]
        for condition in entry["conditions"]
    ]
