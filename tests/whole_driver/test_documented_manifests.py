"""Manifests that people copy from the README are applied, and their pods run with what they ask for.

The examples are run in ``tests/examples``, where other pages' manifests are linted, too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(120)]

REPOSITORY = Path(__file__).parents[2]
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
CANNOT_RUN_HERE = 3


def read_readme() -> str:
    (block,) = YAML_BLOCK.findall((REPOSITORY / "README.md").read_text())
    return str(block)


MANIFESTS = {"README.md": read_readme()}


def test_the_readme_shows_the_example_that_it_names() -> None:
    example = (REPOSITORY / "examples/aligned-gpu-and-nic.yaml").read_text()
    assert list(yaml.safe_load_all(read_readme())) == list(yaml.safe_load_all(example))


def a_scenario(objects: list[dict[str, Any]]) -> dict[str, Any]:
    pods = [item["metadata"]["name"] for item in objects if item["kind"] == "Pod"]
    assert pods, "a manifest without a pod shows nothing"
    return {
        "name": "documented",
        "description": "a manifest from the documentation",
        "hardware": "dgx-h100",
        "steps": [
            {"start_driver": {}},
            {"apply": {"objects": objects}},
            {"wait_pod_running": {"pods": pods}},
            {"expect_aligned": {"pods": pods, "at_most": "PIX"}},
            {"delete_pods": {"pods": pods}},
            {"expect_host_unchanged": {}},
        ],
    }


@pytest.mark.parametrize("source", sorted(MANIFESTS))
def test_a_documented_manifest_works_as_written(source: str, tmp_path: Path) -> None:
    classes = (
        REPOSITORY / "deploy" / "deviceclasses.yaml"
    ).read_text()  # of the chart, which the README names
    texts = (classes, MANIFESTS[source])
    objects = [item for text in texts for item in yaml.safe_load_all(text) if item]
    file = tmp_path / "documented.yaml"
    file.write_text(yaml.safe_dump(a_scenario(objects)))
    done = subprocess.run(
        [sys.executable, "-m", "dranet", "testbed", "run", str(file)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
