"""The cables and switches: the node's NICs as links of the running kernel, and the network behind them.

Each NIC is one end of a veth pair in the node's network namespace; the other end, in a namespace of its own
called ``fabric``, is a port of a bridge. There is one bridge for each network of the hardware file. The
bridge's address is the network's gateway, and the fabric forwards between networks, as the switches of a
rail-optimised cluster do. A further node's NICs are plugged into the fabric of the first. A veth stands in
for a physical NIC: it moves between namespaces as one, but dies with its namespace, for which
:func:`reclaim` makes up.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from dranet.errors import KernelError
from dranet.kernel.namespaces.netns import NetworkNamespace
from testbed.node.hardware import Hardware, Network, PlacedNic
from testbed.node.iproute import NETNS_FOLDER, in_namespace, read_json, run_batch, run_ip

FABRIC_NETNS = "fabric"

_PORTS_PER_NODE = 1_000
_FIRST_PORT_INDEX = 640_000
"""Interface indexes of the fabric's ports: far from any that the kernel gives out by itself, so that the
peer's ``IFLA_LINK`` alone identifies a link's NIC, whatever its name, index, MAC or namespace."""
PORT_INDEXES = range(_FIRST_PORT_INDEX, _FIRST_PORT_INDEX + 100 * _PORTS_PER_NODE)
"""The indexes of all nodes."""


class Fabric:
    """Builds the links of a node; the calling process is in the node's network namespace.

    Node 0 makes the fabric. A node with another ``number`` finds it under :attr:`netns_path`.
    """

    def __init__(self, hardware: Hardware, number: int = 0) -> None:
        self._hardware = hardware
        self._number = number
        self.netns_path = NETNS_FOLDER / FABRIC_NETNS

    @property
    def nic_by_peer(self) -> Mapping[int, PlacedNic]:
        """The constant identity of each NIC: its fabric port's interface index (``IFLA_LINK``)."""
        first = _FIRST_PORT_INDEX + _PORTS_PER_NODE * self._number
        return dict(enumerate(self._hardware.nics(), first))

    def build(self) -> None:
        """Make the fabric, plug the NICs in, give them addresses and routes, and set everything up.

        Raises:
            KernelError: the kernel refused a link, an address or a route.
        """
        _skip_duplicate_address_detection()
        if not self._number:
            run_ip("netns", "add", FABRIC_NETNS)
            run_batch(self._switches(), netns=FABRIC_NETNS)
        run_batch(self._cables(os.getpid()), netns=FABRIC_NETNS)
        with NetworkNamespace.open(self.netns_path) as netns:
            netns.run(_forward_between_networks)
        run_batch(self._node_side())

    def _switches(self) -> Iterator[str]:
        yield "link set lo up"
        for name, network in self._hardware.networks.items():
            yield f"link add br-{name} type bridge stp_state 0 mcast_snooping 0"
            yield f"address add {network.gateway} dev br-{name}"
            yield f"link set br-{name} up"

    def _cables(self, node_pid: int) -> Iterator[str]:
        for index, nic in self.nic_by_peer.items():
            port, mtu = f"sw-{index}", nic.network.mtu
            yield (
                f"link add {port} index {index} mtu {mtu} type veth peer name {nic.nic.ifname} "
                f"mtu {mtu} address {nic.nic.mac} netns {node_pid}"
            )
            yield f"link set {port} master br-{nic.nic.network} up"

    def _node_side(self) -> Iterator[str]:
        yield "link set lo up"
        for nic in self._hardware.nics():
            yield f"address add {nic.nic.address} broadcast + dev {nic.nic.ifname}"
            yield f"link set {nic.nic.ifname} up"
            yield from _routes(nic.nic.ifname, nic.network)


def _routes(ifname: str, network: Network) -> Iterator[str]:
    for route in network.routes:
        yield f"route add {route.to} via {network.gateway.ip} dev {ifname} proto static metric {route.metric}"


def _forward_between_networks() -> None:
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _skip_duplicate_address_detection() -> None:
    """IPv6 addresses are usable at once: this fabric has no other hosts, and a node that boots in a third of
    a second would otherwise change for two more."""
    for name in ("all", "default"):
        setting = Path("/proc/sys/net/ipv6/conf", name, "accept_dad")
        if setting.exists():
            setting.write_text("0")


def reclaim(netns_path: str, peers: Container[int]) -> None:
    """Bring the links whose peer has one of these indexes to the calling process's network namespace.

    Each comes back down and without addresses, under the name it had inside, or as ``dev<ifindex>`` where
    that name is taken (``default_device_exit_net`` in ``net/core/dev.c``). To be called right before the
    namespace ends. A driver that can still find the namespace by then may put a NIC back into it, which the
    kernel rules out.

    Raises:
        KernelError: the kernel refused the move.
    """
    taken = {str(link["ifname"]) for link in read_json("ip", "-json", "link")}
    for link in find_links(netns_path, peers):
        name = str(link["ifname"])
        target = f"dev{link['ifindex']}" if name in taken else name
        taken.add(target)
        try:
            _move_home(netns_path, name, target)
        except KernelError:
            if any(left["ifname"] == name for left in find_links(netns_path, peers)):
                raise  # else the driver was quicker


def find_links(netns_path: str, peers: Container[int]) -> list[Mapping[str, Any]]:
    """The links of a namespace whose peer has one of these indexes, as ``ip`` describes them."""
    found = read_json(*in_namespace(netns_path, "ip", "-json", "-details", "address"))
    return [link for link in found if link.get("link_index", 0) in peers]


def _move_home(netns_path: str, name: str, target: str) -> None:
    # The pid names the namespace of this process. The kernel drops the addresses with the move; once home the
    # link is the driver's, which renames it and gives it its own addresses back.
    move = ("link", "set", name, "netns", str(os.getpid()), "name", target)
    read_json(*in_namespace(netns_path, "ip", "link", "set", name, "down"))
    read_json(*in_namespace(netns_path, "ip", *move))
