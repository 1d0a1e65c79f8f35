"""Administer virtual functions through the link of their physical function (``IFLA_VFINFO_LIST`` in
``linux/if_link.h``)."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping

from msgspec import Struct

from dranet.errors import KernelError, Reason
from dranet.kernel.netlink import rtnl
from dranet.kernel.netlink.socket import (
    NetlinkSocket,
    Request,
    attribute,
    attribute_u32,
    iter_attributes,
    nested,
    parse_attributes,
)
from dranet.model.virtual_functions import VfSettings

RTEXT_FILTER_VF = 1
IFLA_VFINFO_LIST, IFLA_VF_INFO = 22, 1
IFLA_VF_MAC, IFLA_VF_VLAN, IFLA_VF_SPOOFCHK, IFLA_VF_LINK_STATE, IFLA_VF_RATE, IFLA_VF_TRUST = (
    1,
    2,
    4,
    5,
    6,
    9,
)
_ALL = frozenset(
    {IFLA_VF_MAC, IFLA_VF_VLAN, IFLA_VF_SPOOFCHK, IFLA_VF_LINK_STATE, IFLA_VF_RATE, IFLA_VF_TRUST}
)
_NOT_REPORTED = 0xFFFFFFFF
_LINK_STATES = ("auto", "enable", "disable")
_MAC_BYTES = 6
_MAC_FIELD_BYTES = 32

_HEADER_BYTES = len(rtnl.link_header())

_ENOTSUPP = 524
"""An errno of the kernel alone (``linux/errno.h``), which bnxt returns where its firmware is too old."""
_REFUSED = (errno.EOPNOTSUPP, errno.EINVAL, _ENOTSUPP)
"""A driver without the operation, and one (igb, ixgbe) that takes no such value."""

FIELDS: Mapping[str, str] = {
    "trust": "trust",
    "spoof_check": "spoofCheck",
    "vlan": "vlan",
    "qos": "qos",
    "min_tx_rate": "minTxRate",
    "max_tx_rate": "maxTxRate",
    "link_state": "linkState",
    "mac": "mac",
}
"""As parameters and the file of rules spell them."""


def parse_vf_list(payload: bytes) -> dict[int, VfSettings]:
    found = parse_attributes(payload, _HEADER_BYTES, frozenset({IFLA_VFINFO_LIST}))
    entries = (
        parse_attributes(info, 0, _ALL)
        for kind, info in iter_attributes(found.get(IFLA_VFINFO_LIST, b""))
        if kind == IFLA_VF_INFO
    )
    return dict(_parse_vf(entry) for entry in entries)


def _parse_vf(entry: Mapping[int, bytes]) -> tuple[int, VfSettings]:
    (index,) = struct.unpack_from("=I", entry[IFLA_VF_MAC])
    mac = entry[IFLA_VF_MAC][4 : 4 + _MAC_BYTES].hex(":")
    _, vlan, qos = _unpack(entry, IFLA_VF_VLAN, 3)
    _, least, most = _unpack(entry, IFLA_VF_RATE, 3)
    state = _unpack(entry, IFLA_VF_LINK_STATE, 2)[1]
    is_known = state is not None and state < len(_LINK_STATES)
    return index, VfSettings(
        trust=_flag(entry, IFLA_VF_TRUST),
        spoof_check=_flag(entry, IFLA_VF_SPOOFCHK),
        vlan=vlan,
        qos=qos,
        min_tx_rate=least,
        max_tx_rate=most,
        link_state=_LINK_STATES[state] if is_known and state is not None else None,
        mac=mac,
    )


def _unpack(entry: Mapping[int, bytes], kind: int, count: int) -> tuple[int | None, ...]:
    value = entry.get(kind)
    return (None,) * count if value is None else struct.unpack_from(f"={count}I", value)


def _flag(entry: Mapping[int, bytes], kind: int) -> bool | None:
    value = _unpack(entry, kind, 2)[1]
    return None if value is None or value == _NOT_REPORTED else bool(value)


class VfAdmin(Struct, frozen=True):
    """The physical function whose link has this index and name in the namespace of ``netlink``."""

    netlink: NetlinkSocket
    ifindex: int
    ifname: str

    def read(self) -> dict[int, VfSettings]:
        """The settings of all virtual functions, by their numbers."""
        mask = attribute_u32(rtnl.IFLA_EXT_MASK, RTEXT_FILTER_VF | rtnl.RTEXT_FILTER_SKIP_STATS)
        body = rtnl.link_header(self.ifindex) + mask
        request = Request(rtnl.RTM_GETLINK, body, operation="read the virtual functions of", link=self.ifname)
        (answer,) = self.netlink.request(request)
        return rtnl.decode(parse_vf_list, answer.payload)

    def apply(self, index: int, wanted: VfSettings) -> VfSettings:
        """Set what is not as wanted, and read it back; returns the settings before. Nothing is changed after
        an error. ``MissingFeature``: the driver of the physical function cannot."""
        present = self.read().get(index)
        if present is None:
            raise KernelError(f"{self.ifname} has no virtual function {index}", operation="set vf")
        try:
            for name, change in _iter_changes(index, wanted.missing_from(present), present):
                self._set(index, name, change)
            if left := wanted.missing_from(self.read().get(index, VfSettings())):
                raise self._refusal(index, ", ".join(FIELDS[name] for name in left), "it is not reported")
        except KernelError:
            self.restore(index, present.restricted_to(wanted))
            raise
        return present

    def restore(self, index: int, before: VfSettings) -> list[str]:
        """Set each setting as it was; returns what could not be."""
        present = self.read().get(index)
        if present is None:
            return [f"{self.ifname} has no virtual function {index} any more"]
        problems = []
        for name, change in _iter_changes(index, before.missing_from(present), present):
            try:
                self._set(index, name, change)
            except KernelError as refusal:
                problems.append(refusal.message)
        return problems

    def _set(self, index: int, name: str, change: bytes) -> None:
        info = nested(IFLA_VFINFO_LIST, nested(IFLA_VF_INFO, change))
        operation = f"set {name} of virtual function {index} of"
        try:
            self.netlink.request(
                rtnl.set_link_request(self.ifindex, info, operation=operation, link=self.ifname)
            )
        except KernelError as refusal:
            if refusal.errno in _REFUSED:
                raise self._refusal(index, name, refusal.message) from refusal
            raise

    def _refusal(self, index: int, name: str, why: str) -> KernelError:
        return KernelError(
            f"the driver of {self.ifname} does not take {name} for virtual function {index}: {why}",
            operation="set vf",
            link=self.ifname,
            hint="leave it out, or choose another NIC",
            reason=Reason.MISSING_FEATURE,
        )


def _iter_changes(
    index: int, missing: Mapping[str, bool | int | str], present: VfSettings
) -> Iterator[tuple[str, bytes]]:
    """Each change with its name. The MAC address is first: drivers reset the function for it."""

    def value(name: str) -> int:
        return int(missing.get(name, getattr(present, name) or 0))

    if "mac" in missing:
        mac = rtnl.mac_bytes(str(missing["mac"]))
        yield "mac", attribute(IFLA_VF_MAC, struct.pack("=I", index) + mac.ljust(_MAC_FIELD_BYTES, b"\0"))
    if {"vlan", "qos"} & missing.keys():
        yield "vlan", attribute(IFLA_VF_VLAN, struct.pack("=III", index, value("vlan"), value("qos")))
    if {"min_tx_rate", "max_tx_rate"} & missing.keys():
        rates = value("min_tx_rate"), value("max_tx_rate")
        yield "minTxRate and maxTxRate", attribute(IFLA_VF_RATE, struct.pack("=III", index, *rates))
    for name, kind in (("spoof_check", IFLA_VF_SPOOFCHK), ("trust", IFLA_VF_TRUST)):
        if name in missing:
            yield FIELDS[name], attribute(kind, struct.pack("=II", index, value(name)))
    if "link_state" in missing:
        state = _LINK_STATES.index(str(missing["link_state"]))
        yield "linkState", attribute(IFLA_VF_LINK_STATE, struct.pack("=II", index, state))
