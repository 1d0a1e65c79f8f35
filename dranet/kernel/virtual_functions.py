"""Make and remove virtual functions of a physical function, and give them their defaults.

The kernel changes the number only from or to zero (``sriov_numvfs`` in ``Documentation/PCI/pci-iov-howto``).
Functions get their driver after their defaults: a driver reads its MAC address when it starts. A process that
dies in between leaves functions without driver or defaults, which the next round completes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dranet.errors import DranetError, KernelError
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.links import open_host_side
from dranet.kernel.attachment.virtual_function import iter_physical_links
from dranet.kernel.namespaces.netns import open_sysfs
from dranet.kernel.netlink.socket import NetlinkSocket, kernel_error
from dranet.kernel.netlink.vf import VfAdmin
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.virtual_functions import VfSettings

_DEVICES = "bus/pci/devices"


@contextmanager
def open_writer() -> Iterator[VfWriter]:
    """In the calling thread's namespace, which is the node's; a container's own ``/sys`` is read-only."""
    with open_host_side() as home, open_sysfs(home, writable=True) as root:
        yield VfWriter(root, home.rtnl)


class VfWriter:
    def __init__(self, root: Path, netlink: NetlinkSocket) -> None:
        """``root`` is a sysfs that can be written."""
        self._root = root
        self._netlink = netlink

    def write_count(self, pci_address: str, count: int, *, autoprobe: bool) -> int:
        """Remove all virtual functions, and make ``count`` without drivers. Returns how many there are: the
        kernel lets a driver make fewer. Raises KernelError."""
        folder = f"{_DEVICES}/{pci_address}"
        self._set_count(folder, 0)
        reached(Failpoint.FUNCTIONS_REMOVED)
        if not count:
            return 0
        self._set_autoprobe(folder, False)
        try:
            made = self._set_count(folder, count)
        except KernelError:
            self._set_autoprobe(folder, autoprobe)
            raise
        reached(Failpoint.FUNCTIONS_MADE)
        return made

    def _set_count(self, folder: str, count: int) -> int:
        """Read back: a driver may refuse without an error, as bnxt does while its link is down."""
        self._write(f"{folder}/sriov_numvfs", str(count))
        made = self._read_count(folder)
        if bool(made) != bool(count):
            raise KernelError(
                f"write {count} to {folder}/sriov_numvfs: it is {made} afterwards",
                operation="write sriov_numvfs",
                hint="is the link of the physical function up? See also the kernel's log",
            )
        return made

    def complete(
        self,
        pci_address: str,
        functions: dict[str, tuple[int, VfSettings]],
        *,
        autoprobe: bool,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[int, list[str]]:
        """Give functions, by PCI address, their defaults and then their drivers. Returns how many were
        changed, and what the driver of the physical function refuses. ``is_stopping`` is asked before each
        function; the next round does the others."""
        changed, problems = 0, list[str]()
        admins = list(iter_physical_links(self._netlink, self._root, pci_address))
        for address, (index, wanted) in functions.items():
            if is_stopping():
                return changed, problems
            try:
                admin = next((one for one in admins if index in one.read()), None)
                if admin is None and wanted.named:
                    raise KernelError(f"{pci_address} has no interface that knows virtual function {index}")
                changed += admin is not None and self._give_defaults(admin, address, index, wanted, problems)
            except DranetError as error:
                problems.append(error.message)
        folder = f"{_DEVICES}/{pci_address}"
        self._set_autoprobe(folder, autoprobe)
        for address in functions if autoprobe else ():
            if is_stopping():
                return changed, problems
            if not self._is_bound(address):
                changed += 1
                try:
                    self._write("bus/pci/drivers_probe", address)
                    reached(Failpoint.FUNCTIONS_DRIVER_BOUND)
                except KernelError as error:
                    problems.append(error.message)
        return changed, problems

    def _give_defaults(
        self, admin: VfAdmin, address: str, index: int, wanted: VfSettings, problems: list[str]
    ) -> bool:
        """One by one, so that a refused one keeps no other from being set. The MAC address is the last: a
        function that loses its driver for it would lose it again with each try of what is refused."""
        changed, present = False, admin.read()[index]
        missing = [part for part in wanted.iter_parts() if part.missing_from(present)]
        for part in sorted(missing, key=lambda part: part.mac is not None):
            self._check_free(address)
            if part.mac is not None:
                self._unbind(address)
            try:
                admin.apply(index, part)
            except DranetError as error:
                problems.append(error.message)
            else:
                changed = True
        if changed:
            reached(Failpoint.FUNCTIONS_DEFAULTS_SET)
        return changed

    def _read_count(self, folder: str) -> int:
        try:
            return int((self._root / folder / "sriov_numvfs").read_text())
        except (OSError, ValueError) as error:
            raise KernelError(
                f"read {folder}/sriov_numvfs: {error}", operation="read sriov_numvfs"
            ) from error

    def _is_bound(self, address: str) -> bool:
        return (self._root / _DEVICES / address / "driver").exists()

    def _check_free(self, address: str) -> None:
        """Another program may have taken it after the last scan, and asks for no lock."""
        if self._is_bound(address) and not PseudoFiles(self._root, []).entries(f"{_DEVICES}/{address}/net"):
            raise KernelError(
                f"{address} has a driver and no interface on the node: a pod, a virtual machine or DPDK may "
                "have it",
                operation="set vf",
            )

    def _unbind(self, address: str) -> None:
        if self._is_bound(address):
            self._write(f"{_DEVICES}/{address}/driver/unbind", address)

    def _set_autoprobe(self, folder: str, autoprobe: bool) -> None:
        """Kernels before 4.12 have no such file and always probe."""
        try:
            if (self._root / folder / "sriov_drivers_autoprobe").read_text().strip() == str(int(autoprobe)):
                return
        except OSError:
            pass
        try:
            self._write(f"{folder}/sriov_drivers_autoprobe", str(int(autoprobe)))
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise

    def _write(self, path: str, text: str) -> None:
        try:
            fd = os.open(self._root / path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise kernel_error(error.errno or 0, "", f"write {text} to {path}", needs="SYS_ADMIN") from error
