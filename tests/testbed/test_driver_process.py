"""What the testbed shows of a driver that ended."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from testbed.driver.process import DriverFailed, DriverProcess

_CRASHING = (
    sys.executable,
    "-c",
    "import faulthandler; print('before', flush=True); faulthandler._sigsegv()",
)


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    driver = DriverProcess({"bind_address": "127.0.0.1:1"}, tmp_path / "log")
    assert driver.log_tail() == ""
    driver.log_file.write_text("one\ntwo\nthree\n")
    assert driver.log_tail(2) == "two\nthree"
    assert driver.log_tail(9) == "one\ntwo\nthree"


@pytest.mark.process
def test_a_crash_of_native_code_is_shown_from_its_first_line_on(tmp_path: Path) -> None:
    driver = DriverProcess({"bind_address": "127.0.0.1:1"}, tmp_path / "log", _CRASHING)

    async def crash() -> None:
        await driver.start()
        with pytest.raises(DriverFailed, match=f"exit code -{signal.SIGSEGV:d}"):
            await driver.wait_ready(30)

    asyncio.run(crash())
    assert driver.log_tail(1).startswith("Fatal Python error: Segmentation fault")
    assert driver.log_tail(1000).startswith("before")
