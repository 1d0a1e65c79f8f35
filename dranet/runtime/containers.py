"""Pods and containers in NRI messages, and the CDI spec files that add devices to containers.

One CDI file per claim, so that claims cannot touch each other and a sweep needs no index. The runtime refuses
a file with an unknown field, a malformed name or a device without edits (SPEC.md of the Container Device
Interface), and then every container that names its devices; so names are checked here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet import files
from dranet.errors import ProtocolError, SettingsError, StoreError
from dranet.model.claim import UNLIMITED, Container, ContainerAdjustment, Mount, PodSandbox, Rlimit
from dranet.model.device import GPU_VARIABLES, find_cdi_names, may_be_gpu_node, names_gpus
from dranet.model.facts import CharDevice
from dranet.pb import nri_pb2

CDI_VERSION = "0.5.0"
"""The lowest that knows what we use: device names that start with a digit, as claim uids do. Runtimes refuse
versions above their own."""

CDI_CLASS = "claim"

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_FOLDER_MODE = 0o755
"""Other drivers and their tools also use the folder."""


class CdiDevice(Struct, frozen=True):
    """What one device of a claim adds to a container. ``char_devices`` become device nodes that the container
    may read and write. The runtime refuses to start the container when the source of one of ``mounts`` does
    not exist."""

    name: str
    char_devices: tuple[CharDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


class CdiSpecs:
    """The spec files of one driver in one folder. Raises SettingsError for a driver's name that cannot be a
    CDI vendor, StoreError where the folder refuses, and ProtocolError for a UID or device that cannot be part
    of a CDI name."""

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
        """Write the claim's file, durable and atomic; replaces an earlier one."""
        path = self._path(claim_uid)
        spec = {
            "cdiVersion": CDI_VERSION,
            "kind": self._kind,
            "devices": [_build_spec_device(claim_uid, device) for device in devices],
        }
        content = json.dumps(spec, indent=1, sort_keys=True).encode()
        try:
            if not self._cdi_dir.is_dir():
                files.make_folder(self._cdi_dir, _FOLDER_MODE, is_setting=True)
            files.replace_file(path, self._temporary(path), content, durable=True)
        except OSError as error:
            raise self._unwritable(path, error) from error

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file, and what a crash left of one being written. Nothing there is fine."""
        path = self._path(claim_uid)
        try:
            files.remove_file(path)
            files.remove_file(self._temporary(path))
        except OSError as error:
            raise self._unwritable(path, error) from error

    def list_claims(self) -> set[str]:
        """Uids of all claims that have a file here, or what a crash left of one."""
        pattern = re.compile(rf"\.?{re.escape(self._prefix)}(?P<uid>{_NAME.pattern})\.json(\.tmp)?")
        try:
            names = [entry.name for entry in self._cdi_dir.iterdir() if files.is_file(entry)]
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise self._unwritable(self._cdi_dir, error) from error
        return {match["uid"] for name in names if (match := pattern.fullmatch(name))}

    def has(self, claim_uid: str) -> bool:
        return self._path(claim_uid).is_file()

    def _path(self, claim_uid: str) -> Path:
        return self._cdi_dir / f"{self._prefix}{_checked_name(claim_uid)}.json"

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


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise ProtocolError(f"{name!r} cannot be part of a CDI device name")
    return name


def _build_spec_device(claim_uid: str, device: CdiDevice) -> Mapping[str, Any]:
    name = _checked_name(f"{claim_uid}-{device.name}")
    edits = {
        # With its type and numbers given, the runtime does not look for the node on the host.
        "deviceNodes": [
            {"path": node.path, "type": "c", "major": node.major, "minor": node.minor, "permissions": "rw"}
            for node in device.char_devices
        ],
        "mounts": [
            {
                "hostPath": mount.source,
                "containerPath": mount.destination,
                "type": mount.type,
                "options": list(mount.options),
            }
            for mount in device.mounts
        ],
        "env": [f"{key}={value}" for key, value in device.env or _marker(claim_uid, device)],
    }
    return {"name": name, "containerEdits": {key: value for key, value in edits.items() if value}}


def _marker(claim_uid: str, device: CdiDevice) -> tuple[tuple[str, str], ...]:
    """A device without edits makes the whole file invalid, so an empty one names itself to the container."""
    if device.char_devices or device.mounts:
        return ()
    return ((f"DRANET_DEVICE_{re.sub('[^A-Z0-9]', '_', device.name.upper())}", claim_uid),)


# --- containers and pods in NRI messages ---

_NETWORK = "network"
"""The OCI runtime spec's name of the network namespace; absent for a pod on host networking."""

_CHAR = "c"
"""The type of a character device."""

_RUNNING = (nri_pb2.CONTAINER_RUNNING, nri_pb2.CONTAINER_PAUSED)

