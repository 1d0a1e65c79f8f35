"""What nobody tells the driver of, found by its regular look: the real driver, files and the API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.contract.driver_node import NIC, OTHER_NIC, Result, driven_node
from tests.support.waiting import until
from tests.whole_driver.test_rolling_update import play

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

COUNTED = (("finished", "files-missing"), ("forgotten", "claim-deleted"), ("removed", "no-record"))
"""Action and reason."""


def test_what_somebody_removed_is_back_and_what_nobody_owns_is_gone() -> None:
    async def story() -> None:
        async with driven_node() as node:
            await node.testbed.driver.stop()
            await node.testbed.driver.start({"reconcile_seconds": "1"})
            await node.testbed.driver.wait_ready(20)
            kept, forgotten = (
                await node.claim("kept", Result(NIC)),
                await node.claim("lost", Result(OTHER_NIC)),
            )
            await node.calls.prepare([kept, forgotten])
            names = node.cdi_names()
            stray = await asyncio.to_thread(_tidy_up_too_much, node.testbed.places.work_dir)
            await node.delete_claim(forgotten)  # and the kubelet has lost its checkpoint

            async def is_mended() -> bool:
                own = {name for name in names if kept.uid in name}
                return node.stored() == {kept.uid} and node.cdi_names() == own and not stray.is_symlink()

            async def is_counted() -> bool:
                metrics = await node.fetch("/metrics")
                return all(
                    f'{{action="{action}",reason="{reason}"}} ' in metrics for action, reason in COUNTED
                )

            await until(is_mended)
            await until(is_counted)  # each after it was done

    play(story)


def _tidy_up_too_much(work_dir: Path) -> Path:
    """Remove every CDI spec, and leave a ready file of nobody's."""
    for spec in (work_dir / "cdi").iterdir():
        spec.unlink()
    stray = work_dir / "state" / "ready" / "7a6c1c4e-0000-4000-8000-000000000000"
    stray.parent.mkdir(exist_ok=True)
    stray.symlink_to("/nowhere")
    return stray
