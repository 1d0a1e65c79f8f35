"""The link in the pod: moved or made, and what it is to be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from dranet.claims.plan.addresses import plan_addresses
from dranet.claims.plan.inputs import PlanInput, is_ipv6
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.parameters.routing import IPV6_MTU_MIN
from dranet.model.plan import (
    AddAddress,
    AttachPlan,
    CreateLink,
    JoinVrf,
    LimitRate,
    MoveLink,
    RemovePrograms,
    SetLink,
    SetToken,
)

_ETHERNET_MAC_LENGTH = len("02:00:00:00:00:01")
_OFFLOAD_SIZE_MAX = 8 * 65535
"""``GSO_MAX_SIZE`` and ``GRO_MAX_SIZE`` (``linux/netdevice.h``)."""
_OFFLOAD_SIZES = {
    "gso_max_size": "gsoMaxSize",
    "gro_max_size": "groMaxSize",
    "gso_ipv4_max_size": "gsoIPv4MaxSize",
    "gro_ipv4_max_size": "groIPv4MaxSize",
}
"""Field names, in the order in which the kernel wants them: ``gso_max_size`` changes the IPv4 one too."""


def plan_link(inputs: PlanInput) -> MoveLink | CreateLink:
    """The first step of every plan for a device with a link."""
    if inputs.moves:
        return MoveLink(inputs.pod_ifname, mtu=inputs.mtu, mac=inputs.config.interface.hardware_addr)
    return _plan_sub_link(inputs)


def _plan_sub_link(inputs: PlanInput) -> CreateLink:
    """Nothing of the parent's goes to the pod but what the kernel copies (its MTU)."""
    interface, parent = inputs.config.interface, inputs.host
    mode = flag = ""
    vlan_id, protocol = None, "802.1Q"
    if interface.type == "macvlan":
        mode = interface.macvlan.mode if interface.macvlan else "bridge"
    elif interface.type == "ipvlan":
        mode = interface.ipvlan.mode if interface.ipvlan else "l2"
        flag = interface.ipvlan.flag if interface.ipvlan else "bridge"
    elif interface.vlan:
        vlan_id, protocol = interface.vlan.id, interface.vlan.protocol
    return CreateLink(
        inputs.pod_ifname,
        kind=interface.type if interface.type in ("macvlan", "ipvlan") else "vlan",
        parent_ifindex=parent.ifindex,
        parent_ifname=parent.ifname,
        parent_mac=parent.mac,
        mode=mode,
        flag=flag,
        vlan_id=vlan_id,
        vlan_protocol=protocol,
        mtu=inputs.mtu,
        mac=_choose_mac(inputs),
    )


def _choose_mac(inputs: PlanInput) -> str | None:
    """The claim's; else the kernel's choice, unless a DHCP server knows the link by one generated before."""
    interface = inputs.config.interface
    if interface.hardware_addr or not interface.dhcp:
        return interface.hardware_addr
    return make_mac(inputs.mac_seed)


def make_mac(seed: str) -> str:
    """A locally administered unicast hardware address, the same for the same seed."""
    raw = bytearray(hashlib.sha256(seed.encode()).digest()[:6])
    raw[0] = raw[0] & 0xFC | 0x02
    return raw.hex(":")


def plan_properties(inputs: PlanInput) -> Iterator[SetLink]:
    """Queue length and offload sizes."""
    interface = inputs.config.interface
    sizes = {
        name: getattr(interface, name) for name in _OFFLOAD_SIZES if getattr(interface, name) is not None
    }
    if sizes or interface.tx_queue_length is not None:
        yield SetLink(tx_queue_length=interface.tx_queue_length, offload_sizes=sizes)


def plan_vrf(inputs: PlanInput) -> Iterator[JoinVrf]:
    """The VRF, with its table chosen."""
    if inputs.config.interface.vrf:
        yield JoinVrf(inputs.config.interface.vrf.name, inputs.table)


