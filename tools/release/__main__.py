"""``python -m tools.release``: make a release into a folder, without publishing anything; or check that a tag
may be published."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dranet import __version__
from testbed.debian.packages import PackagesUnavailable
from tools.image.build import build_image
from tools.image.debian import ARCHITECTURES, ImageError
from tools.image.oci import merge_archives
from tools.pages.chart import is_prerelease
from tools.project import REPOSITORY, ProjectError, read_project
from tools.release.charts import ChartError, package_chart, stage_chart, write_install
from tools.release.notes import NotesError, find_notes
from tools.release.plugin import MANIFEST, PluginError, build_plugin, find_archives, write_manifest
from tools.release.provenance import CHECKSUMS, read_git, write_checksums, write_statement
from tools.release.sbom import write_sbom

NOTES = "release-notes.md"
_IMAGE = f"dranet-image-{__version__}"
PROVENANCE = f"dranet-{__version__}.intoto.json"
_SEALS = (CHECKSUMS, PROVENANCE, MANIFEST)


@dataclass(frozen=True, slots=True)
class Release:
    """The folder of a release in the making."""

    folder: Path
    strict: bool
    """Build what is locked, and take the notes of this version alone."""

    def make_images(self) -> None:
        """Build an archive for each architecture and one for both, and an SBOM for each."""
        project = read_project()
        name = f"{project.image}:{__version__}"
        labels = {"org.opencontainers.image.revision": read_git("rev-parse", "HEAD")}
        archives = []
        with tempfile.TemporaryDirectory(prefix=".images-", dir=self.folder) as temporary:
            for architecture in ARCHITECTURES:
                image = build_image(
                    architecture,
                    Path(temporary, architecture),
                    name=name,
                    labels=labels,
                    strict=self.strict,
                    report=_report_part,
                )
                archive = self.folder / f"{_IMAGE}-{architecture}.tar"
                shutil.move(image.archive, archive)
                archives.append(archive)
                archive.with_suffix(".spdx.json").write_text(write_sbom(image, project, _read_time()))
        merge_archives(self.folder / f"{_IMAGE}.tar", name, archives)

    def make_python(self) -> None:
        """Build the wheel and the source distribution."""
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(self.folder.resolve())]
        subprocess.run(
            command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def make_chart(self) -> None:
        """Package the chart, and render it to plain manifests."""
        with tempfile.TemporaryDirectory(prefix="chart-") as temporary:
            chart = stage_chart(Path(temporary), read_project(), self.read_notes())
            package_chart(chart, self.folder)
            (self.folder / "install.yaml").write_text(write_install(chart))

    def make_notes(self) -> None:
        """Write the section of the changelog."""
        (self.folder / NOTES).write_text(self.read_notes() + "\n")

    def make_plugin(self) -> None:
        """Build kubectl-dranet as one file, for this machine's platform."""
        build_plugin(self.folder, __version__)

    def seal(self) -> None:
        """Write what follows from all other files: krew's manifest, provenance and checksums."""
        project = read_project()
        for name in _SEALS:
            (self.folder / name).unlink(missing_ok=True)
        if archives := find_archives(self.folder):
            (self.folder / MANIFEST).write_text(write_manifest(archives, project, __version__))
        builder = os.environ.get("RELEASE_BUILDER", project.page("Makefile"))
        statement = write_statement(self.list_files(), project, __version__, builder)
        (self.folder / PROVENANCE).write_text(statement)
        (self.folder / CHECKSUMS).write_text(write_checksums(self.list_files()))

    def remove_earlier(self) -> None:
        """Remove the files of an earlier release."""
        for file in self.list_files():
            if any(file.match(kind) for kind in _KINDS):
                file.unlink()

    def list_files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file())

    def read_notes(self) -> str:
        return find_notes((REPOSITORY / "CHANGELOG.md").read_text(), __version__, strict=self.strict)


_PARTS: Mapping[str, Callable[[Release], None]] = {
    "python": Release.make_python,
    "chart": Release.make_chart,
    "notes": Release.make_notes,
    "images": Release.make_images,
    "plugin": Release.make_plugin,
    "seal": Release.seal,
}


