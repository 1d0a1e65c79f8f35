"""Facts of providers, added to devices before the operator's rules and filter see them.

A device that a pod has keeps what was recorded at Prepare.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dranet.model.device import Device
from dranet.model.facts import NodeFacts

if TYPE_CHECKING:
    from dranet.model.provider import ProvidedIndex


def add_provided(
    devices: Sequence[Device], facts: NodeFacts, held: Container[str] = ()
) -> tuple[Device, ...]:
    """``devices`` in the same order. One of the node's own links without any attribute stays bare."""
    if not facts.provided:
        return tuple(devices)
    from dranet.model.provider import ProvidedIndex  # a node without a provider does without

    index = ProvidedIndex(facts.provided)
    return tuple(
        device if device.name in held or not device.attributes else _add(device, index) for device in devices
    )


def _add(device: Device, index: ProvidedIndex) -> Device:
    return replace(device, attributes={**index.attributes_for(device), **device.attributes})
