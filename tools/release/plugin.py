"""The command line as one file for each platform, ``kubectl-dranet``, and the manifest by which krew installs
it."""

from __future__ import annotations

import io
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml

import dranet
from dranet.desk.cli.version import find_commit
from tools.image.debian import hash_file
from tools.project import REPOSITORY, Project

NAME = "kubectl-dranet"
MANIFEST = "dranet.yaml"
"""krew names a manifest after the plugin."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_ARCHIVE = re.compile(rf"{NAME}-v.+-(linux|darwin)-(amd64|arm64)\.tar\.gz")
_ENTRY = "import sys\nfrom dranet.cli.main import main\nsys.exit(main())\n"
_NOT_FOR_A_DESK = ("grpc", "pyudev")
"""Packages that only the driver on a node needs."""


class PluginError(Exception):
    """The command line cannot be built as one file; the text has the end of PyInstaller's output."""


def build_plugin(folder: Path, version: str) -> Path:
    """Build it for this machine's platform, as PyInstaller cannot build for another; return the archive."""
    target = f"{platform.system().lower()}-{_ARCHITECTURES[platform.machine()]}"
    with tempfile.TemporaryDirectory(prefix="plugin-") as temporary:
        work = Path(temporary)
        (work / "entry.py").write_text(_ENTRY)
        (work / "COMMIT").write_text(find_commit())
        command = [
            *(sys.executable, "-m", "PyInstaller", "--onefile", "--name", NAME, "--paths", str(REPOSITORY)),
            *("--distpath", str(work / "dist"), "--workpath", str(work / "work"), "--specpath", temporary),
            *("--log-level", "ERROR", "--noconfirm"),
            # Commands, and the engine of CEL, are imported by name when they are needed.
            *("--collect-submodules", "dranet.cli", "--collect-submodules", "dranet.desk.cli"),
            *("--hidden-import", "cel_expr_python.cel"),
            *("--add-data", f"{work / 'COMMIT'}:dranet"),
            *(part for module in _NOT_FOR_A_DESK for part in ("--exclude-module", module)),
            str(work / "entry.py"),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise PluginError(f"PyInstaller cannot build {NAME}:\n{done.stderr[-2000:]}")
        archive = folder / f"{NAME}-v{version}-{target}.tar.gz"
        _pack(archive, {NAME: work / "dist" / NAME, "LICENSE": REPOSITORY / "LICENSE"})
    return archive


def _pack(archive: Path, files: dict[str, Path]) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        for name, file in files.items():
            member = tarfile.TarInfo(name)
            content = file.read_bytes()
            member.size, member.mode = len(content), file.stat().st_mode & 0o755
            tar.addfile(member, io.BytesIO(content))


def find_archives(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _ARCHIVE.fullmatch(path.name))


def write_manifest(archives: Iterable[Path], project: Project, version: str) -> str:
    """Return krew's manifest, with a platform for each archive."""
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "dranet"},
        "spec": {
            "version": f"v{version}",
            "homepage": project.repository,
            "shortDescription": "Write, check and explain claims for NICs and GPUs",
            "description": (
                "Writes ResourceClaims for a NIC next to a GPU from what the cluster offers, checks\n"
                "manifests with such claims before they are applied, explains why a pod waits, and\n"
                "draws the topology of a node. Works with the DRA network driver dranet.\n"
            ),
            "caveats": (
                "Needs the right to list resourceslices, deviceclasses and nodes; nodes and explain also\n"
                "read pods and resourceclaims.\n"
            ),
            "platforms": [_describe_platform(archive, project) for archive in archives],
        },
    }
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes text of several lines as it is."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def _describe_platform(archive: Path, project: Project) -> dict[str, object]:
    match = _ARCHIVE.fullmatch(archive.name)
    assert match is not None
    return {
        "selector": {"matchLabels": {"os": match[1], "arch": match[2]}},
        "uri": project.download(archive.name),
        "sha256": hash_file(archive),
        "bin": NAME,
        "files": [{"from": name, "to": "."} for name in (NAME, "LICENSE")],
    }


if (
    __name__ == "__main__"
):  # the release workflow, on each platform; it needs nothing but PyInstaller and dranet
    target_folder = Path(sys.argv[1])
    target_folder.mkdir(parents=True, exist_ok=True)
    build_plugin(target_folder, dranet.__version__)
