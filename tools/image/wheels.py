"""The Python packages of the image: the wheels of ``requirements.lock``, downloaded by pip for the image's
Python and architecture, whatever Python and architecture build it; checked, and unpacked without pip.

These wheels are archives of files that are used unchanged below one folder. A wheel with more than that
(scripts, data) is refused."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from tools.image.debian import ImageError, hash_file
from tools.image.slices import DROPPED_OF_WHEELS, PYTHON

REQUIREMENTS = Path(__file__).parents[2] / "requirements.lock"

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_OLDEST_GLIBC, _NEWEST_GLIBC = 17, 41
"""From ``manylinux_2_17`` to the version of the image's Debian: pip compares each name literally."""

_DOWNLOAD_SECONDS = 300
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)\s*(;.*)?\\?$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class WheelsUnavailable(ImageError):
    """pip finds no such wheels, or no registry answers."""


def locked_versions(requirements: Path = REQUIREMENTS) -> Mapping[str, str]:
    """Return the locked version of each Python package.

    Raises:
        ImageError: a line has a condition, which pip would evaluate for the Python that builds.
    """
    versions = {}
    for name, version, condition in _PINNED.findall(requirements.read_text()):
        if condition:
            raise ImageError(
                f"{requirements.name}: {name} has a condition ({condition.strip()}), which is not supported"
            )
        versions[name] = version
    return versions


def fetch_wheels(architecture: str, cache: Path, requirements: Path = REQUIREMENTS) -> list[Path]:
    """Return one wheel for each locked package, from the cache. pip verifies the hashes, and so does this.

    Raises:
        WheelsUnavailable: no wheel exists for this architecture, or the registry does not answer.
        ImageError: the files differ from the lock.
    """
    wanted = len(locked_versions(requirements))
    text = requirements.read_text()
    folder = cache / f"wheels-{architecture}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not folder.exists():
        _download(architecture, requirements, folder)
    wheels = sorted(folder.glob("*.whl"))
    locked = set(_HASH.findall(text))
    strange = [wheel.name for wheel in wheels if hash_file(wheel) not in locked]
    if strange or len(wheels) != wanted:
        raise ImageError(
            f"{folder}: not what is locked: {strange or len(wheels)} (remove the folder, build again)"
        )
    return wheels


def unpack_wheels(wheels: list[Path], folder: Path) -> None:
    """Unpack the files of all wheels below ``folder``, except those that are dropped."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in _kept(archive, wheel.name):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)


def _kept(archive: zipfile.ZipFile, wheel: str) -> Iterator[str]:
    for name in sorted(archive.namelist()):
        if name.endswith("/") or any(fnmatch(name, pattern) for pattern in DROPPED_OF_WHEELS):
            continue
        top = name.partition("/")[0]
        if top.endswith(".data") or name.startswith("/") or ".." in name.split("/"):
            raise ImageError(f"{wheel}: {name}: only wheels whose files are used unchanged are supported")
        yield name


def _download(architecture: str, requirements: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheels-", dir=folder.parent) as temporary:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--retries", "2", "--timeout", "20"),
            *("--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", str(requirements)),
            *("--dest", temporary),
            *_describe_target(architecture),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise WheelsUnavailable(
                f"no wheels for {architecture}: not here within {_DOWNLOAD_SECONDS} s (pip download)"
            ) from error
        if done.returncode != 0:
            output = done.stderr.strip().splitlines() or ["no output"]
            raise WheelsUnavailable(f"no wheels for {architecture}: {output[-1]} (pip download)")
        if not folder.exists():  # another build may have been faster; its files are the same
            shutil.copytree(temporary, folder)


def _describe_target(architecture: str) -> list[str]:
    """Return the Python and platform as options of pip."""
    version = PYTHON.removeprefix("python")
    machine = _MACHINES[architecture]
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)]
    platforms.append(f"manylinux2014_{machine}")
    abis = (f"cp{version.replace('.', '')}", "abi3", "none")
    return [
        *("--implementation", "cp", "--python-version", version),
        *(part for abi in abis for part in ("--abi", abi)),
        *(part for platform in platforms for part in ("--platform", platform)),
    ]
