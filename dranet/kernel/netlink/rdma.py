"""RDMA devices: the namespace mode of the node, moves between namespaces, ports, and defaults of ``rdma_cm``.
A move must be asked for from the namespace that has the device: no other one knows its index."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dranet.errors import DeviceError, KernelError
from dranet.kernel.namespaces.netns import NetworkNamespace, open_configfs, open_sysfs
from dranet.kernel.netlink.socket import (
    NETLINK_RDMA,
    Message,
    NetlinkSocket,
    Request,
    attribute_text,
    attribute_u32,
    parse_attributes,
    report_unreadable,
)
from dranet.kernel.sysfs.files import PseudoFiles, nearest_pci_address
from dranet.model.device import NamedRdma, RdmaIdentity
from dranet.model.facts import RdmaPort

# The message type is the client (5, NLDEV) shifted by 10 bits, plus the command.
_NLDEV = 5 << 10
RDMA_NLDEV_GET, RDMA_NLDEV_SET, RDMA_NLDEV_SYS_GET = _NLDEV | 1, _NLDEV | 2, _NLDEV | 6
RDMA_ATTR_DEV_INDEX, RDMA_ATTR_DEV_NAME, RDMA_ATTR_NODE_GUID, RDMA_ATTR_NDEV_INDEX = 1, 2, 6, 50
RDMA_ATTR_SYS_NETNS_MODE, RDMA_ATTR_NET_NS_FD = 66, 68
_NETNS_MODE_EXCLUSIVE = 0


def read_netns_exclusive(warnings: list[str]) -> bool:
    """Whether RDMA devices belong to one network namespace each (``rdma system``). ``False`` where the kernel
    has no RDMA netlink; another failure adds a warning and reads as shared."""
    try:
        with NetlinkSocket.open(NETLINK_RDMA) as rdma:
            answers = rdma.request(Request(RDMA_NLDEV_SYS_GET, b"", operation="read RDMA namespace mode"))
            return any(_is_exclusive(answer) for answer in answers)
    except KernelError as error:
        if error.errno != errno.EPROTONOSUPPORT:
            warnings.append(error.message)
        return False


def _is_exclusive(answer: Message) -> bool:
    found = parse_attributes(answer.payload, 0, frozenset({RDMA_ATTR_SYS_NETNS_MODE}))
    return found.get(RDMA_ATTR_SYS_NETNS_MODE, b"\1")[:1] == bytes([_NETNS_MODE_EXCLUSIVE])


def attach_rdma(identity: RdmaIdentity, pod: NetworkNamespace) -> bool:
    """Move an RDMA device from the calling thread's namespace into ``pod``; ``False`` when it was there
    already. ``DeviceNotFound``: it is in neither; EOPNOTSUPP: shared mode, or a driver that cannot move."""
    with NetworkNamespace.current() as home:
        if _move_from_here(identity, home, pod):
            return True
    if has_rdma(identity, pod):
        return False
    raise DeviceError(
        f"RDMA device {identity.name}{describe_driver(identity)} is neither on this node nor in the pod",
        hint=LOST_WITH_LINK,
    )


def detach_rdma(identity: RdmaIdentity, home: NetworkNamespace, pod: NetworkNamespace) -> bool:
    """Move an RDMA device from ``pod`` to ``home``; returns ``False`` when it was not in the pod."""
    # A socket of the pod's namespace is not enough: the kernel compares the device's namespace with that of
    # the thread that asks (ib_device_set_netns_put).
    return pod.run(lambda: _move_from_here(identity, pod, home))


def restore_rdma_name(identity: RdmaIdentity, home: NetworkNamespace) -> bool:
    """Give a device of the calling thread's namespace its recorded name; returns whether it is there. EEXIST:
    another device has it. A tenant may have renamed it, or the kernel, which makes ``ibdev%d`` of a taken
    name."""
    with NetlinkSocket.open(NETLINK_RDMA) as rdma:
        return _restore_name(rdma, identity, home)


def _restore_name(rdma: NetlinkSocket, identity: RdmaIdentity, home: NetworkNamespace) -> bool:
    found = _find(rdma, identity, home)
    if found is not None and found.name != identity.name:
        body = attribute_u32(RDMA_ATTR_DEV_INDEX, found.number)
        body += attribute_text(RDMA_ATTR_DEV_NAME, identity.name)
        rdma.request(Request(RDMA_NLDEV_SET, body, operation="rename RDMA device", link=found.name))
    return found is not None


def has_rdma(identity: RdmaIdentity, netns: NetworkNamespace) -> bool:
    return bool(find_rdma_name(identity, netns))


def find_rdma_name(identity: RdmaIdentity, netns: NetworkNamespace) -> str:
    """The name of the RDMA device in ``netns``; empty where it is not there."""
    with netns.open_netlink(NETLINK_RDMA) as rdma:
        found = _find(rdma, identity, netns)
        return found.name if found is not None else ""


LOST_WITH_LINK = (
    "software RDMA (rxe, siw), and bnxt_re before Linux 6.3, lose the RDMA device when its link moves; it is "
    "there again when it was added again, or its driver bound again"
)


def describe_driver(identity: RdmaIdentity) -> str:
    """The driver of its PCI function, as `` (bnxt_en)``; for the text of an error."""
    if not (identity.node_guid or identity.pci_address):
        return ""  # a record of an earlier version does not have it
    sysfs = PseudoFiles(Path("/sys"), [])
    driver = sysfs.link(f"bus/pci/devices/{identity.pci_address}/driver") if identity.pci_address else ""
    name = driver.rpartition("/")[2] or ("" if identity.pci_address else "software RDMA")
    return f" ({name})" if name else ""


class _Found(NamedTuple):
    name: str
    node_guid: str
    number: int
    """Index in the kernel."""


def _move_from_here(identity: RdmaIdentity, here: NetworkNamespace, target: NetworkNamespace) -> bool:
    with NetlinkSocket.open(NETLINK_RDMA) as rdma:
        return _move(rdma, identity, here, target)


def _move(
    rdma: NetlinkSocket, identity: RdmaIdentity, here: NetworkNamespace, target: NetworkNamespace
) -> bool:
    found = _find(rdma, identity, here)
    if found is None:
        return False
    body = attribute_u32(RDMA_ATTR_DEV_INDEX, found.number)
    body += attribute_u32(RDMA_ATTR_NET_NS_FD, target.fileno())
    try:
        rdma.request(Request(RDMA_NLDEV_SET, body, operation="move RDMA device", link=found.name))
    except KernelError as refusal:
        if refusal.errno == errno.EOPNOTSUPP:
            refusal.message += f"{describe_driver(identity)}: its driver cannot, or the mode is shared"
        raise
    return True


def _find(rdma: NetlinkSocket, identity: RdmaIdentity, netns: NetworkNamespace) -> _Found | None:
    devices = list(_iter_devices(rdma, identity.name))
    name = identity.choose(
        [NamedRdma(device.name, device.node_guid) for device in devices],
        partial(_read_pci_address, netns),
    )
    return next((device for device in devices if device.name == name), None)


def _iter_devices(rdma: NetlinkSocket, name: str) -> Iterator[_Found]:
    wanted = frozenset({RDMA_ATTR_DEV_INDEX, RDMA_ATTR_DEV_NAME, RDMA_ATTR_NODE_GUID})
    for payload in rdma.dump(Request(RDMA_NLDEV_GET, b"", operation="read RDMA devices", link=name)):
        found = parse_attributes(payload, 0, wanted)
        index, guid = found.get(RDMA_ATTR_DEV_INDEX, b""), found.get(RDMA_ATTR_NODE_GUID, b"")
        if len(index) == 4:
            device = found.get(RDMA_ATTR_DEV_NAME, b"").rstrip(b"\0").decode(errors="replace")
            number = int(struct.unpack("=Q", guid)[0]) if len(guid) == 8 else 0
            yield _Found(device, format_guid(number), int(struct.unpack("=I", index)[0]))


def format_guid(number: int) -> str:
    """As sysfs writes it (``0c42:a103:0065:7b22``); empty for none."""
    text = f"{number:016x}"
    return ":".join(text[at : at + 4] for at in range(0, 16, 4)) if number else ""


def _read_pci_address(netns: NetworkNamespace, name: str) -> str:
    with open_sysfs(netns) as root:
        return nearest_pci_address(PseudoFiles(root, []).home(f"class/infiniband/{name}"))


# --- ports of an RDMA device (``rdma/rdma_netlink.h``) --------------------------------------------------
# In exclusive mode sysfs does not show a device that is in a pod: it shows the namespace in which it was
# mounted. RDMA netlink answers for the namespace of the caller.

_PORT_GET = 5 << 10 | 5
_PORT_INDEX, _LID, _PORT_STATE, _PORT_PHYSICAL_STATE = 3, 9, 12, 13

_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYSICAL_STATES = (
    "", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery",
)  # fmt: skip
"""As sysfs writes them (``drivers/infiniband/core/sysfs.c``)."""


def read_ports_here(name: str) -> tuple[RdmaPort, ...] | None:
    """Number, state and link layer of each port, in the calling thread's namespace; ``None`` where there is
    no such device."""
    with NetlinkSocket.open(NETLINK_RDMA) as rdma:
        index = next((found.number for found in _iter_devices(rdma, name) if found.name == name), None)
        if index is None:
            return None
        request = Request(_PORT_GET, attribute_u32(RDMA_ATTR_DEV_INDEX, index), 0, "read ports", name)
        return tuple(_parse_port(payload) for payload in rdma.dump(request))


def _parse_port(payload: bytes) -> RdmaPort:
    wanted = frozenset({_PORT_INDEX, _LID, _PORT_STATE, _PORT_PHYSICAL_STATE})
    found = parse_attributes(payload, 0, wanted)
    return RdmaPort(
        number=_u32(found.get(_PORT_INDEX, b"")) or 0,
        state=_named(_STATES, found.get(_PORT_STATE, b"")),
        phys_state=_named(_PHYSICAL_STATES, found.get(_PORT_PHYSICAL_STATE, b"")),
        link_layer="InfiniBand" if _LID in found else "Ethernet",  # only an InfiniBand port has a LID
    )


def _named(names: tuple[str, ...], value: bytes) -> str:
    return names[value[0]] if value and value[0] < len(names) else ""


def _u32(value: bytes) -> int | None:
    return int(struct.unpack("=I", value)[0]) if len(value) == 4 else None


# --- defaults of ``rdma_cm``: the version of RoCE, and the type of service, of each port ---------------
# An administrator sets them in configfs, in a folder made for it (``rdma_cm/mlx5_0/ports/1``). They belong to
# the connection manager's client of the device, which is removed and added again when the device changes its
# network namespace: what was set is lost then. The folder is a view, by name and of any namespace, and may be
# created for a read (``drivers/infiniband/core/cma_configfs.c``). Without configfs or the folder ``rdma_cm``
# the settings do not exist.

_FILES = ("default_roce_mode", "default_roce_tos")
_OPERATION = "rdma-cm"


def read_cm_defaults(rdma_device: str) -> Mapping[str, str]:
    """What each port of a device has, by ``1/default_roce_mode``; empty if the kernel does not report it."""
    try:
        with _open_folder(rdma_device) as ports:
            return dict(_iter_files(ports)) if ports is not None else {}
    except (OSError, KernelError) as error:
        if error.errno != errno.ENODEV:  # rdma_cm does not serve the device (EFA)
            report_unreadable(rdma_device, "rdma_cm", _explain(error, rdma_device, "read"))
        return {}


def restore_cm_defaults(rdma_device: str, wanted: Mapping[str, str]) -> list[str]:
    """Write what differs; returns one line for each that could not be written."""
    if not wanted:
        return []
    try:
        with _open_folder(rdma_device) as ports:
            if ports is None:
                return [f"rdma_cm of {rdma_device}: its folder in configfs is gone"]
            return list(_iter_refusals(ports, rdma_device, wanted))
    except (OSError, KernelError) as error:
        return [_explain(error, rdma_device, "restore").message]


def _iter_files(ports: Path) -> Iterator[tuple[str, str]]:
    """A port of InfiniBand has neither a mode nor a type of service."""
    for port in sorted(ports.iterdir()):
        for file in _FILES:
            with suppress(OSError):
                yield f"{port.name}/{file}", Path(port, file).read_text().strip()


def _iter_refusals(ports: Path, rdma_device: str, wanted: Mapping[str, str]) -> Iterator[str]:
    found = dict(_iter_files(ports))
    for name, value in wanted.items():
        if found.get(name) == value:
            continue
        try:
            Path(ports, name).write_text(value)
        except OSError as error:
            what = f"rdma_cm {name} of {rdma_device}"
            yield f"{what}: wanted {value}, found {found.get(name, 'nothing')}: {error.strerror}"


@contextmanager
def _open_folder(rdma_device: str) -> Iterator[Path | None]:
    """The ports of a device; the folder is taken away again where it was not there."""
    with open_configfs() as root:
        if root is None or not Path(root, "rdma_cm").is_dir():
            yield None
            return
        folder = Path(root, "rdma_cm", rdma_device)
        was_there = folder.is_dir()
        folder.mkdir(exist_ok=True)
        try:
            yield folder / "ports"
        finally:
            if not was_there:
                with suppress(OSError):
                    folder.rmdir()


def _explain(error: OSError | KernelError, rdma_device: str, what: str) -> KernelError:
    if isinstance(error, KernelError):
        return error
    number = error.errno or errno.EIO
    text = f"{what} rdma_cm's defaults of {rdma_device}: {error.strerror}"
    return KernelError(text, errno=number, operation=_OPERATION)
