"""The operator's virtual functions: rules of a file define which physical functions get how many, with which
defaults. Pure: facts and rules -> what to do for each physical function, and what waits for what."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from dranet.cel import CelError, DeviceExpression
from dranet.errors import Reason
from dranet.inventory.policy import Decision, Policy
from dranet.inventory.topology import find_link_dependencies
from dranet.model.attributes import BANDWIDTH, MAC
from dranet.model.device import MEGABIT, Bandwidth, CounterUse, Device, DeviceKind
from dranet.model.facts import Link, NodeFacts, PciFunction
from dranet.model.parameters.interface import VfConfig
from dranet.model.parameters.part import AfterValidator, Conflict, Entries, Field, Part, ValidationError
from dranet.model.parameters.values import Text, mac
from dranet.model.virtual_functions import VfSettings

_MOST_PREFIX_BYTES = 4
"""Two bytes are left for the virtual functions of all nodes on a network at least."""
_MAC_BYTES = 6


def mac_prefix(value: str) -> str:
    """Two to four bytes of a locally administered, unicast address."""
    octets = value.lower().split(":")
    if not 1 <= len(octets) <= _MOST_PREFIX_BYTES or any(
        len(octet) != 2 or not set(octet) <= set("0123456789abcdef") for octet in octets
    ):
        raise ValueError("must be one to four bytes of a MAC address, e.g. 02:5a:10")
    if int(octets[0], 16) & 3 != 2:
        raise ValueError("must begin a locally administered unicast address: x2, x6, xa or xe")
    return ":".join(octets)


def ethernet_mac(value: str) -> str:
    """A unicast address of six bytes; InfiniBand's have 20."""
    address = mac(value)
    if len(address.split(":")) != _MAC_BYTES:
        raise ValueError("must be a MAC address of 6 bytes, e.g. 02:5a:10:00:00:00")
    return address


class MacRange(Part):
    """``macRange``: both ends are part of it."""

    start: Annotated[str, AfterValidator(ethernet_mac)] = Field(
        "first address", examples=["02:5a:10:00:00:00"]
    )
    end: Annotated[str, AfterValidator(ethernet_mac)] = Field("last address", examples=["02:5a:10:00:0f:ff"])

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.start[:2] != self.end[:2]:
            yield (
                ("end",),
                f"must have the first byte of start ({self.start[:2]}): others are multicast addresses",
            )
        elif not self.addresses:
            yield ("end",), f"must not be below start ({self.start})"

    @property
    def addresses(self) -> range:
        return range(_number(self.start), _number(self.end) + 1)


class VfRule(Part):
    """One entry of ``virtualFunctions``."""

    match: Text | None = Field(
        "CEL expression over the physical function's attributes, as the filter has it; absent: all",
        examples=['device.attributes["dra.net"].?driver.orValue("") == "mlx5_core"'],
    )
    count: Annotated[int, Field(ge=0, le=65535)] = Field("how many virtual functions; 0 removes them")
    defaults: VfConfig = Field("what each virtual function has while no claim uses it")
    mac_prefix: Annotated[str, AfterValidator(mac_prefix)] | None = Field(
        "first bytes of their MAC addresses; the others come from node, physical function and number",
        examples=["02:5a:10"],
    )
    mac_range: MacRange | None = Field("their MAC addresses are in this range; instead of `macPrefix`")
    drivers_autoprobe: bool = Field(
        "`false`: they get no driver on the node (`sriov_drivers_autoprobe`)", default=True
    )
    node_interfaces: bool = Field(
        "also physical functions that the node itself uses, whose link may be down for some seconds",
        default=False,
    )

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.mac_prefix and self.mac_range:
            yield ("macRange",), "must be absent with macPrefix, which is a range as well"
        elif self.mac_range and len(self.mac_range.addresses) < self.count:
            size = len(self.mac_range.addresses)
            yield ("macRange",), f"has {size} addresses for {self.count} virtual functions: extend it"

    @property
    def mac_addresses(self) -> range | None:
        """The addresses to choose from, as numbers; ``None``: the virtual functions keep what they have."""
        if self.mac_range is not None:
            return self.mac_range.addresses
        if self.mac_prefix is None:
            return None
        size = 256 ** (_MAC_BYTES - len(self.mac_prefix.split(":")))
        return range(_number(self.mac_prefix) * size, (_number(self.mac_prefix) + 1) * size)