def plan_token(inputs: PlanInput) -> Iterator[SetToken]:
    """The IPv6 token."""
    if inputs.config.interface.ipv6.token:
        yield SetToken(inputs.config.interface.ipv6.token)


def plan_programs(inputs: PlanInput) -> Iterator[RemovePrograms]:
    """BPF programs that go."""
    if inputs.config.interface.disable_ebpf_programs:
        yield RemovePrograms()


def plan_rates(inputs: PlanInput) -> Iterator[LimitRate]:
    """Rate limits. A burst that the claim leaves open is chosen where the limit is set."""
    egress, ingress = inputs.config.interface.rate_limit.egress, inputs.config.interface.rate_limit.ingress
    if egress or ingress:
        yield LimitRate(
            egress_bits_per_second=egress.rate if egress else None,
            egress_burst_bytes=egress.burst if egress else None,
            ingress_bits_per_second=ingress.rate if ingress else None,
            ingress_burst_bytes=ingress.burst if ingress else None,
        )


def check_link(inputs: PlanInput) -> Iterator[str]:
    """Yield the problems that only the link, or the one below it, can show, as "<field path>: ..."."""
    yield from _check_mac(inputs)
    yield from _check_mtu(inputs)
    yield from _check_offload_sizes(inputs)
    yield from _check_ipv6(inputs)
    if not inputs.moves:
        yield from _check_sub_link(inputs)
    vrf = inputs.config.interface.vrf
    if vrf and vrf.name == inputs.pod_ifname:
        yield f"interface.vrf.name: {vrf.name} is the name of the interface itself"


def _check_mac(inputs: PlanInput) -> Iterator[str]:
    mac = inputs.config.interface.hardware_addr
    if mac and inputs.host.mac and len(mac) != len(inputs.host.mac):
        yield f"interface.hardwareAddr: the device has hardware addresses like {inputs.host.mac}, not {mac}"


def _check_mtu(inputs: PlanInput) -> Iterator[str]:
    mtu = inputs.config.interface.mtu
    if mtu is None:
        return
    keeps_ipv6 = any(is_ipv6(address.cidr) for address in plan_addresses(inputs))
    if mtu < IPV6_MTU_MIN and keeps_ipv6:
        yield f"interface.mtu: must be at least {IPV6_MTU_MIN} for the IPv6 address that it keeps, not {mtu}"
    if not inputs.moves and inputs.host.mtu and mtu > inputs.host.mtu:
        yield f"interface.mtu: must be at most the {inputs.host.mtu} of {inputs.host.ifname}, not {mtu}"
    most = inputs.physical_function_mtu
    if most is not None and mtu > most:
        pf = inputs.device.physical_function
        yield f"interface.mtu: must be at most the {most} of the physical function {pf}, not {mtu}"


def _check_offload_sizes(inputs: PlanInput) -> Iterator[str]:
    for name, path in _OFFLOAD_SIZES.items():
        size = getattr(inputs.config.interface, name)
        if size is not None and size > _OFFLOAD_SIZE_MAX:
            yield f"interface.{path}: must be at most {_OFFLOAD_SIZE_MAX}, not {size}"


def _check_ipv6(inputs: PlanInput) -> Iterator[str]:
    ipv6 = inputs.config.interface.ipv6
    asked = {
        "enabled": ipv6.enabled or None,
        "acceptRA": ipv6.accept_ra,
        "duplicateAddressDetection": ipv6.duplicate_address_detection,
        "token": ipv6.token,
    }
    why = inputs.ipv6_blocker
    if why:
        yield from (f"interface.ipv6.{path}: {why}" for path, value in asked.items() if value is not None)
    elif ipv6.token:
        yield from _check_token(inputs)


def _check_token(inputs: PlanInput) -> Iterator[str]:
    """The kernel takes a token only on a link that takes router advertisements and resolves neighbours."""
    interface = inputs.config.interface
    if interface.ipv6.enabled is False:
        yield "interface.ipv6.token: needs IPv6, which interface.ipv6.enabled switches off"
    if interface.forwarding and interface.ipv6.accept_ra != 2:
        yield "interface.ipv6.token: a forwarding interface takes router advertisements only with acceptRA 2"
    if interface.ipvlan and interface.ipvlan.mode != "l2":
        yield f"interface.ipv6.token: in mode {interface.ipvlan.mode} an ipvlan gets no router advertisements"


