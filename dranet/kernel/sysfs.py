"""Reading attributes of the kernel's pseudo file systems (sysfs, procfs) below a root that may be moved.

A fact that the kernel does not give is empty or ``None``; a file that ought to be readable and is not
becomes one line of ``warnings``, so that one odd device never hides the others. The rules of sysfs are in
``Documentation/filesystems/sysfs.rst``; which error means "no such fact" is said at ``_NO_FACT``.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

from dranet.model.facts import CharDevice

_NO_FACT = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENODEV,  # the device went away between listing and reading
        errno.ENXIO,
        errno.EINVAL,  # the attribute has no meaning now: speed of a link that is down, an empty GID slot
        errno.EOPNOTSUPP,  # the driver does not implement it: phys_port_name, phys_switch_id
    }
)

_READ_BYTES = 4096
"""A sysfs attribute is at most one page."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""Domain (four digits, five and more behind Intel VMD), bus, device, function."""


class PseudoFiles:
    """Attributes below ``root``. Paths are relative, without a leading slash.

    ``warnings`` collects one line for each thing that could not be read or understood.
    """

    def __init__(self, root: Path, warnings: list[str]) -> None:
        self._root = str(root)
        self.warnings = warnings

    def has(self, folder: str) -> bool:
        return Path(self._root, folder).is_dir()

    def text(self, path: str) -> str:
        """The attribute without surrounding white space; empty where there is no such fact."""
        try:
            fd = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(fd, _READ_BYTES).decode(errors="replace").strip()
            finally:
                os.close(fd)
        except OSError as error:
            self._warn_unless_no_fact(path, error)
            return ""

    def whole_text(self, path: str) -> str:
        """As :meth:`text` for files longer than a page (``/proc/devices``)."""
        try:
            return Path(self._root, path).read_text(errors="replace")
        except OSError as error:
            self._warn_unless_no_fact(path, error)
            return ""

    def integer(self, path: str, base: int = 10) -> int | None:
        """The attribute as a number (``base=16`` takes ``0x8086``); ``None`` where there is no such fact."""
        value = self.text(path)
        if not value:
            return None
        try:
            return int(value, base)
        except ValueError:
            self.warnings.append(f"{self._root}/{path}: not a number: {value[:40]!r}")
            return None

    def link(self, path: str) -> str:
        """The text of a symbolic link; empty where there is none."""
        folder, _, name = path.rpartition("/")
        return self.links(folder, (name,)).get(name, "")

    def links(self, folder: str, names: Iterable[str]) -> dict[str, str]:
        """The texts of those of ``names`` in ``folder`` that are symbolic links."""
        found: dict[str, str] = {}
        try:
            fd = os.open(f"{self._root}/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._warn_unless_no_fact(folder, error)
            return found
        try:
            for name in names:
                try:
                    found[name] = os.readlink(name, dir_fd=fd)
                except OSError as error:
                    self._warn_unless_no_fact(f"{folder}/{name}", error)
        finally:
            os.close(fd)
        return found

    def entries(self, path: str) -> list[str]:
        """Sorted names in a directory; empty where there is none."""
        try:
            with os.scandir(f"{self._root}/{path}") as entries:
                return sorted(entry.name for entry in entries)
        except OSError as error:
            self._warn_unless_no_fact(path, error)
            return []

    def char_device(self, attribute: str, node: str) -> CharDevice | None:
        """The character device whose ``MAJOR:MINOR`` stands in ``attribute``; ``node`` is its path."""
        value = self.text(attribute)
        major, colon, minor = value.partition(":")
        if not (colon and major.isdigit() and minor.isdigit()):
            if value:
                self.warnings.append(f"{self._root}/{attribute}: not MAJOR:MINOR: {value[:40]!r}")
            return None
        return CharDevice(node, int(major), int(minor))

    def home(self, path: str) -> str:
        """Where one class entry lives, as :meth:`homes`."""
        folder, _, name = path.rpartition("/")
        return self.homes(folder, (name,)).get(name, "")

    def homes(self, folder: str, names: Iterable[str]) -> dict[str, str]:
        """Where class entries live, for example
        ``devices/pci0000:20/0000:20:00.0/0000:21:00.0/net/eth0``.

        A class entry is a link to its home. In a tree made by hand it may be a plain directory with a
        ``device`` link; then the device's home is the answer. A name with neither is left out.
        """
        names = tuple(names)
        found = self.links(folder, names)
        for name in names:
            target = found.get(name) or self.link(f"{folder}/{name}/device")
            if target:
                found[name] = self._resolve(f"{folder}/{name}", target)
        return found

    def _resolve(self, path: str, target: str) -> str:
        """The link text itself where it says enough, which saves a walk through the file system."""
        if "devices/" in target or _PCI_ADDRESS.search(target):
            return target
        device = path if Path(self._root, path).is_symlink() else f"{path}/device"
        return os.path.realpath(f"{self._root}/{device}")

    def _warn_unless_no_fact(self, path: str, error: OSError) -> None:
        if error.errno not in _NO_FACT:
            self.warnings.append(f"{self._root}/{path}: {error.strerror}")


def is_pci_address(name: str) -> bool:
    return _PCI_ADDRESS.fullmatch(name) is not None


def nearest_pci_address(home: str) -> str:
    """The last PCI function on a path below ``devices/``; empty where there is none.

    Virtio and auxiliary devices stand below their function: ``.../0000:c1:00.0/virtio6/net/eth1``.
    """
    for component in reversed(home.split("/")):
        if _PCI_ADDRESS.fullmatch(component):
            return component
    return ""
