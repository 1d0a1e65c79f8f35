"""The hand-written images are what the OCI image layout wants."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from testbed.containerd.image import BUSYBOX_IMAGE, PAUSE_IMAGE, write_image_archive

pytestmark = pytest.mark.process


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    busybox = tmp_path / "busybox"
    busybox.write_text("#!/bin/sh\nprintf 'busybox\\nls\\nsh\\n'\n")
    busybox.chmod(0o755)
    write_image_archive(busybox, tmp_path / "images.tar")
    return tmp_path / "images.tar"


def read_files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {m.name: content.read() for m in tar if (content := tar.extractfile(m)) is not None}


def read_blob(files: dict[str, bytes], entry: dict[str, Any]) -> bytes:
    blob = files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")]
    assert len(blob) == entry["size"]
    return blob


def test_every_blob_is_named_by_its_digest(archive: Path) -> None:
    blobs = {name: blob for name, blob in read_files(archive).items() if name.startswith("blobs/")}
    assert len(blobs) == 3, "both images are alike: one layer, one config, one manifest"
    assert all(name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}" for name, blob in blobs.items())


def test_both_images_lead_to_the_layer_with_its_true_diff_id(archive: Path) -> None:
    files = read_files(archive)
    entries = json.loads(files["index.json"])["manifests"]
    assert [e["annotations"]["io.containerd.image.name"] for e in entries] == [PAUSE_IMAGE, BUSYBOX_IMAGE]
    for entry in entries:
        manifest = json.loads(read_blob(files, entry))
        config = json.loads(read_blob(files, manifest["config"]))
        layer = gzip.decompress(read_blob(files, manifest["layers"][0]))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]


def test_the_layer_has_busybox_and_a_link_for_each_applet(archive: Path) -> None:
    files = read_files(archive)
    manifest = json.loads(read_blob(files, json.loads(files["index.json"])["manifests"][0]))
    layer = gzip.decompress(read_blob(files, manifest["layers"][0]))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.getmember("bin/busybox").mode == 0o755
        links = {member.name: member.linkname for member in tar if member.issym()}
    assert links == {"bin/ls": "busybox", "bin/sh": "busybox"}
