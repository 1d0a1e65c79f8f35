"""A hook answers in time whatever the kernel does, and nothing stays behind that the runtime has not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dranet.driver.hooks import PodHooks
from dranet.driver.in_time import run_in_time
from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.attach import attach
from tests.driver.bench import Bench, names, sandbox
from tests.namespaces import Namespace
from tests.waiting import wait_until

LONG_SECONDS = 60.0
SHORT_SECONDS = 0.05


def test_what_ends_in_time_is_returned_or_raised() -> None:
    def fail() -> int:
        raise DeviceError("gone")

    assert run_in_time(lambda: 7, LONG_SECONDS, "counting") == 7
    with pytest.raises(DeviceError, match="gone"):
        run_in_time(fail, LONG_SECONDS, "failing")


def test_what_ends_late_is_answered_before_and_cleaned_up_after() -> None:
    hold, late = threading.Event(), threading.Event()
    ends: list[int] = []

    def work() -> int:
        hold.wait(LONG_SECONDS)
        return 7

    def clean_up(result: int) -> None:
        ends.append(result)
        late.set()

    with pytest.raises(KernelError, match="still counting after") as caught:
        run_in_time(work, SHORT_SECONDS, "counting", clean_up)
    assert caught.value.reason is Reason.HOOK_DEADLINE_EXCEEDED
    assert ends == []
    hold.set()
    assert late.wait(LONG_SECONDS)
    assert ends == [7]


@pytest.mark.parametrize(
    ("error", "text"), [(KernelError("busy"), "not cleaned up: busy"), (KeyError("x"), "bug in the clean-up")]
)
def test_a_clean_up_that_fails_goes_to_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    hold = threading.Event()

    def clean_up(_: bool) -> None:
        raise error

    with pytest.raises(KernelError):
        run_in_time(lambda: hold.wait(LONG_SECONDS), SHORT_SECONDS, "counting", clean_up)
    hold.set()
    wait_until(lambda: text in caplog.text, "the failure is in the log")


def test_after_an_answer_that_nobody_waited_for_any_more_nothing_is_cleaned_up() -> None:
    """Whoever had the work done has gone on, and may use what it has made."""
    hold, ended = threading.Event(), threading.Event()
    ends: list[None] = []

    def work() -> None:
        hold.wait(LONG_SECONDS)
        ended.set()

    with pytest.raises(KernelError):
        run_in_time(work, SHORT_SECONDS, "counting", ends.append, heard_until=time.monotonic())
    hold.set()
    wait_until(lambda: not any(t.name == "hook" for t in threading.enumerate()), "the thread has ended")
    assert ended.is_set()
    assert ends == []


@pytest.mark.parametrize(("error", "text"), [(DeviceError("gone"), "gone"), (KeyError("x"), "bug while")])
def test_what_fails_late_goes_to_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    hold = threading.Event()

    def work() -> None:
        hold.wait(LONG_SECONDS)
        raise error

    with pytest.raises(KernelError):
        run_in_time(work, SHORT_SECONDS, "counting")
    hold.set()
    wait_until(lambda: text in caplog.text, "the failure is in the log")


@pytest.mark.kernel
def test_a_device_that_the_kernel_brings_too_late_is_given_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, hold, attached = start(), threading.Event(), threading.Event()
    before = node.picture()

    def attach_slowly(*arguments: Any, deadline: float, **options: Any) -> Any:
        links = attach(*arguments, deadline=deadline + LONG_SECONDS, **options)
        attached.set()
        hold.wait(LONG_SECONDS)
        return links

    monkeypatch.setattr("dranet.driver.attachments.attach", attach_slowly)
    bench.prepare("eth1", "net1")
    bench.hooks = PodHooks(bench.store, bench.attachments, bench.told, bench.snapshots.append, 0.4)
    bench.connect()
    with pytest.raises(KernelError) as caught:
        bench.run_sandbox(sandbox(pod))
    assert caught.value.reason is Reason.HOOK_DEADLINE_EXCEEDED
    assert attached.wait(LONG_SECONDS)
    assert "net1" in names(pod), "the kernel has done its part by then"
    assert not bench.gate.list_claims()
    hold.set()
    wait_until(lambda: len(bench.told.reports) == 1, "the device is given back")
    assert "net1" not in names(pod)
    assert node.picture() == before
    assert not bench.gate.list_claims()
