"""What the guest boots: vmlinux out of a boot image, modules and all they need, an initramfs."""

from __future__ import annotations

import lzma
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.machine.kernel import (
    CHARACTER_DEVICE,
    DIRECTORY,
    REGULAR,
    BadImage,
    Modules,
    Node,
    find_payload,
    initramfs_nodes,
    pack_cpio,
)

ZSTD = b"\x28\xb5\x2f\xfd"


def boot_image(payload: bytes, setup_sectors: int = 3, offset: int = 0x40) -> bytes:
    """A boot image as ``Documentation/arch/x86/boot.rst`` lays it out; the payload ends with its size."""
    header = bytearray((setup_sectors + 1) * 512)
    header[0x1F1] = setup_sectors
    header[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", header, 0x248, offset, len(payload))
    return bytes(header) + b"\x90" * offset + payload + b"signature"


def test_the_payload_is_cut_out_and_its_size_read() -> None:
    stream = ZSTD + b"compressed kernel"
    image = boot_image(stream + struct.pack("<I", 70_000_000))
    assert find_payload(image) == (stream, 70_000_000)


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        (b"", "no Linux boot image"),
        (b"\x7fELF" + bytes(2000), "no Linux boot image"),
        (boot_image(b"\x1f\x8b gzip of old"), "not zstd"),
        (boot_image(ZSTD + bytes(100))[:-60], "not zstd"),
    ],
)
def test_another_image_is_refused(image: bytes, complaint: str) -> None:
    with pytest.raises(BadImage, match=complaint):
        find_payload(image)


@given(st.binary(max_size=2000))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    for image in (noise, boot_image(noise)[: 600 + len(noise)]):
        try:
            stream, size = find_payload(image)
        except BadImage:
            continue
        assert stream.startswith(ZSTD)
        assert size >= 0


# --- modules --------------------------------------------------------------------------------------------


def make_modules(folder: Path, needs: Mapping[str, str]) -> Path:
    """``kernel/net/<name>.ko.xz`` for each, with the one line of ``.modinfo`` that counts."""
    place = folder / "kernel/net"
    place.mkdir(parents=True)
    for name, depends in needs.items():
        content = b"\x7fELF license=GPL\0depends=" + depends.encode() + b"\0name=" + name.encode() + b"\0"
        (place / f"{name}.ko.xz").write_bytes(lzma.compress(content))
    return folder


def test_the_closure_has_what_is_needed_first_and_each_once(tmp_path: Path) -> None:
    needs = {"top": "left,right", "left": "base-lib", "right": "base_lib", "base-lib": "", "other": ""}
    modules = Modules(make_modules(tmp_path, needs))
    assert modules.closure(["top", "left"]) == ("base_lib", "left", "right", "top")


def test_what_is_built_in_is_left_out(tmp_path: Path) -> None:
    make_modules(tmp_path, {"virtio-net": "virtio"})
    (tmp_path / "modules.builtin").write_text("kernel/drivers/virtio/virtio.ko\n")
    assert Modules(tmp_path).closure(["virtio_net", "virtio"]) == ("virtio_net",)


def test_a_module_is_read_plain_under_its_plain_name(tmp_path: Path) -> None:
    modules = Modules(make_modules(tmp_path, {"nf-x": ""}))
    path, content = modules.read("nf_x")
    assert path == "kernel/net/nf-x.ko"
    assert content.startswith(b"\x7fELF")


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    make_modules(tmp_path, {"igb": "dca"})
    with pytest.raises(BadImage, match="no module dca"):
        Modules(tmp_path).closure(["igb"])


def test_a_compression_we_do_not_know_is_named(tmp_path: Path) -> None:
    (tmp_path / "igb.ko.zst").write_bytes(ZSTD)
    with pytest.raises(BadImage, match=r"igb\.ko\.zst is compressed"):
        Modules(tmp_path).closure(["igb"])


# --- initramfs ------------------------------------------------------------------------------------------


def parse_cpio(archive: bytes) -> list[Node]:
    """The entries, read by the letter of ``buffer-format.rst``."""
    nodes: list[Node] = []
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name = archive[at + 110 : at + 110 + fields[11] - 1].decode()
        start = (at + 110 + fields[11] + 3) // 4 * 4
        if name == "TRAILER!!!":
            return nodes
        nodes.append(Node(name, fields[1], archive[start : start + fields[6]], (fields[9], fields[10])))
        at = (start + fields[6] + 3) // 4 * 4


NAMES = st.text("abcdefghijklmnopqrstuvwxyz/", min_size=1, max_size=12)


@given(st.lists(st.builds(Node, NAMES, st.sampled_from([REGULAR, DIRECTORY]), st.binary(max_size=9))))
def test_an_archive_reads_back_as_written(nodes: list[Node]) -> None:
    assert parse_cpio(pack_cpio(nodes)) == nodes


def test_the_initramfs_loads_its_modules_in_order() -> None:
    nodes = {n.path: n for n in initramfs_nodes(b"box", "#!init", {"netfs": b"1", "9p": b"2"})}
    assert nodes["mod/order"].content == b"netfs.ko\n9p.ko\n"
    assert (nodes["mod/9p.ko"].content, nodes["init"].content) == (b"2", b"#!init")
    assert (nodes["dev/console"].mode, nodes["dev/console"].device) == (CHARACTER_DEVICE, (5, 1))
    assert list(nodes).index("mnt") < list(nodes).index("mnt/host")


@pytest.mark.skipif(shutil.which("cpio") is None, reason="no cpio program")
def test_the_cpio_program_lists_the_archive(tmp_path: Path) -> None:
    archive = pack_cpio([Node("dir", DIRECTORY), Node("dir/file", content=b"hello")])
    done = subprocess.run(["cpio", "-t"], input=archive, capture_output=True, cwd=tmp_path)
    assert done.stdout.decode().split() == ["dir", "dir/file"]
