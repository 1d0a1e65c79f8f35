"""Build the image: its root filesystem as a folder, and its archive. The one story of this package.

    packages.lock -------> debs ---\\
    requirements.lock ---> wheels --> base tree ----> layer --\\
    dranet/ -----------------------> driver tree ---> layer ---> archive, root filesystem
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import dranet
from testbed.debian.packages import cache_folder
from tools.image.base import LOADERS, find_or_make_base
from tools.image.lock import ARCHITECTURES, ImageError, Package
from tools.image.oci import Layer, write_archive
from tools.image.trees import PROGRAM, make_driver

Report = Callable[[str], None]
"""Takes one line of progress."""

DEFAULT_NAME = f"localhost/dranet:{dranet.__version__}"
"""What the archive calls the image; a cluster finds it by its name in a registry, which ``--name`` says."""

_RECORD = "image.json"


@dataclass(frozen=True, slots=True)
class Image:
    """What was built into ``folder``."""

    folder: Path
    name: str
    architecture: str
    digest: str
    packages: tuple[Package, ...]

    @property
    def root(self) -> Path:
        """The root filesystem, to be entered with chroot(2)."""
        return self.folder / "rootfs"

    @property
    def archive(self) -> Path:
        """For ``ctr images import`` and others; the image in it is called :attr:`name`."""
        return self.folder / f"dranet-{dranet.__version__}-{self.architecture}.tar"

    @property
    def loader(self) -> Path:
        """The program that starts programs."""
        return self.root / LOADERS[self.architecture]


def build_image(
    architecture: str,
    folder: Path,
    *,
    name: str = DEFAULT_NAME,
    labels: Mapping[str, str] | None = None,
    current: bool = False,
    cache: Path | None = None,
    report: Report = print,
) -> Image:
    """Build everything into ``folder``, where an earlier build is replaced.

    ``current`` takes the Debian packages that are served now, not those locked.

    Raises:
        StaleLock: what is locked is no longer served.
        PackagesUnavailable: no Debian packages can be had on this machine.
        ImageError: no wheels, or what was built is not sound.
    """
    if architecture not in ARCHITECTURES:
        raise ImageError(f"no such architecture: {architecture} (one of {', '.join(ARCHITECTURES)})")
    cache = cache_folder("image") if cache is None else cache
    report(f"making the base for {architecture}")
    base = find_or_make_base(architecture, cache, current=current)
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
        _pack(stage, name, base.packages, make_config(labels or {}), layers)
        shutil.rmtree(folder, ignore_errors=True)
        stage.rename(folder)
    return describe_image(folder)


def describe_image(folder: Path) -> Image:
    """What was built into ``folder``."""
    data = json.loads((folder / _RECORD).read_text())
    packages = tuple(Package(**package) for package in data["packages"])
    return Image(folder, data["name"], data["architecture"], data["digest"], packages)


def make_config(labels: Mapping[str, str]) -> dict[str, object]:
    """How a container of the image starts.

    The user is root by default, because the driver's folders and sockets belong to root on the node; which of
    root's rights it keeps is for the pod to say. What needs none of them runs as any user.
    """
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
            **labels,
        },
    }


def _pack(
    stage: Path,
    name: str,
    packages: Sequence[Package],
    config: Mapping[str, object],
    layers: Sequence[Layer],
) -> None:
    """The archive, and the record of what this build is."""
    architecture = packages[0].architecture
    image = Image(stage, name, architecture, "", tuple(packages))
    digest = write_archive(image.archive, name, architecture, config, layers)
    record = {"name": name, "architecture": architecture, "digest": digest}
    listed = {"packages": [asdict(package) for package in packages]}
    (stage / _RECORD).write_text(json.dumps(record | listed, indent=1))


def _merge(tree: Path, *targets: Path) -> None:
    """Put a tree into each target, as the same files where one disk holds both, which takes no room there."""
    for target in targets:
        shutil.copytree(tree, target, symlinks=True, dirs_exist_ok=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)