def check_tag(tag: str) -> Mapping[str, str]:
    """Return what the workflow needs to publish a release of this tag.

    Raises:
        ProjectError: the project has no home, or the tag is that of another version.
        NotesError: the changelog has no section for it.
    """
    project = read_project()
    if project.is_placeholder:
        raise ProjectError(
            f"nothing is published: pyproject.toml names {project.repository} as Repository, which is a "
            "placeholder. Move the project with `python -m tools.project https://github.com/OWNER/NAME`"
        )
    here = os.environ.get("GITHUB_REPOSITORY", "")
    if here and not project.repository.lower().endswith(f"/{here.lower()}"):
        raise ProjectError(f"this runs in {here}, and Repository in pyproject.toml is {project.repository}")
    if tag != f"v{__version__}":
        raise ProjectError(f"the tag is {tag}, and dranet/__init__.py has {__version__}: tag v{__version__}")
    find_notes((REPOSITORY / "CHANGELOG.md").read_text(), __version__, strict=True)
    prerelease = str(is_prerelease(__version__)).lower()
    return {
        "version": __version__,
        "image": project.image,
        "charts": project.charts,
        "prerelease": prerelease,
    }


def main() -> int:
    options = _parse_arguments()
    try:
        options.run(options)
    except (ChartError, ImageError, NotesError, PackagesUnavailable, PluginError, ProjectError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="make a release, or parts of one, into a folder")
    build.add_argument(
        "--output", type=Path, required=True, help="a folder; a whole release replaces an earlier one"
    )
    build.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS), help="parts; default: all")
    build.set_defaults(run=_build)
    check = commands.add_parser("check", help="check that a tag may be published")
    check.add_argument("tag")
    check.set_defaults(run=_check)
    return parser.parse_args()


def _build(options: argparse.Namespace) -> None:
    release = Release(options.output, strict=os.environ.get("LOCKED", "") not in ("", "0"))
    if "notes" in options.only:
        release.read_notes()  # before minutes of building
    options.output.mkdir(parents=True, exist_ok=True)
    if options.only == list(_PARTS):
        release.remove_earlier()
    for name in options.only:
        make = _PARTS[name]
        print(f"{name}: {_first_line(make)}", flush=True)
        make(release)
    print("\n".join(_list_results(release)))


def _check(options: argparse.Namespace) -> None:
    """Print the outputs of a workflow's step."""
    for name, text in check_tag(options.tag).items():
        print(f"{name}={text}")


def _first_line(make: Callable[[Release], None]) -> str:
    return (make.__doc__ or "").splitlines()[0].rstrip(".")


_KINDS = {
    "dranet-image-*-amd64.tar": "image for amd64, an OCI archive",
    "dranet-image-*-arm64.tar": "image for arm64, an OCI archive",
    "dranet-image-*.tar": "image for both architectures, as it is pushed",
    "*.spdx.json": "SBOM of the image",
    "*.tgz": "Helm chart",
    "install.yaml": "plain manifests, for kubectl apply",
    "*.whl": "Python package",
    "kubectl-dranet-*": "command line as one file",
    "dranet-*.tar.gz": "Python package, its sources",
    MANIFEST: "krew's manifest",
    NOTES: "notes: the section of the changelog",
    PROVENANCE: "provenance, not signed",
    CHECKSUMS: "checksums of the files above",
}
"""What a file of a release is, by its name; the first that matches."""


def _list_results(release: Release) -> Iterator[str]:
    """Yield a table of what is in the folder."""
    files = release.list_files()
    width = max(len(file.name) for file in files)
    yield f"\n{'FILE':{width}}  {'MB':>6}  WHAT IT IS"
    for kind, text in _KINDS.items():
        for file in [file for file in files if file.match(kind)]:
            files.remove(file)
            yield f"{file.name:{width}}  {file.stat().st_size / 1e6:6.2f}  {text}"
    yield f"\nin {release.folder}; nothing was published"


def _report_part(line: str) -> None:
    print(f"  {line}", flush=True)


def _read_time() -> str:
    """The time of the commit, as SPDX writes times."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or read_git("log", "-1", "--format=%ct"))
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(main())
