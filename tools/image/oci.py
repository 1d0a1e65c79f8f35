"""An image archive in the OCI layout (image-spec, ``image-layout.md``), made of layers that are files.

``ctr images import``, ``docker load``, ``podman load``, ``skopeo copy oci-archive:`` and scanners read it.
The same layers give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Layer:
    """A gzipped tar, and its entry in the image's history."""

    file: Path
    made_by: str


def write_archive(
    archive: Path, name: str, architecture: str, config: Mapping[str, Any], layers: Sequence[Layer]
) -> str:
    """Write the archive of one image called ``name`` and return the digest of its manifest."""
    blobs: dict[str, bytes] = {}
    contents = [layer.file.read_bytes() for layer in layers]
    image = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [_digest(gzip.decompress(content)) for content in contents]},
        "history": [{"created_by": layer.made_by} for layer in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _add(blobs, f"{_MEDIA}.config.v1+json", _encode(image)),
        "layers": [_add(blobs, f"{_MEDIA}.layer.v1.tar+gzip", content) for content in contents],
    }
    entry = _add(blobs, f"{_MEDIA}.manifest.v1+json", _encode(manifest))
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    _write(archive, name, entry, blobs)
    return str(entry["digest"])


def _write(archive: Path, name: str, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    manifests = [{**entry, "annotations": names}]
    index = {"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": manifests}
    files = {
        "oci-layout": _encode({"imageLayoutVersion": "1.0.0"}),
        "index.json": _encode(index),
        **{f"blobs/sha256/{digest}": blob for digest, blob in sorted(blobs.items())},
    }
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))


def merge_archives(archive: Path, name: str, sources: Sequence[Path]) -> str:
    """Write the archive of one image for several architectures, each from an archive of its own, and return
    the digest of its index. ``skopeo copy --all`` pushes it under one tag."""
    blobs: dict[str, bytes] = {}
    entries = []
    for source in sources:
        with tarfile.open(source) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        (entry,) = json.loads(files["index.json"])["manifests"]
        entries.append({key: entry[key] for key in ("mediaType", "digest", "size", "platform")})
        prefix = "blobs/sha256/"
        blobs |= {path.removeprefix(prefix): blob for path, blob in files.items() if path.startswith(prefix)}
    media_type = f"{_MEDIA}.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": media_type, "manifests": entries}
    entry = _add(blobs, media_type, _encode(index))
    _write(archive, name, entry, blobs)
    return str(entry["digest"])


def _add(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    digest = _digest(content)
    blobs[digest.removeprefix("sha256:")] = content
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _encode(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
