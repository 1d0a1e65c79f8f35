"""What a container gets for its libraries: settings, ``nccl.conf``, variables, memory near its devices.

What the container has already, from its image or from the pod, stays: variables of its environment, and
files for NCCL, RCCL and UCX, as far as its mounts show (images are opaque).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_interface
from posixpath import basename, dirname, normpath
from typing import TypeVar

from msgspec import Struct

from dranet.claims.alignment import Pair, level, pair
from dranet.claims.report import as_gid, pod_rdma_device
from dranet.errors import ClaimError, Reason
from dranet.model.claim import (
    AUTO,
    CONFIG_NAME,
    CONFIG_PATH,
    FOLDER,
    NO_WORKLOAD_SETTINGS,
    TOPOLOGY_NAME,
    TOPOLOGY_PATH,
    GidSlot,
    Mount,
    NcclSettings,
    WorkloadSettings,
)
from dranet.model.device import Device
from dranet.model.facts import Distance
from dranet.model.plan import AddAddress, AttachPlan, PreparedClaim, PreparedDevice

_FIRST_PORT = (1,)


class PodNic(Struct, frozen=True):
    """One network device of a pod."""

    device: Device
    ifname: str = ""
    """In the pod; empty for a device without a link."""
    rdma_device: str = ""
    """The RDMA device that the pod's containers can use, or empty."""
    ports: tuple[int, ...] = _FIRST_PORT
    """Ports of the RDMA device."""
    addresses: tuple[str, ...] = ()
    """In CIDR form, as the plan has them."""
    gpu: Device | None = None
    """The GPU that it is for; ``None`` where none is known."""
    distance: Distance | None = None
    """From that GPU."""

    @property
    def name(self) -> str:
        """By which libraries know it."""
        return self.rdma_device or self.ifname


def list_nics(
    records: Iterable[PreparedClaim],
    gpus: Sequence[Device],
    ports: Mapping[str, tuple[int, ...]],
    is_for: Callable[[WorkloadSettings], bool] = lambda _: True,
) -> tuple[PodNic, ...]:
    """The pod's own network devices: those of the first GPU first, of one GPU the nearest first.

    Args:
        records: those of all claims of the pod.
        gpus: in the order in which the pod counts them.
        ports: the ports of RDMA devices; one port where it is not known.
        is_for: whether a device counts, decided by its parameters. A NIC for storage is not for NCCL, and
            takes no GPU from those that are.
    """
    devices = (device for record in records for device in record.devices)
    own = [one for one in devices if one.plan and not one.admin_access and is_for(one.workload)]
    own.sort(key=lambda one: (one.device.pci_address, one.device.name))
    pairs = pair([one.device for one in own], gpus).pairs

    def rank(index: int) -> tuple[int, int]:
        gpu = pairs[index].gpu
        return len(gpus) if gpu is None else gpu, level(pairs[index].distance)

    return tuple(_describe(own[i], pairs[i], gpus, ports) for i in sorted(range(len(own)), key=rank))


def _describe(
    prepared: PreparedDevice, pairing: Pair, gpus: Sequence[Device], ports: Mapping[str, tuple[int, ...]]
) -> PodNic:
    name = pod_rdma_device(prepared)
    plan = prepared.plan or AttachPlan(prepared.device.name)
    return PodNic(
        prepared.device,
        plan.pod_ifname,
        name,
        ports.get(name) or _FIRST_PORT,
        tuple(step.address.cidr for step in plan.steps if isinstance(step, AddAddress)),
        None if pairing.gpu is None else gpus[pairing.gpu],
        pairing.distance,
    )


_ROCE_V2 = "RoCE v2"


class GidChoice(Struct, frozen=True):
    """``index`` is ``None`` when no index is right for all devices; ``why`` is the reason."""

    index: int | None
    why: str


def choose_gid_index(nics: Iterable[PodNic], tables: Mapping[str, Sequence[GidSlot]]) -> GidChoice:
    """One index for all RDMA devices of a pod.

    It is that of the RoCE v2 GID that is the pod's address (IBTA annex A17), of an IPv4 address first, as
    NCCL does. ``tables`` are by RDMA device.
    """
    found = {
        nic.rdma_device: _find_index(nic.addresses, tables.get(nic.rdma_device, ()))
        for nic in nics
        if nic.rdma_device
    }
    lacking = [name for name, index in found.items() if index is None]
    if not found or lacking:
        what = ", ".join(lacking) or "the pod's devices"
        return GidChoice(None, f"no RoCE v2 GID of the pod's address on {what}")
    indexes = set(found.values())
    if len(indexes) > 1:
        places = ", ".join(f"{name} {index}" for name, index in found.items())
        return GidChoice(None, f"the devices have it at different places: {places}")
    return GidChoice(indexes.pop(), "the RoCE v2 GID of the pod's address")


