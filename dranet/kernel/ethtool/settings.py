"""What ``ethtool`` may change of a link: read it, set it, and give it back. By generic netlink, which a
kernel before Linux 5.6 does not have; RSS and flow rules are in ``steering``."""

from __future__ import annotations

import errno as errno_numbers
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from dranet.errors import KernelError
from dranet.kernel.ethtool.messages import (
    ETHTOOL_FAMILY,
    ETHTOOL_FLAG_OMIT_REPLY,
    PARTS,
    Features,
    ethtool_request,
    parse_features,
)
from dranet.kernel.netlink.socket import NetlinkSocket, Outcome, Request, report_unreadable, resolve_family
from dranet.model.plan import EthtoolState

_RESTORE_ROUNDS = 2
"""What was refused because of something that came later is taken the second time."""

_ADAPTIVE = {"rx_": "adaptive_rx", "tx_": "adaptive_tx"}
"""By what the names of a direction start with: whether the driver adapts its coalescing by itself."""

_SWITCHES = frozenset({"private_flags", "features"})


def _values(state: EthtoolState) -> dict[str, Mapping[str, int]]:
    return {part: getattr(state, part) for part in PARTS}


class _Reading(Struct, frozen=True):
    state: EthtoolState
    features: Features
    errors: Mapping[str, KernelError] = field(default_factory=dict)
    """By part: the error of a driver that has such settings and failed to return them."""


class _Change(Struct, frozen=True):
    part: str
    values: Mapping[str, int]

    def __str__(self) -> str:
        settings = " ".join(f"{name}={_text(self.part, value)}" for name, value in self.values.items())
        return f"{PARTS[self.part].word} {settings}"


def _text(part: str, value: int | None) -> str:
    if value is None:
        return "nothing"
    return ("on" if value else "off") if part in _SWITCHES else str(int(value))


# --- reading -------------------------------------------------------------------------------------------


def read_ethtool_state(
    genl: NetlinkSocket, ifindex: int, parts: Collection[str] = tuple(PARTS), link: str = ""
) -> EthtoolState:
    """Read these parts of a link of the socket's namespace. What the driver does not have is absent; so is
    what it answers with another error than EOPNOTSUPP, which is then in ``refused``."""
    if not parts:
        return EthtoolState()
    try:
        family = resolve_family(genl, ETHTOOL_FAMILY)
    except KernelError as error:
        if error.errno == errno_numbers.ENOENT:
            return EthtoolState()
        raise
    found = _Talk(genl, family, ifindex, link or str(ifindex)).read(parts)
    for part, failure in found.errors.items():
        report_unreadable(link, part, failure)
    return found.state


class _Talk(Struct, frozen=True):
    genl: NetlinkSocket
    family: int
    ifindex: int
    link: str

    def read(self, parts: Collection[str]) -> _Reading:
        return self.apply((), parts)[1]

    def apply(self, changes: Sequence[_Change], parts: Collection[str]) -> tuple[list[Outcome], _Reading]:
        requests = [*map(self._set_request, changes), *map(self._get_request, parts)]
        outcomes = self.genl.batch(requests)
        payloads: dict[str, bytes] = {}
        errors: dict[str, KernelError] = {}
        for part, outcome in zip(parts, outcomes[len(changes) :], strict=True):
            if not isinstance(outcome, KernelError):
                payloads |= {part: outcome[0].payload} if outcome else {}
            elif outcome.errno == errno_numbers.ENODEV:
                raise outcome
            elif outcome.errno != errno_numbers.EOPNOTSUPP:
                errors[part] = outcome
        return outcomes[: len(changes)], _parse(payloads, errors)

    def _set_request(self, change: _Change) -> Request:
        return ethtool_request(
            self.family,
            PARTS[change.part].set,
            self.ifindex,
            *PARTS[change.part].attributes(change.values),
            flags=ETHTOOL_FLAG_OMIT_REPLY,
            operation=f"set {change} of",
            link=self.link,
        )

    def _get_request(self, part: str) -> Request:
        operation = f"read {PARTS[part].word} settings of link"
        return ethtool_request(
            self.family, PARTS[part].get, self.ifindex, operation=operation, link=self.link
        )


def _parse(payloads: Mapping[str, bytes], errors: Mapping[str, KernelError]) -> _Reading:
    features = Features()
    numbers: dict[str, dict[str, int]] = {}
    maxima: dict[str, int] = {}
    for part, payload in payloads.items():
        if part == "features":
            features = parse_features(payload)
        else:
            numbers[part], most = PARTS[part].parse(payload)
            maxima |= {f"{part}.{setting}": value for setting, value in most.items()}
    state = EthtoolState(
        features=features.wanted,
        fixed=features.fixed,
        private_flags={name: bool(value) for name, value in numbers.pop("private_flags", {}).items()},
        maxima=maxima,
        refused={part: error.message for part, error in errors.items()},
        **numbers,
    )
    return _Reading(state, features, errors)