_RLIM_INFINITY = (1 << 64) - 1


def parse_pod(message: nri_pb2.PodSandbox) -> PodSandbox:
    """A pod sandbox as the runtime describes it; raises ProtocolError without an id."""
    if not message.id:
        raise ProtocolError("the runtime named a pod sandbox without an id")
    return PodSandbox(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        netns_path=next((n.path for n in message.linux.namespaces if n.type == _NETWORK), ""),
        pid=message.pid,
        annotations=dict(message.annotations),
    )


def parse_container(message: nri_pb2.Container) -> Container:
    """A container as the runtime describes it; raises ProtocolError without an id."""
    return Container(
        id=_id_of(message),
        name=message.name,
        pod_sandbox_id=message.pod_sandbox_id,
        mounts=tuple(map(_parse_mount, message.mounts)),
        rlimits=tuple(
            Rlimit(limit.type, _parse_amount(limit.soft), _parse_amount(limit.hard))
            for limit in message.rlimits
        ),
        devices=tuple(_parse_devices(message)),
        running=message.state in _RUNNING,
        env=dict(_parse_env(message)),
        memory_nodes=message.linux.resources.cpu.mems,
        cdi_devices=_parse_cdi_devices(message),
    )


def parse_listed_container(message: nri_pb2.Container, is_our_mount: Callable[[str], bool]) -> Container:
    """One of all containers of the node, with only what shows whose devices it has, and which GPUs."""
    return Container(
        id=_id_of(message),
        name=message.name,
        pod_sandbox_id=message.pod_sandbox_id,
        mounts=tuple(
            _parse_mount(mount)
            for mount in message.mounts
            if is_our_mount(mount.source) or names_gpus(mount.destination)
        ),
        devices=tuple(device for device in _parse_devices(message) if may_be_gpu_node(device.path)),
        running=message.state in _RUNNING,
        env={name: value for name, value in _parse_env(message) if name in GPU_VARIABLES},
        cdi_devices=_parse_cdi_devices(message),
    )


def _parse_devices(message: nri_pb2.Container) -> Iterator[CharDevice]:
    for device in message.linux.devices:
        if device.type == _CHAR:
            yield CharDevice(device.path, device.major, device.minor)


def _parse_env(message: nri_pb2.Container) -> Iterator[tuple[str, str]]:
    """The last value of a repeated variable counts, as for the process."""
    for item in message.env:
        name, _, value = item.partition("=")
        yield name, value


def _parse_cdi_devices(message: nri_pb2.Container) -> tuple[str, ...]:
    """Those in the runtime's message, and those of annotations, by which older kubelets pass them."""
    named = (device.name for device in message.CDI_devices)
    return tuple(dict.fromkeys((*named, *find_cdi_names(message.annotations))))


def _id_of(message: nri_pb2.Container) -> str:
    if not message.id:
        raise ProtocolError("the runtime named a container without an id")
    return message.id


def _parse_mount(message: nri_pb2.Mount) -> Mount:
    return Mount(message.source, message.destination, message.type, tuple(message.options))


def _parse_amount(amount: int) -> int:
    return UNLIMITED if amount == _RLIM_INFINITY else amount


def build_adjustment(adjustment: ContainerAdjustment) -> nri_pb2.ContainerAdjustment:
    """What to add to a container. The runtime itself writes the device-cgroup rule of a device."""
    return nri_pb2.ContainerAdjustment(
        mounts=[
            nri_pb2.Mount(source=m.source, destination=m.destination, type=m.type, options=m.options)
            for m in adjustment.mounts
        ],
        env=[nri_pb2.KeyValue(key=key, value=value) for key, value in adjustment.env],
        linux=_build_linux(adjustment),
        rlimits=[
            nri_pb2.POSIXRlimit(type=r.type, soft=_build_amount(r.soft), hard=_build_amount(r.hard))
            for r in adjustment.rlimits
        ],
    )


def _build_linux(adjustment: ContainerAdjustment) -> nri_pb2.LinuxContainerAdjustment:
    message = nri_pb2.LinuxContainerAdjustment(devices=[_build_device(d) for d in adjustment.devices])
    if adjustment.memory_nodes:
        message.resources.cpu.mems = adjustment.memory_nodes
    if adjustment.memory_policy is not None:
        message.memory_policy.mode = nri_pb2.MpolMode.Value(adjustment.memory_policy.mode)
        message.memory_policy.nodes = adjustment.memory_policy.nodes
    return message


def _build_device(device: CharDevice) -> nri_pb2.LinuxDevice:
    message = nri_pb2.LinuxDevice(path=device.path, type=_CHAR, major=device.major, minor=device.minor)
    if device.file_mode is not None:
        message.file_mode.value = device.file_mode
    return message


def _build_amount(amount: int) -> int:
    return _RLIM_INFINITY if amount == UNLIMITED else amount
