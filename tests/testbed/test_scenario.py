"""Scenario files: the shipped ones load, and a bad one is refused with the path of each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.testbed.node.hardware import load_hardware
from dranet.testbed.scenario.scenario import RUNTIMES, Scenario, Traffic, known_scenarios, load_scenario
from dranet.testbed.yamlfile import InvalidFile


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

    def test_it_ends_by_proving_that_nothing_is_left(self, path: Path) -> None:
        names = [
            step.model_dump(exclude_none=True).keys() - {"says"} for step in load_scenario(path.stem).steps
        ]
        assert {"expect_host_unchanged"} in names[-2:]


class TestSteps:
    def test_a_step_knows_its_action_and_its_title(self, tmp_path: Path) -> None:
        first, second = load(
            tmp_path, "  - kill_driver: {}\n  - {says: Hello, traffic: {from: a, to: b}}"
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
            ("  - says: nothing", "steps[0]: must have exactly one action, not none; known are apply"),
            ("  - {kill_driver: {}, start_driver: {}}", "not start_driver, kill_driver"),
            ("  - dance: {}", "steps[0].dance: Extra inputs are not permitted"),
            (
                "  - wait_pod_running: {pods: []}",
                "steps[0].wait_pod_running.pods: Tuple should have at least 1",
            ),
            ("  - kill_driver: {within: 0}", "steps[0].kill_driver.within: Input should be greater than 0"),
            (
                "  - expect_aligned: {pods: [a], at_most: NEAR}",
                "steps[0].expect_aligned.at_most: Input should be",
            ),
            ("  - apply: {objects: [{kind: Pod}]}", "steps[0].apply.objects[0].apiVersion: Field required"),
            ("  - expect_claim_condition: {type: Ready, status: 'True'}", "give either pod or claim"),
            ("  []", "steps: Tuple should have at least 1 item"),
        ],
    )
    def test_a_fault_is_named_with_its_field_path(self, tmp_path: Path, steps: str, fault: str) -> None:
        with pytest.raises(InvalidFile) as caught:
            load(tmp_path, steps)
        assert fault in caught.value.message


class TestRuntimes:
    def test_a_scenario_runs_everywhere_unless_it_says_otherwise(self, tmp_path: Path) -> None:
        assert load(tmp_path, "  - kill_driver: {}").runtimes == RUNTIMES

    def test_leaving_a_runtime_out_needs_a_reason(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidFile, match="why_not_everywhere must say why"):
            load(tmp_path, "  - kill_driver: {}", "runtimes: [stand-in]")

    def test_an_unknown_runtime_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidFile, match=r"runtimes\[0\]: Input should be 'stand-in' or 'containerd'"):
            load(tmp_path, "  - kill_driver: {}", "runtimes: [docker]")