def _find_index(addresses: Iterable[str], slots: Sequence[GidSlot]) -> int | None:
    v2 = {slot.gid: slot.index for slot in reversed(slots) if slot.type == _ROCE_V2}
    ordered = sorted(addresses, key=lambda address: ":" in address)
    return next((v2[gid] for gid in map(as_gid, ordered) if gid in v2), None)


_T = TypeVar("_T")

_FORK_SAFE, _HUGE_PAGES_SAFE = "RDMAV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"
_SAME_MEANING = {_FORK_SAFE: "IBV_FORK_SAFE"}
"""Another name of libibverbs for the same setting."""


def merge_settings(records: Iterable[PreparedClaim]) -> WorkloadSettings:
    """Merge the settings of all devices of some claims of one pod.

    Raises:
        ClaimError: InvalidConfig: two devices ask for different things of which there is one.
    """
    settings = [
        device.workload
        for record in records
        for device in record.devices
        if device.workload != NO_WORKLOAD_SETTINGS
    ]
    if not settings:
        return NO_WORKLOAD_SETTINGS
    nccl = [one.nccl for one in settings]
    return WorkloadSettings(
        NcclSettings(
            any(one.topology_file for one in nccl),
            any(one.config_file for one in nccl),
            _one("nccl.gidIndex", [one.gid_index for one in nccl], None),
            _one("nccl.crossNic", [one.cross_nic for one in nccl], None),
            _one("nccl.socketInterface", [one.socket_interface for one in nccl], ""),
        ),
        any(one.ucx_net_devices for one in settings),
        any(one.fork_safe for one in settings),
        any(one.huge_pages_safe for one in settings),
        _one("memory.policy", [one.memory_policy for one in settings], ""),
    )


def _one(path: str, values: Iterable[_T], nothing: _T) -> _T:
    asked = [value for value in dict.fromkeys(values) if value != nothing]
    if len(asked) > 1:
        listed = " and ".join("auto" if value == AUTO else str(value) for value in asked)
        raise ClaimError(
            f"{path}: devices of the pod ask for {listed}, and its containers can have one",
            hint="set the same for all devices of the pod, or set it once",
            reason=Reason.INVALID_CONFIG,
        )
    return asked[0] if asked else nothing


