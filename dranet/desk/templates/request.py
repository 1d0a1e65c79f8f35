"""What the user requests of ``claim new``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dranet.desk.allocation.capacity import format_amount
from dranet.quantity import NANO
from dranet.terminal import count_of

PLACEHOLDER_IMAGE = "busybox:1.37"
"""Public and small; a pod with it runs unchanged, and sleeps."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Devices for each pod, and the names of what is written."""

    gpus: int = 1
    nics: int = 1
    per_node: bool = False
    """All GPUs and NICs of a node, whatever their numbers."""
    rails: bool = False
    """One request for each NIC, the same NIC in the same place in every pod."""
    rdma: bool | None = None
    """``None``: RDMA where the nodes have it."""
    name: str = ""
    namespace: str = ""
    gpu_class: str = ""
    """DeviceClass of the GPUs; empty: the vendor's usual one, or one of ours."""
    nic_class: str = ""
    image: str = PLACEHOLDER_IMAGE
    gpu_part: str = ""
    """Profile of the parts of GPUs (``1g.10gb``) that are wanted; empty: whole GPUs."""
    gpu_resource: str = ""
    """Extended resource of the GPUs, where a device plugin gives them."""
    each_numa: bool = False
    """So many NICs of each NUMA node with GPUs."""
    bandwidth: int = 0
    """Bits per second of a shared NIC; 0: whole NICs."""

    @property
    def claimed_gpus(self) -> int:
        """0 where a device plugin gives them."""
        return 0 if self.gpu_resource else self.gpus

    @property
    def title(self) -> str:
        """``2 GPUs and 1 NIC``."""
        return f"{self.gpu_title} and {self.nic_title}" if self.gpus else self.nic_title

    @property
    def gpu_title(self) -> str:
        """``2 GPUs``, ``1 GPU part (1g.10gb)``."""
        return (
            count_of(self.gpus, "GPU part") + f" ({self.gpu_part})"
            if self.gpu_part
            else count_of(self.gpus, "GPU")
        )

    @property
    def nic_title(self) -> str:
        return count_of(self.nics, "NIC") if not self.bandwidth else f"{self.amount} of a shared NIC"

    @property
    def amount(self) -> str:
        """The bandwidth as a quantity: ``25G``."""
        return format_amount(self.bandwidth * NANO)

    @property
    def default_name(self) -> str:
        """The name of the template, unless the user chooses one: ``2-gpus-1-nic``."""
        ending = "-rails" if self.rails else "-each-numa" if self.each_numa else ""
        if self.per_node:
            return f"whole-node{ending}"
        gpus = count_of(self.gpus, "gpu-part" if self.gpu_part else "gpu") + "-" if self.gpus else ""
        return f"{gpus}{count_of(self.nics, 'nic')}{ending}".replace(" ", "-")


def listed(reasons: Iterable[str], most: int = 4) -> str:
    """``one; another``, shortened to ``most`` of them."""
    every = tuple(reasons)
    more = (f"{len(every) - most} more such",) if len(every) > most else ()
    return "; ".join((*every[:most], *more))
