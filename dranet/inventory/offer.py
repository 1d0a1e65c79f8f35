"""The whole way from facts to decisions: build the devices, then decide on each."""

from __future__ import annotations

from collections.abc import Mapping

from dranet.inventory.build import build_devices
from dranet.inventory.decision import Decision
from dranet.inventory.filter import decide
from dranet.inventory.policy import DEFAULT_POLICY, Policy
from dranet.model.device import Device
from dranet.model.facts import NodeFacts


def take_inventory(
    facts: NodeFacts, held: Mapping[str, Device], policy: Policy = DEFAULT_POLICY
) -> tuple[Decision, ...]:
    """One decision for each device of the node, in order of preference.

    Args:
        facts: one scan of the host.
        held: the devices that pods have now, by name, as recorded when they were prepared.
        policy: what the operator decided.
    """
    devices = build_devices(facts, held, policy)
    return decide(devices, facts, policy, held.keys())
