"""What administrators set on a virtual function through its physical function (``ip link set ... vf``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, structs

_TOGETHER = ({"vlan", "qos"}, {"min_tx_rate", "max_tx_rate"})
"""A VLAN comes with its priority, and the two rates come together, as the kernel takes them."""


class VfSettings(Struct, frozen=True):
    """As wanted, where ``None`` leaves a setting alone; as read, where ``None`` is what the driver of the
    physical function does not report."""

    trust: bool | None = None
    spoof_check: bool | None = None
    vlan: int | None = None
    """0: none."""
    qos: int | None = None
    """Priority of the VLAN tag."""
    min_tx_rate: int | None = None
    """Mbit/s, 0: none."""
    max_tx_rate: int | None = None
    """Mbit/s, 0: none."""
    link_state: str | None = None
    """``auto``, ``enable`` or ``disable``."""
    mac: str | None = None

    @property
    def is_empty(self) -> bool:
        return not self.named

    @property
    def named(self) -> Mapping[str, bool | int | str]:
        """What is set, by field."""
        return {name: value for name, value in structs.asdict(self).items() if value is not None}

    def missing_from(self, present: VfSettings) -> Mapping[str, bool | int | str]:
        """What ``present`` does not have as it is here. Without a VLAN there is no priority, unless it is
        named: a driver takes one for the VLAN of priorities."""
        wanted = {"qos": 0, **self.named} if self.vlan == 0 and present.qos is not None else self.named
        return {name: value for name, value in wanted.items() if getattr(present, name) != value}

    def restricted_to(self, other: VfSettings) -> VfSettings:
        """These values of the settings that ``other`` changes, and of those that come with them."""
        names = set(other.named)
        for pair in _TOGETHER:
            names |= pair if names & pair else set()
        return VfSettings(**{name: getattr(self, name) for name in names})

    def iter_parts(self) -> Iterator[VfSettings]:
        """The settings that the kernel takes one by one, with what comes with each."""
        alone = ({name} for name in self.named if not any(name in pair for pair in _TOGETHER))
        for names in (*_TOGETHER, *alone):
            part = VfSettings(**{name: getattr(self, name) for name in names})
            if not part.is_empty:
                yield part
