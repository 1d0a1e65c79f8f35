"""``-o yaml`` has what ``-o json`` has, in every command that has both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranet.cli.doctor.command import build_document
from dranet.cli.doctor.examine import Examination
from dranet.cli.main import COMMANDS, build_parser, is_installed, main
from dranet.desk.doctor.checks import Surroundings
from dranet.model.findings import Finding, Severity, ok
from dranet.settings import Settings
from tests.view.test_bundle import WHOLE, archive

CAPTURE = str(Path(__file__).parents[1] / "data/dgx-h100/capture.json")
FINDINGS = (ok("places", "/var/run/cdi", "place"), Finding("api", Severity.PROBLEM, "no", "why", "do", "id"))
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: train}
spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: dranet-rdma}}]}}
"""

CASES = {
    "devices": ("-f", CAPTURE, "--all"),
    "nodes": ("--capture", CAPTURE),
    "fabric": ("--capture", CAPTURE),
    "explain": ("claim/train", "-f", "claim.yaml", "--capture", CAPTURE),
    "claim new": ("--capture", CAPTURE),
    "doctor": (),
    "version": ("--client",),
}
"""Command -> arguments with which it has something to print."""


def list_commands_with_both() -> Iterator[str]:
    for command in filter(is_installed, COMMANDS):
        parsers = [build_parser(command)]
        while parsers:
            parser = parsers.pop()
            for action in parser._actions:
                if isinstance(action.choices, dict):
                    parsers += action.choices.values()
                elif {"json", "yaml"} <= set(action.choices or ()):
                    yield parser.prog.removeprefix("dranet ")


def test_every_command_with_both_has_a_case() -> None:
    assert sorted(list_commands_with_both()) == sorted(CASES)


@pytest.mark.parametrize(("command", "arguments"), CASES.items())
def test_yaml_has_what_json_has(
    command: str,
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dranet.cli.doctor.examine.examine", lambda *_: Examination(FINDINGS, Surroundings()))
    monkeypatch.setattr("dranet.desk.cli.version.find_commit", lambda: "")
    Path("claim.yaml").write_text(CLAIM)
    as_json, as_yaml = run_in_both(command, *arguments, capsys=capsys)
    assert as_yaml == (as_json["items"] if command == "claim new" else [as_json])


def test_a_bundles_findings_are_the_same_in_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = json.dumps(build_document(FINDINGS, Settings(), frozenset())).encode()
    bundle = tmp_path / "bundle.tgz"
    bundle.write_bytes(archive(WHOLE | {"dranet-bundle/findings.json": findings}))
    as_json, as_yaml = run_in_both("doctor", "-f", str(bundle), capsys=capsys)
    assert as_yaml == [as_json]
    assert [one["severity"] for one in as_json["findings"]] == ["problem", "ok"]


def run_in_both(command: str, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[Any, Any]:
    codes, outputs = [], []
    for form in ("json", "yaml"):
        codes.append(main([*command.split(), *arguments, "-o", form]))
        outputs.append(capsys.readouterr().out)
    assert codes[0] == codes[1] != 2
    return json.loads(outputs[0]), list(yaml.safe_load_all(outputs[1]))
