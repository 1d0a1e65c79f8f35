"""Other programs of the node: managers of its links (NetworkManager, systemd-networkd, CNI), and processes.

``/run/NetworkManager/devices/<ifindex>`` shows whether NetworkManager manages a link (no file if it ignored
the link from the start), ``/run/systemd/netif/links/<ifindex>`` the same for systemd-networkd.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import Link
from dranet.model.host_facts import WITHOUT_CONNECTION, Manager, Process

_NM = "run/NetworkManager/devices"
_NETWORKD = "run/systemd/netif/links"
_CNI = "etc/cni/net.d"
_CNI_SUFFIXES = (".conf", ".conflist", ".json")
_CNI_BYTES = 1 << 20

_CNI_KEYS: Mapping[str, tuple[str, ...]] = {
    "host-device": ("device", "pciBusID"),
    "sriov": ("deviceID", "master"),
    "ib-sriov": ("deviceID",),
    "macvlan": ("master",),
    "ipvlan": ("master",),
    "vlan": ("master",),
}
"""Plugins that take a link of the node, or put one on top of it -> where they name it."""

_MANAGED = re.compile(r"^managed=(true|1|yes)\s*$", re.MULTILINE)
_CONNECTION = re.compile(r"^connection-uuid=", re.MULTILINE)
_STATE = re.compile(r"^ADMIN_STATE=(\w+)\s*$", re.MULTILINE)
_NETWORK_FILE = re.compile(r"^NETWORK_FILE=(\S+)\s*$", re.MULTILINE)


def read_managers(root: PseudoFiles, links: Collection[Link]) -> tuple[Manager, ...]:
    """``root`` is the node's own file system."""
    return (*_read_network_manager(root, links), *_read_networkd(root, links), *_read_cni(root))


def _read_network_manager(root: PseudoFiles, links: Collection[Link]) -> Iterator[Manager]:
    for link in links:
        text = root.whole_text(f"{_NM}/{link.ifindex}")
        if _MANAGED.search(text):
            detail = "with a connection of its own" if _CONNECTION.search(text) else WITHOUT_CONNECTION
            yield Manager("NetworkManager", link.ifname, detail)


def _read_networkd(root: PseudoFiles, links: Collection[Link]) -> Iterator[Manager]:
    for link in links:
        text = root.whole_text(f"{_NETWORKD}/{link.ifindex}")
        state = _STATE.search(text)
        if state and state[1] not in ("unmanaged", "pending", "initialized"):
            file = _NETWORK_FILE.search(text)
            yield Manager("systemd-networkd", link.ifname, f"by {file[1]}" if file else state[1])


def _read_cni(root: PseudoFiles) -> Iterator[Manager]:
    for name in root.entries(_CNI):
        if name.endswith(_CNI_SUFFIXES):
            path = f"{_CNI}/{name}"
            for plugin, link in parse_cni(root.content(path, _CNI_BYTES)):
                yield Manager(f"/{path}", link, plugin)


def parse_cni(text: bytes) -> list[tuple[str, str]]:
    """Plugin and the link it names, of a CNI configuration or a list of them."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict):
        return []
    plugins = document.get("plugins")
    candidates = plugins if isinstance(plugins, list) else [document]
    return [found for plugin in candidates if isinstance(plugin, dict) for found in _iter_named(plugin)]


def _iter_named(plugin: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    kind = plugin.get("type")
    for key in _CNI_KEYS.get(kind, ()) if isinstance(kind, str) else ():
        value = plugin.get(key)
        if isinstance(value, str) and value:
            yield str(kind), value


# --- processes ------------------------------------------------------------------------------------------

_COMM_LENGTH = 15
"""The kernel keeps this much of a program's name (``TASK_COMM_LEN``)."""

NAMES = (
    "containerd",
    "crio",
    "irqbalance",
    "NetworkManager",
    "nv-fabricmanager",
    "nvidia-persistenced",
    "systemd-networkd",
)
_BY_COMM = {name[:_COMM_LENGTH]: name for name in NAMES}
_LIMITED = frozenset({"containerd", "crio"})
"""Whose limits containers inherit."""
_KERNEL_THREADS = "kthreadd"
"""Process 2 of the node, and of no container."""
_MEMLOCK = re.compile(r"^Max locked memory\s+(unlimited|[0-9]{1,20})\s", re.MULTILINE)


def read_processes(procfs: PseudoFiles) -> tuple[Process, ...] | None:
    """``None`` where these are not the node's processes."""
    if not sees_node(procfs):
        return None
    found = []
    for pid in procfs.numbered("."):
        name = _BY_COMM.get(procfs.text(f"{pid}/comm"))
        if name is not None:
            found.append(Process(pid, name, _read_memlock(procfs, pid) if name in _LIMITED else ""))
    return tuple(found)


def sees_node(procfs: PseudoFiles) -> bool:
    """Whether these are the processes of the node, not those of a container."""
    return procfs.text("2/comm") == _KERNEL_THREADS


def _read_memlock(procfs: PseudoFiles, pid: int) -> str:
    found = _MEMLOCK.search(procfs.whole_text(f"{pid}/limits"))
    return found[1] if found else ""
