"""CDI specs of GPU vendors: which of their devices is a given GPU.

A vendor's CDI device brings what the device nodes alone do not: the driver's libraries, hooks, firmware. Its
tools (``nvidia-ctk cdi generate``, ``amd-ctk``, Intel's generator, and drivers by themselves) write the
files. The device is recognised by its nodes, never by its place in a list: numbers may run otherwise than the
kernel's. A file that is odd, huge or nested without end is passed over, and a name that it has twice."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet.model.facts import CharDevice

log = logging.getLogger(__name__)

VENDOR_KINDS: Mapping[str, str] = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "intel.com/gpu",
    "habana": "intel.com/gaudi",
}
"""The CDI kind of a whole GPU, by vendor as in ``model.facts.Gpu``. What DRA drivers and device plugins write
for their own claims has other kinds (``k8s.gpu.nvidia.com/claim``), and is not ours to give."""

MAX_FILE_BYTES = 1 << 20
"""NVIDIA's spec of eight GPUs has some 50 KiB."""
MAX_FILES = 1024
_MAX_DEVICES = 1024
_MAX_NODES = 256
_MAX_DEPTH = 32

_SUFFIXES = (".json", ".yaml")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_PARTS_FOLDER = "nvidia-caps/"
"""Below ``/dev``: what opens one part of a GPU (MIG). Such a device is less than the GPU."""


class SpecNode(Struct, frozen=True):
    paths: tuple[str, ...]
    """In the container, and on the host where that differs."""
    numbers: tuple[int, int] | None = None
    """Major and minor, where the spec has them."""

    def is_node(self, node: CharDevice) -> bool:
        """Whether it is that node. Numbers count more than a path: an old spec may name another GPU by it."""
        if self.numbers is not None:
            return self.numbers == (node.major, node.minor)
        return node.path in self.paths


class SpecDevice(Struct, frozen=True):
    kind: str
    name: str
    nodes: tuple[SpecNode, ...]

    @property
    def id(self) -> str:
        return f"{self.kind}={self.name}"

    def has(self, node: CharDevice) -> bool:
        return any(found.is_node(node) for found in self.nodes)


class _Read(Struct, frozen=True):
    stamp: tuple[int, int, int]
    devices: tuple[SpecDevice, ...]