def build_environment(
    settings: WorkloadSettings, nics: Sequence[PodNic], files: Collection[str], present: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables to add.

    Args:
        settings: the container's.
        nics: the pod's devices for UCX, in the order of its GPUs.
        files: names of the files that the container gets.
        present: names of the variables that it has.
    """
    wanted = []
    if CONFIG_NAME in files:
        wanted.append((CONF_FILE, CONFIG_PATH))
    elif TOPOLOGY_NAME in files and CONF_FILE not in present:
        # A config file of the container's own may name a topology, over which this variable would win.
        wanted.append((TOPO_FILE, TOPOLOGY_PATH))
    names = dict.fromkeys(name for nic in nics for name in _ucx_names(nic))
    if settings.ucx_net_devices and names:
        wanted.append(("UCX_NET_DEVICES", ",".join(names)))
    if settings.fork_safe:
        wanted.append((_FORK_SAFE, "1"))
    if settings.huge_pages_safe:
        wanted.append((_HUGE_PAGES_SAFE, "1"))
    return tuple(
        (name, value)
        for name, value in wanted
        if name not in present and _SAME_MEANING.get(name) not in present
    )


def _ucx_names(nic: PodNic) -> Iterator[str]:
    """UCX counts ports; a device without RDMA goes by the name of its interface."""
    if nic.rdma_device and is_plain(nic.rdma_device):
        yield from (f"{nic.rdma_device}:{port}" for port in nic.ports)
    elif is_plain(nic.ifname):
        yield nic.ifname


def list_memory_nodes(
    nics: Iterable[PodNic], gpus: Iterable[Device], with_memory: Collection[int] | None
) -> tuple[int, ...]:
    """Return the NUMA nodes of a pod's devices, as far as the node reports them.

    Args:
        nics: those that ask for memory near them.
        gpus: the pod's.
        with_memory: the NUMA nodes that have memory; ``None``: not known. The kernel refuses others.

    Raises:
        ClaimError: MissingFeature: none of them has memory.
    """
    devices = [*(nic.device for nic in nics), *gpus]
    near = sorted({device.numa_node for device in devices if device.numa_node is not None})
    usable = tuple(node for node in near if with_memory is None or node in with_memory)
    if near and not usable:
        raise ClaimError(
            f"memory.policy: the pod's devices are on NUMA nodes without memory: {', '.join(map(str, near))}",
            hint="leave it out for this device",
            reason=Reason.MISSING_FEATURE,
        )
    return usable


VIRTUAL_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
"""Where NCCL and RCCL look for a topology if none is named (``topo.cc``), as clouds give to machines."""


def has_config(mounts: Iterable[Mount]) -> bool:
    """Whether one is a config file of NCCL's, or of RCCL's (``param.cc``)."""
    for place in (_resolve(mount.destination) for mount in mounts):
        if place in ("/etc/nccl.conf", "/etc/rccl.conf") or basename(place) in (".nccl.conf", ".rccl.conf"):
            return True
    return False


def has_ucx_config(mounts: Iterable[Mount]) -> bool:
    """UCX reads one in several folders (``src/ucs/config/parser.c``)."""
    return any(basename(_resolve(mount.destination)) == "ucx.conf" for mount in mounts)


def has_topology(mounts: Iterable[Mount]) -> bool:
    """Whether one is at :data:`VIRTUAL_TOPOLOGY`, or is the folder of it."""
    wanted = _resolve(VIRTUAL_TOPOLOGY)
    return any(_resolve(mount.destination) in (wanted, dirname(wanted)) for mount in mounts)


def has_other(mounts: Iterable[Mount], source: str) -> bool:
    """Whether something else than this source is mounted at the place of the driver's files."""
    wanted = _resolve(FOLDER)
    return any(_resolve(mount.destination) == wanted and mount.source != source for mount in mounts)


def _resolve(path: str) -> str:
    """``/var/run`` is a link to ``/run``, but in old images."""
    path = normpath("/" + path.lstrip("/"))
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


CONF_FILE = "NCCL_CONF_FILE"
TOPO_FILE = "NCCL_TOPO_FILE"
_IB_HCA = "NCCL_IB_HCA"
_GID_INDEX = "NCCL_IB_GID_INDEX"
_CROSS_NIC = "NCCL_CROSS_NIC"
_SOCKET_IFNAME = "NCCL_SOCKET_IFNAME"

_MOST_BYTES = 1023
_COMMENT_CHARACTERS = 400
"""NCCL reads lines in pieces of 4,096 bytes."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
"""A name of an RDMA device that fits into lists of NCCL and UCX, which are separated by commas and colons."""


class ConfigInput(Struct, frozen=True):
    """What the file of one container depends on."""

    pod: str
    """``namespace/name``."""
    container: str
    nics: Sequence[PodNic]
    """The devices for NCCL, in the order of the GPUs."""
    settings: NcclSettings
    gids: GidChoice | None = None
    """Where the setting is ``auto``."""
    topology_path: str = ""
    """Path in the container; empty without the file."""
    topology_problem: str = ""
    """Why the file is missing although the claim asks for it."""
    is_read: bool = True
    """Whether NCCL reads the file: the container has no other config file."""
    uplink: str = ""
    """The interface by which the pod reaches the cluster's network; empty: not known."""
    environment: Collection[str] = ()
    """Names that the container's environment has."""
    others: Sequence[PodNic] = ()
    """The pod's devices that do not ask for the file, for example NICs for storage."""


def is_plain(name: str) -> bool:
    """Whether a list of device names can have this one."""
    return _PLAIN_NAME.fullmatch(name) is not None


def render_config(inputs: ConfigInput) -> str:
    """The file: the same input gives the same text."""
    lines = [
        f"Written by dranet for container {inputs.container} of pod {inputs.pod}.",
        "Variables of the container's environment override these lines.",
        *([] if inputs.is_read else ["NCCL does not read this file: the container has one of its own."]),
        *_describe_order(inputs.nics, inputs.others),
    ]
    text = [f"# {_as_comment(line)}" for line in lines]
    for name, value, why in _settings(inputs):
        text += ["", f"# {_as_comment(why)}"]
        if name in inputs.environment:
            text.append(f"# {name} is set in the environment of the container, so not here.")
        elif len(value.encode()) > _MOST_BYTES:
            text.append(f"# Left out: {name} would be longer than the {_MOST_BYTES} bytes that NCCL takes.")
        elif value:
            text.append(f"{name}={value}")
    return "\n".join([*text, ""])


def _describe_order(nics: Sequence[PodNic], others: Sequence[PodNic]) -> Iterator[str]:
    yield "Network devices, those of the first GPU first:" if nics else "The pod has no network devices."
    for nic in nics:
        far = "unknown distance" if nic.distance is None else nic.distance.name
        gpu = f", {far} from the GPU at {nic.gpu.pci_address or nic.gpu.name}" if nic.gpu else ""
        yield f"  {_describe_place(nic)}{gpu}"
    if others:
        yield "Not for NCCL, as their parameters do not ask for this file:"
        yield from (f"  {_describe_place(nic)}" for nic in others)


def _describe_place(nic: PodNic) -> str:
    link = f" ({nic.ifname})" if nic.rdma_device and nic.ifname else ""
    place = f" at {nic.device.pci_address}" if nic.device.pci_address else ""
    return f"{nic.name or nic.device.name}{link}{place}"


def _settings(inputs: ConfigInput) -> Iterator[tuple[str, str, str]]:
    """Name, value (empty: left to NCCL), reason."""
    settings = inputs.settings
    if settings.topology_file:
        why = inputs.topology_problem or "How these devices and the GPUs are connected."
        yield TOPO_FILE, inputs.topology_path, why
    yield from _list_hcas(inputs.nics)
    if settings.gid_index == AUTO and inputs.gids is not None:
        if inputs.gids.index is None:
            yield _GID_INDEX, "", f"Left to NCCL ({_GID_INDEX}): {inputs.gids.why}."
        else:
            yield _GID_INDEX, str(inputs.gids.index), f"The index of {inputs.gids.why}."
    elif settings.gid_index is not None:
        yield _GID_INDEX, str(settings.gid_index), "As the claim or its class asks."
    if settings.cross_nic is not None:
        yield _choose_cross_nic(inputs.nics, settings.cross_nic)
    if settings.socket_interface:
        why = "As the claim or its class asks, this name alone."
        yield _SOCKET_IFNAME, f"={settings.socket_interface}", why
    else:
        yield _choose_socket_interface(inputs)


def _list_hcas(nics: Sequence[PodNic]) -> Iterator[tuple[str, str, str]]:
    names = [nic.rdma_device for nic in nics if nic.rdma_device]
    if not all(map(is_plain, names)):
        yield _IB_HCA, "", "Left to NCCL: a device has a name that no list can have."
    elif names:
        # The sign in front of the list means: these names exactly, mlx5_1 is not mlx5_10.
        listed = "=" + ",".join(dict.fromkeys(names))
        yield _IB_HCA, listed, "The RDMA devices that are for NCCL, and no others."
    else:
        yield _IB_HCA, "", "No RDMA device is for NCCL."


def _choose_cross_nic(nics: Sequence[PodNic], asked: int) -> tuple[str, str, str]:
    if asked != AUTO:
        return _CROSS_NIC, str(asked), "As the claim or its class asks."
    networks = [_networks(nic) for nic in nics]
    if len(nics) < 2:
        why = "there is no second device"
    elif not all(networks):
        why = "a device has no IP network"
    elif sum(map(len, networks)) > len(set().union(*networks)):
        why = "the devices share an IP network"
    else:
        return _CROSS_NIC, "0", "Each device is in an IP network of its own: a connection stays on one rail."
    return _CROSS_NIC, "", f"Left to NCCL ({_CROSS_NIC}): {why}."


def _choose_socket_interface(inputs: ConfigInput) -> tuple[str, str, str]:
    """Where NCCL has sockets alone they carry its data, and the cluster's network is not what was claimed."""
    if not any(nic.rdma_device for nic in inputs.nics):
        return _SOCKET_IFNAME, "", f"Left to NCCL ({_SOCKET_IFNAME}): without RDMA its data also takes it."
    if not is_plain(inputs.uplink):
        return _SOCKET_IFNAME, "", f"Left to NCCL ({_SOCKET_IFNAME}): no default route of the pod is known."
    return _SOCKET_IFNAME, f"={inputs.uplink}", "The interface of the pod's default route, this name alone."


def _networks(nic: PodNic) -> set[str]:
    """Return the subnets of the NIC's addresses; a host address alone has none."""
    interfaces = [ip_interface(address) for address in nic.addresses]
    return {str(i.network) for i in interfaces if i.network.num_addresses > 1 and not i.ip.is_link_local}


def _as_comment(text: str) -> str:
    """On one line that NCCL reads as one, and without the sign that makes a setting of it."""
    plain = "".join(character if " " <= character <= "~" else "?" for character in text)
    return plain.replace("=", "-")[:_COMMENT_CHARACTERS]
