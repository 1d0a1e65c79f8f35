"""Show a scenario as it happens: with colours and a spinner on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from dranet.terminal import never_fail_to_print

if TYPE_CHECKING:
    from rich.status import Status

    from testbed.scenario.run import ScenarioReport, StepReport

_INDENT = "    "

_SHORT_SECONDS = 0.05
"""Steps below this are left out of the closing table, unless they failed."""


class Storyteller(Protocol):
    """A narrator that can also introduce a scenario and sum it up."""

    def introduce(self, title: str, description: str) -> None: ...

    def begin(self, title: str) -> None: ...

    def end(self, report: StepReport) -> None: ...

    def sum_up(self, report: ScenarioReport) -> None: ...

    def close(self) -> None:
        """Give the terminal back as it was, also after an interrupt."""
        ...


def choose_storyteller() -> Storyteller:
    """Rich text on a terminal that has its characters, if ``rich`` is installed."""
    never_fail_to_print()
    watched = sys.stdout.isatty() and _speaks_utf8() and find_spec("rich") is not None
    return RichStory() if watched else PlainStory()


def _speaks_utf8() -> bool:
    return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"


class PlainStory:
    """One line for each thing, flushed at once, so that a log file or a pipe follows."""

    def introduce(self, title: str, description: str) -> None:
        _print(f"{title}: {description}", "")

    def begin(self, title: str) -> None:
        _print(f"==> {title}")

    def end(self, report: StepReport) -> None:
        outcome = "FAILED" if report.error else "ok"
        error = report.error.splitlines()
        _print(
            *(_INDENT + line for line in (*report.lines, *error)),
            f"{_INDENT}{outcome}, {report.seconds:.2f} s",
        )

    def sum_up(self, report: ScenarioReport) -> None:
        _print("", *_table(report), "", _describe_outcome(report), *_log(report))

    def close(self) -> None:
        sys.stdout.flush()


class RichStory:
    """The same for a terminal: a spinner while a step runs, then a tick and what was seen."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._status: Status | None = None

    def introduce(self, title: str, description: str) -> None:
        from rich.panel import Panel
        from rich.text import Text

        self._console.print(
            Panel(Text(description), title=f"[bold]{title}[/]", title_align="left", expand=False)
        )

    def begin(self, title: str) -> None:
        from rich.markup import escape

        self._status = self._console.status(escape(title))
        self._status.start()

    def end(self, report: StepReport) -> None:
        from rich.text import Text

        self.close()
        mark = ("✘ ", "bold red") if report.error else ("✔ ", "bold green")
        title = (report.title, "bold red" if report.error else "bold")
        self._console.print(Text.assemble(mark, title, (f"  {report.seconds:.2f} s", "dim")), soft_wrap=True)
        self._print_indented(report.lines, "")
        self._print_indented(report.error.splitlines(), "red")

    def sum_up(self, report: ScenarioReport) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table("step", title="How long each step took", title_justify="left", header_style="bold")
        table.add_column("seconds", justify="right")
        long, short = _split_by_length(report.steps)
        for step in long:
            table.add_row(Text(step.title), f"{step.seconds:.2f}", style="red" if step.error else "")
        if short:
            table.add_row(_count_short(short), f"{_sum_seconds(short):.2f}", style="dim")
        table.add_section()
        table.add_row("in all", f"{report.seconds:.2f}", style="bold")
        self._console.print("", table)
        style = "bold green" if report.passed else "bold red"
        self._console.print(_describe_outcome(report), style=style, markup=False)
        self._print_indented(_log(report), "dim")

    def close(self) -> None:
        if self._status:
            self._status.stop()  # which shows the cursor again
            self._status = None

    def _print_indented(self, lines: Sequence[str], style: str) -> None:
        for line in lines:
            self._console.print(_INDENT + line, style=style, markup=False, soft_wrap=True)


def _table(report: ScenarioReport) -> list[str]:
    long, short = _split_by_length(report.steps)
    rows = [(step.title, f"{step.seconds:.2f}") for step in long]
    if short:
        rows.append((_count_short(short), f"{_sum_seconds(short):.2f}"))
    rows.append(("in all", f"{report.seconds:.2f}"))
    width = max(len(title) for title, _ in rows)
    return [f"{title.ljust(width)}  {seconds:>8}" for title, seconds in [("step", "seconds"), *rows]]


def _split_by_length(steps: Sequence[StepReport]) -> tuple[list[StepReport], list[StepReport]]:
    """The steps that are worth a row, and the others."""
    long = [step for step in steps if step.error or step.seconds >= _SHORT_SECONDS]
    return long, [step for step in steps if step not in long]


def _count_short(steps: Sequence[StepReport]) -> str:
    return f"({len(steps)} {'step' if len(steps) == 1 else 'steps'} under {_SHORT_SECONDS} s left out)"


def _sum_seconds(steps: Sequence[StepReport]) -> float:
    return sum(step.seconds for step in steps)


def _describe_outcome(report: ScenarioReport) -> str:
    where = f"{report.scenario} on {report.runtime}"
    if report.passed:
        return f"{where}: every step was as expected"
    return f"{where}: FAILED at: {report.failed_step}"


def _log(report: ScenarioReport) -> list[str]:
    if report.passed or not report.driver_log:
        return []
    return ["the driver's last words:", *report.driver_log.splitlines()]


def _print(*lines: str) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()
