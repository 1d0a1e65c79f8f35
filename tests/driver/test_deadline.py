"""A hook answers in time, whatever the kernel does."""

from __future__ import annotations

import logging
import threading

import pytest

from dranet.driver.executor import run_with_deadline
from dranet.errors import DeviceError, HookDeadlineError, KernelError, Reason
from tests.support.waiting import wait_until

LONG_SECONDS = 60.0
SHORT_SECONDS = 0.05


def test_what_ends_in_time_is_returned_or_raised() -> None:
    def fail() -> int:
        raise DeviceError("gone")

    assert run_with_deadline(lambda: 7, LONG_SECONDS, "counting") == 7
    with pytest.raises(DeviceError, match="gone"):
        run_with_deadline(fail, LONG_SECONDS, "failing")


def test_what_ends_late_is_answered_before_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    hold = threading.Event()
    caplog.set_level(logging.INFO)
    with pytest.raises(HookDeadlineError, match="still counting after") as caught:
        run_with_deadline(lambda: hold.wait(LONG_SECONDS), SHORT_SECONDS, "counting")
    assert caught.value.reason is Reason.HOOK_DEADLINE_EXCEEDED
    assert "counting has ended" not in caplog.text
    hold.set()
    wait_until(lambda: "counting has ended" in caplog.text, "the work has ended")


@pytest.mark.parametrize(("error", "text"), [(DeviceError("gone"), "gone"), (KeyError("x"), "bug while")])
def test_what_fails_late_goes_to_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    hold = threading.Event()

    def work() -> None:
        hold.wait(LONG_SECONDS)
        raise error

    with pytest.raises(KernelError):
        run_with_deadline(work, SHORT_SECONDS, "counting")
    hold.set()
    wait_until(lambda: text in caplog.text, "the failure is in the log")
