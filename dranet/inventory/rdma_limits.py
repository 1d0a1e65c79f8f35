"""RDMA devices that cannot go where their claim wants them, told by their drivers.

Two limits of kernel drivers, neither of which the kernel reports before an attempt:

* Some RDMA devices end when their link leaves its namespace: software ones (rxe and siw unregister on
  ``NETDEV_UNREGISTER``), and those of bnxt_re before Linux 6.3, which made it an auxiliary driver.
* Some cannot change their namespace: the kernel asks for ``disassociate_ucontext``, which EFA does not have,
  nor rxe in Linux 6.12; the move is refused with EOPNOTSUPP.
"""

from __future__ import annotations

import re

from dranet.model.facts import PciFunction, RdmaDevice

_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,4})")
_BNXT, _BNXT_IS_AUXILIARY = "bnxt_en", (6, 3)
_IMMOBILE_DRIVERS = frozenset({"efa"})
"""Drivers of the PCI function."""


def find_loss(rdma: RdmaDevice, function: PciFunction | None, kernel: str) -> str:
    """Why the RDMA device ends when its link moves, or empty.

    ``kernel`` is the release (``6.1.0-28-amd64``). A distribution may have brought the newer driver to an
    older kernel, so what the driver binds to counts first; an unknown release counts as a new one.
    """
    if not rdma.pci_address:
        return "it is software RDMA (rxe, siw)"
    found = _RELEASE.match(kernel)
    is_bnxt = function is not None and function.driver == _BNXT
    if not is_bnxt or rdma.auxiliary or not found:
        return ""
    is_old = (int(found[1]), int(found[2])) < _BNXT_IS_AUXILIARY
    return f"its driver is bnxt_re of Linux {found[0]}, before 6.3" if is_old else ""


def find_immobility(rdma: RdmaDevice, function: PciFunction | None) -> str:
    """Why the RDMA device cannot move between namespaces, as exclusive mode demands, or empty."""
    if not rdma.pci_address:
        return "software RDMA (rxe, siw) cannot"
    if function is not None and function.driver in _IMMOBILE_DRIVERS:
        return f"the driver {function.driver} cannot"
    return ""
