"""RDMA devices that belong to one namespace each, on a kernel without RDMA: a file says where each one is.

It takes the place of the few calls of RDMA netlink that move a device; what the driver makes of them is its
own. ``tests/machine`` has the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from dranet.driver import node_reader, planner, pod_devices
from dranet.kernel.attachment import attach, checks, detach
from dranet.kernel.namespaces.netns import NetworkNamespace, read_netns_id
from dranet.model.device import RdmaIdentity
from dranet.model.plan import PreparedDevice


class RdmaFiles:
    """``FOLDER/NAME.rdma`` names the namespace of a pod that has the device; on the host there is none. A
    namespace that has ended has nothing any more: no later one has its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str) -> str:
        """The namespace that has it, as ``read_netns_id`` names it; empty: the host's."""
        path = self._folder / f"{name}.rdma"
        return path.read_text() if path.exists() else ""

    def attach_rdma(self, identity: RdmaIdentity, pod: NetworkNamespace) -> bool:
        if self.has_rdma(identity, pod):
            return False
        (self._folder / f"{identity.name}.rdma").write_text(read_netns_id(pod))
        return True

    def has_rdma(self, identity: RdmaIdentity, netns: NetworkNamespace) -> bool:
        return self.find(identity.name) == read_netns_id(netns)

    def find_rdma_name(self, identity: RdmaIdentity, _: NetworkNamespace) -> str:
        return identity.name

    def restore_rdma_name(self, identity: RdmaIdentity, _: NetworkNamespace) -> bool:
        return not self.find(identity.name)

    def detach_rdma(self, identity: RdmaIdentity, _: NetworkNamespace, pod: NetworkNamespace) -> bool:
        if not self.has_rdma(identity, pod):
            return False
        (self._folder / f"{identity.name}.rdma").unlink()
        return True


def identify_path(netns_path: str) -> str:
    """A namespace as :meth:`RdmaFiles.find` names it."""
    with NetworkNamespace.open(netns_path) as netns:
        return read_netns_id(netns)


def _is_exclusive(_: list[str]) -> bool:
    return True


def _never_moved(_: PreparedDevice) -> bool:
    """The stand-in's sysfs shows a device wherever it is; that of a namespace of this kernel shows none."""
    return False


_MODULES: Sequence[ModuleType] = (attach, checks, detach, node_reader, planner, pod_devices)
"""Where the calls are made."""


def install(folder: Path) -> None:
    """For the rest of the process."""
    files = RdmaFiles(folder)
    stand_ins = {
        "attach_rdma": files.attach_rdma,
        "has_rdma": files.has_rdma,
        "detach_rdma": files.detach_rdma,
        "find_rdma_name": files.find_rdma_name,
        "restore_rdma_name": files.restore_rdma_name,
        "read_netns_exclusive": _is_exclusive,
        "_has_moved": _never_moved,
    }
    for name, stand_in in stand_ins.items():
        callers = [module for module in _MODULES if hasattr(module, name)]
        assert callers, f"nobody calls {name}: it has another name by now"
        for module in callers:
            setattr(module, name, stand_in)
