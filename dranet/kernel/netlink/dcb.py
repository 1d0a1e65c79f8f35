"""Data Center Bridging of a port: priorities, their bandwidth and their flow control, read and restored.

The kernel's DCB netlink (``linux/dcbnl.h``, IEEE 802.1Qaz), which the ``dcb`` program speaks; only drivers
with ``dcbnl_ops`` answer (mlx5, mlx4, bnxt, ice, i40e and others). The kernel drops the APP table of a link
that leaves its namespace (Linux 5.18), so that is restored whatever a tenant did.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import (
    NetlinkSocket,
    Request,
    attribute,
    attribute_text,
    iter_attributes,
    kernel_error,
    nested,
    parse_attributes,
    report_unreadable,
)
from dranet.model.plan import DcbState

# linux/rtnetlink.h, linux/dcbnl.h
RTM_GETDCB, RTM_SETDCB = 78, 79
CMD_IEEE_SET, CMD_IEEE_GET, CMD_SDCBX, CMD_IEEE_DEL = 20, 21, 23, 27
ATTR_IFNAME, ATTR_IEEE, ATTR_DCBX = 1, 13, 14
IEEE_ETS, IEEE_PFC, IEEE_APP_TABLE, IEEE_MAXRATE = 1, 2, 3, 7

_HEADER = struct.Struct("=BBH")
"""``struct dcbmsg``: family, command, padding."""
_APP = struct.Struct("=BBH")
"""``struct dcb_app``: selector, priority, protocol."""

_SETTINGS: Mapping[str, tuple[int, int, int]] = {
    "ets": (IEEE_ETS, 59, 59),
    "pfc": (IEEE_PFC, 6, 136),
    "maxrate": (IEEE_MAXRATE, 64, 64),
}
"""Attribute, bytes that are settings, bytes of the structure: behind those of PFC there are counters."""


def read_dcb(rtnl: NetlinkSocket, ifname: str) -> DcbState:
    """Read the settings of a link of the socket's namespace; empty if its driver reports none."""
    try:
        answers = rtnl.request(_request(RTM_GETDCB, CMD_IEEE_GET, ifname, operation="read DCB settings of"))
        return parse_dcb(answers[0].payload) if answers else DcbState()
    except KernelError as error:
        report_unreadable(ifname, "dcb", error)
        return DcbState()


def parse_dcb(payload: bytes) -> DcbState:
    """An answer to IEEE_GET."""
    found = dict(iter_attributes(payload, _HEADER.size))
    ieee = dict(iter_attributes(found.get(ATTR_IEEE, b"")))
    settings = {
        name: ieee[kind][:used].hex()
        for name, (kind, used, size) in _SETTINGS.items()
        if len(ieee.get(kind, b"")) >= size
    }
    if ATTR_DCBX in found:
        settings["dcbx"] = found[ATTR_DCBX].hex()
    apps = (
        f"{kind}:{','.join(map(str, _APP.unpack(app)))}"
        for kind, app in iter_attributes(ieee.get(IEEE_APP_TABLE, b""))
        if len(app) == _APP.size
    )
    return DcbState(settings, tuple(sorted(apps)))


def dcb_difference(wanted: DcbState, found: DcbState) -> list[str]:
    lines = [
        f"DCB {name}: wanted {value}, found {found.settings.get(name, 'nothing')}"
        for name, value in wanted.settings.items()
        if found.settings.get(name) != value
    ]
    if wanted.apps is not None and wanted.apps != found.apps:
        now, then = " ".join(found.apps or ()) or "nothing", " ".join(wanted.apps) or "nothing"
        lines.append(f"DCB apps: wanted {then}, found {now}")
    return lines


def restore_dcb(rtnl: NetlinkSocket, ifname: str, wanted: DcbState, found: DcbState) -> list[str]:
    """Write what differs; returns the refusals. A driver that leaves DCBX to its firmware takes nothing else
    before that is as it was, so it comes first."""
    refusals: list[str] = []
    for request in _iter_writes(ifname, wanted, found):
        try:
            _write(rtnl, request)
        except KernelError as error:
            refusals.append(error.message)
    return refusals


