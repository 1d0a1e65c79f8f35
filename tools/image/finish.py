"""Compile one tree and write it as a layer: ``finish.py TREE LAYER.tar.gz``.

It runs in the image's own Python, so that every byte comes from locked software whichever Python builds.
Compiled files are never checked against their source (PEP 552, unchecked), because nothing in an image
changes. Everything runs in one process and in a fixed order, without clock or randomness, on the standard
library only."""

from __future__ import annotations

import compileall
import gzip
import os
import py_compile
import stat
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path


def compile_tree(root: Path) -> None:
    """Compile every module below ``root`` with the path that it will have in the image."""
    done = compileall.compile_dir(
        root / "usr/lib",
        maxlevels=50,
        quiet=1,
        force=True,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not done:
        sys.exit("a module does not compile")


def normalise(root: Path) -> None:
    """Set modes by kind of file, and the same time for all."""
    for path in (*walk(root), root):
        if not path.is_symlink():
            path.chmod(choose_mode(path, path.relative_to(root)))
        os.utime(path, (0, 0), follow_symlinks=False)


def choose_mode(path: Path, name: Path) -> int:
    """Return a mode without setuid bits that lets only root write, except in ``/tmp``."""
    if name == Path("tmp"):
        return 0o1777
    is_program = name.parent == Path("usr/bin") or name.name.startswith("ld-linux")
    return 0o755 if path.is_dir() or is_program else 0o644


def write_layer(root: Path, layer: Path) -> None:
    """Write a tar of everything below ``root``, owned by root, in order of names."""
    with (
        layer.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in walk(root):
            add(tar, path, path.relative_to(root))


def walk(root: Path) -> Iterator[Path]:
    """Yield everything below ``root``, folders before their contents, without following links."""
    for path in sorted(root.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk(path)


def add(tar: tarfile.TarFile, path: Path, name: Path) -> None:
    """Add one entry. Hard links become separate files."""
    state = path.lstat()
    entry = tarfile.TarInfo(str(name))
    if path.is_symlink():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(entry)
        return
    entry.mode = stat.S_IMODE(state.st_mode)
    if path.is_dir():
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
        return
    entry.size = state.st_size
    with path.open("rb") as content:
        tar.addfile(entry, content)


if __name__ == "__main__":
    tree, target = map(Path, sys.argv[1:])
    compile_tree(tree)
    normalise(tree)
    write_layer(tree, target)