# --- setting -------------------------------------------------------------------------------------------


def set_ethtool(genl: NetlinkSocket, ifindex: int, settings: EthtoolState, link: str) -> None:
    """Set what ``settings`` names on a link of the socket's namespace, as far as it is not so already.
    Features must be as asked afterwards: the kernel reports success when it drops one. Drivers may round ring
    sizes and microseconds. After an error (``set-ethtool``) some of it may be set: :func:`restore_ethtool`
    what was read before."""
    asked = [part for part, values in _values(settings).items() if values]
    if not asked:
        return
    try:
        _set(_Talk(genl, resolve_family(genl, ETHTOOL_FAMILY), ifindex, link), settings, asked)
    except KernelError as error:
        error.operation, error.link = "set-ethtool", link
        raise


def _set(talk: _Talk, settings: EthtoolState, asked: Collection[str]) -> None:
    before = talk.read(asked)
    for error in before.errors.values():
        raise error
    _check_offered(settings, before, talk.link)
    changes = _changes_to_set(settings, before)
    if not changes:
        return
    outcomes, after = talk.apply(changes, [part for part in asked if part == "features"])
    for change, outcome in zip(changes, outcomes, strict=True):
        if isinstance(outcome, KernelError):
            if outcome.errno == errno_numbers.EOPNOTSUPP:
                shows = f"`ethtool {PARTS[change.part].option} {talk.link}` shows what it has"
                outcome.hint = f"the driver cannot change this; {shows}"
            raise outcome
    _check_features(settings.features, after.features, talk.link)


def _check_offered(settings: EthtoolState, found: _Reading, link: str) -> None:
    """Refuse, all at once, what the driver does not have (EOPNOTSUPP) or cannot take (EINVAL)."""
    missing: list[str] = []
    excesses: list[str] = []
    for part, values in _values(settings).items():
        has = _values(found.state)[part]
        for name, value in values.items():
            if name in has:
                excesses += _excess(part, name, value, found.state.maxima)
            elif part != "features":
                missing.append(f"the driver has no {PARTS[part].word} {name}")
            elif name not in found.features.known:
                missing.append(f"there is no feature {name}")
            elif (name in found.features.active) != bool(value):
                missing.append(f"feature {name} is fixed to {_text(part, not value)}")
    if missing or excesses:
        number = errno_numbers.EOPNOTSUPP if missing else errno_numbers.EINVAL
        text = f"set ethtool settings of {link}: {'; '.join([*missing, *excesses])}"
        raise KernelError(text, errno=number, hint=_offer(settings, found.state), retryable=False)


def _excess(part: str, name: str, value: int, maxima: Mapping[str, int]) -> list[str]:
    if part in _SWITCHES:
        return []
    room = 2 ** (8 * PARTS[part].settings[name].size) - 1
    most = min(room, maxima.get(f"{part}.{name}", room))
    return [] if 0 <= value <= most else [f"{part} {name}={value}: the device takes 0 to {most}"]


def _offer(settings: EthtoolState, found: EthtoolState) -> str:
    """What the driver has of that which was asked for; features are too many to list."""
    parts = [part for part, values in _values(settings).items() if values and part != "features"]
    texts = [f"{PARTS[part].word}: {', '.join(_values(found)[part]) or 'none'}" for part in parts]
    return f"the driver has {'; '.join(texts)}" if texts else ""


def _changes_to_set(settings: EthtoolState, found: _Reading) -> list[_Change]:
    changes: list[_Change] = []
    for part, values in _values(settings).items():
        has = _values(found.state)[part]
        differing = {name: value for name, value in values.items() if name in has and value != has[name]}
        if part == "features":  # also what is asked for already and yet is not so: it may come to be
            active = found.features.active
            differing |= {
                name: value for name, value in values.items() if name in has and value != (name in active)
            }
        if differing:
            changes.append(_Change(part, differing))
    return changes


def _check_features(asked: Mapping[str, bool], found: Features, link: str) -> None:
    kept = [name for name, value in asked.items() if (name in found.active) != value]
    if kept:
        texts = "; ".join(_explain(name, asked[name], found.active) for name in kept)
        change = _Change("features", {name: asked[name] for name in kept})
        raise KernelError(f"set {change} of {link}: {texts}")


# --- why the kernel keeps a feature off ----------------------------------------------------------------

_IPV4_CHECKSUM = ("tx-checksum-ipv4", "tx-checksum-ip-generic")
_IPV6_CHECKSUM = ("tx-checksum-ipv6", "tx-checksum-ip-generic")

