"""What the operator decided about publishing: which links, which devices, which further attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

from msgspec import Struct, field

from dranet.model.attributes import (
    DOMAIN,
    LINK_SPEED,
    MAX_NAME_LENGTH,
    is_attribute_name,
    is_qualified_name,
)
from dranet.model.device import MEGABIT, AttributeValue, Device
from dranet.settings import PublishGpus

GUARANTEED_OWN_ATTRIBUTES = 5
"""At most this many of the operator\'s own attributes have a guaranteed place on each device."""


class DeviceFilter(Protocol):
    def matches(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether a device with these attributes (by qualified name) may be offered. Raises CelError where
        the expression fails on it; then it is excluded."""


class RuleResult(Struct, frozen=True):
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    """By qualified name; at most :data:`GUARANTEED_OWN_ATTRIBUTES`."""
    warnings: tuple[str, ...] = ()


class AttributeRules(Protocol):
    def attributes_for(self, device: Device) -> RuleResult:
        """What the rules add to this device. A rule that fails on it adds nothing and leaves a warning."""


class VirtualFunctionRules(Protocol):
    """Which physical functions get virtual functions (:mod:`inventory.virtual_functions`)."""

    def share_counters(self, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """Offer a physical function with a rule and its virtual functions as one device in parts."""

    def count_bandwidth(self, decisions: Sequence[Decision], policy: Policy) -> tuple[Decision, ...]:
        """Give virtual functions the rate of their rule as capacity, where the port carries all of them."""


class Policy(Struct, frozen=True, dict=True):
    """The defaults are those of the settings."""

    publish_gpus: PublishGpus = PublishGpus.AUTO
    move_ib_interfaces: bool = True
    """False: an IPoIB interface stays on the node and its adapter is offered as RDMA-only."""
    offer_link_kinds: frozenset[str] = frozenset()
    """Kinds of software links that are offered although they are infrastructure by default (``veth`` ...)."""
    list_attributes: bool = False
    """Publish ``numaNode`` and ``pcieRoot`` of ``resource.kubernetes.io`` as lists: own value first."""
    taints: bool = True
    """Devices may be published with taints, now or later; slices are shorter then."""
    prefer_attributes: tuple[str, ...] = ()
    """Qualified names that go first when a device has more attributes than a slice can take."""
    filter: DeviceFilter | None = None
    shared: DeviceFilter | None = None
    """Which network interfaces several claims may hold at once. One that it fails on is not shared."""
    default_bandwidth: int | None = None
    """Bits per second that a claim takes of a shared device if it asks for none; ``None``: not counted."""
    assumed_bandwidth: int | None = None
    """Bits per second of a shared device that reports no speed."""
    rules: AttributeRules | None = None
    virtual_functions: VirtualFunctionRules | None = None
    rail_pattern: re.Pattern[str] | None = None
    """Finds the number of the rail in what a switch announces; ``None``: LLDP gives no rail."""
    expected_rails: Mapping[str, int] = field(default_factory=dict)
    """Which rail an interface, or a PCI address, should be cabled to."""

    @cached_property
    def speeds(self) -> dict[str, int]:
        """Mbit/s at which the link of a device was last up, by device name. A cable that is pulled must not
        take away a capacity that claims have."""
        return {}

    def find_port_rate(self, device: Device) -> int | None:
        """Bits per second of the device's port when its link was last up, else what is assumed of it."""
        speed = device.attributes.get(LINK_SPEED.qualified)
        if isinstance(speed, int) and speed > 0:
            self.speeds[device.name] = speed
        return self.speeds.get(device.name, 0) * MEGABIT or self.assumed_bandwidth

    @cached_property
    def judged(self) -> dict[str, tuple[Device, Decision]]:
        """The cache of ``inventory.offer``, by device name: the device as it was judged, and the decision. A
        policy made by ``replace`` has an empty one."""
        return {}


DEFAULT_POLICY = Policy()


def qualified_name(name: object) -> str:
    """``rail`` -> ``dra.net/rail``; a name with a domain stays what it is. Raises ValueError, with the rule,
    where the API would refuse it."""
    text = name if isinstance(name, str) else ""
    _, slash, identifier = text.rpartition("/")
    if not is_attribute_name(identifier):
        raise ValueError(
            f"must be letters, digits and _, no digit first, at most {MAX_NAME_LENGTH}, e.g. rail"
        )
    if slash and not is_qualified_name(text):
        raise ValueError("the part before the / must be a lower-case DNS name of at most 63 characters")
    return text if slash else f"{DOMAIN}/{text}"


class Decision(Struct, frozen=True):
    """Whether ``device`` is offered, and why (a clause that reads after its name)."""

    device: Device
    published: bool
    reason: str
    filter_failed: bool = False
    """The operator's filter could not be evaluated on it; it is excluded, and counted."""
    warnings: tuple[str, ...] = ()
    """What the operator's rules could not do for it, one line each; none of it excludes the device."""
    pod: str = ""
    """The pod that has the device, as ``namespace/name``; commands fill it in."""

    @property
    def answer(self) -> str:
        """Whether it is offered, in a table: ``yes, in pod default/trainer``; ``no: has no driver``."""
        if not self.published:
            return f"no: {self.reason}"
        return f"yes, in pod {self.pod}" if self.pod else "yes"
