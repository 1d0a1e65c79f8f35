"""The files of each Debian package that go into the image, and why.

The list is written by hand instead of following dependencies, which would add a shell, terminals and locales.
Tests keep it complete (they resolve every library that a program or library in the image needs) and small
(each library must be needed by one of them)."""

from __future__ import annotations

from dataclasses import dataclass

SUITE = "trixie"
"""The Debian release of the image; its Python is :data:`PYTHON`."""

PYTHON = "python3.13"


@dataclass(frozen=True, slots=True)
class Slice:
    """The files kept of one package: glob patterns from its root; a folder includes everything below it."""

    package: str
    keep: tuple[str, ...]
    why: str


def _library(package: str, *names: str, why: str) -> Slice:
    return Slice(package, tuple(f"usr/lib/*-linux-gnu*/{name}" for name in names), why)


_RELEASE = ("etc/debian_version", "etc/os-release", "usr/lib/os-release")

SLICES = (
    Slice(
        "base-files",
        ("bin", "lib", "lib64", *_RELEASE, "usr/share/common-licenses"),
        "the links of a merged /usr, what release this is (scanners ask), texts of common licences",
    ),
    _library(
        "libc6",
        *("ld-linux*.so.*", "libc.so.6", "libm.so.6"),
        *("libpthread.so.0", "librt.so.1"),
        why="the loader and the C library",
    ),
    Slice("libc6", ("usr/lib/ld-linux-*", "usr/lib64"), "the name of the loader that programs ask for"),
    _library("libgcc-s1", "libgcc_s.so.1", why="CEL"),
    Slice("gcc-14-base", (), "the licence of libgcc and libstdc++, to which their packages link"),
    _library("libstdc++6", "libstdc++.so.6*", why="gRPC, protobuf and CEL"),
    Slice(f"{PYTHON}-minimal", (f"usr/bin/{PYTHON}",), "the interpreter"),
    Slice(
        f"lib{PYTHON}-minimal",
        (f"usr/lib/{PYTHON}",),
        "the half of the standard library that it needs to start",
    ),
    Slice(f"lib{PYTHON}-stdlib", (f"usr/lib/{PYTHON}",), "the other half, without what is dropped below"),
    _library("zlib1g", "libz.so.1*", why="Python, and pages compressed over HTTP"),
    _library("libexpat1", "libexpat.so.1*", why="Python; NCCL topology files are XML"),
    _library("libffi8", "libffi.so.8*", why="ctypes: libudev, and namespaces"),
    _library("libzstd1", "libzstd.so.1*", why="OpenSSL"),
    _library("libssl3t64", "libssl.so.3", "libcrypto.so.3", why="TLS to the API server, hashes"),
    _library("libbz2-1.0", "libbz2.so.1*", why="a module of the standard library"),
    _library("liblzma5", "liblzma.so.5*", why="a module of the standard library"),
    _library("libudev1", "libudev.so.1*", why="pyudev: kernel events about hardware"),
    _library("libcap2", "libcap.so.2*", why="libudev"),
    Slice(
        "ca-certificates", ("usr/share/ca-certificates/mozilla",), "the certificates that /etc/ssl is made of"
    ),
    Slice(
        "pci.ids",
        ("usr/share/misc/pci.ids",),
        "names of vendors and devices, attributes of published devices",
    ),
)

DROPPED_MODULES = (
    *("EXTERNALLY-MANAGED", "_pyrepl", "antigravity.py", "curses", "dbm", "ensurepip", "idlelib", "lib2to3"),
    *(
        "pydoc_data",
        "sitecustomize.py",
        "sqlite3",
        "test",
        "this.py",
        "tkinter",
        "turtle.py",
        "turtledemo",
        "venv",
    ),
    *(
        f"lib-dynload/{name}.*"
        for name in ("_curses", "_curses_panel", "_dbm", "_sqlite3", "_uuid", "readline")
    ),
    *(
        f"lib-dynload/{name}"
        for name in ("_ctypes_test.*", "_test*", "_xxtest*", "xxlimited*", "xxsubtype.*")
    ),
)
"""Removed from Python's standard library: tests, examples, terminals and installers. Each extension module
removed makes a library unnecessary (``_uuid`` is for identifiers from the clock, which the driver does not
use)."""

DROPPED_OF_WHEELS = (
    "bazel-project/*",
    "cel_expr_python/ext/*",
    "*.pyi",
    "*.h",
    "*.dist-info/RECORD",
)
"""Removed from the wheels: a build tree that the CEL wheel ships by mistake (7 MB), its extension libraries,
which are never imported (37 MB), files for type checkers and compilers, and lists of files, which no longer
match."""
