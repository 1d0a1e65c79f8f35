"""Two container images written by hand, so that a pod needs no registry.

One layer with a static busybox and links for its applets, and two manifests that share it: the pause
image that every pod sandbox runs, and the image of the test containers. The archive follows the OCI image
layout (image-spec, ``image-layout.md``); containerd reads each image's name from an annotation.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAUSE_IMAGE = "localhost/dranet-testbed/pause:1"
BUSYBOX_IMAGE = "localhost/dranet-testbed/busybox:1"

PAUSE_COMMAND = ("/bin/sleep", "2147483647")
"""What the pause image runs, and the other image by default."""

_ETC = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
}

_MEDIA = "application/vnd.oci.image"

_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le"}
"""``uname -m`` -> the name that the image spec uses."""


def write_image_archive(busybox: Path, archive: Path) -> None:
    """Write the OCI archive with both images; ``busybox`` must be static and run on this machine."""
    layer = _build_layer(busybox)
    blobs: dict[str, bytes] = {}
    compressed = gzip.compress(layer, compresslevel=6, mtime=0)
    layer_entry = _add_blob(blobs, f"{_MEDIA}.layer.v1.tar+gzip", compressed)
    manifests = [
        _add_image(blobs, name, layer_entry, hashlib.sha256(layer).hexdigest())
        for name in (PAUSE_IMAGE, BUSYBOX_IMAGE)
    ]
    files = {
        "oci-layout": _encode({"imageLayoutVersion": "1.0.0"}),
        "index.json": _encode({"schemaVersion": 2, "manifests": manifests}),
        **{f"blobs/sha256/{digest}": blob for digest, blob in blobs.items()},
    }
    with tarfile.open(archive, "w") as tar:
        for path, content in files.items():
            _add_file(tar, path, content)


def _add_image(blobs: dict[str, bytes], name: str, layer: dict[str, Any], diff_id: str) -> dict[str, Any]:
    config = {
        "architecture": _go_architecture(),
        "os": "linux",
        "config": {"Cmd": PAUSE_COMMAND, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _add_blob(blobs, f"{_MEDIA}.config.v1+json", _encode(config)),
        "layers": [layer],
    }
    entry = _add_blob(blobs, f"{_MEDIA}.manifest.v1+json", _encode(manifest))
    return {**entry, "annotations": {"io.containerd.image.name": name}}


def _go_architecture() -> str:
    machine = platform.machine()
    return _GO_ARCHITECTURES.get(machine, machine)


def _build_layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("bin", "dev", "etc", "proc", "root", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for path, text in _ETC.items():
            _add_file(tar, path, text.encode())
        _add_file(tar, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in _read_applets(busybox):
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return buffer.getvalue()


def _read_applets(busybox: Path) -> Sequence[str]:
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    return [applet for applet in listed.stdout.split() if applet != "busybox"]


def _add_file(tar: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _add_blob(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _encode(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