def _check_sub_link(inputs: PlanInput) -> Iterator[str]:
    interface, parent = inputs.config.interface, inputs.host
    if len(parent.mac) != _ETHERNET_MAC_LENGTH:
        yield f"interface.type: {interface.type} needs an Ethernet device; {parent.ifname} is not"
    if interface.type == "macvlan" and interface.hardware_addr and interface.hardware_addr == parent.mac:
        yield f"interface.hardwareAddr: {parent.mac} is the address of {parent.ifname} below it"
    if interface.disable_ebpf_programs:
        yield (
            f"interface.disableEbpfPrograms: the programs are on {parent.ifname}, which stays on the node "
            f"with type {interface.type}"
        )


def check_parents(mine: Sequence[AttachPlan], others: Iterable[tuple[str, AttachPlan]]) -> None:
    """Check that the links of a claim can coexist with each other and with those that exist already.

    Args:
        mine: the plans of one claim.
        others: plans of other claims, each with words for whose it is.

    Raises:
        ClaimError: InvalidConfig: two links of the claim exclude each other.
        DeviceError: DeviceBusy: one of another claim is in the way; retryable, for it goes with its pod.
    """
    for one, other in combinations(mine, 2):
        for problem in _find_conflicts(one, other):
            raise ClaimError(f"device {one.device}: {problem}", reason=Reason.INVALID_CONFIG)
    for owner, other in others:
        for plan in mine:
            for problem in _find_conflicts(plan, other):
                raise DeviceError(
                    f"device {plan.device}: {problem}",
                    hint=f"the other link is that of {owner}",
                    reason=Reason.DEVICE_BUSY,
                )


def _find_conflicts(one: AttachPlan, other: AttachPlan) -> Iterator[str]:
    mine, theirs = _sub_link(one), _sub_link(other)
    if mine is None or theirs is None or mine.parent_ifindex != theirs.parent_ifindex:
        return
    parent, kinds = mine.parent_ifname, {mine.kind, theirs.kind}
    if kinds == {"macvlan", "ipvlan"}:
        yield f"interface.type: {parent} has a link of type {theirs.kind}, which excludes type {mine.kind}"
    elif kinds == {"ipvlan"}:
        yield from _find_ipvlan_conflicts(one, mine, other, theirs)
    elif kinds == {"macvlan"} and mine.mac and mine.mac == theirs.mac:
        yield f"interface.hardwareAddr: {mine.mac} is that of another macvlan of {parent}"
    elif kinds == {"vlan"} and (mine.vlan_id, mine.vlan_protocol) == (theirs.vlan_id, theirs.vlan_protocol):
        yield f"interface.vlan.id: {parent} has a link for VLAN {mine.vlan_id} ({mine.vlan_protocol}) already"


def _find_ipvlan_conflicts(
    one: AttachPlan, mine: CreateLink, other: AttachPlan, theirs: CreateLink
) -> Iterator[str]:
    """A new ipvlan changes the mode and flag of all ipvlans of its parent."""
    parent = mine.parent_ifname
    for what, asked, there in (("mode", mine.mode, theirs.mode), ("flag", mine.flag, theirs.flag)):
        if asked != there:
            yield f"interface.ipvlan.{what}: must be {there} as of the other ipvlan of {parent}, not {asked}"
    for address in sorted(_ips(one) & _ips(other)):
        yield f"interface.addresses: {address} is that of another ipvlan of {parent}"


def _sub_link(plan: AttachPlan) -> CreateLink | None:
    return next((step for step in plan.steps if isinstance(step, CreateLink)), None)


def _ips(plan: AttachPlan) -> set[str]:
    return {step.address.cidr.partition("/")[0] for step in plan.steps if isinstance(step, AddAddress)}
