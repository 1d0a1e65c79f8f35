"""Does for a veth what the kernel does for a physical NIC when its network namespace ends."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from typing import Any

from dranet.errors import KernelError
from testbed.node.iproute import in_namespace, read_json


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
