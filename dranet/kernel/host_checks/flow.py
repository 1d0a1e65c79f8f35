"""What keeps an Ethernet fabric with RDMA from losing packets, as far as the kernel tells.

PFC by DCB netlink (``kernel.pause_counters``), which anybody may read. ECN by the files that mlx5 of
NVIDIA's own driver package has below the interface (``ecn/roce_np``, ``ecn/roce_rp``); the kernel's mlx5
has them in debugfs, which is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dranet.errors import KernelError
from dranet.kernel.netlink.dcb import find_flow_control, get_pauses_request
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.host_facts import FlowFacts

_PFC_ENABLED = 1
"""``pfc_en``, the second byte of ``struct ieee_pfc``."""
_PRIORITIES = 8


def read_flows(sysfs: PseudoFiles, ifnames: Iterable[str]) -> tuple[FlowFacts, ...]:
    """One for each interface, in their order."""
    names = tuple(ifnames)
    pfc = read_pfc(names)
    return tuple(
        FlowFacts(name, pfc.get(name), _read_ecn(sysfs, name, "roce_np"), _read_ecn(sysfs, name, "roce_rp"))
        for name in names
    )


def read_pfc(ifnames: Iterable[str]) -> dict[str, int]:
    """Bits of the priorities with PFC; an interface whose driver does not tell is left out."""
    found: dict[str, int] = {}
    try:
        with NetlinkSocket.open() as rtnl:
            for name in ifnames:
                mask = _ask_pfc(rtnl, name)
                if mask is not None:
                    found[name] = mask
    except KernelError:
        return found
    return found


def _ask_pfc(rtnl: NetlinkSocket, ifname: str) -> int | None:
    try:
        answers = rtnl.request(get_pauses_request(ifname))
        return next((mask for answer in answers if (mask := parse_pfc(answer.payload)) is not None), None)
    except KernelError:  # no DCB in the kernel, or none in the driver
        return None


def parse_pfc(payload: bytes) -> int | None:
    """What the answer says; ``None`` where it does not speak of PFC."""
    pfc = find_flow_control(payload)
    return pfc[_PFC_ENABLED] if len(pfc) > _PFC_ENABLED else None


def _read_ecn(sysfs: PseudoFiles, ifname: str, side: str) -> tuple[int, ...] | None:
    folder = f"class/net/{ifname}/ecn/{side}/enable"
    if not sysfs.has(folder):
        return None
    return tuple(_iter_enabled(sysfs, folder))


def _iter_enabled(sysfs: PseudoFiles, folder: str) -> Iterator[int]:
    for priority in range(_PRIORITIES):
        if sysfs.text(f"{folder}/{priority}") == "1":
            yield priority
