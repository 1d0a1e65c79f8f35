"""The base tree and its layer, which change only with the locks: built once for each state of the locks and
cached.

Also the Python that compiles: the image's own, or the same version for this machine's architecture.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.image.debian import ImageError, Package, fetch_packages, find_files, read_lock, write_lock
from tools.image.slices import PYTHON
from tools.image.trees import make_base, make_system
from tools.image.wheels import REQUIREMENTS, fetch_wheels

LOADERS = {"amd64": "usr/lib64/ld-linux-x86-64.so.2", "arm64": "usr/lib/ld-linux-aarch64.so.1"}
"""The dynamic loader, by architecture."""

USED = "usr/share/doc/dranet/packages.lock"
"""The place in the image of the list of the packages that it is made of."""

_FINISH = Path(__file__).with_name("finish.py")
_HOSTS = {"x86_64": "amd64", "aarch64": "arm64"}
_KEPT_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Builder:
    """Finish trees with the Python in ``root``, which runs on this machine."""

    root: Path
    architecture: str

    def finish(self, tree: Path, layer: Path) -> None:
        """Compile ``tree`` and write it as a layer.

        Raises:
            ImageError: a module does not compile.
        """
        (libraries,) = self.root.glob("usr/lib/*-linux-gnu")
        loader = [self.root / LOADERS[self.architecture], "--library-path", libraries]
        command = [*loader, self.root / "usr/bin" / PYTHON, "-S", "-s", "-B", _FINISH, tree, layer]
        done = subprocess.run(
            [str(part) for part in command],
            env={"PYTHONHOME": str(self.root / "usr"), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise ImageError(f"{tree.name} cannot be compiled: {output[-1]}")


@dataclass(frozen=True, slots=True)
class Base:
    """The lower layer of every version of the driver."""

    folder: Path
    packages: tuple[Package, ...]
    builder: Builder

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def layer(self) -> Path:
        return self.folder / "layer.tar.gz"


def host_architecture() -> str:
    """Return the architecture of this machine by its name in Debian and Go.

    Raises:
        ImageError: images cannot be built on this architecture.
    """
    machine = platform.machine()
    if machine not in _HOSTS:
        raise ImageError(f"the image is built on {' or '.join(_HOSTS)}, this machine is {machine}")
    return _HOSTS[machine]


def find_or_make_base(architecture: str, cache: Path, *, strict: bool) -> Base:
    """Return the base for one architecture, from the cache if possible.

    Raises:
        StaleLock, PackagesUnavailable, ImageError: as :func:`~tools.image.build.build_image`.
    """
    packages, debs = _fetch_debs(architecture, cache, strict=strict)
    wheels = fetch_wheels(architecture, cache)
    here = host_architecture()

    def make(folder: Path) -> None:
        make_base(debs, wheels, folder / "tree")
        write_used(packages, folder / "tree" / USED)
        builder = Builder(folder / "tree", here) if here == architecture else twin()
        builder.finish(folder / "tree", folder / "layer.tar.gz")

    def twin() -> Builder:
        others, files = _fetch_debs(here, cache, strict=strict)
        return Builder(
            _once(cache / "bases", "python", others, lambda folder: make_system(files, folder)), here
        )

    folder = _once(cache / "bases", "base", packages, make)
    return Base(folder, packages, Builder(folder / "tree", here) if here == architecture else twin())


def write_used(packages: Sequence[Package], file: Path) -> None:
    """Write a lock of what an image is made of."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_lock(packages, file, "# The Debian packages of this image, as in tools/image/packages.lock.\n")


def _fetch_debs(
    architecture: str, cache: Path, *, strict: bool
) -> tuple[tuple[Package, ...], Mapping[str, Path]]:
    packages = fetch_packages(read_lock(architecture), cache, strict=strict)
    return packages, find_files(packages, cache)


def _once(cache: Path, kind: str, packages: Sequence[Package], make: Callable[[Path], None]) -> Path:
    """Return the cached folder for these packages. It is created atomically and removed when unused."""
    folder = cache / f"{kind}-{packages[0].architecture}-{_hash_inputs(packages)}"
    cache.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix=".new-", dir=cache) as temporary:
            make(Path(temporary) / kind)
            (Path(temporary) / kind).rename(folder)
    os.utime(folder)
    forget_old(cache, _KEPT_SECONDS)
    return folder


def _hash_inputs(packages: Sequence[Package]) -> str:
    """Hash the packages, the wheels and the programs that combine them."""
    whole = hashlib.sha256("\n".join(map(str, sorted(packages))).encode())
    for file in (REQUIREMENTS, *sorted(Path(__file__).parent.glob("*.py"))):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:20]


def forget_old(cache: Path, seconds: float) -> None:
    """Remove the folders of a cache that were not used for ``seconds``."""
    for folder in cache.iterdir():
        if time.time() - folder.stat().st_mtime > seconds:
            shutil.rmtree(folder)
