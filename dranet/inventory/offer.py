"""The whole way from facts to decisions: build the devices, then decide on each."""

from __future__ import annotations

from collections.abc import Mapping

from dranet.inventory.build import build_devices
from dranet.inventory.decision import Decision
from dranet.inventory.filter import decide
from dranet.inventory.policy import DEFAULT_POLICY, Policy
from dranet.inventory.served_gpus import NOBODY, ServedGpus
from dranet.model.device import Device
from dranet.model.facts import NodeFacts


def take_inventory(
    facts: NodeFacts,
    held: Mapping[str, Device],
    policy: Policy = DEFAULT_POLICY,
    served: ServedGpus = NOBODY,
) -> tuple[Decision, ...]:
    """One decision for each device of the node, in order of preference.

    Args:
        facts: one scan of the host.
        held: the devices that pods have now, by name, as recorded when they were prepared.
        policy: what the operator decided.
        served: who else gives this node's GPUs to pods.
    """
    devices = build_devices(facts, held, policy)
    return decide(devices, facts, policy, held.keys(), served)
