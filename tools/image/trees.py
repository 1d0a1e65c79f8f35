"""The two trees of the image: ``base``, which changes with the locks, and the driver, which changes with
every version. Each becomes a layer, so that an update transfers little.

Nothing from the building machine goes in except files of this repository.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import dranet
from dranet.cli.main import NODE_COMMANDS
from tools.image.debian import find, unpack_slices
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
"""``-I``: neither the working folder nor the environment adds modules to a program that runs as root."""

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
    """Unpack the files kept of Debian, which are enough to run its Python."""
    root.mkdir(parents=True)
    unpack_slices(debs, root)
    for pattern in DROPPED_MODULES:
        for path in find(root, f"usr/lib/{PYTHON}/{pattern}"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def make_base(debs: Mapping[str, Path], wheels: list[Path], root: Path) -> None:
    """Create Debian, the Python packages, and the few files that an installation would have written."""
    make_system(debs, root)
    unpack_wheels(wheels, root / SITE)
    for name in _EMPTY_FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in _ETC.items():
        (root / name).write_text(text)
    _bundle_certificates(root)


def make_driver(root: Path) -> None:
    """Create the package dranet, its metadata for scanners, and the command."""
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
    """Return the modules that the program and the node's commands reach, sorted."""
    return find_reached(REPOSITORY, ("dranet.cli.main", *NODE_COMMANDS.values()))


def _bundle_certificates(root: Path) -> None:
    """Write all certificates into the file that OpenSSL and others read, as Debian's own script does."""
    single = root / "usr/share/ca-certificates"
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_text("".join(path.read_text().strip() + "\n" for path in sorted(single.rglob("*.crt"))))
    shutil.rmtree(single)
    default = root / "usr/lib/ssl/cert.pem"
    default.parent.mkdir(parents=True)
    default.symlink_to("/etc/ssl/certs/ca-certificates.crt")


PACKAGE = "dranet"


def find_reached(repository: Path, roots: Iterable[str]) -> list[Path]:
    """Return the files of the package that ``roots`` (dotted names) import, directly or not, sorted."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        path = _locate(repository, module)
        if module in found or path is None:
            continue
        found[module] = path
        waiting += _list_imported(path)
        waiting += [module.rpartition(".")[0]]
    return sorted(found.values())


def _locate(repository: Path, module: str) -> Path | None:
    """The file of a module or package; None for a name inside a module, and for other packages."""
    if module.partition(".")[0] != PACKAGE:
        return None
    base = repository / module.replace(".", "/")
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _list_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
