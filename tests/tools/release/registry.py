"""A registry of images on this machine, and the programs that push to it: Debian's ``docker-registry`` and
``skopeo``, fetched and not installed, and the Helm that ``make cluster`` builds."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster import build
from testbed.debian.packages import PrivateApt, Unavailable, cache_folder, keep, read_release, unpack
from testbed.debian.program import Program
from tests.support.waiting import wait_until

REGISTRY = Program("docker-registry", (("docker-registry", ""),))

_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{address}"}}
"""
_PROGRAM = '#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {program} {words} "$@"\n'


@contextmanager
def open_registry(folder: Path) -> Iterator[str]:
    """Run one and yield its address; skip the test where it cannot be had."""
    try:
        program = REGISTRY.fetch()
    except Unavailable as error:
        pytest.skip(str(error))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "registry.yaml"
    config.write_text(_CONFIG.format(folder=folder / "blobs", address=address))
    quiet = subprocess.DEVNULL
    with subprocess.Popen([program, "serve", config], stdout=quiet, stderr=quiet) as process:
        try:
            wait_until(lambda: _listens(address))
            yield address
        finally:
            process.kill()


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def make_programs(folder: Path, calls: Path) -> None:
    """Write ``skopeo`` and ``helm`` that accept a registry without TLS; ``cosign`` only notes its calls."""
    helm = build.find_built(build.HELM)
    if helm is None:
        pytest.skip("`make cluster` has not built helm")
    try:
        skopeo = _fetch_skopeo()
    except Unavailable as error:
        pytest.skip(str(error))
    registries = folder / "registries.conf"
    registries.write_text('[[registry]]\nprefix = "127.0.0.1"\nlocation = "127.0.0.1"\ninsecure = true\n')
    _write(folder / "helm", f'#!/bin/sh\nexec {helm}/helm "$@" --plain-http\n')
    libraries = ":".join(sorted({str(file.parent) for file in skopeo.rglob("*.so.*")}))
    words = f"--insecure-policy --registries-conf {registries}"
    _write(
        folder / "skopeo",
        _PROGRAM.format(libraries=libraries, program=skopeo / "usr/bin/skopeo", words=words),
    )
    _write(folder / "cosign", f'#!/bin/sh\necho "$@" >> {calls}\n')


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def _fetch_skopeo() -> Path:
    """Return a folder with it and the libraries that it needs, from the cache if possible."""
    cache = cache_folder("skopeo")
    final = cache / "tree"
    if final.is_dir():
        return final
    release = read_release()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as temporary:
        work = Path(temporary)
        apt = PrivateApt(work / "apt", release.source, (release.suite,), release.architecture)
        apt.update()
        needed = apt.resolve(["skopeo"], release.suite)
        names = [name for name in needed if name.startswith(("skopeo", "lib")) and name != "libc6"]
        tree = work / "tree"
        for deb in apt.download(names, work / "debs").values():
            unpack(deb, tree)
        keep(tree, final)
    return final
