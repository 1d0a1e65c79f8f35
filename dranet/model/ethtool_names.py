"""Names of offloads: those of the kernel, and those that the ``ethtool`` program had for them before.

``ethtool -k`` shows twelve of them under a long name of its own and takes a short one too; some stand for a
group (``tso`` for each ``tx-tcp*-segmentation``). Claims use either, as they do for DraNet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from dranet.errors import ClaimError

_LEGACY = (
    ("rx", "rx-checksumming", "rx-checksum"),
    ("tx", "tx-checksumming", "tx-checksum-*"),
    ("sg", "scatter-gather", "tx-scatter-gather*"),
    ("tso", "tcp-segmentation-offload", "tx-tcp*-segmentation"),
    ("ufo", "udp-fragmentation-offload", "tx-udp-fragmentation"),
    ("gso", "generic-segmentation-offload", "tx-generic-segmentation"),
    ("gro", "generic-receive-offload", "rx-gro"),
    ("lro", "large-receive-offload", "rx-lro"),
    ("rxvlan", "rx-vlan-offload", "rx-vlan-hw-parse"),
    ("txvlan", "tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple", "ntuple-filters", "rx-ntuple-filter"),
    ("rxhash", "receive-hashing", "rx-hashing"),
)
"""Short name, long name, and the kernel's names that they stand for."""

_PATTERNS = {alias: pattern for short, long, pattern in _LEGACY for alias in (short, long)}


def resolve_features(
    asked: Mapping[str, bool], changeable: Collection[str], fixed: Mapping[str, bool] | None = None
) -> tuple[dict[str, bool], tuple[str, ...]]:
    """The kernel's names for what is asked, and those names that the device has nothing to change for.

    A group stands for those of its members that can be changed; where none can and all are as asked
    (``fixed``), for these: most NICs have no LRO, and ``lro: false`` is true of them. The name of one member
    counts before its group: ``tso: false`` with ``tx-tcp-segmentation: true``.

    Raises:
        ClaimError: two names of the same group say different things.
    """
    groups: dict[str, bool] = {}
    exact: dict[str, bool] = {}
    unknown: list[str] = []
    said: dict[str, str] = {}
    for name, value in asked.items():
        members = _find_members(name, changeable) or _find_so_anyway(name, value, fixed or {})
        if not members:
            unknown.append(name)
        elif name in members:
            exact[name] = value
        else:
            other = said.setdefault(_PATTERNS[name], name)
            if asked[other] != value:
                raise ClaimError(f"ethtool.features: {other} and {name} are the same and must not differ")
            groups |= dict.fromkeys(members, value)
    return {**groups, **exact}, tuple(unknown)


def _find_members(name: str, changeable: Collection[str]) -> list[str]:
    if name in changeable:
        return [name]
    pattern = _PATTERNS.get(name)
    return [member for member in changeable if fnmatchcase(member, pattern)] if pattern else []


def _find_so_anyway(name: str, value: bool, fixed: Mapping[str, bool]) -> list[str]:
    members = _find_members(name, fixed)
    return members if all(fixed[member] is value for member in members) else []
