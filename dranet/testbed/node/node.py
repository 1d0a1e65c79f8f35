"""A node made of files and links: hardware as a sysfs tree, NICs as links of the running kernel.

It is the driver's *node* and nothing else: the kernel's part, not Kubernetes'. It must run inside the
private tree of ``isolation``, whose network namespace is then the node's, and it must not import anything
that decides for the driver.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dranet.errors import KernelError
from dranet.testbed.node.fabric import Fabric
from dranet.testbed.node.follower import LinkFollower
from dranet.testbed.node.hardware import Hardware, PlacedNic
from dranet.testbed.node.hoststate import HostState, read_host_state
from dranet.testbed.node.interrupts import read_interrupts
from dranet.testbed.node.iproute import in_namespace, read_json
from dranet.testbed.node.sysfs_tree import SysfsTree

UP_SECONDS = 20.0
"""For the kernel to bring links and their IPv6 addresses up: workers of its own do."""


class Node:
    """One node; a context manager. ``sysfs_root`` and ``procfs_root`` are for the driver's settings.

    ``number`` is 0 for the first node of a network, see :class:`~dranet.testbed.node.fabric.Fabric`.
    """

    def __init__(self, hardware: Hardware, work_dir: Path, number: int = 0) -> None:
        self.hardware = hardware
        self._tree = SysfsTree(work_dir, hardware)
        self._fabric = Fabric(hardware, number)
        self._closing = ExitStack()
        self._reclaiming = threading.Lock()
        """Two namespaces that die at once may hold links of one name; the kernel takes them one by one."""

    @property
    def sysfs_root(self) -> Path:
        return self._tree.sysfs_root

    @property
    def procfs_root(self) -> Path:
        return self._tree.procfs_root

    def __enter__(self) -> Self:
        """Write the tree, make the links and follow them.

        Raises:
            KernelError: the kernel refused a link, or it does not come up.
        """
        self._tree.write()
        self._fabric.build()
        self._wait_up()
        follower = LinkFollower(self._tree, self._fabric.nic_by_peer)
        follower.start()
        self._closing.callback(follower.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop following; the links go with the private tree."""
        self._closing.close()

    def _wait_up(self) -> None:
        """So that whoever looks from now on finds the node as it stays."""
        deadline = time.monotonic() + UP_SECONDS
        nics = self._fabric.nic_by_peer
        while down := [
            str(link["ifname"])
            for link in read_json("ip", "-json", "address")
            if link.get("link_index") in nics and not _is_settled(link)
        ]:
            if time.monotonic() > deadline:
                raise KernelError(f"not up after {UP_SECONDS:g} s: {', '.join(down)}")
            time.sleep(0.01)

    def snapshot(self) -> HostState:
        """The whole network state of the node's namespace, and where its NICs' interrupts go."""
        interrupts = read_interrupts(self.procfs_root, self.hardware)
        return HostState(read_host_state().facts | frozenset(interrupts))

    def reclaim(self, netns_path: str) -> None:
        """Do for our NICs in a dying namespace what the kernel does for physical ones.

        Each comes back to the node, down and without addresses, under the name it had inside, or as
        ``dev<ifindex>`` where that name is taken (``default_device_exit_net`` in ``net/core/dev.c``).
        To be called right before the namespace ends; without it a veth would be destroyed. A driver that can
        still find the namespace by then may put a NIC back into it, which the kernel rules out.

        Raises:
            KernelError: the kernel refused the move.
        """
        with self._reclaiming:
            taken = {str(link["ifname"]) for link in read_json("ip", "-json", "link")}
            for link, _ in self.nics_in(netns_path):
                name = str(link["ifname"])
                target = f"dev{link['ifindex']}" if name in taken else name
                taken.add(target)
                try:
                    self._move_home(netns_path, name, target)
                except KernelError:
                    if any(left["ifname"] == name for left, _ in self.nics_in(netns_path)):
                        raise  # else the driver was quicker

    def nics_in(self, netns_path: str) -> list[tuple[Mapping[str, Any], PlacedNic]]:
        """Our NICs that are in a network namespace now, each with its link as ``ip`` describes it."""
        found = read_json(*in_namespace(netns_path, "ip", "-json", "-details", "address"))
        nics = self._fabric.nic_by_peer
        return [(link, nics[link["link_index"]]) for link in found if link.get("link_index") in nics]

    def _move_home(self, netns_path: str, name: str, target: str) -> None:
        # The pid names the node's namespace: this process lives in it. The kernel drops the addresses with
        # the move; once home the link is the driver's, which renames it and gives it its own addresses back.
        move = ("link", "set", name, "netns", str(os.getpid()), "name", target)
        read_json(*in_namespace(netns_path, "ip", "link", "set", name, "down"))
        read_json(*in_namespace(netns_path, "ip", *move))


def _is_settled(link: Mapping[str, Any]) -> bool:
    """Whether it is up, and the kernel will add neither an address nor an address's route by itself."""
    addresses = link.get("addr_info", ())
    return (
        link["operstate"] == "UP"
        and (_is_ipv6_off(link["ifname"]) or any(a["local"].startswith("fe80:") for a in addresses))
        and not any(address.get("tentative") for address in addresses)
    )


def _is_ipv6_off(ifname: str) -> bool:
    setting = Path("/proc/sys/net/ipv6/conf", ifname, "disable_ipv6")
    return not setting.exists() or setting.read_text().strip() == "1"
