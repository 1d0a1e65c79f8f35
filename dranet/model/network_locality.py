"""``cpuLocality``: which CPUs work for the device while a pod has it. See :mod:`~dranet.model.network`."""

from __future__ import annotations

from dranet.model.json_fields import Field
from dranet.model.network_part import Part


class CpuLocalityConfig(Part):
    """``cpuLocality``: CPUs of the device's NUMA node work for it, and no isolated ones. Given back."""

    irq: bool | None = Field(
        default=None,
        description="`true`: each interrupt of the device goes to one of these CPUs. Refused while "
        "irqbalance places the node's interrupts",
        examples=[True],
    )
    xps: bool | None = Field(
        default=None,
        description="`true`: each of these CPUs sends through the queue whose interrupt is nearest (XPS)",
        examples=[True],
    )
    rps: bool | None = Field(
        default=None,
        description="`true`: what comes in is worked off by all of these CPUs (RPS), for devices with fewer "
        "queues than CPUs",
        examples=[False],
    )

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of what is to be done."""
        return tuple(name for name in ("irq", "xps", "rps") if getattr(self, name))
