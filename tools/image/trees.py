"""The two trees that the image is made of: ``base``, which changes with the locks, and the driver itself,
which changes with every version. Each becomes a layer, so that an update moves little.

Nothing of the machine that builds goes in, but for files of this repository.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import dranet
from dranet.cli.main import NODE_COMMANDS
from tools.image.debian import find, unpack_slices
from tools.image.modules import find_reached
from tools.image.slices import DROPPED_MODULES, PYTHON
from tools.image.wheels import unpack_wheels

REPOSITORY = Path(__file__).parents[2]
SITE = "usr/lib/python3/dist-packages"
PROGRAM = "usr/bin/dranet"

_EMPTY_FOLDERS = ("dev", "etc/dranet", "proc", "run", "sys", "tmp", "var/lib")

_ETC = {
    "etc/passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}

_PROGRAM_TEXT = f"""\
#!/usr/bin/{PYTHON} -I
import sys

from dranet.cli.main import main

sys.exit(main())
"""
"""``-I``: neither the working folder nor variables of the pod add modules to a program that runs as root."""

_METADATA = """\
Metadata-Version: 2.4
Name: dranet
Version: {version}
Summary: Kubernetes DRA network driver
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.11
"""


def make_system(debs: Mapping[str, Path], root: Path) -> None:
    """What is kept of Debian: enough to run its Python."""
    root.mkdir(parents=True)
    unpack_slices(debs, root)
    for pattern in DROPPED_MODULES:
        for path in find(root, f"usr/lib/{PYTHON}/{pattern}"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def make_base(debs: Mapping[str, Path], wheels: list[Path], root: Path) -> None:
    """Debian, the Python packages, and the few files that installing would have written."""
    make_system(debs, root)
    unpack_wheels(wheels, root / SITE)
    for name in _EMPTY_FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in _ETC.items():
        (root / name).write_text(text)
    _bundle_certificates(root)


def make_driver(root: Path) -> None:
    """The package dranet, what scanners know it by, and the command."""
    for file in list_driver_files():
        target = root / SITE / file.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    about = root / SITE / f"dranet-{dranet.__version__}.dist-info"
    (about / "licenses").mkdir(parents=True)
    (about / "METADATA").write_text(_METADATA.format(version=dranet.__version__))
    shutil.copyfile(REPOSITORY / "LICENSE", about / "licenses/LICENSE")
    program = root / PROGRAM
    program.parent.mkdir(parents=True)
    program.write_text(_PROGRAM_TEXT)


def list_driver_files() -> list[Path]:
    """The modules that the program and the node's commands reach, sorted."""
    return find_reached(REPOSITORY, ("dranet.cli.main", *NODE_COMMANDS.values()))


def _bundle_certificates(root: Path) -> None:
    """One file with all of them where OpenSSL and others look, as Debian's own script would write it."""
    single = root / "usr/share/ca-certificates"
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_text("".join(path.read_text().strip() + "\n" for path in sorted(single.rglob("*.crt"))))
    shutil.rmtree(single)
    default = root / "usr/lib/ssl/cert.pem"
    default.parent.mkdir(parents=True)
    default.symlink_to("/etc/ssl/certs/ca-certificates.crt")
