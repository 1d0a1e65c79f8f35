"""The whole way from facts to decisions: build the devices, add the operator's attributes, decide."""

from __future__ import annotations

from collections.abc import Mapping

from dranet.inventory.build import build_devices
from dranet.inventory.filter import Decision, decide
from dranet.inventory.policy import Policy
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts

DEFAULT_POLICY = Policy()


def take_inventory(
    facts: NodeFacts, held: Mapping[str, Device], policy: Policy = DEFAULT_POLICY
) -> tuple[Decision, ...]:
    """One decision for each device of the node, in order of preference.

    Args:
        facts: one scan of the host.
        held: the devices that pods have now, by name, as recorded when they were prepared.
        policy: what the operator decided.
    """
    devices = build_devices(facts, held)
    if not policy.publish_gpus:
        devices = tuple(device for device in devices if device.kind is not DeviceKind.GPU)
    return decide(devices, facts)
