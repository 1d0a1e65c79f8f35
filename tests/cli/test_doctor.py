"""``dranet doctor``: what is printed, in which order, and the exit code."""

from __future__ import annotations

import json

import pytest

from dranet.cli import doctor
from dranet.cli.doctor import render
from dranet.cli.main import main
from dranet.cli.screen import Screen
from dranet.driver.doctor.findings import Finding, Severity, ok
from dranet.settings import Settings

GATE = Finding(
    "api", Severity.WARNING, "list attributes dropped", "numaNode is one number", "turn the gate on"
)
AWAY = Finding("runtime", Severity.PROBLEM, "has not connected over NRI yet", "no NIC", "enable NRI")
UNUSED = Finding("kubelet", Severity.NOTE, "does not watch device health")
FINE = ok("places", "/var/run/cdi")


def run(monkeypatch: pytest.MonkeyPatch, *findings: Finding, arguments: tuple[str, ...] = ()) -> int:
    def examine(_: Settings) -> list[Finding]:
        return list(findings)

    monkeypatch.setattr(doctor, "examine", examine)
    return main(["doctor", *arguments])


def test_the_worst_comes_first_with_why_it_matters_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(monkeypatch, FINE, UNUSED, GATE, AWAY) == 1
    assert capsys.readouterr().out.splitlines() == [
        "STATE    ABOUT    SEEN",
        "problem  runtime  has not connected over NRI yet",
        "    why: no NIC",
        "    do:  enable NRI",
        "warning  api      list attributes dropped",
        "    why: numaNode is one number",
        "    do:  turn the gate on",
        "note     kubelet  does not watch device health",
        "ok       places   /var/run/cdi",
        "",
        "1 ok, 1 problem, 1 warning, 1 note",
    ]


@pytest.mark.parametrize(
    ("findings", "code"), [((FINE,), 0), ((FINE, UNUSED), 0), ((GATE, UNUSED), 0), ((AWAY, FINE), 1)]
)
def test_the_exit_code_is_one_only_for_a_problem(
    monkeypatch: pytest.MonkeyPatch, findings: tuple[Finding, ...], code: int
) -> None:
    assert run(monkeypatch, *findings) == code


def test_programs_get_all_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FINE, AWAY, arguments=("-o", "json")) == 1
    assert json.loads(capsys.readouterr().out) == [AWAY.to_json(), FINE.to_json()]


def test_settings_reach_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def examine(settings: Settings) -> list[Finding]:
        seen.append(settings)
        return []

    monkeypatch.setattr(doctor, "examine", examine)
    assert main(["doctor", "--driver-name", "nic.example.com", "--bind-address", ":9999"]) == 0
    assert (seen[0].driver_name, seen[0].bind_address) == ("nic.example.com", ":9999")
    assert seen[0].node_name


def test_bad_settings_are_told_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bind-address", "nowhere"]) == 2
    assert "--bind-address" in capsys.readouterr().err


def test_nothing_runs_over_the_edge_of_a_terminal() -> None:
    long = Finding("api", Severity.PROBLEM, "a " * 80, "b " * 80, "c " * 80)
    assert all(len(line) <= 60 for line in render([long, FINE], Screen(columns=60)))
