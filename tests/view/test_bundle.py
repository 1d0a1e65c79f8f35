"""Reading a support bundle, which comes from a stranger."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from dranet.errors import SettingsError
from dranet.view import bundle
from dranet.view.bundle import describe_manifest, read_bundle, unpack_bundle
from dranet.view.options import read_capture

CAPTURE = Path(__file__).parents[1] / "data/dgx-h100/capture.json"
WHOLE = {
    "dranet-bundle/manifest.json": b'{"version": "1", "redacted": true, "files": [{"file": "a\\u001b[2J"}]}',
    "dranet-bundle/findings.json": b'{"findings": []}',
    "dranet-bundle/capture.json": CAPTURE.read_bytes(),
}


def archive(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as stream:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            stream.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def test_its_capture_is_read_as_any_other(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tgz"
    file.write_bytes(archive(WHOLE))
    assert read_capture(str(file), "-f") == read_capture(str(CAPTURE), "-f")
    assert read_bundle(str(file))[1] == {"findings": []}


def test_names_in_it_cannot_move_the_cursor() -> None:
    manifest = json.loads(WHOLE["dranet-bundle/manifest.json"])
    assert "\x1b" not in describe_manifest(manifest, "bundle.tgz")


def test_other_names_and_links_in_it_are_not_files() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as stream:
        for name in ("../evil", "/etc/passwd", "dranet-bundle/link"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/shadow"
            stream.addfile(entry)
        for name, content in WHOLE.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            stream.addfile(entry, io.BytesIO(content))
    assert set(unpack_bundle(packed.getvalue())) == {"manifest.json", "findings.json", "capture.json"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no support bundle"),
        (b"\x1f\x8bnonsense", "no support bundle"),
        (gzip.compress(b"no archive"), "no support bundle"),
        (archive(WHOLE)[:-200], "no support bundle"),
        (archive({"dranet-bundle/manifest.json": b"{}"}), "it has no capture.json"),
        (archive({}), "no support bundle"),
    ],
    ids=["empty", "no gzip", "no archive", "cut", "not whole", "no files"],
)
def test_what_is_none_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        unpack_bundle(data)


def test_no_more_is_unpacked_than_a_bundle_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 1000)
    monkeypatch.setattr(bundle, "_HEADERS_BYTES", 1000)
    with pytest.raises(SettingsError, match="longer than"):
        unpack_bundle(gzip.compress(bytes(3000)))


@pytest.mark.parametrize("findings", [b"", b"[]", b"{", b"\xff"])
def test_findings_that_are_none_are_refused(tmp_path: Path, findings: bytes) -> None:
    file = tmp_path / "bundle.tgz"
    file.write_bytes(archive(WHOLE | {"dranet-bundle/findings.json": findings}))
    with pytest.raises(SettingsError, match="has no findings that can be read"):
        read_bundle(str(file))
