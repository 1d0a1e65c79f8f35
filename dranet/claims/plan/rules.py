"""Policy rules and permanent neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.claims.plan.given import PlanInput, is_ipv6
from dranet.model.facts import Neighbour
from dranet.model.network import TABLE_MAIN, RuleConfig
from dranet.model.plan import AddNeighbour, AddRule


def plan_rules(given: PlanInput) -> tuple[AddRule, ...]:
    """One step for each rule and IP version, each once: a rule said twice is no other than said once."""
    steps = (_rule(rule, version) for rule in given.config.rules for version in rule.families)
    return tuple(dict.fromkeys(step for step in steps if step.family == 4 or given.node_has_ipv6))


def _rule(rule: RuleConfig, version: int) -> AddRule:
    return AddRule(
        family=6 if version == 6 else 4,
        table=rule.table or TABLE_MAIN,
        priority=rule.priority or 0,
        source=rule.source or "",
        destination=rule.destination or "",
        mark=rule.mark,
        mask=rule.mask,
        input_interface=rule.input_interface or "",
        output_interface=rule.output_interface or "",
    )


def check_rules(given: PlanInput) -> Iterator[str]:
    """Rules for an IP version that the node lacks. Problems read "<field path>: ..."."""
    for index, rule in enumerate(given.config.rules):
        if rule.families == (6,) and not given.node_has_ipv6:
            yield f"rules[{index}]: the node has no IPv6"


def plan_neighbours(given: PlanInput) -> tuple[AddNeighbour, ...]:
    """The neighbours that the claim names; the host's stay there."""
    return tuple(AddNeighbour(Neighbour(n.destination, n.hardware_addr)) for n in given.config.neighbors)


def check_neighbours(given: PlanInput) -> Iterator[str]:
    """Hardware addresses of another link layer, and IPv6 where there is none. "<field path>: ..."."""
    for index, neighbour in enumerate(given.config.neighbors):
        path, mac = f"neighbors[{index}]", given.host.mac
        if mac and len(neighbour.hardware_addr) != len(mac):
            yield f"{path}.hardwareAddr: the device has hardware addresses like {mac}"
        if is_ipv6(neighbour.destination) and given.ipv6_obstacle:
            yield f"{path}.destination: {given.ipv6_obstacle}"
