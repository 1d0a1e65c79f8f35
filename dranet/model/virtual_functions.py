"""What administrators set on a virtual function through its physical function (``ip link set ... vf``)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs


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
        """What ``present`` does not have as it is here."""
        return {name: value for name, value in self.named.items() if getattr(present, name) != value}

    def restricted_to(self, other: VfSettings) -> VfSettings:
        """These values of the settings that ``other`` changes; a VLAN comes with its priority, and the two
        rates come together, as the kernel takes them."""
        names = set(other.named)
        for pair in ({"vlan", "qos"}, {"min_tx_rate", "max_tx_rate"}):
            names |= pair if names & pair else set()
        return VfSettings(**{name: getattr(self, name) for name in names})
