"""Build the image: its root filesystem as a folder, and its archive.

    packages.lock -------> debs ---\\
    requirements.lock ---> wheels --> base tree ----> layer --\\
    dranet/ -----------------------> driver tree ---> layer ---> archive, root filesystem
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import dranet
from testbed.debian.packages import cache_folder
from tools.image.base import LOADERS, USED, find_or_make_base, forget_old, host_architecture
from tools.image.debian import ARCHITECTURES, LOCK_FILE, ImageError, Package, describe_changes, read_lock
from tools.image.oci import Layer, write_archive
from tools.image.trees import PROGRAM, REPOSITORY, list_driver_files, make_driver
from tools.image.wheels import REQUIREMENTS
from tools.project import read_project

Report = Callable[[str], None]
"""Takes one line of progress."""

DEFAULT_NAME = f"localhost/dranet:{dranet.__version__}"
"""Name of the image in the archive. ``--name`` sets the name in a registry, by which a cluster finds it."""

CHANGED = "dra.net/packages-not-as-locked"
"""Label of an image whose packages are not those of the lock: lists them."""

_RECORD = "image.json"


@dataclass(frozen=True, slots=True)
class Image:
    """A finished build in ``folder``."""

    folder: Path
    name: str
    architecture: str
    digest: str
    packages: tuple[Package, ...]
    changes: tuple[str, ...]
    """A line for each package whose locked version was not available."""

    @property
    def root(self) -> Path:
        """The root filesystem, for chroot(2)."""
        return self.folder / "rootfs"

    @property
    def archive(self) -> Path:
        """For ``ctr images import`` and others; the image in it is called :attr:`name`."""
        return self.folder / f"dranet-{dranet.__version__}-{self.architecture}.tar"

    @property
    def loader(self) -> Path:
        """The dynamic loader."""
        return self.root / LOADERS[self.architecture]


def build_image(
    architecture: str,
    folder: Path,
    *,
    name: str = DEFAULT_NAME,
    labels: Mapping[str, str] | None = None,
    strict: bool = False,
    cache: Path | None = None,
    report: Report = print,
) -> Image:
    """Build everything into ``folder``, replacing an earlier build.

    Without ``strict``, use the Debian packages that the mirror serves now if it no longer serves the locked
    ones, and report a warning that names them.

    Raises:
        StaleLock: with ``strict``, the mirror no longer serves the locked versions.
        PackagesUnavailable: this machine cannot fetch Debian packages.
        ImageError: wheels are missing, or the build is not consistent.
    """
    if architecture not in ARCHITECTURES:
        raise ImageError(f"no such architecture: {architecture} (one of {', '.join(ARCHITECTURES)})")
    cache = cache_folder("image") if cache is None else cache
    report(f"making the base for {architecture}")
    base = find_or_make_base(architecture, cache, strict=strict)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".image-", dir=folder.parent) as temporary:
        stage = Path(temporary) / "stage"
        report("adding the driver")
        make_driver(stage / "driver")
        layer = Path(temporary) / "driver.tar.gz"
        base.builder.finish(stage / "driver", layer)
        _merge(base.tree, stage / "base", stage / "rootfs")
        _merge(stage / "driver", stage / "rootfs")
        report("packing")
        layers = [Layer(base.layer, "tools/image: base"), Layer(layer, "tools/image: driver")]
        _pack(stage, name, base.packages, labels or {}, layers)
        shutil.rmtree(folder, ignore_errors=True)
        stage.rename(folder)
    image = describe_image(folder)
    if image.changes:
        report(_warn(image))
    return image


def _warn(image: Image) -> str:
    listed = "".join(f"\n  {change}" for change in image.changes)
    return (
        f"warning: the mirror no longer serves what tools/image/packages.lock names; this image has the "
        f"versions that it serves now:{listed}\n"
        f"{image.folder / LOCK_FILE.name} lists them all. `make image-lock` locks them; LOCKED=1 builds only "
        "what is locked."
    )


def describe_image(folder: Path) -> Image:
    """Return the build in ``folder``."""
    data = json.loads((folder / _RECORD).read_text())
    packages = tuple(Package(**package) for package in data["packages"])
    return Image(folder, data["name"], data["architecture"], data["digest"], packages, tuple(data["changes"]))


def make_config(labels: Mapping[str, str]) -> dict[str, object]:
    """Return the configuration with which a container of the image starts.

    The user is root by default, because the driver's folders and sockets belong to root on the node; the pod
    decides which of root's rights it keeps. Commands that need none of them run as any user.
    """
    project = read_project()
    return {
        "User": "0:0",
        "Env": ["PATH=/usr/bin", "LANG=C.UTF-8"],
        "Entrypoint": [f"/{PROGRAM}"],
        "Cmd": ["--help"],
        "WorkingDir": "/",
        "Labels": {
            "org.opencontainers.image.title": "dranet",
            "org.opencontainers.image.description": "Kubernetes DRA network driver",
            "org.opencontainers.image.version": dranet.__version__,
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.url": project.repository,
            "org.opencontainers.image.source": project.repository,
            "org.opencontainers.image.documentation": project.page("docs/README.md"),
            **labels,
        },
    }


def _pack(
    stage: Path,
    name: str,
    packages: Sequence[Package],
    labels: Mapping[str, str],
    layers: Sequence[Layer],
) -> None:
    """Write the archive, the record that describes this build, and a lock of what is in it."""
    architecture = packages[0].architecture
    used = {(package.name, architecture): package.version for package in packages}
    changes = tuple(describe_changes(read_lock(architecture), used))
    image = Image(stage, name, architecture, "", tuple(packages), changes)
    config = make_config({**labels, **({CHANGED: "; ".join(changes)} if changes else {})})
    digest = write_archive(image.archive, name, architecture, config, layers)
    record = {"name": name, "architecture": architecture, "digest": digest, "changes": changes}
    listed = {"packages": [asdict(package) for package in packages]}
    (stage / _RECORD).write_text(json.dumps(record | listed, indent=1))
    shutil.copyfile(image.root / USED, stage / LOCK_FILE.name)


def _merge(tree: Path, *targets: Path) -> None:
    """Copy a tree into each target, by hard links where both are on one file system."""
    for target in targets:
        shutil.copytree(tree, target, symlinks=True, dirs_exist_ok=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


_KEPT_SECONDS = 3 * 3600
"""Seconds after its last use that an image stays in the cache: longer than a test run."""


def _ignore(_line: str) -> None:
    """Discard progress."""


def find_or_build(
    architecture: str | None = None,
    *,
    strict: bool = False,
    cache: Path | None = None,
    report: Report = _ignore,
) -> Image:
    """Return the image of the current sources, by default for this machine's architecture (2 s on a cached
    base, otherwise 10 s).

    Callers share it: they may read it and run programs in it, but not write to it.

    Raises:
        StaleLock, PackagesUnavailable, ImageError: as :func:`~tools.image.build.build_image`.
    """
    architecture = architecture or host_architecture()
    cache = cache_folder("image") if cache is None else cache
    with _locked(cache):
        folder = cache / "built" / f"{architecture}-{_hash_sources()}{'-locked' if strict else ''}"
        if not (folder / _RECORD).exists():
            build_image(architecture, folder, strict=strict, cache=cache, report=report)
            forget_old(folder.parent, _KEPT_SECONDS)
        os.utime(folder)
        return describe_image(folder)


def _hash_sources() -> str:
    files = [
        LOCK_FILE,
        REQUIREMENTS,
        REPOSITORY / "LICENSE",
        REPOSITORY / "pyproject.toml",
        *sorted(Path(__file__).parent.glob("*.py")),
    ]
    files += list_driver_files()
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(REPOSITORY)}\0".encode() + file.read_bytes() + b"\0")
    return whole.hexdigest()[:20]


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
