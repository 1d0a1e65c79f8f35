"""What the operator decided about publishing: which links, which devices, which further attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dranet.model.device import AttributeValue, Device


class DeviceFilter(Protocol):
    """The operator's CEL filter, compiled."""

    def matches(self, device: Device) -> bool:
        """Whether the device may be offered.

        Raises:
            CelError: the expression failed on this device; it is held back then.
        """
        ...


class AttributeRules(Protocol):
    """The operator's own attributes, compiled."""

    def attributes_for(self, device: Device) -> Mapping[str, AttributeValue]:
        """Qualified names and values that the rules add to this device.

        Raises:
            CelError: a rule failed on this device.
        """
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """The defaults are those of the settings."""

    publish_gpus: bool = True
    move_ib_interfaces: bool = True
    """False: an IPoIB interface stays on the node and its adapter is offered as RDMA-only."""
    offer_link_kinds: frozenset[str] = frozenset()
    """Kinds of software links that are offered although they are infrastructure by default (``veth`` ...)."""
    list_attributes: bool = False
    """Publish ``resource.kubernetes.io/numaNode`` as a list: own node, then the equally near ones."""
    prefer_attributes: tuple[str, ...] = ()
    """Qualified names that go first when a device has more attributes than a slice can take."""
    filter: DeviceFilter | None = field(default=None)
    rules: AttributeRules | None = field(default=None)
