"""CDI spec files: what the runtime adds to a container that was given a device of a claim.

One file per claim, written atomically, so that claims cannot touch each other and a sweep needs
no index. Format: SPEC.md of the Container Device Interface (CNCF), whose names and versions are used here.
The runtime refuses a file with an unknown field, a malformed name or a device without edits, and then
every container that names its devices; so names are checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet import files
from dranet.errors import ProtocolError, SettingsError, StoreError
from dranet.model.facts import CharDevice
from dranet.model.sandbox import Mount

CDI_VERSION = "0.5.0"
"""The lowest that knows what we use: device names that start with a digit, as claim uids do. Runtimes refuse
versions above their own."""

CDI_CLASS = "claim"

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_FOLDER_MODE = 0o755
"""Other drivers and their tools also use the folder."""


class CdiDevice(Struct, frozen=True):
    """What one device of a claim adds to a container.

    ``char_devices`` become device nodes that the container may read and write. The runtime refuses to start
    the container when the source of one of ``mounts`` does not exist.
    """

    name: str
    char_devices: tuple[CharDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


class CdiSpecs:
    """The spec files of one driver in one folder.

    Raises:
        SettingsError: the driver's name cannot be a CDI vendor.
    """

    def __init__(self, cdi_dir: Path, driver_name: str) -> None:
        if not _VENDOR.fullmatch(driver_name):
            raise SettingsError(
                f"driver name {driver_name!r} cannot be a CDI vendor name",
                hint="start it with a letter; letters, digits, '-', '_' and '.' may follow",
            )
        self._cdi_dir = cdi_dir
        self._kind = f"{driver_name}/{CDI_CLASS}"
        self._prefix = f"{driver_name}-{CDI_CLASS}_"

    def device_id(self, claim_uid: str, device: str) -> str:
        """The fully qualified name under which a container asks for a device of a claim."""
        return f"{self._kind}={claim_uid}-{device}"

    def write(self, claim_uid: str, devices: Sequence[CdiDevice]) -> None:
        """Write the claim's file, durable and atomic; replaces an earlier one.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: the claim uid, or a device name, cannot be part of a CDI name.
        """
        path = self._path(claim_uid)
        spec = {
            "cdiVersion": CDI_VERSION,
            "kind": self._kind,
            "devices": [_build_device(claim_uid, device) for device in devices],
        }
        content = json.dumps(spec, indent=1, sort_keys=True).encode()
        try:
            if not self._cdi_dir.is_dir():
                files.make_folder(self._cdi_dir, _FOLDER_MODE, is_setting=True)
            files.replace_file(path, self._temporary(path), content, durable=True)
        except OSError as error:
            raise self._unwritable(path, error) from error

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file, and what a crash left of one being written. Nothing there is fine.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: the claim uid cannot be part of a CDI name.
        """
        path = self._path(claim_uid)
        try:
            files.remove_file(path)
            files.remove_file(self._temporary(path))
        except OSError as error:
            raise self._unwritable(path, error) from error

    def list_claims(self) -> set[str]:
        """Uids of all claims that have a file here, or what a crash left of one.

        Raises:
            StoreError: the folder cannot be read.
        """
        pattern = re.compile(rf"\.?{re.escape(self._prefix)}(?P<uid>{_NAME.pattern})\.json(\.tmp)?")
        try:
            names = [entry.name for entry in self._cdi_dir.iterdir() if files.is_file(entry)]
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise self._unwritable(self._cdi_dir, error) from error
        return {match["uid"] for name in names if (match := pattern.fullmatch(name))}

    def has(self, claim_uid: str) -> bool:
        """Whether the claim has its file.

        Raises:
            ProtocolError: the claim uid cannot be part of a CDI name.
        """
        return self._path(claim_uid).is_file()

    def _path(self, claim_uid: str) -> Path:
        _check_name(claim_uid)
        return self._cdi_dir / f"{self._prefix}{claim_uid}.json"

    @staticmethod
    def _temporary(path: Path) -> Path:
        # Runtimes read *.json and *.yaml only. The fixed name lets remove() find it after a crash.
        return path.with_name(f".{path.name}.tmp")

    def _unwritable(self, path: Path, error: OSError) -> StoreError:
        return StoreError(
            f"CDI spec {path}: {error.strerror}",
            hint=files.hint_for(
                error,
                f"make {self._cdi_dir} writable, with free space; the runtime must read that very folder",
            ),
            retryable=True,
        )


def is_name(text: str) -> bool:
    """Whether a text can be part of a device's name; such a one is also safe as part of a path."""
    return _NAME.fullmatch(text) is not None


def _check_name(name: str) -> None:
    if not is_name(name):
        raise ProtocolError(f"{name!r} cannot be part of a CDI device name")


def _build_device(claim_uid: str, device: CdiDevice) -> Mapping[str, Any]:
    name = f"{claim_uid}-{device.name}"
    _check_name(name)
    edits = {
        "deviceNodes": [_build_device_node(node) for node in device.char_devices],
        "mounts": [_build_mount(mount) for mount in device.mounts],
        "env": [f"{key}={value}" for key, value in device.env or _marker(claim_uid, device)],
    }
    return {"name": name, "containerEdits": {key: value for key, value in edits.items() if value}}


def _marker(claim_uid: str, device: CdiDevice) -> tuple[tuple[str, str], ...]:
    """A device without edits makes the whole file invalid, so an empty one names itself to the container."""
    if device.char_devices or device.mounts:
        return ()
    return ((f"DRANET_DEVICE_{re.sub('[^A-Z0-9]', '_', device.name.upper())}", claim_uid),)


def _build_device_node(node: CharDevice) -> Mapping[str, Any]:
    # With its type and numbers given, the runtime does not look for the node on the host.
    return {"path": node.path, "type": "c", "major": node.major, "minor": node.minor, "permissions": "rw"}


def _build_mount(mount: Mount) -> Mapping[str, Any]:
    return {
        "hostPath": mount.source,
        "containerPath": mount.destination,
        "type": mount.type,
        "options": list(mount.options),
    }
