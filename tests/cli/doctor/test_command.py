"""``dranet doctor``: what is printed, in which order, and the exit code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dranet.cli.doctor.command import render
from dranet.cli.doctor.examine import Examination
from dranet.cli.main import main
from dranet.desk.doctor.catalogue import list_entries
from dranet.desk.doctor.checks import Surroundings
from dranet.model.findings import Finding, Severity, ok
from dranet.settings import Settings
from dranet.terminal import Screen
from tests.support.json_schema import accepts

DOCS = Path(__file__).parents[3] / "docs/reference"

GATE = Finding(
    "api",
    Severity.WARNING,
    "list attributes dropped",
    "numaNode is one number",
    "turn the gate on",
    "api-field",
)
AWAY = Finding(
    "runtime", Severity.PROBLEM, "has not connected over NRI yet", "no NIC", "enable NRI", "runtime-nri"
)
UNUSED = Finding("kubelet", Severity.NOTE, "does not watch device health", "no health", id="kubelet-health")
FINE = ok("places", "/var/run/cdi", "place")


def test_in_the_drivers_pod_it_takes_the_charts_settings_unless_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    def examine(settings: Settings, *_: object) -> Examination:
        asked.append(settings)
        return found(FINE)

    monkeypatch.setattr("dranet.cli.doctor.examine.examine", examine)
    for name in ("chart", "mine"):
        (tmp_path / name).write_text(f"driver_name: {name}.example\n")
    monkeypatch.setattr("dranet.view.options.NODE_CONFIG", tmp_path / "none")
    main(["doctor"])
    monkeypatch.setattr("dranet.view.options.NODE_CONFIG", tmp_path / "chart")
    main(["doctor"])
    main(["doctor", "--config", str(tmp_path / "mine")])
    assert [settings.driver_name for settings in asked] == ["dra.net", "chart.example", "mine.example"]


def found(*findings: Finding) -> Examination:
    return Examination(findings, Surroundings())


def run(monkeypatch: pytest.MonkeyPatch, *findings: Finding, arguments: tuple[str, ...] = ()) -> int:
    def examine(*_: object) -> Examination:
        return found(*findings)

    monkeypatch.setattr("dranet.cli.doctor.examine.examine", examine)
    return main(["doctor", *arguments])


def test_the_worst_comes_first_with_why_it_matters_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(monkeypatch, FINE, UNUSED, GATE, AWAY) == 1
    assert capsys.readouterr().out.splitlines() == [
        "STATE    ABOUT    SEEN",
        "problem  runtime  has not connected over NRI yet [runtime-nri]",
        "    why: no NIC",
        "    fix: enable NRI",
        "warning  api      list attributes dropped [api-field]",
        "    why: numaNode is one number",
        "    fix: turn the gate on",
        "note     kubelet  does not watch device health [kubelet-health]",
        "",
        "1 ok, 1 problem, 1 warning, 1 note (--all explains the notes and lists what is ok)",
    ]


def test_all_lists_what_is_fine_and_explains_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FINE, UNUSED, arguments=("--all",)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "STATE  ABOUT    SEEN",
        "note   kubelet  does not watch device health [kubelet-health]",
        "    why: no health",
        "ok     places   /var/run/cdi",
        "",
        "1 ok, 1 note",
    ]


def test_a_node_that_is_fine_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FINE, FINE) == 0
    assert capsys.readouterr().out == "2 ok (--all lists them)\n"


@pytest.mark.parametrize(
    ("findings", "code"), [((FINE,), 0), ((FINE, UNUSED), 0), ((GATE, UNUSED), 0), ((AWAY, FINE), 1)]
)
def test_the_exit_code_is_one_only_for_a_problem(
    monkeypatch: pytest.MonkeyPatch, findings: tuple[Finding, ...], code: int
) -> None:
    assert run(monkeypatch, *findings) == code


@pytest.mark.parametrize(
    ("least", "findings", "code"),
    [
        ("warning", (GATE,), 1),
        ("warning", (UNUSED,), 0),
        ("note", (UNUSED,), 1),
        ("note", (FINE,), 0),
        ("never", (AWAY,), 0),
    ],
)
def test_automation_chooses_what_it_fails_on(
    monkeypatch: pytest.MonkeyPatch, least: str, findings: tuple[Finding, ...], code: int
) -> None:
    assert run(monkeypatch, *findings, arguments=("--fail-on", least)) == code


def test_what_is_known_and_accepted_is_ignored_by_its_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FINE, AWAY, GATE, arguments=("--ignore", "runtime-nri,api-field")) == 0
    assert capsys.readouterr().out == "1 ok, 2 ignored (--all lists them)\n"


def test_a_bundle_is_no_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "bundle.tgz"
    bundle.write_bytes(gzip.compress(b""))
    assert main(["doctor", "--capture", str(bundle)]) == 2
    said = capsys.readouterr().err
    assert f"--capture {bundle}: is a support bundle" in said
    assert f"dranet doctor -f {bundle}" in said


def test_an_id_that_nothing_has_is_a_mistake_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--ignore", "acs-redirects"]) == 2
    assert "did you mean acs-redirect?" in capsys.readouterr().err


def test_all_ids_are_listed_without_a_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert {entry.id for entry in list_entries()} <= listed


def test_programs_get_all_findings_in_a_shape_that_is_written_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FINE, AWAY, GATE, arguments=("-o", "json", "--ignore", "api-field")) == 1
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((DOCS / "doctor.schema.json").read_text())
    assert accepts(schema, document)
    assert document["findings"] == [AWAY.to_json(), FINE.to_json()]
    assert (document["worst"], document["counts"]["ok"], document["ignored"]) == ("problem", 1, ["api-field"])


def test_settings_reach_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def examine(settings: Settings, *_: object) -> Examination:
        seen.append(settings)
        return found()

    monkeypatch.setattr("dranet.cli.doctor.examine.examine", examine)
    arguments = ("--driver-name", "nic.example.com", "--bind-address", ":9999", "--capture", "c.json")
    assert main(["doctor", *arguments]) == 0
    assert (seen[0].driver_name, seen[0].bind_address) == ("nic.example.com", ":9999")
    assert str(seen[0].facts_file) == str(Path("c.json").absolute())
    assert seen[0].node_name


def test_bad_settings_are_told_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bind-address", "nowhere"]) == 2
    assert "--bind-address" in capsys.readouterr().err


def test_nothing_runs_over_the_edge_of_a_terminal() -> None:
    long = Finding("api", Severity.PROBLEM, "a " * 80, "b " * 80, "c " * 80)
    assert all(len(line) <= 60 for line in render([long, FINE], Screen(columns=60), shows_all=True))