class VfFile(Part):
    virtual_functions: Entries[VfRule] = Field("rules; of those that match, the first counts")


def _number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


class VfProblem(Struct, frozen=True):
    path: tuple[str | int, ...]
    text: str


class Rule(Struct, frozen=True):
    place: str
    match: DeviceExpression | None
    wanted: VfRule


class VfRules(Struct, frozen=True):
    rules: tuple[Rule, ...] = ()

    def find(self, device: Device, warnings: list[str]) -> Rule | None:
        """The rule for a physical function. One that fails on it matches nothing, and neither does any after
        it: its result is not known."""
        for rule in self.rules:
            try:
                if rule.match is None or rule.match.matches(device.attributes):
                    return rule
            except CelError as error:
                warnings.append(f"device {device.name}: {rule.place} cannot be judged: {error.message}")
                return None
        return None

    def share_counters(self, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """An offered physical function with a rule and its offered virtual functions take of one counter set,
        it all and each of them one, so that either it or they can be allocated. Where only one side is
        offered there is nothing to share. A shared device without a capacity takes nothing: it stays on the
        node, and the scheduler of Kubernetes 1.36 would take of the counter with each share."""
        parts: dict[str, list[str]] = defaultdict(list)
        nics = (d.device for d in decisions if d.published and d.device.kind is DeviceKind.NIC)
        offered = [device for device in nics if not device.shared or device.bandwidth is not None]
        for device in offered:
            if device.physical_function:
                parts[device.physical_function].append(device.name)
        warnings: list[str] = []
        uses: dict[str, CounterUse] = {}
        for device in offered:
            own = parts.get(device.pci_address, [])
            if own and self.find(device, warnings) is not None:
                uses[device.name] = CounterUse(device.name, len(own), len(own))
                uses |= dict.fromkeys(own, CounterUse(device.name, 1, len(own)))
        return tuple(
            replace(d, device=replace(d.device, counters=uses.get(d.device.name))) for d in decisions
        )

    def count_bandwidth(self, decisions: Sequence[Decision], policy: Policy) -> tuple[Decision, ...]:
        """While bandwidth is counted, a virtual function has the rate that its rule limits it to as capacity.
        Where the port does not carry all of them at that rate, none has: it could not be kept."""
        if policy.default_bandwidth is None:
            return tuple(decisions)
        numbers = Counter(d.device.physical_function for d in decisions)
        rates: dict[str, int] = {}
        overcommitted: dict[str, str] = {}
        for device in (d.device for d in decisions if d.device.kind is DeviceKind.NIC):
            rule = self.find(device, []) if numbers[device.pci_address] and device.pci_address else None
            if rule is None or not (rate := (rule.wanted.defaults.max_tx_rate or 0) * MEGABIT):
                continue
            number = max(rule.wanted.count, numbers[device.pci_address])
            port = policy.find_port_rate(device)
            if port is not None and number * rate <= port:
                rates[device.pci_address] = rate
            elif port is not None:
                overcommitted[device.name] = (
                    f"device {device.name}: {number} virtual functions with a maxTxRate of {rate // MEGABIT} "
                    f"are more than its port of {port // MEGABIT} Mbit/s: they have no {BANDWIDTH}"
                )
        return tuple(_set_bandwidth(d, rates, overcommitted, policy.default_bandwidth) for d in decisions)


def _set_bandwidth(
    decision: Decision, rates: Mapping[str, int], overcommitted: Mapping[str, str], default: int
) -> Decision:
    device = decision.device
    if warning := overcommitted.get(device.name):
        return replace(decision, warnings=(*decision.warnings, warning))
    if not device.physical_function:
        return decision
    rate = rates.get(device.physical_function)
    if rate is None:
        bandwidth = device.bandwidth if device.shared else None
    else:
        bandwidth = Bandwidth(rate, min(default, rate) if device.shared else None)
    return replace(decision, device=replace(device, bandwidth=bandwidth))


def parse_vf_rules(data: object, driver: str) -> tuple[VfRules, tuple[VfProblem, ...]]:
    """The rules, and everything that is wrong. Raises CelError (``MissingFeature``) where there is an
    expression and no engine."""
    try:
        entries = VfFile.model_validate(data).virtual_functions
    except ValidationError as error:
        return VfRules(), tuple(VfProblem(fault.path, fault.text) for fault in error.faults)
    rules, problems = [], []
    for index, entry in enumerate(entries):
        try:
            match = DeviceExpression(entry.match, driver) if entry.match else None
            rules.append(Rule(f"virtualFunctions[{index}]", match, entry))
        except CelError as error:
            if error.reason is Reason.MISSING_FEATURE:
                raise
            problems.append(VfProblem(("virtualFunctions", index, "match"), error.message))
    return VfRules(tuple(rules)), tuple(problems)


# --- what to do -----------------------------------------------------------------------------------------


class VfTarget(Struct, frozen=True):
    """One virtual function that exists, and what it should have."""

    address: str
    index: int
    settings: VfSettings


class PfTarget(Struct, frozen=True):
    """One physical function with a rule: desired and observed state, and what keeps them apart."""

    address: str
    device: str
    place: str
    """Where its rule is in the file."""
    count: int
    observed: int
    waits_for: str = ""
    """Why the number stays as it is although it differs; empty where it may change, or need not."""
    autoprobe: bool = True
    functions: tuple[VfTarget, ...] = ()
    """Those without a user, which get their defaults."""
    devices: tuple[str, ...] = ()
    """Names of the physical function's device and of those of its virtual functions."""

    @property
    def changes_count(self) -> bool:
        return self.count != self.observed and not self.waits_for


def plan_virtual_functions(
    facts: NodeFacts, devices: Iterable[Device], rules: VfRules, prepared: Mapping[str, str], node_name: str
) -> tuple[tuple[PfTarget, ...], tuple[str, ...]]:
    """Each physical function with a rule, in the order of their addresses; and warnings. ``prepared`` are the
    names of devices that claims have, with the pod of each."""
    warnings: list[str] = []
    by_address = {d.pci_address: d for d in devices if d.pci_address and d.kind is DeviceKind.NIC}
    children: dict[str, list[PciFunction]] = defaultdict(list)
    for function in facts.pci_functions:
        if function.physical_function:
            children[function.physical_function].append(function)
    node = _Node(facts, by_address, prepared)
    found = list[_Pf]()
    for function in facts.pci_functions:
        device = by_address.get(function.address)
        if device is None or not function.sriov_total_vfs or function.physical_function:
            continue
        rule = rules.find(device, warnings)
        if rule is not None:
            own = sorted(children[function.address], key=lambda f: f.virtual_function_index or 0)
            found.append(_Pf(function, device, rule, tuple(own)))
    macs = _Macs(
        node_name, facts.links, node.find_macs_in_use(child for pf in found for child in pf.children)
    )
    return tuple(_plan_one(pf, node, macs) for pf in found), tuple(warnings)


class _Pf(Struct, frozen=True):
    """A physical function with a rule."""

    function: PciFunction
    device: Device
    rule: Rule
    children: tuple[PciFunction, ...]


def _plan_one(pf: _Pf, node: _Node, macs: _Macs) -> PfTarget:
    wanted, function = pf.rule.wanted, pf.function
    chosen = _choose_macs(pf, macs)
    waits_for = ""
    if wanted.count > function.sriov_total_vfs:
        waits_for = f"it has at most {function.sriov_total_vfs} virtual functions, not {wanted.count}"
    elif None in [chosen.get(index, "") for index in range(wanted.count)]:
        waits_for = f"the MAC addresses of {pf.rule.place} are all taken on this node: extend macRange"
    elif wanted.count != function.sriov_num_vfs:
        waits_for = node.find_user(function, "" if wanted.node_interfaces else "node")
        users = (node.find_user(child, "node") for child in pf.children)
        waits_for = waits_for or next(filter(None, users), "")
    functions = tuple(
        VfTarget(child.address, index, replace(wanted.defaults.settings, mac=chosen.get(index)))
        for child in pf.children
        if (index := child.virtual_function_index) is not None and not node.find_user(child, "node")
    )
    own = (node.by_address.get(child.address) for child in pf.children)
    names = (pf.device.name, *(vf.name for vf in own if vf is not None))
    return PfTarget(
        function.address,
        pf.device.name,
        pf.rule.place,
        wanted.count,
        function.sriov_num_vfs,
        waits_for,
        wanted.drivers_autoprobe,
        functions,
        names,
    )


def _choose_macs(pf: _Pf, macs: _Macs) -> Mapping[int, str | None]:
    """By the numbers of all virtual functions, whether they exist or not: so that an address does not depend
    on what was made first."""
    addresses, function = pf.rule.wanted.mac_addresses, pf.function
    if addresses is None:
        return {}
    count = max(min(pf.rule.wanted.count, function.sriov_total_vfs), function.sriov_num_vfs)
    by_index = {child.virtual_function_index: child.address for child in pf.children}
    return {
        index: macs.choose(addresses, function.address, index, by_index.get(index, ""))
        for index in range(count)
    }


class _Node:
    """The user of a function: a claim, another namespace or program, or the node itself."""

    def __init__(
        self, facts: NodeFacts, by_address: Mapping[str, Device], prepared: Mapping[str, str]
    ) -> None:
        self.by_address = by_address
        self._prepared = prepared
        self._links: dict[str, list[Link]] = defaultdict(list)
        for link in facts.links:
            if link.pci_address:
                self._links[link.pci_address].append(link)
        self._lower = {link.lower for link in facts.links if link.link_netnsid is None}
        self._dependencies = find_link_dependencies(facts)

    def find_user(self, function: PciFunction, kind: str) -> str:
        """A clause, or empty; ``kind`` ``node`` also counts the node's own use."""
        device = self.by_address.get(function.address)
        name = device.name if device else function.address
        if name in self._prepared:
            return f"{name} is prepared for pod {self._prepared[name]}"
        links = self._links[function.address]
        if function.driver and not links:
            return (
                f"{name} has the driver {function.driver} and no interface on the node: a pod, a virtual "
                "machine or DPDK may have it"
            )
        return self._find_node_use(name, function, links) if kind else ""

    def find_macs_in_use(self, functions: Iterable[PciFunction]) -> Mapping[str, str]:
        """By PCI address: of each of these functions, empty while it has no user, whose address may change,
        or where a virtual machine has it, whose address is not known."""
        users = ((function.address, self.find_user(function, "node")) for function in functions)
        return {address: self._find_mac(address) if user else "" for address, user in users}

    def _find_mac(self, address: str) -> str:
        device = self.by_address.get(address)
        return str(device.attributes.get(MAC.qualified, "")) if device is not None else ""

    def _find_node_use(self, name: str, function: PciFunction, links: Iterable[Link]) -> str:
        for link in links:
            if link.ifname in self._dependencies.links:
                return f"{name} {self._dependencies.links[link.ifname].reason_for(link.ifname)}"
            if link.master is not None:
                return f"{link.ifname} of {name} is enslaved to another link"
            if link.ifindex in self._lower:
                return f"{link.ifname} of {name} carries another link"
            if function.physical_function and any(a.scope == 0 for a in link.addresses):
                return f"{link.ifname} of {name} has an address"
        if function.address in self._dependencies.functions:
            return f"a virtual function of {name} {self._dependencies.functions[function.address].why}"
        return ""


class _Macs:
    """Deterministic addresses: the same after a restart, and each of them once on the node."""

    def __init__(self, node_name: str, links: Iterable[Link], in_use: Mapping[str, str]) -> None:
        """``in_use``: addresses of all virtual functions that may get one, empty for those that will."""
        self._node = node_name
        self._in_use = in_use
        self._taken = {*in_use.values(), *(link.mac for link in links if link.pci_address not in in_use)}

    def choose(self, addresses: range, physical_function: str, index: int, function: str) -> str | None:
        """The first free one, from a place that node, physical function and number give; ``None``: all are
        taken. A function in use has what it has."""
        if present := self._in_use.get(function):
            return present
        seed = f"{self._node}/{physical_function}/{index}".encode()
        place = int.from_bytes(hashlib.sha256(seed).digest())
        for attempt in range(min(len(addresses), len(self._taken) + 1)):
            number = addresses[(place + attempt) % len(addresses)]
            mac = number.to_bytes(_MAC_BYTES).hex(":")
            if mac not in self._taken:
                self._taken.add(mac)
                return mac
        return None
