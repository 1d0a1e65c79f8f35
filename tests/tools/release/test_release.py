"""A release, made as ``make release-dry-run`` makes it: what is in the folder, by the field's own tools."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from dranet import __version__
from tests.tools.release.conftest import MAKE_SECONDS
from tests.tools.release.go_tools import run_go_tool
from tools.project import REPOSITORY, Project, ProjectError, read_project
from tools.release.__main__ import check_tag, main
from tools.release.notes import NotesError, find_notes, list_changes

pytestmark = pytest.mark.process

PROJECT = read_project()
CAPTURE = REPOSITORY / "tests/data/dgx-h100/capture.json"


@pytest.fixture(scope="module")
def programs(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a virtualenv of its own, away from the checkout, with the locked versions of the rest."""
    folder = tmp_path_factory.mktemp("virtualenv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    constraints = folder / "constraints.txt"
    lines = (REPOSITORY / "requirements-dev.lock").read_text().splitlines()
    constraints.write_text("\n".join(line.rstrip("\\ ") for line in lines if "==" in line))
    (wheel,) = release.glob("*.whl")
    pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    done = subprocess.run(
        [*pip, "--constraint", str(constraints), str(wheel)], capture_output=True, text=True
    )
    if "NewConnectionError" in done.stderr or "No matching distribution" in done.stderr:
        pytest.skip(f"no registry of Python packages answers: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(MAKE_SECONDS)
def test_the_commands_of_the_wheel_work(programs: Path) -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert all(os.access(programs / name, os.X_OK) for name in scripts)
    for name in {"dranet", "kubectl-dranet"} & set(scripts):
        assert run(programs / name, "--version").split()[-1] == __version__
        claim = yaml.safe_load_all(run(programs / name, "claim", "new", "--facts", CAPTURE))
        assert "ResourceClaimTemplate" in {item["kind"] for item in claim}


@pytest.mark.timeout(MAKE_SECONDS)
def test_the_wheel_knows_where_the_project_lives(programs: Path) -> None:
    code = (
        "from importlib.metadata import metadata as m; print(*m('dranet').get_all('Project-URL'), sep='\\n')"
    )
    urls = run(programs / "python", "-c", code).splitlines()
    assert urls == [f"{name}, {url}" for name, url in PROJECT.urls.items()]


@pytest.mark.timeout(MAKE_SECONDS)
def test_the_page_on_pypi_has_no_link_that_works_in_a_checkout_alone(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = archive.read(name).decode()
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href|srcset)=\"([^\"]+)\"", about)
    assert links
    assert [link for pair in links for link in pair if link and not link.startswith(("https://", "#"))] == []
    ours = {link for link, _ in links if link.startswith(PROJECT.repository)}
    assert f"{PROJECT.page('docs/README.md')}" in {link.partition("#")[0] for link in ours}


@pytest.mark.timeout(MAKE_SECONDS)
def test_the_single_file_is_the_whole_command_line(release: Path, tmp_path: Path) -> None:
    (archive,) = release.glob("kubectl-dranet-v*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    for arguments in (
        ["--version"],
        ["claim", "new", "--facts", CAPTURE],
        ["topology", "--facts", CAPTURE],
        ["completion", "bash"],
    ):
        command = [tmp_path / "kubectl-dranet", *arguments]
        done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    told = json.loads(run(tmp_path / "kubectl-dranet", "version", "--client", "-o", "json"))
    assert told["client"]["commit"] == (head.stdout.strip() or None)


def test_krew_takes_its_manifest(release: Path) -> None:
    done = run_go_tool("validate-krew-manifest", "-skip-install", "-manifest", str(release / "dranet.yaml"))
    assert done.returncode == 0, done.stderr
    (entry,) = yaml.safe_load((release / "dranet.yaml").read_text())["spec"]["platforms"]
    archive = release / entry["uri"].rpartition("/")[2]
    assert entry["uri"] == PROJECT.download(archive.name)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == entry["sha256"]


def test_the_chart_and_the_manifests_name_the_image_of_the_release(release: Path) -> None:
    with tarfile.open(release / f"dranet-{__version__}.tgz") as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    values, about = files["dranet/values.yaml"], files["dranet/Chart.yaml"]
    image = yaml.safe_load(values)["image"]
    assert f"{image['registry']}/{image['repository']}" == PROJECT.image
    assert yaml.safe_load(yaml.safe_load(about)["annotations"]["artifacthub.io/changes"])
    objects = list(yaml.safe_load_all((release / "install.yaml").read_text()))
    plain = [
        item
        for file in sorted((REPOSITORY / "deploy").glob("*.yaml"))
        if file.name != "kustomization.yaml"
        for item in yaml.safe_load_all(file.read_text())
    ]
    assert sorted(map(name_object, objects)) == sorted(map(name_object, plain))
    assert objects[0]["kind"] == "Namespace"
    (daemonset,) = (item for item in objects if item["kind"] == "DaemonSet")
    pod = daemonset["spec"]["template"]["spec"]
    assert {one["image"] for one in (*pod["containers"], *pod["initContainers"])} == {
        f"{PROJECT.image}:{__version__}"
    }


def name_object(item: dict[str, dict[str, str]]) -> tuple[str, str]:
    return str(item["kind"]), item["metadata"]["name"]


def test_checksums_and_provenance_name_every_file(release: Path) -> None:
    shutil.which("sha256sum") or pytest.skip("this machine has no sha256sum")
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=release, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == files
    statement = json.loads((release / f"dranet-{__version__}.intoto.json").read_text())
    assert {subject["name"] for subject in statement["subject"]} == files - {
        f"dranet-{__version__}.intoto.json"
    }
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    _, *locks = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    for lock in locks:
        content = (REPOSITORY / lock["uri"]).read_bytes()
        assert lock["digest"] == {"sha256": hashlib.sha256(content).hexdigest()}
    assert {"requirements.lock", "requirements-dev.lock"} < {lock["uri"] for lock in locks}


def test_the_workflow_is_refused_where_the_project_has_no_home() -> None:
    command = [sys.executable, "-m", "tools.release", "check", f"v{__version__}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if PROJECT.is_placeholder:
        assert done.returncode == 1
        assert f"nothing is published: pyproject.toml names {PROJECT.repository}" in done.stderr
        assert "python -m tools.project https://github.com/OWNER/NAME" in done.stderr
    assert (done.stdout == "") == (done.returncode != 0)


CHANGELOG = """# Changelog

## Unreleased

- Later.

## 0.2.0 (2027-03-01)

- `dranet run`: does a [thing](docs/x.md). It is
  long.
- **More**: yes.

## 0.1.0 (2027-01-01)

- First.
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    notes = find_notes(CHANGELOG, "0.2.0", strict=True)
    assert notes.startswith("- `dranet run`")
    assert notes.endswith("yes.")
    assert list_changes(notes) == ["dranet run: does a thing", "More: yes"]
    assert find_notes(CHANGELOG, "0.3.0", strict=False) == "- Later."
    with pytest.raises(NotesError, match=r"no section 0\.3\.0: write `## 0\.3\.0 \(YYYY-MM-DD\)`"):
        find_notes(CHANGELOG, "0.3.0", strict=True)


def test_notes_that_are_missing_are_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(*_: object, strict: bool) -> str:
        raise NotesError("no section" if strict else "not strict")

    monkeypatch.setattr("tools.release.__main__.find_notes", find)
    monkeypatch.setattr(sys, "argv", ["release", "build", "--output", str(tmp_path / "release")])
    monkeypatch.setenv("LOCKED", "1")
    assert main() == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "release: no section\n")
    assert not (tmp_path / "release").exists()


@pytest.mark.parametrize(
    ("repository", "here", "tag", "complaint"),
    [
        ("https://github.example.com/a/dranet", "a/dranet", f"v{__version__}", "nothing is published"),
        ("https://github.com/a/dranet", "b/dranet", f"v{__version__}", "this runs in b/dranet"),
        ("https://github.com/a/dranet", "a/dranet", "v9.9.9", "the tag is v9.9.9"),
    ],
)
def test_a_tag_of_something_else_is_refused(
    repository: str, here: str, tag: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.release.__main__.read_project", lambda: Project(repository))
    monkeypatch.setenv("GITHUB_REPOSITORY", here)
    with pytest.raises(ProjectError, match=complaint):
        check_tag(tag)


def test_a_tag_of_this_version_at_home_has_what_the_workflow_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.release.__main__.read_project", lambda: Project("https://github.com/A/dranet"))
    monkeypatch.setattr("tools.release.__main__.find_notes", lambda *_, strict: "- First." if strict else "")
    monkeypatch.setenv("GITHUB_REPOSITORY", "A/dranet")
    assert check_tag(f"v{__version__}") == {
        "version": __version__,
        "image": "ghcr.io/a/dranet",
        "charts": "oci://ghcr.io/a/charts",
        "prerelease": "false",
    }


def test_the_outputs_are_those_that_the_workflow_reads() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/release.yml").read_text())
    assert list(workflow["jobs"]["check"]["outputs"]) == ["version", "image", "charts", "prerelease"]
