"""Read the archive that ``dranet doctor --bundle`` writes. It comes from a stranger: nothing is unpacked to
the disk, and no more is read than a bundle may hold."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dranet.errors import SettingsError
from dranet.terminal import printable

STANDARD_INPUT = "-"

FOLDER = "dranet-bundle"
MANIFEST_FILE, FINDINGS_FILE, CAPTURE_FILE = "manifest.json", "findings.json", "capture.json"
CLAIMS_FILE = "claims.json"
MOST_BYTES = 64 << 20
"""Size of the whole, unpacked; a node with 10,000 links has a capture of 8 MiB."""

_GZIP_MAGIC = b"\x1f\x8b"
_HEADERS_BYTES = 1 << 20
"""Room for the headers of the archive's files."""


def is_bundle(data: bytes) -> bool:
    """Whether it is compressed, as a bundle is and a capture is not."""
    return data.startswith(_GZIP_MAGIC)


def unpack_bundle(data: bytes) -> Mapping[str, bytes]:
    """Return the content of each file by its name.

    Raises:
        SettingsError: it is no such archive, or too large.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            plain = stream.read(MOST_BYTES + _HEADERS_BYTES + 1)
        if len(plain) > MOST_BYTES + _HEADERS_BYTES:
            raise SettingsError(f"longer than {MOST_BYTES >> 20} MiB when unpacked")
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            files = dict(_read_files(archive))
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        raise SettingsError("no support bundle of dranet doctor, or damaged") from error
    missing = {MANIFEST_FILE, CAPTURE_FILE} - files.keys()
    if missing:
        raise SettingsError(f"no support bundle of dranet doctor: it has no {', '.join(sorted(missing))}")
    return files


def read_bundle(file: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the manifest and the findings of a bundle; ``-`` is standard input.

    Raises:
        SettingsError: it cannot be read, is no bundle, or has no findings in it.
    """
    try:
        files = unpack_bundle(read_at_most(file, MOST_BYTES))
        manifest, findings = (json.loads(files[name]) for name in (MANIFEST_FILE, FINDINGS_FILE))
    except OSError as error:
        raise SettingsError(f"-f {file}: {os.strerror(error.errno or 0)}") from error
    except SettingsError as error:
        raise SettingsError(f"-f {file}: {error.message}", hint=error.hint) from error
    except (KeyError, ValueError, RecursionError) as error:
        raise SettingsError(f"-f {file}: the support bundle has no findings that can be read") from error
    if not isinstance(manifest, dict) or not isinstance(findings, dict):
        raise SettingsError(f"-f {file}: the support bundle has no findings that can be read")
    return manifest, findings


def find_pods(files: Mapping[str, bytes]) -> Mapping[str, str]:
    """Return the pod that had a device, as ``namespace/name``, by the device's name; empty where the files
    do not name one."""
    try:
        return {
            str(device["name"]): f"{claim['pod']['namespace']}/{claim['pod']['name']}"
            for claim in json.loads(files[CLAIMS_FILE])["claims"]
            for device in claim["devices"]
            if device["place"] == "pod"
        }
    except (KeyError, TypeError, ValueError, RecursionError):  # a stranger may have made it
        return {}


def describe_manifest(manifest: Mapping[str, Any], file: str) -> str:
    """When and by what it was made, what is in it and what is missing."""
    names = [str(entry.get("file")) for entry in manifest.get("files", ())]
    missing = [f"{entry.get('file')} ({entry.get('why')})" for entry in manifest.get("missing", ())]
    redacted = "redacted" if manifest.get("redacted") else "NOT redacted"
    lines = [
        "",
        f"bundle of dranet {manifest.get('version')}, made {manifest.get('made')}, {redacted}",
        f"files: {', '.join(names)}",
        *([f"not collected: {'; '.join(missing)}"] if missing else []),
        f"its hardware: dranet topology -f {file}, dranet devices --all -f {file}",
    ]
    return "\n".join(map(printable, lines))


def read_at_most(file: str, size: int) -> bytes:
    """Read a file, or standard input for ``-``. Raises OSError, or SettingsError where it is longer."""
    if file == STANDARD_INPUT:
        data = sys.stdin.buffer.read(size + 1)
    else:
        with Path(file).open("rb") as stream:
            data = stream.read(size + 1)
    if len(data) > size:
        raise SettingsError(f"longer than {size >> 20} MiB")
    return data


def _read_files(archive: tarfile.TarFile) -> list[tuple[str, bytes]]:
    members = [member for member in archive if member.isreg() and member.name.startswith(f"{FOLDER}/")]
    return [
        (member.name.removeprefix(f"{FOLDER}/"), stream.read())
        for member in members
        if (stream := archive.extractfile(member)) is not None
    ]
