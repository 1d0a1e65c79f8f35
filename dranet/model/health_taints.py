"""Faults -> device taints (KEP-5055), as far as the operator lets them go.

Only a device that carries nothing may keep pods away or move them: everything else is shown, with the effect
``None``. One key for each class of faults, four at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dranet.model.health import FaultKind, Severity
from dranet.model.taint import Taint, TaintEffect

TAINT_DOMAIN = "dra.net"

_KEYS: Mapping[FaultKind, str] = {
    FaultKind.LINK_DOWN: "link-down",
    FaultKind.RDMA_PORT_DOWN: "rdma-port-down",
    FaultKind.LINK_FLAPPING: "degraded",
    FaultKind.LINK_ERRORS: "degraded",
    FaultKind.PCIE_DEGRADED: "degraded",
    FaultKind.FIRMWARE_CHANGED: "changed",
    FaultKind.DRIVER_CHANGED: "changed",
}

TAINT_KEYS = tuple(dict.fromkeys(f"{TAINT_DOMAIN}/{key}" for key in _KEYS.values()))
"""All that there are."""


def build_taints(faults: Iterable[FaultKind], hardest: TaintEffect | None) -> tuple[Taint, ...]:
    """The taints of a device with these faults, sorted by key; none where ``hardest`` is ``None``.

    ``hardest`` is the effect of a fault that leaves nothing working. The value names the fault; of several in
    one class the first, so that it does not change with each that comes and goes beside it.
    """
    if hardest is None:
        return ()
    wanted = set(faults)
    taints: dict[str, Taint] = {}
    for kind in FaultKind:
        if kind in wanted:
            key = f"{TAINT_DOMAIN}/{_KEYS[kind]}"
            effect = hardest if kind.severity is Severity.HARD else TaintEffect.NONE
            taints.setdefault(key, Taint(key, effect, str(kind)))
    return tuple(taints[key] for key in sorted(taints))
