"""How a scenario is told: plain lines for a log, a tidy terminal for a person."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import dranet
from dranet.cli.narration import PlainStory, choose_storyteller
from dranet.testbed.scenario.run import ScenarioReport, StepReport

REPOSITORY = Path(dranet.__file__).parent.parent
GOOD = StepReport("First", 0.25, ("seen [this]",))
BAD = StepReport("Second", 1.5, (), "not so:\n- a\n+ b")
PASSED = ScenarioReport("demo", "stand-in", (GOOD,))
FAILED = ScenarioReport("demo", "stand-in", (GOOD, BAD, StepReport("Take down", 0.1)), "the log")

ON_A_TERMINAL = """
from dranet.cli.narration import RichStory, choose_storyteller
from dranet.testbed.scenario.run import ScenarioReport, StepReport
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


def test_a_failure_names_the_step_and_shows_the_drivers_log(capsys: pytest.CaptureFixture[str]) -> None:
    story = PlainStory()
    story.end(BAD)
    story.sum_up(FAILED)
    text = capsys.readouterr().out
    assert "    - a\n    + b\n    FAILED, 1.50 s" in text
    assert "demo on stand-in: FAILED at: Second\n" in text
    assert text.endswith("the driver's last words:\nthe log\n")


def test_a_terminal_gets_marks_literal_brackets_and_its_cursor_back() -> None:
    leader, follower = pty.openpty()
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY), TERM="xterm-256color", COLUMNS="100")
    with subprocess.Popen([sys.executable, "-c", ON_A_TERMINAL], stdout=follower, env=environment) as process:
        os.close(follower)
        text = read_all(leader)
    assert process.returncode == 0, text
    for part in ("what [it] is", "✔ ", "First", "seen [this]", "✘ ", "Second [x]", "not so", "the log"):
        assert part in text, part
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def read_all(descriptor: int) -> str:
    data = b""
    with open(descriptor, "rb", buffering=0) as stream:
        try:
            while chunk := stream.read(65536):
                data += chunk
        except OSError:
            pass  # EIO: the other side was closed, which is how a terminal ends
    return data.decode()
