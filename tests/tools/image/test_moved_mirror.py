"""A mirror that has moved on since the packages were locked: a real apt reads a repository that no longer
serves one of the locked versions, by the commands that people type.

The repository has Debian's own packages, except that one of them has a newer version. A private ``/etc/apt``
makes it the machine's mirror, as the program finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from testbed.debian.packages import cache_folder, read_release, read_version
from tests.tools.image.conftest import build
from tools.image.base import USED, host_architecture
from tools.image.build import CHANGED, describe_image
from tools.image.debian import Package, find_files, hash_file, read_all, read_lock
from tools.image.slices import SUITE
from tools.image.trees import REPOSITORY

pytestmark = pytest.mark.process

MOVED = "libexpat1"
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()

_WITH_MIRROR = 'mount --bind "$1" /etc/apt && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class Mirror:
    """A machine whose mirror has moved on: an ``/etc/apt``, and a cache without Debian packages."""

    apt: Path
    cache: Path
    locked: Package
    served: tuple[Package, ...]

    @property
    def version(self) -> str:
        """The version that is served of the package that has moved."""
        return next(package.version for package in self.served if package.name == MOVED)

    def run(self, command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        own = ["--map-root-user"] if os.geteuid() else []
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "no_proxy": "127.0.0.1", **variables}
        return subprocess.run(
            ["unshare", *own, "--mount", "sh", "-c", _WITH_MIRROR, "sh", str(self.apt), *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    image = build()  # whose packages and wheels are in the cache
    (locked,) = (package for package in read_lock(image.architecture) if package.name == MOVED)
    folder = tmp_path_factory.mktemp("mirror")
    served = _fill(folder / "repository", find_files(image.packages, cache_folder("image")))
    handler = partial(_QuietHandler, directory=str(folder / "repository"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        (folder / "apt").mkdir()
        source = f"deb [trusted=yes] {address} {read_release().suite} main\n"
        (folder / "apt/sources.list").write_text(source)
        yield Mirror(folder / "apt", _make_cache(folder / "cache"), locked, served)
        server.shutdown()


def _make_cache(folder: Path) -> Path:
    """The wheels come from the cache of this machine; the Debian packages do not."""
    (folder / "dranet/image").mkdir(parents=True)
    for wheels in cache_folder("image").glob("wheels-*"):
        (folder / "dranet/image" / wheels.name).symlink_to(wheels)
    return folder


def _fill(repository: Path, debs: dict[str, Path]) -> tuple[Package, ...]:
    """Write a repository with these packages, one of them in a newer version, and return what it serves."""
    (repository / "pool").mkdir(parents=True)
    for name, deb in debs.items():
        target = repository / "pool" / f"{name}.deb"
        _repack(deb, target) if name == MOVED else shutil.copyfile(deb, target)
    served = tuple(
        Package(deb.stem, host_architecture(), read_version(deb), hash_file(deb))
        for deb in sorted((repository / "pool").iterdir())
    )
    records = "\n".join(map(_describe, sorted((repository / "pool").iterdir())))
    for suite, content in ((SUITE, records), (f"{SUITE}-updates", "")):
        binary = f"main/binary-{host_architecture()}"
        index = repository / "dists" / suite / binary / "Packages"
        index.parent.mkdir(parents=True)
        index.write_text(content)
        digest = hashlib.sha256(content.encode()).hexdigest()
        (repository / "dists" / suite / "Release").write_text(
            f"Suite: {suite}\nCodename: {suite}\nArchitectures: {host_architecture()}\nComponents: main\n"
            f"SHA256:\n {digest} {len(content.encode())} {binary}/Packages\n"
        )
    return served


def _repack(deb: Path, target: Path) -> None:
    """Copy a package with a newer version."""
    tree = target.with_suffix(".tree")
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"^(Version: .*)$", r"\1+moved1", control.read_text(), flags=re.MULTILINE))
    subprocess.run(["dpkg-deb", "-b", tree, target], check=True, capture_output=True)
    shutil.rmtree(tree)


def _describe(deb: Path) -> str:
    """Its record in the index."""
    control = subprocess.run(["dpkg-deb", "-f", deb], capture_output=True, text=True, check=True).stdout
    content = deb.read_bytes()
    place = f"Filename: pool/{deb.name}\nSize: {len(content)}\n"
    return f"{control}{place}SHA256: {hashlib.sha256(content).hexdigest()}\n"


Command = Callable[[Mirror, Path, str], subprocess.CompletedProcess[str]]
"""Builds into a folder, with a value of ``LOCKED``."""


def make_rootfs(mirror: Mirror, output: Path, locked: str) -> subprocess.CompletedProcess[str]:
    make = [
        "make",
        "--old-file=.venv/.installed",
        "rootfs",
        f"OUTPUT={output}",
        f"BIN={Path(sys.executable).parent}",
    ]
    return mirror.run([*make, *([f"LOCKED={locked}"] if locked else [])], REPOSITORY)


def run_dockerfile(mirror: Mirror, output: Path, locked: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the builder stage on what it copies, with a Python that has no other packages."""
    stage = output.with_name("stage")
    for sources, target in re.findall(r"^COPY (?!--from)(.*) (\S+)$", DOCKERFILE, re.MULTILINE):
        for source in map(REPOSITORY.joinpath, sources.split()):
            to = stage / target / source.name if target.endswith("/") else stage / target
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, to) if source.is_dir() else shutil.copyfile(source, to)
    python = stage / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    (command,) = re.findall(r"^RUN --mount=\S+ \\\n(.* rootfs .*)$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^ARG LOCKED$", DOCKERFILE, re.MULTILINE)
    variables = {"PATH": f"{python.parent}:{os.environ['PATH']}", "TARGETARCH": host_architecture()}
    shell = ["sh", "-c", command.replace("/image ", f"{output} ")]
    return mirror.run(shell, stage, LOCKED=locked, **variables)


