"""The kernel's pseudo file systems: attributes in sysfs and procfs, the node's ``/proc``, network sysctls.

A fact that the kernel does not give is empty or ``None``; a file that ought to be readable and is not becomes
one line of ``warnings``. Files are considered hostile: out-of-tree drivers fill them. Every read is bounded,
never blocks, and returns text that a log and a JSON document can hold.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import kernel_error
from dranet.model.claim import Processor
from dranet.model.facts import CharDevice

_NO_FACT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EOPNOTSUPP})
"""Errors that mean that there is no such fact. ENODEV: the device went away between listing and reading;
EINVAL: it has no meaning now (speed of a link that is down, an empty GID slot); EOPNOTSUPP: the driver does
not implement it (``phys_port_name``)."""

_ATTRIBUTE_BYTES = 4096
"""A sysfs attribute is at most one page; those read here are one short line."""

_WHOLE_BYTES = 256 * 1024
"""``/proc/devices`` has a few kilobytes. The bound is for a file that never ends."""

MOST_ENTRIES = 32_768
"""Names taken from one directory: three times the 10,000 links that a node is expected to bear."""

MOST_WARNINGS = 500
"""Most lines that one reader may write."""

_LONGEST_WARNING = 400

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Opening must not block: a FIFO in the place of a file has no writer."""

_BLANK = " \t\r\n\v\f\0"

_NUMBERS = {10: re.compile(r"[+-]?[0-9]{1,20}"), 16: re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}")}
"""What the kernel prints. ``int`` takes more: underscores, other scripts' digits, thousands of digits."""

_MOST_INTEGER = (1 << 63) - 1

_PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")

_DEVICE_NUMBERS = re.compile(r"([0-9]{1,4}):([0-9]{1,7})")
"""12 and 20 bits (``include/linux/kdev_t.h``)."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""Domain (four digits, five and more behind Intel VMD), bus, device, function."""


