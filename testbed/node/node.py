"""A node made of files and links: hardware as a sysfs tree, NICs as links of the running kernel.

It is the driver's *node* and nothing else: the kernel's part, not Kubernetes'. It must run inside the
private tree of ``isolation``, whose network namespace is then the node's, and it must not import anything
that decides for the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dranet.errors import KernelError
from testbed.node.fabric import Fabric, find_links, reclaim
from testbed.node.follower import LinkFollower
from testbed.node.hardware import Hardware, PlacedNic
from testbed.node.hoststate import HostState, read_host_state
from testbed.node.iproute import read_json
from testbed.node.sysfs_tree import SysfsTree, read_interrupts

UP_SECONDS = 20.0
"""For the kernel to bring links and their IPv6 addresses up: workers of its own do."""


class Node:
    """One node; a context manager. ``sysfs_root`` and ``procfs_root`` are for the driver's settings.

    ``number`` is 0 for the first node of a network, see :class:`~testbed.node.fabric.Fabric`.
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
        """Wait until every NIC is up, so that later scans find the node as it stays."""
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

        See :func:`~testbed.node.fabric.reclaim`.

        Raises:
            KernelError: the kernel refused the move.
        """
        with self._reclaiming:
            reclaim(netns_path, self._fabric.nic_by_peer)

    def nics_in(self, netns_path: str) -> list[tuple[Mapping[str, Any], PlacedNic]]:
        """Our NICs that are in a network namespace now, each with its link as ``ip`` describes it."""
        nics = self._fabric.nic_by_peer
        return [(link, nics[link["link_index"]]) for link in find_links(netns_path, nics)]


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
