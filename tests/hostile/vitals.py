"""How the driver's process is, as the kernel tells it, and whether it still serves those who mean well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.contract.driver_node import NIC, DrivenNode, Result

MORE_MEMORY_BYTES = 24 << 20
"""What a storm may leave behind: heaps keep some of what they once needed."""
MORE_FILES = 12
"""Idle connections to the API server, and one worker's."""
PROBE_SECONDS, GET_INFO_SECONDS, PREPARE_SECONDS = 1.0, 1.0, 5.0
SETTLE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Vitals:
    memory_bytes: int
    open_files: int

    @classmethod
    def read(cls, pid: int) -> Vitals:
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return cls(int(resident.split()[1]) * 1024, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))


@asynccontextmanager
async def unharmed(node: DrivenNode) -> AsyncIterator[None]:
    """Around a storm: the same process serves everybody afterwards, and has what it had before."""
    driver = node.testbed.driver
    await serve_everybody(node)  # what is loaded for the first claim is no harm
    pid, before = driver.pid, Vitals.read(driver.pid)
    logged = driver.log_file.stat().st_size
    yield
    await serve_everybody(node)
    assert driver.pid == pid, "another process than before"
    await _wait_settled(pid, before)
    told = driver.log_file.read_bytes()[logged:].decode(errors="replace")
    assert "Traceback" not in told, told[-4000:]
    assert "bug in" not in told, told[-4000:]


async def serve_everybody(node: DrivenNode) -> None:
    """A probe, the kubelet's questions, a claim: each in its time."""
    async with asyncio.timeout(PROBE_SECONDS):
        assert await node.fetch("/healthz") == "ok\n"
    await node.calls.get_info(GET_INFO_SECONDS)
    begin = time.monotonic()
    ref = await node.claim(f"served-{time.monotonic_ns()}", Result(NIC))
    answer = await node.calls.prepare([ref], seconds=PREPARE_SECONDS)
    assert not answer.claims[ref.uid].error, answer
    answers = await node.calls.unprepare([ref], seconds=PREPARE_SECONDS)
    assert not answers.claims[ref.uid].error, answers
    assert time.monotonic() - begin < 2 * PREPARE_SECONDS


async def _wait_settled(pid: int, before: Vitals) -> None:
    most = Vitals(before.memory_bytes + MORE_MEMORY_BYTES, before.open_files + MORE_FILES)
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        now = Vitals.read(pid)
        if now.memory_bytes <= most.memory_bytes and now.open_files <= most.open_files:
            return
        assert time.monotonic() < deadline, f"{before} became {now}"
        await asyncio.sleep(0.1)
