"""What the guest boots, made from the unpacked packages: vmlinux, a slim layer of modules, an initramfs.

Formats: the kernel's ``Documentation/arch/x86/boot.rst`` (where the payload of a bzImage is) and
``Documentation/driver-api/early-userspace/buffer-format.rst`` (newc).
"""

from __future__ import annotations

import lzma
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SETUP_SECTORS, _MAGIC, _PAYLOAD = 0x1F1, 0x202, 0x248
_SECTOR_BYTES = 512
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")

DIRECTORY, REGULAR, CHARACTER_DEVICE = 0o040755, 0o100755, 0o020600


class BadImage(Exception):
    """A kernel or module that is not in a format we know."""


def find_payload(image: bytes) -> tuple[bytes, int]:
    """The zstd stream inside a bzImage, and how long its content is (the last four bytes of the payload).

    Raises:
        BadImage: not a bzImage, or one compressed in another way.
    """
    if len(image) < _PAYLOAD + 8 or image[_MAGIC : _MAGIC + 4] != b"HdrS":
        raise BadImage("no Linux boot image")
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    start = (image[_SETUP_SECTORS] + 1) * _SECTOR_BYTES + offset
    payload = image[start : start + length]
    if len(payload) != length or not payload.startswith(_ZSTD_MAGIC):
        raise BadImage("the kernel's payload is not zstd")
    return payload[:-4], int.from_bytes(payload[-4:], "little")


class Modules:
    """The modules below a ``lib/modules/<release>`` folder, by name (``-`` and ``_`` are one)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = {module_name(path): path for path in folder.rglob("*.ko*")}
        builtin = folder / "modules.builtin"
        lines = builtin.read_text().splitlines() if builtin.exists() else ()
        self._builtin = {module_name(Path(line)) for line in lines}
        self._bytes = cache(self._load)

    def closure(self, names: Iterable[str]) -> tuple[str, ...]:
        """``names`` and all they need, what is needed first; what is built in is left out.

        Raises:
            BadImage: one does not exist, or is compressed in a way we do not know.
        """
        ordered: dict[str, None] = {}
        for name in names:
            self._add(_normal(name), ordered)
        return tuple(ordered)

    def _add(self, name: str, ordered: dict[str, None]) -> None:
        if name in ordered or name in self._builtin:
            return
        for needed in self._depends(name):
            self._add(needed, ordered)
        ordered[name] = None

    def _depends(self, name: str) -> list[str]:
        match = _DEPENDS.search(self._bytes(name))
        return [_normal(needed) for needed in match[1].decode().split(",") if needed] if match else []

    def read(self, name: str) -> tuple[str, bytes]:
        """The place of a module below the folder (without the suffix of compression), and the plain
        module."""
        name = _normal(name)
        content = self._bytes(name)
        relative = self._paths[name].relative_to(self._folder)
        return str(relative.with_name(relative.name.removesuffix(".xz"))), content

    def _load(self, name: str) -> bytes:
        path = self._paths.get(name)
        if path is None:
            raise BadImage(f"the kernel has no module {name}")
        if path.suffix not in (".ko", ".xz"):
            raise BadImage(f"{path.name} is compressed in a way this lane does not know")
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == ".xz" else content


def module_name(path: Path) -> str:
    """``kernel/net/9p/9pnet_virtio.ko.xz`` -> ``9pnet_virtio``."""
    return _normal(path.name.partition(".ko")[0])


def _normal(name: str) -> str:
    return name.replace("-", "_")


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a cpio archive. ``mode`` as in ``stat(2)``; ``device`` are major and minor."""

    path: str
    mode: int = REGULAR
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def pack_cpio(nodes: Iterable[Node]) -> bytes:
    """A newc archive, as the kernel takes it for an initramfs; folders must come before what is in them."""
    parts = [_pack_node(number, node) for number, node in enumerate(nodes, 1)]
    return b"".join([*parts, _pack_node(0, Node("TRAILER!!!", 0))])


def _pack_node(number: int, node: Node) -> bytes:
    name = node.path.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device of the file, device it is, length of the name, check
    fields = (number, node.mode, 0, 0, 1, 0, len(node.content), 0, 0, *node.device, len(name), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    return _padded(header + name) + _padded(node.content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)


def initramfs_nodes(busybox: bytes, init: str, modules: Mapping[str, bytes]) -> list[Node]:
    """Just enough to mount the root: ``modules`` are loaded in their order."""
    folders = ("bin", "proc", "sys", "dev", "mod", "newroot", "mnt", *(f"mnt/{m}" for m in MOUNTS))
    return [
        *(Node(name, DIRECTORY) for name in folders),
        Node("dev/console", CHARACTER_DEVICE, device=(5, 1)),
        Node("bin/busybox", content=busybox),
        Node("init", content=init.encode()),
        Node("mod/order", content="".join(f"{name}.ko\n" for name in modules).encode()),
        *(Node(f"mod/{name}.ko", content=content) for name, content in modules.items()),
    ]


MOUNTS = ("host", "prefix", "layer", "rw")
"""Where the parts of the guest's root are mounted: the host's own, two layers above, and what it writes."""
