"""Policy rules and permanent neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from msgspec.structs import replace

from dranet.claims.plan.addresses import ip_of, plan_addresses
from dranet.claims.plan.inputs import PlanInput, is_ipv6
from dranet.claims.plan.routes import find_policy_tables
from dranet.model.facts import TABLE_MAIN, Neighbour
from dranet.model.parameters.routing import RuleConfig
from dranet.model.plan import AddNeighbour, AddRule


def plan_rules(inputs: PlanInput) -> tuple[AddRule, ...]:
    """One step for each rule and IP version, without repetitions."""
    own = (_rule(rule, version) for rule in inputs.config.rules for version in rule.families)
    steps = (*own, *_iter_inherited(inputs))
    return tuple(dict.fromkeys(step for step in steps if step.family == 4 or inputs.node_has_ipv6))


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


_THIS_HOST = "lo"
"""As the input interface of a rule: packets that the namespace itself sends."""


def _iter_inherited(inputs: PlanInput) -> Iterator[AddRule]:
    """The host's rules that are about the link: that look up a table which comes along with it, or are for
    packets from an address of the pod, or that come in or go out here. A VRF brings its own."""
    if not inputs.inherits_routing or inputs.config.interface.vrf:
        return
    tables = find_policy_tables(inputs)
    sources = {ip_network(ip_of(address)) for address in plan_addresses(inputs)}
    for rule in inputs.host_rules:
        is_about_link = (
            (rule.family, rule.table) in tables
            or (rule.source and ip_network(rule.source) in sources)
            or inputs.host.ifname in (rule.input_interface, rule.output_interface)
        )
        takes_all = _has_no_selector(rule) and tables.get((rule.family, rule.table), False)
        if is_about_link and not takes_all and _may_travel(rule, inputs):
            yield _in_pod(rule, inputs)


def _has_no_selector(rule: AddRule) -> bool:
    """It is for every packet: with a default route in its table, the pod network would lose all of them."""
    return not (rule.source or rule.destination or rule.input_interface or rule.output_interface)


def _may_travel(rule: AddRule, inputs: PlanInput) -> bool:
    """Not with a firewall mark, which network plugins of the node give; not about another of its links."""
    if rule.family == 6 and inputs.config.interface.ipv6.enabled is False:
        return False
    links = {rule.input_interface, rule.output_interface} - {"", _THIS_HOST}
    return rule.mark is None and links <= {inputs.host.ifname}


def _in_pod(rule: AddRule, inputs: PlanInput) -> AddRule:
    """With the link's name in the pod."""
    names = {inputs.host.ifname: inputs.pod_ifname}
    return replace(
        rule,
        input_interface=names.get(rule.input_interface, rule.input_interface),
        output_interface=names.get(rule.output_interface, rule.output_interface),
    )


def check_rules(inputs: PlanInput) -> Iterator[str]:
    """Rules for an IP version that the node lacks. Problems read "<field path>: ..."."""
    for index, rule in enumerate(inputs.config.rules):
        if rule.families == (6,) and not inputs.node_has_ipv6:
            yield f"rules[{index}]: the node has no IPv6"


def plan_neighbours(inputs: PlanInput) -> tuple[AddNeighbour, ...]:
    """The neighbours that the claim names, and the permanent ones of the host at other addresses."""
    own = [Neighbour(n.destination, n.hardware_addr) for n in inputs.config.neighbors]
    taken = {ip_address(neighbour.address) for neighbour in own}
    others = (
        n for n in inputs.host.neighbours if ip_address(n.address) not in taken and _is_usable(n, inputs)
    )
    return tuple(map(AddNeighbour, (*own, *others)))


def _is_usable(neighbour: Neighbour, inputs: PlanInput) -> bool:
    """Addresses that the link answers for (``proxy``) stay: the host forwards for them."""
    has_no_ipv6 = inputs.config.interface.ipv6.enabled is False or inputs.ipv6_blocker
    return (
        inputs.inherits_routing and not neighbour.proxy and not (is_ipv6(neighbour.address) and has_no_ipv6)
    )


def check_neighbours(inputs: PlanInput) -> Iterator[str]:
    """Yield hardware addresses of another link layer, and IPv6 neighbours without IPv6: "<field path>:
    ..."."""
    for index, neighbour in enumerate(inputs.config.neighbors):
        path, mac = f"neighbors[{index}]", inputs.host.mac
        if mac and len(neighbour.hardware_addr) != len(mac):
            yield f"{path}.hardwareAddr: the device has hardware addresses like {mac}"
        if is_ipv6(neighbour.destination) and inputs.ipv6_blocker:
            yield f"{path}.destination: {inputs.ipv6_blocker}"