class PseudoFiles:
    """Attributes below ``root``. Paths are relative, without a leading slash. ``warnings`` collects one line
    for each thing that could not be read or understood."""

    def __init__(self, root: Path, warnings: list[str]) -> None:
        self._root = str(root)
        self._count = 0
        self.warnings = warnings

    def warn(self, path: str, problem: str) -> None:
        """Add one printable line about ``path``; after 500 a last one reports that there are more."""
        self._count += 1
        if self._count <= MOST_WARNINGS:
            self.warnings.append(_one_line(f"{self._root}/{path}: {problem}"))
        elif self._count == MOST_WARNINGS + 1:
            self.warnings.append(_one_line(f"{self._root}: more problems than these {MOST_WARNINGS} lines"))

    def has(self, folder: str) -> bool:
        try:
            return Path(self._root, folder).is_dir()
        except OSError:
            return False

    def text(self, path: str) -> str:
        """The attribute without surrounding white space; empty where there is no such fact. It is printable:
        what is not comes as U+FFFD, with a warning. More than a page is no fact."""
        # sysfs returns an attribute in one read. More than its bound is not an attribute.
        content = self._read(path, lambda fd: os.read(fd, _ATTRIBUTE_BYTES + 1))
        if len(content) > _ATTRIBUTE_BYTES:
            self.warn(path, f"left out: more than the {_ATTRIBUTE_BYTES} bytes that an attribute can have")
            return ""
        value = content.decode(errors="surrogateescape").strip(_BLANK)
        if value.isprintable():
            return value
        self.warn(path, f"odd bytes in the text: {value[:40]!r}")
        return printable(value)

    def whole_text(self, path: str) -> str:
        """As :meth:`text` for files of many lines (``/proc/devices``): the first 256 KiB, with
        replacements for bytes that are not UTF-8."""
        content = self.content(path, _WHOLE_BYTES + 1)
        if len(content) > _WHOLE_BYTES:
            self.warn(path, f"cut: more than {_WHOLE_BYTES} bytes")
        return content[:_WHOLE_BYTES].decode(errors="replace")

    def content(self, path: str, most: int = _WHOLE_BYTES) -> bytes:
        """The first ``most`` bytes of a file that is no text, or longer than 256 KiB."""
        return self._read(path, lambda fd: _read_up_to(fd, most))

    def _read(self, path: str, read: Callable[[int], bytes]) -> bytes:
        """What ``read`` makes of the open file; nothing where there is no such fact."""
        try:
            fd = os.open(f"{self._root}/{path}", _OPEN_FLAGS)
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    return read(fd)
                self.warn(path, "not a file")
            finally:
                os.close(fd)
        except OSError as error:
            self._warn_unless_no_fact(path, error)
        return b""

    def integer(self, path: str, base: int = 10, least: int = 0, most: int = _MOST_INTEGER) -> int | None:
        """The attribute as a number (``base=16`` takes ``0x8086``); ``None`` where there is no such fact or
        it is not from ``least`` to ``most``."""
        value = self.text(path)
        if not value:
            return None
        number = int(value, base) if _NUMBERS[base].fullmatch(value) else None
        if number is None or not least <= number <= most:
            problem = "not a number" if number is None else f"not from {least} to {most}"
            self.warn(path, f"{problem}: {value[:40]!r}")
            return None
        return number

    def link(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        return self.links(folder, (name,)).get(name, "")

    def links(self, folder: str, names: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            fd = os.open(f"{self._root}/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._warn_unless_no_fact(folder, error)
            return found
        with closing_fd(fd):
            for name in names:
                try:
                    target = os.readlink(name, dir_fd=fd)
                except OSError as error:
                    self._warn_unless_no_fact(f"{folder}/{name}", error)
                else:
                    if self._is_utf8(f"{folder}/{name}", target):
                        found[name] = target
        return found

    def entries(self, path: str) -> list[str]:
        """Return the sorted names in a directory, 32,768 at most; empty if it does not exist. Names that are
        not UTF-8 are left out, since no fact could hold them."""
        try:
            with os.scandir(f"{self._root}/{path}") as entries:
                names = [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
        except OSError as error:
            self._warn_unless_no_fact(path, error)
            return []
        if len(names) > MOST_ENTRIES:
            self.warn(path, f"more than {MOST_ENTRIES} entries: only so many are read")
        return sorted(name for name in names[:MOST_ENTRIES] if self._is_utf8(f"{path}/{name}", name))

    def numbered(self, path: str, prefix: str = "") -> list[int]:
        """The numbers of the entries called ``<prefix><number>`` (``node0``, ``virtfn12``), ascending."""
        named = [name for name in self.entries(path) if name.startswith(prefix)]
        numbers = (parse_number(name.removeprefix(prefix)) for name in named)
        return sorted(number for number in numbers if number is not None)

    def char_device(self, attribute: str, node: str) -> CharDevice | None:
        """Return the character device whose ``MAJOR:MINOR`` is in ``attribute``; ``node`` is its path."""
        value = self.text(attribute)
        numbers = _DEVICE_NUMBERS.fullmatch(value)
        if numbers is None:
            if value:
                self.warn(attribute, f"not MAJOR:MINOR: {value[:40]!r}")
            return None
        return CharDevice(node, int(numbers[1]), int(numbers[2]))

    def home(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        return self.homes(folder, (name,)).get(name, "")

    def homes(self, folder: str, names: Iterable[str]) -> dict[str, str]:
        """Where class entries live: ``devices/pci0000:20/0000:20:00.0/0000:21:00.0/net/eth0``. In a tree made
        by hand an entry may be a plain directory; then its ``device`` link is the answer. A name with neither
        is left out."""
        names = tuple(names)
        found = self.links(folder, names)
        for name in names:
            path = f"{folder}/{name}" if name in found else f"{folder}/{name}/device"
            target = found.get(name) or self.link(path)
            if target:
                found[name] = self._resolve(path, target)
        return found

    def _resolve(self, path: str, target: str) -> str:
        """Use the link text itself where it suffices, which saves a walk through the file system."""
        if "devices/" in target or _PCI_ADDRESS.search(target):
            return target
        home = os.path.realpath(f"{self._root}/{path}")
        return home if self._is_utf8(path, home) else ""

    def _is_utf8(self, path: str, text: str) -> bool:
        """Python shows each byte that is not UTF-8 as a lone surrogate, which JSON cannot carry."""
        if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
            return True
        self.warn(path, f"left out: not UTF-8: {text[:40]!r}")
        return False

    def _warn_unless_no_fact(self, path: str, error: OSError) -> None:
        if error.errno not in _NO_FACT:
            self.warn(path, str(error.strerror))


def _read_up_to(fd: int, most: int) -> bytes:
    """procfs returns a file in many reads."""
    content = b""
    while len(content) < most:
        piece = os.read(fd, most - len(content))
        if not piece:
            break
        content += piece
    return content


def _one_line(text: str) -> str:
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= _LONGEST_WARNING else f"{text[: _LONGEST_WARNING - 3]}..."


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def printable(text: str) -> str:
    """``text`` with U+FFFD for every character that would not print."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def parse_number(text: str) -> int | None:
    """A number as the kernel writes it into a name: up to nine digits, no sign, no leading zero."""
    return int(text) if _PLAIN_NUMBER.fullmatch(text) else None


def is_pci_address(name: str) -> bool:
    return _PCI_ADDRESS.fullmatch(name) is not None


def nearest_pci_address(home: str) -> str:
    """Return the last PCI function on a path below ``devices/``; empty without one. Virtio and auxiliary
    devices are below their function: ``.../0000:c1:00.0/virtio6/net/eth1``."""
    for component in reversed(home.split("/")):
        if _PCI_ADDRESS.fullmatch(component):
            return component
    return ""


# --- the node's ``/proc`` ------------------------------------------------------------------------------
# A container's own has only its processes, and its sysctls are read-only. The root is set once at the start
# from the setting ``procfs_root``; readers of hardware facts get it as an argument. What the root does not
# have (a tree made by hand has no sysctls) is read from the driver's own ``/proc``.

_OWN = Path("/proc")
_OF_PROCESS = re.compile(r"/proc/(\d+/.*)")


class _NodeProc:
    root = _OWN


def sees_node(procfs: PseudoFiles) -> bool:
    return procfs.text("2/comm") == "kthreadd"


def use_node_proc(root: Path) -> None:
    _NodeProc.root = root
    find_node_proc.cache_clear()


@cache
def find_node_proc(part: str) -> str:
    """The path of a part of it: ``sys/net``."""
    root = _NodeProc.root
    return str((root if (root / part).exists() else _OWN) / part)


def find_path_of_process(path: str) -> str:
    """Translate a path from the runtime (``/proc/PID/ns/net``). In a container, the driver's own ``/proc``
    has other processes with the same numbers: 1 is the driver itself, on the node's network."""
    found = _OF_PROCESS.fullmatch(path)
    if found and os.path.lexists(_NodeProc.root / "self"):  # a tree made by hand has no processes
        return str(_NodeProc.root / found.group(1))
    return path


def read_boot_id(procfs_root: Path) -> str:
    """The kernel's random id of this boot (``random(4)``), 36 characters; a ``KernelError`` without it."""
    path = procfs_root / "sys/kernel/random/boot_id"
    try:
        boot_id = path.read_text().strip()
    except OSError as error:
        raise KernelError(
            f"{path}: {error.strerror}",
            errno=error.errno or 0,
            operation="read boot id",
            hint=f"mount the node's /proc at {procfs_root}, read-only, or set --procfs-root to where it is",
        ) from error
    if not boot_id:
        raise KernelError(f"{path}: empty", operation="read boot id")
    return boot_id


def read_uptime(procfs_root: Path) -> float:
    """Seconds since the machine has booted (``proc_uptime(5)``); infinite if unknown."""
    try:
        return float((procfs_root / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return math.inf


def read_boot_clock() -> float:
    """Seconds since boot, including suspends: the same clock after a restart of the driver, independent of
    the time of day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_processor(procfs_root: Path) -> Processor:
    """Read the first processor (``proc_cpuinfo(5)``). Missing fields are empty: ARM has other names."""
    fields: dict[str, str] = {}
    for line in PseudoFiles(procfs_root, []).whole_text("cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.removeprefix(" "))
    family, model = (parse_number(fields.get(name, "")) for name in ("cpu family", "model"))
    return Processor(fields.get("vendor_id", ""), family, model)


# --- network sysctls (``Documentation/networking/ip-sysctl.rst``) --------------------------------------
# They are those of the network namespace of the thread that opens them, so a caller enters the namespace
# first; where ``/proc`` is mounted does not matter. A file is opened by path and read at once: Prepare reads
# a hundred for each link.

SYSCTLS = "sys/net"
"""Below ``/proc``."""
LINK_FOLDERS = ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh")
"""Each has a folder for each link."""

_NO_LINK = frozenset({"all", "default", ".", ".."})
"""In each of ``LINK_FOLDERS``, but of the whole namespace; a link of such a name has no folder of its own."""

_COARSE = frozenset({"base_reachable_time", "retrans_time", "unres_qlen"})
"""Rounded forms of ``base_reachable_time_ms``, ``retrans_time_ms`` and ``unres_qlen_bytes``: writing them
would lose the exact value."""

_READ_BYTES = 4096
_WRITABLE_BY_ANY = 0o222


def read_sysctl(path: str) -> str:
    """The value of ``ipv4/conf/eth1/forwarding``, without the line's end; EIO for a ``stable_secret`` without
    one."""
    try:
        return _read_file(_locate(path))
    except OSError as error:
        raise _refusal("read-sysctl", path, error) from error


def write_sysctl(path: str, value: str) -> str:
    """Write one file, by its path below ``/proc/sys/net``; returns the previous value, empty if it cannot be
    read. A ``KernelError`` also where it does not take the value whole."""
    full = _locate(path)
    before = _read_if_readable(full) or ""
    try:
        _write_file(full, value.encode())
    except OSError as error:
        raise _refusal("set-sysctl", path, error, f" to {value!r}") from error
    return before


def _write_file(full: str, value: bytes) -> None:
    with closing_fd(os.open(full, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
        # The kernel accepts an empty write and does nothing.
        if not value or os.write(descriptor, value) != len(value):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def read_link_sysctls(ifname: str) -> dict[str, str]:
    """The writable sysctls of one link, by ``ipv4/conf/rp_filter``: the key omits the link's own folder.
    Without those that are only the rounded form of another. Empty for a link that does not exist."""
    if not ifname or "/" in ifname or ifname in _NO_LINK:
        return {}
    found: dict[str, str] = {}
    for folder in LINK_FOLDERS:
        # The link may have no such part (IPv6 is off, or its MTU is too small), or be gone.
        with suppress(OSError):
            found |= _read_folder(folder, ifname)
    return found


def link_sysctl_path(ifname: str, key: str) -> str:
    folder, _, name = key.rpartition("/")
    return f"{folder}/{ifname}/{name}"


def _read_folder(folder: str, ifname: str) -> dict[str, str]:
    path = f"{find_node_proc(SYSCTLS)}/{folder}/{ifname}"
    with closing_fd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as place:
        values = ((name, _read_if_readable(name, place)) for name in _list_settable(folder))
        return {f"{folder}/{name}": value for name, value in values if value is not None}


@cache
def _list_settable(folder: str) -> tuple[str, ...]:
    """The files that every link has in this folder, as seen on ``lo``: the kernel has one list for all.
    An ``OSError`` without the folder is not kept: it is asked for again the next time."""
    with os.scandir(f"{find_node_proc(SYSCTLS)}/{folder}/lo") as entries:
        return tuple(
            entry.name
            for entry in entries
            if entry.name not in _COARSE and entry.stat().st_mode & _WRITABLE_BY_ANY
        )


def _read_if_readable(path: str, folder: int | None = None) -> str | None:
    try:
        return _read_file(path, folder)
    except OSError:
        return None


def _read_file(path: str, folder: int | None = None) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(descriptor, _READ_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def _locate(path: str) -> str:
    """The full path of one that stays below the root, else EINVAL. The names of links may have dots."""
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise KernelError(
            f"sysctl {path!r} is not a path below /proc/sys/net", errno=errno.EINVAL, operation="set-sysctl"
        )
    return f"{find_node_proc(SYSCTLS)}/{path}"


def _refusal(operation: str, path: str, error: OSError, detail: str = "") -> KernelError:
    refusal = kernel_error(error.errno or 0, "", f"{operation} {path}{detail}")
    refusal.operation = operation
    if error.errno == errno.EROFS:
        root = find_node_proc(SYSCTLS)
        refusal.hint = (
            f"{root} is read-only for the driver: mount the node's /proc/sys/net into its container, "
            "writable, at sys/net below --procfs-root"
        )
    return refusal
