"""``nccl.conf``: NCCL's settings for exactly the devices of a pod, each with its reason in a comment.

NCCL (``src/misc/param.cc``) takes lines ``NAME=value``, of at most 1,023 bytes a side, and sets only what the
environment does not have already. Releases before 2.26 know no comments, and take the text before an ``=``
as a name, so comments contain no such sign.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from ipaddress import ip_interface

from msgspec import Struct

from dranet.claims.nccl.devices import GidChoice, PodNic
from dranet.model.workload import AUTO, NcclSettings

CONF_FILE = "NCCL_CONF_FILE"
TOPO_FILE = "NCCL_TOPO_FILE"
IB_HCA = "NCCL_IB_HCA"
GID_INDEX = "NCCL_IB_GID_INDEX"
CROSS_NIC = "NCCL_CROSS_NIC"
SOCKET_IFNAME = "NCCL_SOCKET_IFNAME"

_MOST_BYTES = 1023
_COMMENT_CHARACTERS = 400
"""NCCL reads lines in pieces of 4,096 bytes."""
_SEPARATE_RAILS = 0
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
        *_describe(inputs.nics, inputs.others),
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


def _describe(nics: Sequence[PodNic], others: Sequence[PodNic]) -> Iterator[str]:
    yield "Network devices, those of the first GPU first:" if nics else "The pod has no network devices."
    yield from (f"  {_describe_place(nic)}{_describe_gpu(nic)}" for nic in nics)
    if others:
        yield "Not for NCCL, as their parameters do not ask for this file:"
        yield from (f"  {_describe_place(nic)}" for nic in others)


def _describe_place(nic: PodNic) -> str:
    link = f" ({nic.ifname})" if nic.rdma_device and nic.ifname else ""
    place = f" at {nic.device.pci_address}" if nic.device.pci_address else ""
    return f"{nic.name or nic.device.name}{link}{place}"


def _describe_gpu(nic: PodNic) -> str:
    if nic.gpu is None:
        return ""
    far = nic.distance.name if nic.distance is not None else "unknown distance"
    return f", {far} from the GPU at {nic.gpu.pci_address or nic.gpu.name}"


def _settings(inputs: ConfigInput) -> Iterator[tuple[str, str, str]]:
    """Name, value (empty: left to NCCL), reason."""
    settings = inputs.settings
    if settings.topology_file:
        why = inputs.topology_problem or "How these devices and the GPUs hang together."
        yield TOPO_FILE, inputs.topology_path, why
    yield from _name_devices(inputs.nics)
    if settings.gid_index == AUTO and inputs.gids is not None:
        index = inputs.gids.index
        yield GID_INDEX, "" if index is None else str(index), _reason(GID_INDEX, index, inputs.gids.why)
    elif settings.gid_index is not None:
        yield GID_INDEX, str(settings.gid_index), "As the claim or its class asks."
    if settings.cross_nic is not None:
        yield _choose_cross_nic(inputs.nics, settings.cross_nic)
    if settings.socket_interface:
        name = f"={settings.socket_interface}"
        yield SOCKET_IFNAME, name, "As the claim or its class asks, this name alone."
    else:
        yield _choose_socket_interface(inputs)


def _name_devices(nics: Sequence[PodNic]) -> Iterator[tuple[str, str, str]]:
    names = [nic.rdma_device for nic in nics if nic.rdma_device]
    odd = [name for name in names if not is_plain(name)]
    if odd:
        yield IB_HCA, "", "Left to NCCL: a device has a name that no list can have."
    elif names:
        # The sign in front of the list means: these names exactly, mlx5_1 is not mlx5_10.
        yield (
            IB_HCA,
            "=" + ",".join(dict.fromkeys(names)),
            "The RDMA devices that are for NCCL, and no others.",
        )
    else:
        yield IB_HCA, "", "No RDMA device is for NCCL."


def _reason(name: str, value: int | None, why: str) -> str:
    return f"Left to NCCL ({name}): {why}." if value is None else f"The index of {why}."


def _choose_cross_nic(nics: Sequence[PodNic], asked: int) -> tuple[str, str, str]:
    if asked != AUTO:
        return CROSS_NIC, str(asked), "As the claim or its class asks."
    networks = [_networks(nic) for nic in nics]
    are_apart = sum(map(len, networks)) == len(set().union(*networks))
    if len(nics) > 1 and all(networks) and are_apart:
        why = "Each device is in an IP network of its own: a connection stays on one rail."
        return CROSS_NIC, str(_SEPARATE_RAILS), why
    return CROSS_NIC, "", f"Left to NCCL ({CROSS_NIC}): the devices are not each in an IP network of its own."


def _choose_socket_interface(inputs: ConfigInput) -> tuple[str, str, str]:
    """Where NCCL has sockets alone they carry its data, and the cluster's network is not what was claimed."""
    if not any(nic.rdma_device for nic in inputs.nics):
        return SOCKET_IFNAME, "", f"Left to NCCL ({SOCKET_IFNAME}): without RDMA its data also takes it."
    if not is_plain(inputs.uplink):
        return SOCKET_IFNAME, "", f"Left to NCCL ({SOCKET_IFNAME}): no default route of the pod is known."
    return SOCKET_IFNAME, f"={inputs.uplink}", "The interface of the pod's default route, this name alone."


def _networks(nic: PodNic) -> set[str]:
    """Return the subnets of the NIC's addresses; a host address alone has none."""
    interfaces = [ip_interface(address) for address in nic.addresses]
    return {str(i.network) for i in interfaces if i.network.num_addresses > 1 and not i.ip.is_link_local}


def _as_comment(text: str) -> str:
    """On one line that NCCL reads as one, and without the sign that makes a setting of it."""
    plain = "".join(character if " " <= character <= "~" else "?" for character in text)
    return plain.replace("=", "-")[:_COMMENT_CHARACTERS]
