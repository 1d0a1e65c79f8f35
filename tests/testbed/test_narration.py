"""How a scenario is told: plain lines for a log, a tidy terminal for a person."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import dranet
from testbed.cli.narration import PlainStory, choose_storyteller
from testbed.scenario.run import ScenarioReport, StepReport

REPOSITORY = Path(dranet.__file__).parent.parent
GOOD = StepReport("First", 0.25, ("seen [this]",))
BAD = StepReport("Second", 1.5, (), "not so:\n- a\n+ b")
PASSED = ScenarioReport("demo", "stand-in", (GOOD,))
FAILED = ScenarioReport("demo", "stand-in", (GOOD, BAD, StepReport("Take down", 0.1)), "the log")

ON_A_TERMINAL = """
from testbed.cli.narration import RichStory, choose_storyteller
from testbed.scenario.run import ScenarioReport, StepReport
story = choose_storyteller()
assert isinstance(story, RichStory), story
good, bad = StepReport("First", 0.25, ("seen [this]",)), StepReport("Second [x]", 1.5, (), "not so")
story.introduce("demo", "what [it] is")
story.begin("First")
story.end(good)
story.begin("Second [x]")
story.end(bad)
story.sum_up(ScenarioReport("demo", "stand-in", (good, bad), "the log"))
story.begin("never ends")
story.close()
"""


ON_A_POOR_TERMINAL = """
from testbed.cli.narration import PlainStory, choose_storyteller
from testbed.scenario.run import ScenarioReport, StepReport
story = choose_storyteller()
assert isinstance(story, PlainStory), story
step = StepReport("First \\u2714", 0.25, ("seen \\u2192",))
story.introduce("demo", "what \\u2714 it is")
story.begin(step.title)
story.end(step)
story.sum_up(ScenarioReport("demo", "stand-in", (step,)))
"""


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(choose_storyteller(), PlainStory)
    story = PlainStory()
    story.introduce("demo", "what it is")
    story.begin("First")
    story.end(GOOD)
    assert capsys.readouterr().out.splitlines() == [
        "demo: what it is",
        "",
        "==> First",
        "    seen [this]",
        "    ok, 0.25 s",
    ]


def test_the_summary_has_the_time_of_each_step_and_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    PlainStory().sum_up(PASSED)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["", "step     seconds", "First       0.25", "in all      0.25", "", lines[-1]]
    assert lines[-1] == "demo on stand-in: every step was as expected"


def test_short_steps_are_counted_and_a_short_failure_keeps_its_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = (StepReport("Quick", 0.01), StepReport("Quicker", 0.02), StepReport("Broken", 0.0, (), "no"))
    PlainStory().sum_up(ScenarioReport("demo", "stand-in", (GOOD, *short)))
    rows = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.split("\n\n")[0].splitlines()[2:]]
    assert rows == [
        ["First", "0.25"],
        ["Broken", "0.00"],
        ["(2 steps under 0.05 s left out)", "0.03"],
        ["in all", "0.28"],
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["ascii", "latin-1"],
)
def test_a_terminal_that_is_not_utf8_gets_plain_lines_and_no_encode_error(locale: dict[str, str]) -> None:
    text = run_on_a_terminal(ON_A_POOR_TERMINAL, locale)
    assert "==> First \\u2714" in text
    assert "seen \\u2192" in text


def test_a_failure_names_the_step_and_shows_the_drivers_log(capsys: pytest.CaptureFixture[str]) -> None:
    story = PlainStory()
    story.end(BAD)
    story.sum_up(FAILED)
    text = capsys.readouterr().out
    assert "    - a\n    + b\n    FAILED, 1.50 s" in text
    assert "demo on stand-in: FAILED at: Second\n" in text
    assert text.endswith("the driver's last words:\nthe log\n")


@pytest.mark.process
def test_a_terminal_gets_marks_literal_brackets_and_its_cursor_back() -> None:
    text = run_on_a_terminal(ON_A_TERMINAL, {"PYTHONIOENCODING": "utf-8"})
    for part in ("what [it] is", "✔ ", "First", "seen [this]", "✘ ", "Second [x]", "not so", "the log"):
        assert part in text, part
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def run_on_a_terminal(code: str, locale: dict[str, str]) -> str:
    leader, follower = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"}
    environment |= {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color", "COLUMNS": "100", **locale}
    with subprocess.Popen([sys.executable, "-c", code], stdout=follower, env=environment) as process:
        os.close(follower)
        text = read_all(leader)
    assert process.returncode == 0, text
    return text


def read_all(descriptor: int) -> str:
    data = b""
    with open(descriptor, "rb", buffering=0) as stream:
        try:
            while chunk := stream.read(65536):
                data += chunk
        except OSError:
            pass  # EIO: the other side was closed, which is how a terminal ends
    return data.decode()
