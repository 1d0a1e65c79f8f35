"""IPoIB interfaces of an RDMA device that moves to a pod: recorded before, restored after.

They are made by the IPoIB client of the RDMA device, which the kernel removes and adds again with each move
(``rdma_dev_change_netns``): the interface is destroyed, and another one made, in the first namespace (before
Linux 6.17) or in that of the RDMA device (since commit f1208b05574f). Either way the host has a bare one when
the device is back. It is known by the PCI function and the port, which are all that stays.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.locate import Side, open_host_side
from dranet.kernel.attachment.record import read_link_state
from dranet.kernel.attachment.restore import restore_link
from dranet.kernel.namespaces.sysfs_mount import open_sysfs
from dranet.kernel.netlink.rtnl import (
    IFLA_INFO_DATA,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    decode,
    dump_links_request,
    parse_link,
    parse_link_data,
    set_link_request,
)
from dranet.kernel.netlink.socket import attribute_text, attribute_u16, nested
from dranet.kernel.sysfs.files import PseudoFiles, nearest_pci_address
from dranet.model.facts import Link
from dranet.model.plan import IpoibState

IFLA_IPOIB_MODE, IFLA_IPOIB_UMCAST = 2, 3
"""``linux/if_link.h``."""
_KIND = "ipoib"


class _Found(NamedTuple):
    link: Link
    payload: bytes
    port: int


def read_ipoib_states(pci_address: str) -> tuple[IpoibState, ...]:
    """Record the IPoIB interfaces of a PCI function, in the calling thread's namespace.

    Raises:
        DeviceError: one has children (partitions), which would end with it, or could not be restored
            (``DeviceBusy``).
        KernelError: netlink failed.
    """
    with open_host_side() as home:
        links = _find_links(home, pci_address)
    for found in links:
        if found.link.lower:
            raise DeviceError(
                f"IPoIB interface {found.link.ifname} is on another one, and would be lost when the RDMA "
                "device moves",
                hint="delete it, or choose another device",
                reason=Reason.DEVICE_BUSY,
            )
    return tuple(
        IpoibState(read_link_state(found.link.ifname), found.port, *_parse_modes(found.payload))
        for found in links
    )


def restore_ipoib(home: Side, state: IpoibState, pci_address: str) -> list[str]:
    """Bring the interface that the kernel made again to its recorded state; returns what still differs.

    Raises:
        KernelError: netlink failed.
    """
    found = _find(home, state, pci_address)
    if found is None:
        return [f"{state.link.ifname}: the kernel made no IPoIB interface again; is ib_ipoib loaded?"]
    link = found.link
    problems = _restore_modes(home, found, state)
    # The first bytes of the address are the number of the new queue pair, which the kernel chooses.
    wanted = replace(state.link, ifindex=link.ifindex, mac=link.mac, permanent_mac=link.permanent_mac)
    return [*problems, *restore_link(home, link, wanted)]


def find_ipoib(side: Side, state: IpoibState, pci_address: str) -> Link | None:
    """The interface that has the recorded one's place, under whatever name."""
    found = _find(side, state, pci_address)
    return found.link if found is not None else None


def _find(side: Side, state: IpoibState, pci_address: str) -> _Found | None:
    links = _find_links(side, pci_address)
    return next((found for found in links if not found.link.lower and found.port == state.port), None)


def _find_links(side: Side, pci_address: str) -> list[_Found]:
    found: list[_Found] = []
    with open_sysfs(side) as root:
        sysfs = PseudoFiles(root, [])
        for payload in side.rtnl.dump(dump_links_request(_KIND)):
            link = decode(parse_link, payload)
            home = f"class/net/{link.ifname}"
            if link.kind == _KIND and nearest_pci_address(sysfs.home(home)) == pci_address:
                found.append(_Found(link, payload, sysfs.integer(f"{home}/dev_port") or 0))
    return found


def _parse_modes(payload: bytes) -> tuple[int | None, int | None]:
    found = parse_link_data(payload, frozenset({IFLA_IPOIB_MODE, IFLA_IPOIB_UMCAST}))
    mode, multicast = (found.get(kind, b"") for kind in (IFLA_IPOIB_MODE, IFLA_IPOIB_UMCAST))
    return _u16(mode), _u16(multicast)


def _u16(value: bytes) -> int | None:
    return int(struct.unpack("=H", value)[0]) if len(value) == 2 else None


def _restore_modes(home: Side, found: _Found, state: IpoibState) -> list[str]:
    """Before the MTU, which the mode bounds."""
    present = _parse_modes(found.payload)
    wanted = ((IFLA_IPOIB_MODE, state.mode), (IFLA_IPOIB_UMCAST, state.user_multicast))
    changes = [
        attribute_u16(kind, value)
        for (kind, value), now in zip(wanted, present, strict=True)
        if value is not None and value != now
    ]
    if not changes:
        return []
    data = nested(IFLA_INFO_DATA, *changes)
    info = nested(IFLA_LINKINFO, attribute_text(IFLA_INFO_KIND, _KIND), data)
    try:
        home.rtnl.request(
            set_link_request(found.link.ifindex, info, operation="set IPoIB mode", link=state.link.ifname)
        )
    except KernelError as refusal:
        return [f"{state.link.ifname}: {refusal.message}"]
    return []
