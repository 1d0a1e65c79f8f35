"""Commands that make something end in order, by the signals of a terminal, a shutdown, a lost connection."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
from collections.abc import Callable, Iterator

import pytest

from testbed.cli.shutdown import end_in_order, run_in_order

REPEATED = (signal.SIGTERM, signal.SIGHUP)
SIGNALS = (signal.SIGINT, *REPEATED)


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Whoever runs the tests may ignore some of them."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def let_loop_hear() -> None:
    """Until it has handed on what was raised before: signals come to it in their order."""
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    signal.raise_signal(signal.SIGUSR1)
    await heard.wait()


class Story:
    """Waits for ever and then tidies up, with the help of a task of its own."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.tidy = False

    async def tell(self) -> int:
        helper_may = asyncio.Event()
        helper = asyncio.create_task(helper_may.wait())
        try:
            self.act()
            await asyncio.get_running_loop().create_future()
        finally:
            helper_may.set()
            self.tidy = await helper
        return 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_leaves_through_every_finally(number: signal.Signals) -> None:
    story = Story(lambda: signal.raise_signal(number))
    assert run_in_order(story.tell()) == 128 + number
    assert story.tidy


@pytest.mark.parametrize(("said", "code"), [(0, 0), (3, 3), (None, 0)])
def test_without_a_signal_the_work_says_how_it_ended(said: int | None, code: int) -> None:
    async def work() -> int | None:
        return said

    assert run_in_order(work()) == code


def test_an_end_that_nobody_asked_for_is_not_taken_for_a_signals() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_in_order(work())


def test_a_signal_that_comes_while_a_result_is_handed_on_waits_its_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio's own way cancels the future in the middle of ``set_result``, which then complains."""

    class Interrupted(concurrent.futures.Future[str]):
        def result(self, timeout: float | None = None) -> str:
            signal.raise_signal(signal.SIGINT)
            return super().result(timeout)

    async def work() -> None:
        of_a_thread = Interrupted()
        asyncio.get_running_loop().call_soon(of_a_thread.set_result, "done")
        await asyncio.wrap_future(of_a_thread)

    assert run_in_order(work()) == 128 + signal.SIGINT
    assert caplog.messages == []
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert "invalid state" in caplog.text, "the test would have seen it"


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", REPEATED)
def test_who_repeats_a_signal_does_not_break_the_tidying_up_off(
    first: signal.Signals, second: signal.Signals
) -> None:
    """A terminal that closes sends SIGHUP, and its shell once more; who shuts down sends SIGTERM as well."""
    tidy = []

    async def work() -> None:
        signal.raise_signal(first)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            signal.raise_signal(second)
            await let_loop_hear()
            tidy.append("in the loop")

    try:
        assert run_in_order(work()) == 128 + first
    finally:
        signal.raise_signal(second)
        tidy.append("after it")
    assert tidy == ["in the loop", "after it"]


@pytest.mark.parametrize("second", REPEATED)
def test_who_repeats_a_signal_outside_a_loop_does_not_break_the_tidying_up_off(
    second: signal.Signals,
) -> None:
    tidy = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(second)
            tidy.append("all")

    end_in_order()
    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 128 + signal.SIGTERM
    assert tidy == ["all"]


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_a_signal_ends_it_at_once(first: signal.Signals) -> None:
    async def work() -> None:
        signal.raise_signal(first)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        run_in_order(work())


@pytest.mark.parametrize("number", SIGNALS)
def test_what_the_caller_ignores_stays_ignored(number: signal.Signals) -> None:
    async def work() -> int:
        signal.raise_signal(number)
        await let_loop_hear()
        return 0

    signal.signal(number, signal.SIG_IGN)
    end_in_order()
    assert run_in_order(work()) == 0
    assert signal.getsignal(number) is signal.SIG_IGN


def test_handlers_of_before_are_there_again_for_what_comes_after_the_loop() -> None:
    async def work() -> None: ...

    end_in_order()
    before = [signal.getsignal(number) for number in SIGNALS]
    run_in_order(work())
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
