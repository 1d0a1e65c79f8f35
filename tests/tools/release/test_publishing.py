"""The images of a release with their SBOMs, and the steps of the release workflow that push them and the
chart: their own commands, against a real registry on this machine.

Signing needs the workflow's identity, so ``cosign`` only notes here what it is asked to sign.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from dranet import __version__
from e2e.release import find_release
from tests.tools.image.conftest import build
from tests.tools.release.conftest import MAKE_SECONDS, make
from tests.tools.release.registry import make_programs, open_registry
from tools.image.debian import ARCHITECTURES
from tools.project import REPOSITORY, read_project

pytestmark = [pytest.mark.process, pytest.mark.timeout(MAKE_SECONDS)]

PROJECT = read_project()
IMAGE = f"dranet-image-{__version__}"
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
)


@dataclass(frozen=True, slots=True)
class Workflow:
    """The steps of the job ``publish``, in a folder with the files of a release."""

    folder: Path
    address: str
    """The registry."""
    variables: Mapping[str, str]

    @property
    def calls(self) -> list[str]:
        """What cosign was asked."""
        return (self.folder / "calls").read_text().splitlines()

    def run(self, name: str, **more: str) -> dict[str, str]:
        """Run the step of this name as GitHub does; return its outputs."""
        workflow = yaml.safe_load((REPOSITORY / ".github/workflows/release.yml").read_text())
        (step,) = (step for step in workflow["jobs"]["publish"]["steps"] if step.get("name") == name)
        output = self.folder / "output"
        output.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={**self.variables, **more, "GITHUB_OUTPUT": str(output)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(line.split("=", 1) for line in output.read_text().splitlines())

    def fetch(self, name: str, reference: str) -> dict[str, Any]:
        """Return a manifest, as the registry has it."""
        url = f"http://{self.address}/v2/{name}/manifests/{reference}"
        with urlopen(Request(url, headers={"Accept": ", ".join(_MANIFESTS)})) as answer:
            return json.load(answer)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of both architectures; a test is skipped where they cannot be built."""
    if whole := find_release():
        return whole
    for architecture in ARCHITECTURES:
        build(architecture)
    folder = tmp_path_factory.mktemp("images")
    done = make(folder, "images")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def workflow(tmp_path: Path) -> Iterator[Workflow]:
    programs = tmp_path / "bin"
    programs.mkdir()
    make_programs(programs, tmp_path / "calls")
    (tmp_path / "build/release").mkdir(parents=True)
    with open_registry(tmp_path) as address:
        variables = {
            "VERSION": __version__,
            "IMAGE": f"{address}/owner/dranet",
            "CHARTS": f"oci://{address}/owner/charts",
            "HOME": str(tmp_path),
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        yield Workflow(tmp_path, address, variables)


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_sbom_is_sound_and_lists_what_is_in_the_image(images: Path, architecture: str) -> None:
    from spdx_tools.spdx.model.actor import Actor, ActorType
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    document = parse_file(str(images / f"{IMAGE}-{architecture}.spdx.json"))
    assert validate_full_spdx_document(document) == []
    addresses = {package.name: package.external_references[0].locator for package in document.packages}
    assert addresses["libc6"].startswith("pkg:deb/debian/libc6@")
    assert addresses["libc6"].endswith(f"?arch={architecture}&distro=trixie")
    assert addresses["dranet"] == f"pkg:pypi/dranet@{__version__}"
    assert {"grpcio", "libssl3t64", "cel-expr-python"} <= set(addresses)
    lock = (REPOSITORY / "requirements.lock").read_text()
    wheels = {one.name: one for one in document.packages if addresses[one.name].startswith("pkg:pypi/")}
    del wheels["dranet"]
    for package in wheels.values():
        (checksum,) = package.checksums
        assert checksum.value in lock, "one of the hashes that are locked"
        assert package.supplier == Actor(ActorType.ORGANIZATION, "Python Package Index")
    told = {name: str(package.license_declared) for name, package in wheels.items()}
    assert told["grpcio"] == "Apache-2.0", "as the package says it"
    assert told["protobuf"] == "BSD-3-Clause", "as an older package says it"
    assert "NOASSERTION" not in told.values()
    manifest = read_index(images / f"{IMAGE}-{architecture}.tar")["manifests"][0]
    (checksum,) = document.packages[0].checksums
    assert manifest["digest"] == f"sha256:{checksum.value}"


def test_one_archive_has_the_image_for_both_architectures(images: Path) -> None:
    archive = images / f"{IMAGE}.tar"
    (entry,) = read_index(archive)["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == f"{PROJECT.image}:{__version__}"
    with tarfile.open(archive) as tar:
        names = {member.name for member in tar}
        index = json.loads(tar.extractfile(f"blobs/sha256/{entry['digest'][7:]}").read())  # type: ignore[union-attr]
    assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]
    for one, architecture in zip(index["manifests"], ("amd64", "arm64"), strict=True):
        assert f"blobs/sha256/{one['digest'][7:]}" in names
        assert one["digest"] == read_index(images / f"{IMAGE}-{architecture}.tar")["manifests"][0]["digest"]


def read_index(archive: Path) -> dict[str, list[dict[str, Any]]]:
    with tarfile.open(archive) as tar:
        return json.loads(tar.extractfile("index.json").read())  # type: ignore[no-any-return, union-attr]


def test_one_tag_has_the_image_of_both_architectures(images: Path, workflow: Workflow) -> None:
    for file in images.iterdir():
        (workflow.folder / "build/release" / file.name).symlink_to(file)
    digest = workflow.run("push the image of both architectures")["digest"]
    index = workflow.fetch("owner/dranet", __version__)
    assert workflow.fetch("owner/dranet", digest) == index
    digests = {one["platform"]["architecture"]: one["digest"] for one in index["manifests"]}
    assert set(digests) == {"amd64", "arm64"}
    workflow.run("sign the image, and attach its SBOMs", DIGEST=digest)
    image = workflow.variables["IMAGE"]
    assert workflow.calls == [
        f"sign --yes --recursive {image}@{digest}",
        *(
            "attest --yes --type spdxjson --predicate "
            f"build/release/dranet-image-{__version__}-{name}.spdx.json {image}@{digests[name]}"
            for name in ("amd64", "arm64")
        ),
    ]


def test_the_chart_is_pushed_and_signed_and_can_be_pulled(workflow: Workflow) -> None:
    done = make(workflow.folder / "build/release", "chart")
    assert done.returncode == 0, done.stderr
    workflow.run("push and sign the chart")
    (call,) = workflow.calls
    name, _, digest = call.partition("@")
    assert name == f"sign --yes {workflow.address}/owner/charts/dranet"
    manifest = workflow.fetch("owner/charts/dranet", digest)
    assert manifest == workflow.fetch("owner/charts/dranet", __version__)
    assert manifest["annotations"]["org.opencontainers.image.version"] == __version__
    pull = ["helm", "show", "chart", f"{workflow.variables['CHARTS']}/dranet", "--version", __version__]
    shown = subprocess.run(pull, env=dict(workflow.variables), capture_output=True, text=True)
    assert yaml.safe_load(shown.stdout)["name"] == "dranet", shown.stderr