class VendorSpecs:
    """Reads the folders; a later one counts more than an earlier one, as for the runtime. A file is read once
    while it does not change; one caller at a time."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._read: dict[Path, _Read] = {}

    def list_devices(self, kind: str) -> tuple[SpecDevice, ...]:
        """Devices of one kind, each name once. Blocking; never fails."""
        found: dict[str, SpecDevice] = {}
        doubled: set[str] = set()
        for folder in self._folders:
            of_folder: dict[str, SpecDevice] = {}
            for device in self._iter_folder(folder):
                if device.kind == kind:
                    doubled |= of_folder.keys() & {device.name}
                    of_folder[device.name] = device
            found |= of_folder
        # The runtime knows no device whose name two files of one folder have.
        return tuple(device for device in found.values() if device.name not in doubled)

    def _iter_folder(self, folder: Path) -> Iterator[SpecDevice]:
        try:
            found = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
        except OSError:
            return  # not there, or not shown to us: no vendor has anything here
        present = set(found[:MAX_FILES])
        for gone in [path for path in self._read if path.parent == folder and path not in present]:
            del self._read[gone]
        for path in sorted(present):
            yield from self._read_file(path)

    def _read_file(self, path: Path) -> tuple[SpecDevice, ...]:
        try:
            with open(path, "rb", opener=_open_without_waiting) as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
                known = self._read.get(path)
                if known is not None and known.stamp == stamp:
                    return known.devices
                is_fit = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES
                content = file.read(MAX_FILE_BYTES) if is_fit else b""
        except OSError:
            self._read.pop(path, None)
            return ()
        self._read[path] = _Read(stamp, _parse_file(path, content) if is_fit else ())
        return self._read[path].devices


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # a named pipe has no other end


def choose_device(
    devices: Iterable[SpecDevice], own: Collection[CharDevice], others: Collection[CharDevice], uuid: str = ""
) -> SpecDevice | None:
    """The device that is the whole GPU and no other. ``own`` are the nodes of this GPU alone, without what
    GPUs share; ``others`` those of the node's other GPUs. The name ``uuid`` is preferred: a number may mean
    another GPU after a boot."""
    fitting = [device for device in devices if _is_whole_gpu(device, own, others)]
    return min(fitting, key=lambda device: _rank(device.name, uuid), default=None)


def _is_whole_gpu(device: SpecDevice, own: Collection[CharDevice], others: Collection[CharDevice]) -> bool:
    is_part = any(_PARTS_FOLDER in path for node in device.nodes for path in node.paths)
    if device.name == "all" or is_part or not own:
        return False
    return all(device.has(node) for node in own) and not any(device.has(node) for node in others)


def _rank(name: str, uuid: str) -> tuple[bool, bool, int, str]:
    is_number = name.isdecimal() and name.isascii()
    return (not uuid or name.lower() != uuid.lower(), not is_number, int(name[:18]) if is_number else 0, name)


# --- one file, in any shape ----------------------------------------------------------------------------


def _parse_file(path: Path, content: bytes) -> tuple[SpecDevice, ...]:
    is_of_interest = path.suffix == ".json" or any(kind.encode() in content for kind in VENDOR_KINDS.values())
    if not is_of_interest:  # YAML costs much more than a look
        return ()
    try:
        spec = json.loads(content) if path.suffix == ".json" else _load_yaml(content)
        return _read_spec(spec)
    except (ValueError, TypeError, RecursionError) as error:
        log.warning("CDI spec %s is passed over: %s", path, str(error).partition("\n")[0][:200])
        return ()


def _load_yaml(content: bytes) -> object:
    """Raises ValueError."""
    import yaml  # costs memory that a node without such a file does not pay

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(content, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            # Nesting would overflow the C stack of libyaml's loader, though not of its parser; what is merged
            # by aliases again and again grows without end.
            if depth > _MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                raise ValueError("nested too deeply, or with aliases")
        return yaml.load(content, Loader=loader)  # noqa: S506  # both are safe loaders
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _read_spec(spec: object) -> tuple[SpecDevice, ...]:
    devices = tuple(_read_devices(spec))
    if len({device.name for device in devices}) < len(devices):
        raise ValueError("it has one device twice")
    return devices


def _read_devices(spec: object) -> Iterator[SpecDevice]:
    if not isinstance(spec, dict) or not isinstance(spec.get("cdiVersion"), str):
        return
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in VENDOR_KINDS.values():
        return
    for_all = tuple(_read_nodes(spec.get("containerEdits")))  # a container with any device also gets these
    for device in _items(spec.get("devices"), _MAX_DEVICES):
        name = device.get("name")
        if isinstance(name, str) and len(name) <= 253 and _DEVICE_NAME.fullmatch(name):
            yield SpecDevice(kind, name, (*_read_nodes(device.get("containerEdits")), *for_all))


def _read_nodes(edits: object) -> Iterator[SpecNode]:
    for node in _items(edits.get("deviceNodes") if isinstance(edits, dict) else None, _MAX_NODES):
        paths = (node.get("path"), node.get("hostPath"))
        texts = tuple(dict.fromkeys(path for path in paths if isinstance(path, str) and path))
        major, minor = node.get("major"), node.get("minor")
        numbers = None
        if isinstance(major, int) and isinstance(minor, int) and major > 0:  # zero also means "not given"
            numbers = (major, minor)
        if texts and node.get("type", "c") in ("c", "u", ""):
            yield SpecNode(texts, numbers)


def _items(value: object, most: int) -> Iterator[dict[Any, Any]]:
    entries = value[:most] if isinstance(value, list) else ()
    return (entry for entry in entries if isinstance(entry, dict))
