"""Scenario files: the shipped ones load, and a bad one is refused with the path of each fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.node.hardware import load_hardware
from testbed.scenario.scenario import (
    RUNTIMES,
    Scenario,
    Traffic,
    known_scenarios,
    load_scenario,
    load_scenario_hardware,
)
from testbed.yamlfile import InvalidFile


def load(tmp_path: Path, steps: str, more: str = "") -> Scenario:
    path = tmp_path / "scenario.yaml"
    path.write_text(f"name: x\ndescription: y\nhardware: two-nic\n{more}\nsteps:\n{steps}\n")
    return load_scenario(str(path))


@pytest.mark.parametrize("path", known_scenarios(), ids=lambda p: p.stem)
class TestShippedScenarios:
    def test_it_loads_under_its_own_name_and_its_hardware_exists(self, path: Path) -> None:
        scenario = load_scenario(path.stem)
        assert scenario.name == path.stem
        load_hardware(scenario.hardware)

    def test_each_step_has_a_sentence_for_the_reader(self, path: Path) -> None:
        assert all(step.summary for step in load_scenario(path.stem).steps)

    def test_it_ends_by_proving_that_nothing_is_left(self, path: Path) -> None:
        names = [
            step.model_dump(exclude_none=True).keys() - {"summary"} for step in load_scenario(path.stem).steps
        ]
        assert {"expect_host_unchanged"} in names[-2:]


class TestSteps:
    def test_a_step_knows_its_action_and_its_title(self, tmp_path: Path) -> None:
        first, second = load(
            tmp_path, "  - kill_driver: {}\n  - {summary: Hello, traffic: {from: a, to: b}}"
        ).steps
        assert first.title == "kill driver"
        assert second.title == "Hello"
        assert second.action == Traffic.model_validate({"from": "a", "to": "b"})

    def test_a_manifest_is_kept_as_it_was_written(self, tmp_path: Path) -> None:
        manifest = "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {b: c}}, spec: {x: [1]}}"
        (step,) = load(tmp_path, f"  - apply: {{objects: [{manifest}]}}").steps
        assert step.apply
        assert step.apply.objects[0].body == {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a", "labels": {"b": "c"}},
            "spec": {"x": [1]},
        }

    @pytest.mark.parametrize(
        ("steps", "fault"),
        [
            ("  - summary: nothing", "steps[0]: must have exactly one action, not none; known are apply"),
            ("  - {kill_driver: {}, start_driver: {}}", "not start_driver, kill_driver"),
            ("  - dance: {}", "steps[0].dance: unknown field; known are summary, apply, "),
            (
                "  - wait_pod_running: {pods: []}",
                "steps[0].wait_pod_running.pods: needs at least 1, has 0",
            ),
            ("  - kill_driver: {within: 0}", "steps[0].kill_driver.within: Input should be greater than 0"),
            (
                "  - expect_aligned: {pods: [a], at_most: NEAR}",
                "steps[0].expect_aligned.at_most: Input should be",
            ),
            ("  - apply: {objects: [{kind: Pod}]}", "steps[0].apply.objects[0].apiVersion: is required"),
            ("  - wait_pod_running: {pods: a}", "steps[0].wait_pod_running.pods: must be a list"),
            (
                "  - traffic: {from: a, to: b, too: c}",
                "too: unknown field; known are within, from, to, seconds, round_trips",
            ),
            ("  - expect_claim_condition: {type: Ready, status: 'True'}", "give either pod or claim"),
            ("  []", "steps: needs at least 1, has 0"),
        ],
    )
    def test_a_fault_is_named_with_its_field_path(self, tmp_path: Path, steps: str, fault: str) -> None:
        with pytest.raises(InvalidFile) as caught:
            load(tmp_path, steps)
        assert fault in caught.value.message

    def test_two_wrong_steps_list_the_actions_once_and_the_steps_do_not_count_as_absent(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(InvalidFile) as caught:
            load(tmp_path, "  - dance: {}\n  - summary: nothing")
        message = caught.value.message
        assert "steps[0].dance: unknown field" in message
        assert "steps[1]: must have exactly one action, not none" in message
        assert message.count("expect_host_unchanged") == 1
        assert "at least" not in message


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "fault"),
        [
            (b"", ": the file is empty; needs name, description, hardware, steps"),
            (b"# only a comment\n", ": the file is empty; needs name"),
            (b"name: caf\xe9\n", ": not UTF-8 text"),
            (b"name: x\nsteps: [a, }\n", ":2:12: expected the node content, but found '}'"),
            (b"name: x\nhardware: \x01\n", ":2:11: special characters are not allowed (U+0001)"),
            (b"name: 2026-02-30\n", ": day is out of range for month"),
            (b"- name\n", ": (whole file): must be a mapping"),
        ],
    )
    def test_what_is_no_scenario_is_refused_in_one_line(
        self, tmp_path: Path, content: bytes, fault: str
    ) -> None:
        path = tmp_path / "scenario.yaml"
        path.write_bytes(content)
        with pytest.raises(InvalidFile) as caught:
            load_scenario(str(path))
        assert caught.value.message.startswith(f"{path}{fault}")
        assert "\n" not in str(caught.value)

    @pytest.mark.process
    def test_a_file_is_utf8_whatever_the_locale_says(self, tmp_path: Path) -> None:
        steps = "  - {summary: Grüße, kill_driver: {}}"
        path = tmp_path / "scenario.yaml"
        path.write_bytes(f"name: x\ndescription: y\nhardware: two-nic\nsteps:\n{steps}\n".encode())
        code = f"from testbed.scenario.scenario import load_scenario as l; print(ascii(l({str(path)!r})))"
        environment = dict(os.environ, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert "Gr\\xfc\\xdfe" in done.stdout


class TestHardware:
    @pytest.mark.parametrize("hardware", ["no-such", "./no-such.yaml"])
    def test_unknown_hardware_names_the_scenario_and_the_field(self, tmp_path: Path, hardware: str) -> None:
        path = tmp_path / "scenario.yaml"
        path.write_text(f"name: x\ndescription: y\nhardware: {hardware}\nsteps: [kill_driver: {{}}]\n")
        with pytest.raises(InvalidFile) as caught:
            load_scenario_hardware(load_scenario(str(path)))
        assert caught.value.message.startswith("scenario x: hardware: ")
        assert "dgx-h100, gb200, two-nic" in caught.value.hint


class TestRuntimes:
    def test_a_scenario_runs_everywhere_unless_it_says_otherwise(self, tmp_path: Path) -> None:
        assert load(tmp_path, "  - kill_driver: {}").runtimes == RUNTIMES

    def test_leaving_a_runtime_out_needs_a_reason(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidFile, match="why_not_everywhere must name why"):
            load(tmp_path, "  - kill_driver: {}", "runtimes: [stand-in]")

    def test_an_unknown_runtime_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidFile, match=r"runtimes\[0\]: Input should be 'stand-in' or 'containerd'"):
            load(tmp_path, "  - kill_driver: {}", "runtimes: [docker]")