def _iter_writes(ifname: str, wanted: DcbState, found: DcbState) -> Iterator[Request]:
    differing = {
        name: bytes.fromhex(value)
        for name, value in wanted.settings.items()
        if found.settings.get(name) != value
    }
    if "dcbx" in differing:
        dcbx = attribute(ATTR_DCBX, differing.pop("dcbx"))
        yield _request(RTM_SETDCB, CMD_SDCBX, ifname, dcbx, operation="set DCB dcbx of")
    for name, value in differing.items():
        kind, _, size = _SETTINGS[name]
        setting = nested(ATTR_IEEE, attribute(kind, value.ljust(size, b"\0")))
        yield _request(RTM_SETDCB, CMD_IEEE_SET, ifname, setting, operation=f"set DCB {name} of")
    if wanted.apps is None:
        return
    present = set(found.apps or ())
    for apps, command, word in (
        (present - set(wanted.apps), CMD_IEEE_DEL, "delete"),
        (set(wanted.apps) - present, CMD_IEEE_SET, "add"),
    ):
        for app in sorted(apps):
            number, _, values = app.partition(":")
            encoded = attribute(int(number), _APP.pack(*map(int, values.split(","))))
            table = nested(ATTR_IEEE, nested(IEEE_APP_TABLE, encoded))
            yield _request(RTM_SETDCB, command, ifname, table, operation=f"{word} DCB app {app} of")


def _request(kind: int, command: int, ifname: str, *attributes: bytes, operation: str) -> Request:
    body = _HEADER.pack(0, command, 0) + attribute_text(ATTR_IFNAME, ifname) + b"".join(attributes)
    return Request(kind, body, operation=operation, link=ifname)


def _write(rtnl: NetlinkSocket, request: Request) -> None:
    """Send one write. The kernel acknowledges it and adds the driver's result to the answer, one byte."""
    for answer in rtnl.request(request):
        for kind, value in iter_attributes(answer.payload, _HEADER.size):
            if kind in (ATTR_IEEE, ATTR_DCBX) and len(value) == 1 and value[0]:
                number = (256 - value[0]) if value[0] > 127 else errno.EINVAL
                raise kernel_error(number, "", request.operation, request.link)


# --- pause counters of priority flow control ------------------------------------------------------------

_PFC = struct.Struct("@BBBxH2x8Q8Q")
"""``struct ieee_pfc``: capacity, enabled, MACsec bypass, delay, then frames sent and received by priority."""


class Pauses(Struct, frozen=True):
    """Pause frames of one priority that has flow control."""

    priority: int
    transmitted: int
    """Frames by which we asked the other side to wait."""
    received: int


def get_pauses_request(ifname: str) -> Request:
    """Ask for one link's; EOPNOTSUPP where its driver has no such thing."""
    return _request(RTM_GETDCB, CMD_IEEE_GET, ifname, operation="read flow control")


def find_flow_control(payload: bytes) -> bytes:
    """``struct ieee_pfc`` of an answer; empty where it does not speak of it."""
    ieee = parse_attributes(payload, _HEADER.size, frozenset({ATTR_IEEE})).get(ATTR_IEEE, b"")
    return parse_attributes(ieee, 0, frozenset({IEEE_PFC})).get(IEEE_PFC, b"")


def parse_pauses(payload: bytes) -> tuple[Pauses, ...]:
    """The priorities that have flow control; raises what ``rtnl.decode`` turns into a ``KernelError``."""
    pfc = find_flow_control(payload)
    if len(pfc) < _PFC.size:
        return ()
    _, enabled, _, _, *frames = _PFC.unpack_from(pfc)
    return tuple(
        Pauses(priority, frames[priority], frames[8 + priority])
        for priority in range(8)
        if enabled >> priority & 1
    )
