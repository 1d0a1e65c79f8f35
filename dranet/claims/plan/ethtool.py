"""What ``ethtool`` sets, held against what the device has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from dranet.claims.plan.inputs import PlanInput
from dranet.errors import ClaimError
from dranet.model.parameters.part import Part, fields_of
from dranet.model.plan import EthtoolState, SetEthtool

_SPOKEN = {"rings": "rings", "channels": "channels", "coalesce": "interrupt coalescing"}


def plan_ethtool(inputs: PlanInput) -> Iterator[SetEthtool]:
    """One step with everything that the claim names, by the kernel's names."""
    ethtool = inputs.config.ethtool
    if ethtool.is_empty:
        return
    features, _ = resolve_features(ethtool.features, inputs.host.ethtool.features, inputs.host.ethtool.fixed)
    yield SetEthtool(
        EthtoolState(
            features=features,
            private_flags=dict(ethtool.private_flags),
            rings=_numbers(ethtool.rings),
            channels=_numbers(ethtool.channels),
            coalesce=_numbers(ethtool.coalesce),
        )
    )


def check_ethtool(inputs: PlanInput) -> Iterator[str]:
    """Names that the device does not have and numbers that it does not take. "<field path>: ..."."""
    ethtool, state = inputs.config.ethtool, inputs.host.ethtool
    yield from _check_features(inputs)
    if not inputs.moves:
        yield from _check_sub_link(inputs)
        return
    refused = state.refused
    unknown = [name for name in ethtool.private_flags if name not in state.private_flags]
    if unknown and "private_flags" in refused:
        yield f"ethtool.privateFlags: the driver does not report them: {refused['private_flags']}"
        unknown = []
    shown_by = f"ethtool --show-priv-flags {inputs.host.ifname}"
    yield from _missing("ethtool.privateFlags", "private flags", unknown, state.private_flags, shown_by)
    parts = (
        ("rings", ethtool.rings, state.rings),
        ("channels", ethtool.channels, state.channels),
        ("coalesce", ethtool.coalesce, state.coalesce),
    )
    for name, asked, present in parts:
        if name in refused and not asked.is_empty:
            yield f"ethtool.{name}: the driver does not report them: {refused[name]}"
            continue
        yield from _check_numbers(name, asked, present, state.maxima)


def _check_features(inputs: PlanInput) -> Iterator[str]:
    """A link on top of the device has features of its own, most of which are the device's."""
    present = inputs.host.ethtool
    if inputs.config.ethtool.features and "features" in present.refused:
        yield f"ethtool.features: the driver does not report them: {present.refused['features']}"
        return
    try:
        _, unknown = resolve_features(inputs.config.ethtool.features, present.features, present.fixed)
    except ClaimError as error:
        yield error.message
        return
    shown_by = f"ethtool -k {inputs.host.ifname}"
    yield from _missing("ethtool.features", "features", unknown, present.features, shown_by)


def _missing(
    path: str, what: str, unknown: Iterable[str], present: Collection[str], shown_by: str
) -> Iterator[str]:
    for name in unknown:
        missing = f"no {name} that can be changed" if present else f"no {what} that can be changed"
        hint = f"; on the node, {shown_by} shows those it has" if present else ""
        yield f'{path}["{name}"]: the device has {missing}{hint}'


def _check_sub_link(inputs: PlanInput) -> Iterator[str]:
    ethtool, parent = inputs.config.ethtool, inputs.host.ifname
    parts: dict[str, bool] = {
        "privateFlags": bool(ethtool.private_flags),
        "rings": not ethtool.rings.is_empty,
        "channels": not ethtool.channels.is_empty,
        "coalesce": not ethtool.coalesce.is_empty,
    }
    for name, is_asked in parts.items():
        if is_asked:
            kind = inputs.config.interface.type
            yield f"ethtool.{name}: belongs to {parent}, which type {kind} leaves on the node"


def _check_numbers(
    part: str, asked: Part, present: Mapping[str, int], maxima: Mapping[str, int]
) -> Iterator[str]:
    for name, value in _numbers(asked).items():
        path = f"ethtool.{part}.{_json_name(asked, name)}"
        most = maxima.get(f"{part}.{name}")
        if not present:
            yield f"{path}: the device has no {_SPOKEN[part]} that can be changed"
        elif name not in present:
            has = ", ".join(_json_name(asked, other) for other in present)
            yield f"{path}: the device has none that can be changed, but {has}"
        elif most is not None and value > most:
            yield f"{path}: must be at most the {most} of the device, not {value}"


def _numbers(part: Part) -> dict[str, int]:
    """The fields that the claim names; a switch is 0 or 1."""
    return {name: int(value) for name, value in part if value is not None}


def _json_name(part: Part, name: str) -> str:
    return next(field.name for field in fields_of(type(part)).values() if field.attribute == name)


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
        ClaimError: two names of the same group have different values.
    """
    groups: dict[str, bool] = {}
    exact: dict[str, bool] = {}
    unknown: list[str] = []
    set_by: dict[str, str] = {}
    for name, value in asked.items():
        members = _find_members(name, changeable) or _find_so_anyway(name, value, fixed or {})
        if not members:
            unknown.append(name)
        elif name in members:
            exact[name] = value
        else:
            other = set_by.setdefault(_PATTERNS[name], name)
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