@pytest.mark.parametrize("command", [make_rootfs, run_dockerfile])
def test_the_image_is_built_from_what_is_served_now_with_a_warning(
    mirror: Mirror, command: Command, tmp_path: Path
) -> None:
    output = tmp_path / "image"
    done = command(mirror, output, "")
    assert done.returncode == 0, done.stderr
    image = describe_image(output)
    change = f"{MOVED} ({image.architecture}): locked {mirror.locked.version}, served {mirror.version}"
    assert "warning: the mirror no longer serves what tools/image/packages.lock names" in done.stdout
    assert change in done.stdout
    assert change in image.changes
    assert read_all(output / "packages.lock") == mirror.served
    assert read_all(output / "rootfs" / USED) == mirror.served
    assert f"Version: {mirror.version}\n" in (output / f"rootfs/var/lib/dpkg/status.d/{MOVED}").read_text()
    assert read_labels(image.archive)[CHANGED].split("; ") == list(image.changes)


@pytest.mark.parametrize("command", [make_rootfs, run_dockerfile])
def test_strictly_locked_it_is_not_built(mirror: Mirror, command: Command, tmp_path: Path) -> None:
    done = command(mirror, tmp_path / "image", "1")
    assert done.returncode != 0
    assert "tools/image/packages.lock is stale" in done.stderr
    assert f"{MOVED} ({mirror.locked.architecture}): locked {mirror.locked.version}" in done.stderr
    assert not (tmp_path / "image").exists()


def read_labels(archive: Path) -> dict[str, str]:
    """Return the labels of an image by its archive."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]

    def read(name: str) -> Any:
        return json.loads(files[name])

    (entry,) = read("index.json")["manifests"]
    manifest = read(_blob(entry))
    labels: dict[str, str] = read(_blob(manifest["config"]))["config"]["Labels"]
    return labels


def _blob(descriptor: dict[str, str]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"