_NEEDS_ONE_OF: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "tx-tcp-segmentation": (("tx-scatter-gather",), _IPV4_CHECKSUM),
    "tx-tcp6-segmentation": (("tx-scatter-gather",), _IPV6_CHECKSUM),
    "tx-tcp-mangleid-segmentation": (("tx-scatter-gather",), ("tx-tcp-segmentation",)),
    "tx-tcp-ecn-segmentation": (("tx-scatter-gather",), ("tx-tcp-segmentation", "tx-tcp6-segmentation")),
    "tx-generic-segmentation": (("tx-scatter-gather",),),
    "tx-udp-segmentation": (_IPV4_CHECKSUM, _IPV6_CHECKSUM),
    "tls-hw-tx-offload": (_IPV4_CHECKSUM, _IPV6_CHECKSUM),
    "tls-hw-rx-offload": (("rx-checksum",),),
    "rx-gro-hw": (("rx-checksum",),),
    "rx-lro": (("rx-checksum",),),
    "tx-vlan-hw-insert": (("rx-vlan-hw-parse",),),
}
"""``netdev_fix_features`` of ``net/core/dev.c``; the last line is what Intel's drivers add."""

_HELD_ON_BY = {"tx-vlan-hw-insert": "rx-vlan-hw-parse"}
"""Intel's drivers again: both or none."""

_NOT_WITH: Mapping[str, tuple[str, ...]] = {
    "tx-checksum-ipv4": ("tx-checksum-ip-generic",),
    "tx-checksum-ipv6": ("tx-checksum-ip-generic",),
    "rx-lro": ("rx-fcs", "rx-gro-hw"),
    "rx-gro-hw": ("rx-fcs",),
}


def _explain(name: str, asked: bool, active: Collection[str]) -> str:
    kept = f"the driver kept {name} {_text('features', not asked)}"
    if not asked:
        holder = _HELD_ON_BY.get(name, "")
        return f"{kept}: it goes with {holder}" if holder in active else kept
    missing = [
        " or ".join(group)
        for group in _NEEDS_ONE_OF.get(name, ())
        if not any(other in active for other in group)
    ]
    barring = [other for other in _NOT_WITH.get(name, ()) if other in active]
    reasons = [f"it depends on {' and '.join(missing)}"] if missing else []
    reasons += [f"it excludes {' and '.join(barring)}"] if barring else []
    return f"{kept}: {', '.join(reasons)}" if reasons else kept


# --- restore -------------------------------------------------------------------------------------------


def restore_ethtool(genl: NetlinkSocket, ifindex: int, state: EthtoolState, link: str) -> list[str]:
    """Put a link of the socket's namespace back to ``state``, as far as it can be, and read it again. Returns
    the remaining differences as :func:`difference` describes them, then the kernel's errors; empty if
    everything is restored."""
    parts = [part for part, values in _values(state).items() if values]
    if not parts:
        return []
    talk = _Talk(genl, resolve_family(genl, ETHTOOL_FAMILY), ifindex, link)
    found = talk.read(parts)
    refusals: list[str] = []
    for _ in range(_RESTORE_ROUNDS):
        changes = list(_changes_to_restore(state, found.state))
        if not changes:
            break
        outcomes, found = talk.apply(changes, parts)
        refusals = [outcome.message for outcome in outcomes if isinstance(outcome, KernelError)]
    refusals += [error.message for error in found.errors.values()]
    left = difference(state, found.state)
    return [*left, *refusals] if left else []


def _changes_to_restore(wanted: EthtoolState, found: EthtoolState) -> Iterable[_Change]:
    differing: dict[str, dict[str, int]] = {part: {} for part in PARTS}
    for part, name, value, has in _differing(wanted, found):
        if has is not None:
            differing[part][name] = value
    coalesce = differing["coalesce"]
    # While a driver adapts by itself some (ice) take no other values: first the values, then that.
    last = {name: value for name, value in coalesce.items() if name in _ADAPTIVE.values() and value}
    differing["coalesce"] = {name: value for name, value in coalesce.items() if name not in last}
    yield from (_Change(part, values) for part, values in differing.items() if values)
    if last:
        yield _Change("coalesce", last)


def difference(wanted: EthtoolState, found: EthtoolState) -> list[str]:
    """One line for each setting of ``wanted`` that is not so: ``rings rx: wanted 256, found 512``; none for
    what the driver, or the other end of the cable, adapts by itself."""
    return [
        f"{PARTS[part].word} {name}: wanted {_text(part, value)}, found {_text(part, has)}"
        for part, name, value, has in _differing(wanted, found)
    ]


def _differing(wanted: EthtoolState, found: EthtoolState) -> Iterable[tuple[str, str, int, int | None]]:
    """(part, name, wanted, found) in the order in which they are set."""
    adapting = tuple(
        direction
        for direction, switch in _ADAPTIVE.items()
        if wanted.coalesce.get(switch) and found.coalesce.get(switch)
    )
    for part, values in _values(wanted).items():
        has = _values(found)[part]
        agreed = part == "pause" and values.get("autoneg") and has.get("autoneg")
        for name, value in values.items():
            drifts = bool(agreed) or (part == "coalesce" and name.startswith(adapting))
            if has.get(name) != value and not drifts:
                yield part, name, value, has.get(name)
