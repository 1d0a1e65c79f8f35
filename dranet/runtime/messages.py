"""NRI messages at the door: protobuf to nouns and back. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dranet.errors import ProtocolError
from dranet.model.facts import CharDevice
from dranet.model.gpus import find_cdi_names, is_gpu_variable, may_be_gpu_node, names_gpus
from dranet.model.sandbox import UNLIMITED, Container, ContainerAdjustment, Mount, PodSandbox, Rlimit
from dranet.pb import nri_pb2

_NETWORK = "network"
"""The OCI runtime spec's name of the network namespace; absent for a pod on host networking."""

_CHAR = "c"
"""The type of a character device."""

_RUNNING = (nri_pb2.CONTAINER_RUNNING, nri_pb2.CONTAINER_PAUSED)

_RLIM_INFINITY = (1 << 64) - 1


def parse_pod(message: nri_pb2.PodSandbox) -> PodSandbox:
    """A pod sandbox as the runtime describes it.

    Raises:
        ProtocolError: it has no id.
    """
    if not message.id:
        raise ProtocolError("the runtime named a pod sandbox without an id")
    return PodSandbox(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        netns_path=_netns_path(message),
        pid=message.pid,
        annotations=dict(message.annotations),
    )


def _netns_path(message: nri_pb2.PodSandbox) -> str:
    return next((n.path for n in message.linux.namespaces if n.type == _NETWORK), "")


def parse_container(message: nri_pb2.Container) -> Container:
    """A container as the runtime describes it.

    Raises:
        ProtocolError: it has no id.
    """
    _check_container(message)
    return Container(
        id=message.id,
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
    """One of all containers of the node, with no more of it than tells whose devices it has, and which GPUs.

    Raises:
        ProtocolError: it has no id.
    """
    _check_container(message)
    return Container(
        id=message.id,
        name=message.name,
        pod_sandbox_id=message.pod_sandbox_id,
        mounts=tuple(
            _parse_mount(mount)
            for mount in message.mounts
            if is_our_mount(mount.source) or names_gpus(mount.destination)
        ),
        devices=tuple(device for device in _parse_devices(message) if may_be_gpu_node(device.path)),
        running=message.state in _RUNNING,
        env={name: value for name, value in _parse_env(message) if is_gpu_variable(name)},
        cdi_devices=_parse_cdi_devices(message),
    )


def _parse_devices(message: nri_pb2.Container) -> Iterator[CharDevice]:
    for device in message.linux.devices:
        if device.type == _CHAR:
            yield CharDevice(device.path, device.major, device.minor)


def _parse_env(message: nri_pb2.Container) -> Iterator[tuple[str, str]]:
    """Of a variable that is there twice the last counts, as for the process."""
    for item in message.env:
        name, _, value = item.partition("=")
        yield name, value


def _parse_cdi_devices(message: nri_pb2.Container) -> tuple[str, ...]:
    """Those that the runtime tells, and those of annotations, by which older kubelets pass them."""
    told = (device.name for device in message.CDI_devices)
    return tuple(dict.fromkeys((*told, *find_cdi_names(message.annotations))))


def _check_container(message: nri_pb2.Container) -> None:
    if not message.id:
        raise ProtocolError("the runtime named a container without an id")


def _parse_mount(message: nri_pb2.Mount) -> Mount:
    return Mount(message.source, message.destination, message.type, tuple(message.options))


def _parse_amount(amount: int) -> int:
    return UNLIMITED if amount == _RLIM_INFINITY else amount


def build_adjustment(adjustment: ContainerAdjustment) -> nri_pb2.ContainerAdjustment:
    """What to add to a container. The runtime itself writes the device-cgroup rule of a device."""
    return nri_pb2.ContainerAdjustment(
        mounts=[_build_mount(mount) for mount in adjustment.mounts],
        env=[nri_pb2.KeyValue(key=key, value=value) for key, value in adjustment.env],
        linux=_build_linux(adjustment),
        rlimits=[_build_rlimit(limit) for limit in adjustment.rlimits],
    )


def _build_linux(adjustment: ContainerAdjustment) -> nri_pb2.LinuxContainerAdjustment:
    message = nri_pb2.LinuxContainerAdjustment(devices=[_build_device(d) for d in adjustment.devices])
    if adjustment.memory_nodes:
        message.resources.cpu.mems = adjustment.memory_nodes
    if adjustment.memory_policy is not None:
        message.memory_policy.mode = nri_pb2.MpolMode.Value(adjustment.memory_policy.mode)
        message.memory_policy.nodes = adjustment.memory_policy.nodes
    return message


def _build_mount(mount: Mount) -> nri_pb2.Mount:
    return nri_pb2.Mount(
        source=mount.source, destination=mount.destination, type=mount.type, options=mount.options
    )


def _build_device(device: CharDevice) -> nri_pb2.LinuxDevice:
    message = nri_pb2.LinuxDevice(path=device.path, type=_CHAR, major=device.major, minor=device.minor)
    if device.file_mode is not None:
        message.file_mode.value = device.file_mode
    return message


def _build_rlimit(limit: Rlimit) -> nri_pb2.POSIXRlimit:
    return nri_pb2.POSIXRlimit(
        type=limit.type, soft=_build_amount(limit.soft), hard=_build_amount(limit.hard)
    )


def _build_amount(amount: int) -> int:
    return _RLIM_INFINITY if amount == UNLIMITED else amount
