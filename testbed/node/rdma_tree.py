"""The RDMA devices of a node, and what the files of each say: RoCE on a NIC, or InfiniBand without one. Pure.

Sources: as for ``sysfs_tree``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address

from testbed.node.hardware import Hardware, Hca, Nic, Part, Placed


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One entry of ``class/infiniband``: where it sits, its name, and the texts of its files."""

    placed: Placed
    name: str
    attributes: dict[str, str]


def find_rdma_devices(hardware: Hardware) -> Iterator[RdmaDevice]:
    """Every RDMA device, in the order of the file."""
    for placed in hardware.placed():
        nic, hca = placed.function.nic, placed.function.hca
        if nic and nic.rdma:
            yield RdmaDevice(placed, nic.rdma, _roce_attributes(nic, placed.part))
        if hca:
            yield RdmaDevice(placed, hca.rdma, _infiniband_attributes(hca, placed.part))


def _roce_attributes(nic: Nic, part: Part) -> dict[str, str]:
    guid = _interface_identifier(nic.mac)
    gid = _link_local(guid)
    return {
        **_attributes(nic.rdma, guid, part),
        "ports/1/link_layer": "Ethernet",
        "ports/1/lid": "0x0",
        "ports/1/gids/0": gid,
        "ports/1/gids/1": gid,
        "ports/1/gid_attrs/types/0": "IB/RoCE v1",
        "ports/1/gid_attrs/types/1": "RoCE v2",
    }


def _infiniband_attributes(hca: Hca, part: Part) -> dict[str, str]:
    return {
        **_attributes(hca.rdma, hca.guid, part),
        "ports/1/link_layer": "InfiniBand",
        "ports/1/lid": "0x11",
        "ports/1/pkeys/0": "0xffff",
        "ports/1/gids/0": _link_local(hca.guid),
        "ports/1/gid_attrs/types/0": "IB/RoCE v1",
    }


def _attributes(name: str, guid: str, part: Part) -> dict[str, str]:
    words = ":".join(guid[i : i + 4] for i in range(0, 16, 4))
    return {
        "node_type": "1: CA",
        "node_guid": words,
        "sys_image_guid": words,
        "node_desc": f"testbed {name}",
        "fw_ver": part.firmware,
        "hca_type": "MT4129",
        "ports/1/state": "4: ACTIVE",
        "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": part.rdma_rate,
        "ports/1/counters/port_rcv_data": "0",
        "ports/1/counters/port_xmit_data": "0",
        "ports/1/hw_counters/out_of_sequence": "0",
    }


def _link_local(guid: str) -> str:
    return IPv6Address(int("fe80000000000000" + guid, 16)).exploded


def _interface_identifier(mac: str) -> str:
    """Modified EUI-64 (RFC 4291, appendix A), 16 hex digits."""
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= 2
    return (octets[:3] + b"\xff\xfe" + octets[3:]).hex()
