"""The link in the pod, moved or made, with its settings: sysctls, ``ethtool``, and its RDMA device."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations

from dranet.claims.plan.inputs import PlanInput, is_ipv6
from dranet.claims.plan.routing import plan_addresses
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.parameters.interface import IPV6_MTU_MIN
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import Part, fields_of
from dranet.model.parameters.values import (
    build_sysctl_path,
    find_refusal,
    find_value_problem,
    is_per_interface,
)
from dranet.model.plan import (
    AddAddress,
    AttachPlan,
    CreateLink,
    EthtoolState,
    JoinVrf,
    LimitRate,
    MoveLink,
    MoveRdma,
    RdmaAccess,
    RemovePrograms,
    SetEthtool,
    SetLink,
    SetSysctl,
    SetToken,
    Step,
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


_BURSTS_PER_SECOND = 20
"""A burst of counted bandwidth is at most what it carries in 50 ms, which is the queue before the limit."""


def plan_link(inputs: PlanInput) -> MoveLink | CreateLink:
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
        # Else the kernel chooses, unless a DHCP server knows the link by one that was generated before.
        mac=interface.hardware_addr or (make_mac(inputs.mac_seed) if interface.dhcp else None),
    )


def make_mac(seed: str) -> str:
    """A locally administered unicast hardware address, the same for the same seed."""
    raw = bytearray(hashlib.sha256(seed.encode()).digest()[:6])
    raw[0] = raw[0] & 0xFC | 0x02
    return raw.hex(":")


def plan_properties(inputs: PlanInput) -> Iterator[Step]:
    """What the link is to have before its addresses. A burst that the claim leaves open is chosen where the
    limit is set."""
    interface = inputs.config.interface
    sizes = {name: size for name in _OFFLOAD_SIZES if (size := getattr(interface, name)) is not None}
    if sizes or interface.tx_queue_length is not None:
        yield SetLink(tx_queue_length=interface.tx_queue_length, offload_sizes=sizes)
    if interface.vrf:
        yield JoinVrf(interface.vrf.name, inputs.table)
    if interface.ipv6.token:
        yield SetToken(interface.ipv6.token)
    if interface.disable_ebpf_programs:
        yield RemovePrograms()
    egress, ingress = interface.rate_limit.egress, interface.rate_limit.ingress
    if egress or ingress or inputs.bandwidth is not None:
        yield LimitRate(
            egress_bits_per_second=_lower(egress.rate if egress else None, inputs.bandwidth),
            egress_burst_bytes=_bound_burst(egress.burst if egress else None, inputs.bandwidth),
            ingress_bits_per_second=_lower(ingress.rate if ingress else None, inputs.bandwidth),
            ingress_burst_bytes=_bound_burst(ingress.burst if ingress else None, inputs.bandwidth),
        )


def _lower(limit: int | None, bandwidth: int | None) -> int | None:
    """The limit of the config and what the allocation took: the sum of all shares never exceeds the port,
    because the scheduler counts what they take."""
    return min((rate for rate in (limit, bandwidth) if rate is not None), default=None)


def _bound_burst(burst: int | None, bandwidth: int | None) -> int | None:
    """With a burst of gigabytes a claim would fill the port for seconds, whatever its rate."""
    if burst is None or bandwidth is None:
        return burst
    return min(burst, bandwidth // 8 // _BURSTS_PER_SECOND)


def check_link(inputs: PlanInput) -> Iterator[str]:
    """Yield the problems that only the link, or the one below it, can show, as "<field path>: ..."."""
    interface, host = inputs.config.interface, inputs.host
    mac, vrf = interface.hardware_addr, interface.vrf
    if mac and host.mac and len(mac) != len(host.mac):
        yield f"interface.hardwareAddr: the device has hardware addresses like {host.mac}, not {mac}"
    yield from _check_mtu(inputs)
    for name, path in _OFFLOAD_SIZES.items():
        size = getattr(interface, name)
        if size is not None and size > _OFFLOAD_SIZE_MAX:
            yield f"interface.{path}: must be at most {_OFFLOAD_SIZE_MAX}, not {size}"
    yield from _check_ipv6(inputs)
    if not inputs.moves:
        yield from _check_sub_link(inputs)
    if vrf and vrf.name == inputs.pod_ifname:
        yield f"interface.vrf.name: {vrf.name} is the name of the interface itself"


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
    mine, theirs = (
        next((step for step in plan.steps if isinstance(step, CreateLink)), None) for plan in (one, other)
    )
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


def _ips(plan: AttachPlan) -> set[str]:
    return {step.address.cidr.partition("/")[0] for step in plan.steps if isinstance(step, AddAddress)}


def plan_rdma_move(device: Device, config: NetworkConfig, *, exclusive: bool) -> Iterator[MoveRdma]:
    """In exclusive mode the RDMA device goes where its link goes."""
    if exclusive and device.rdma_device and config.interface.is_passthrough:
        yield MoveRdma(device.rdma_device, node_guid=device.rdma_guid, pci_address=device.rdma_pci_address)


def plan_rdma_access(
    device: Device, config: NetworkConfig, management_nodes: Sequence[CharDevice] = (), *, exclusive: bool
) -> RdmaAccess:
    """What the containers get.

    With a link on top of the device they also get the verbs device, while the kernel lets other network
    namespaces use it (shared mode).

    Args:
        device: as on offer, with the nodes that every user of it needs.
        config: checked by :func:`check_rdma`.
        management_nodes: ``umad`` and ``issm`` of the device, for those who ask for them.
        exclusive: RDMA devices belong to one network namespace each.
    """
    if device.kind is DeviceKind.GPU or not device.rdma_device or not _reaches_pod(config, exclusive):
        return RdmaAccess()
    nodes = (*device.char_devices, *(management_nodes if config.rdma.management_devices else ()))
    return RdmaAccess(tuple(dict.fromkeys(nodes)), config.rdma.memlock)


def _reaches_pod(config: NetworkConfig, exclusive: bool) -> bool:
    return config.interface.is_passthrough or not exclusive


def check_rdma(device: Device, config: NetworkConfig, *, exclusive: bool) -> Iterator[str]:
    """RDMA settings for a device that has none, or that is not the pod's. "<field path>: ..."."""
    asked = [f"rdma.{name}" for name in config.rdma.to_json(exclude_defaults=True)]
    if not device.rdma_device:
        yield from (f"{path}: the device has no RDMA" for path in asked)
    elif not _reaches_pod(config, exclusive):
        kind = config.interface.type
        why = f"in exclusive mode {device.rdma_device} stays on the node with the device below a {kind}"
        yield from (f"{path}: {why}" for path in asked)
    elif config.rdma.management_devices and not config.interface.is_passthrough:
        yield (
            "rdma.managementDevices: they manage the subnet for everybody on the device, which type "
            f"{config.interface.type} does not give to the pod"
        )


_ETHTOOL_PARTS = {"rings": "rings", "channels": "channels", "coalesce": "interrupt coalescing"}
"""Fields of ``ethtool`` with numbers, and of :class:`EthtoolState`, with the word for a message."""


def plan_ethtool(inputs: PlanInput) -> Iterator[SetEthtool]:
    """One step with everything that the claim names, by the kernel's names."""
    ethtool = inputs.config.ethtool
    if ethtool.is_empty:
        return
    features, _ = resolve_features(ethtool.features, inputs.host.ethtool.features, inputs.host.ethtool.fixed)
    yield SetEthtool(
        EthtoolState(
            features=features,
            private_flags=dict(ethtool.private_flags),
            rings=_numbers(ethtool.rings),
            channels=_numbers(ethtool.channels),
            coalesce=_numbers(ethtool.coalesce),
        )
    )


def check_ethtool(inputs: PlanInput) -> Iterator[str]:
    """Names that the device does not have and numbers that it does not take. "<field path>: ..."."""
    ethtool, state = inputs.config.ethtool, inputs.host.ethtool
    yield from _check_features(inputs)
    if not inputs.moves:
        yield from _check_ethtool_of_sub_link(inputs)
        return
    refused = state.refused
    unknown = [name for name in ethtool.private_flags if name not in state.private_flags]
    if unknown and "private_flags" in refused:
        yield f"ethtool.privateFlags: the driver does not report them: {refused['private_flags']}"
        unknown = []
    shown_by = f"ethtool --show-priv-flags {inputs.host.ifname}"
    yield from _missing("ethtool.privateFlags", "private flags", unknown, state.private_flags, shown_by)
    for name in _ETHTOOL_PARTS:
        asked = getattr(ethtool, name)
        if name in refused and not asked.is_empty:
            yield f"ethtool.{name}: the driver does not report them: {refused[name]}"
            continue
        yield from _check_numbers(name, asked, getattr(state, name), state.maxima)


def _check_features(inputs: PlanInput) -> Iterator[str]:
    """A link on top of the device has features of its own, most of which are the device's."""
    present = inputs.host.ethtool
    if inputs.config.ethtool.features and "features" in present.refused:
        yield f"ethtool.features: the driver does not report them: {present.refused['features']}"
        return
    try:
        _, unknown = resolve_features(inputs.config.ethtool.features, present.features, present.fixed)
    except ClaimError as error:
        yield error.message
        return
    shown_by = f"ethtool -k {inputs.host.ifname}"
    yield from _missing("ethtool.features", "features", unknown, present.features, shown_by)


def _missing(
    path: str, what: str, unknown: Iterable[str], present: Collection[str], shown_by: str
) -> Iterator[str]:
    for name in unknown:
        missing = f"no {name} that can be changed" if present else f"no {what} that can be changed"
        hint = f"; on the node, {shown_by} shows those it has" if present else ""
        yield f'{path}["{name}"]: the device has {missing}{hint}'


def _check_ethtool_of_sub_link(inputs: PlanInput) -> Iterator[str]:
    parent, kind = inputs.host.ifname, inputs.config.interface.type
    for name in inputs.config.ethtool.to_json(exclude_defaults=True):
        if name != "features":
            yield f"ethtool.{name}: belongs to {parent}, which type {kind} leaves on the node"


def _check_numbers(
    part: str, asked: Part, present: Mapping[str, int], maxima: Mapping[str, int]
) -> Iterator[str]:
    for name, value in _numbers(asked).items():
        path = f"ethtool.{part}.{_json_name(asked, name)}"
        most = maxima.get(f"{part}.{name}")
        if not present:
            yield f"{path}: the device has no {_ETHTOOL_PARTS[part]} that can be changed"
        elif name not in present:
            has = ", ".join(_json_name(asked, other) for other in present)
            yield f"{path}: the device has none that can be changed, but {has}"
        elif most is not None and value > most:
            yield f"{path}: must be at most the {most} of the device, not {value}"


def _numbers(part: Part) -> dict[str, int]:
    """The fields that the claim names; a switch is 0 or 1."""
    return {name: int(value) for name, value in part if value is not None}


def _json_name(part: Part, name: str) -> str:
    return next(field.name for field in fields_of(type(part)).values() if field.attribute == name)


_LEGACY = (
    ("rx", "rx-checksumming", "rx-checksum"),
    ("tx", "tx-checksumming", "tx-checksum-*"),
    ("sg", "scatter-gather", "tx-scatter-gather*"),
    ("tso", "tcp-segmentation-offload", "tx-tcp*-segmentation"),
    ("ufo", "udp-fragmentation-offload", "tx-udp-fragmentation"),
    ("gso", "generic-segmentation-offload", "tx-generic-segmentation"),
    ("gro", "generic-receive-offload", "rx-gro"),
    ("lro", "large-receive-offload", "rx-lro"),
    ("rxvlan", "rx-vlan-offload", "rx-vlan-hw-parse"),
    ("txvlan", "tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple", "ntuple-filters", "rx-ntuple-filter"),
    ("rxhash", "receive-hashing", "rx-hashing"),
)
"""Short name, long name, and the kernel's names that they stand for."""

_PATTERNS = {alias: pattern for short, long, pattern in _LEGACY for alias in (short, long)}


def resolve_features(
    asked: Mapping[str, bool], changeable: Collection[str], fixed: Mapping[str, bool] | None = None
) -> tuple[dict[str, bool], tuple[str, ...]]:
    """The kernel's names for what is asked, and those names that the device has nothing to change for.

    A group stands for those of its members that can be changed; where none can and all are as asked
    (``fixed``), for these: most NICs have no LRO, and ``lro: false`` is true of them. The name of one member
    counts before its group: ``tso: false`` with ``tx-tcp-segmentation: true``.

    Raises:
        ClaimError: two names of the same group have different values.
    """
    groups: dict[str, bool] = {}
    exact: dict[str, bool] = {}
    unknown: list[str] = []
    set_by: dict[str, str] = {}
    for name, value in asked.items():
        members = _find_members(name, changeable) or _find_so_anyway(name, value, fixed or {})
        if not members:
            unknown.append(name)
        elif name in members:
            exact[name] = value
        else:
            other = set_by.setdefault(_PATTERNS[name], name)
            if asked[other] != value:
                raise ClaimError(f"ethtool.features: {other} and {name} are the same and must not differ")
            groups |= dict.fromkeys(members, value)
    return {**groups, **exact}, tuple(unknown)


def _find_members(name: str, changeable: Collection[str]) -> list[str]:
    if name in changeable:
        return [name]
    pattern = _PATTERNS.get(name)
    return [member for member in changeable if fnmatchcase(member, pattern)] if pattern else []


def _find_so_anyway(name: str, value: bool, fixed: Mapping[str, bool]) -> list[str]:
    members = _find_members(name, fixed)
    return members if all(fixed[member] is value for member in members) else []


VRF_SYSCTLS = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")
"""What joining a VRF sets to 1, so that sockets of the pod take connections that come through it."""


def plan_early_sysctls(inputs: PlanInput) -> Iterator[SetSysctl]:
    """What must hold before the link is up and has addresses: everything that belongs to it."""
    for key, value in _find_values(inputs).items():
        yield SetSysctl(_link_path(key, inputs.pod_ifname), str(int(value)))
    for name, text in inputs.config.sysctls.items():
        if is_per_interface(name):
            yield SetSysctl(build_sysctl_path(name, inputs.pod_ifname), str(text))


def plan_late_sysctls(config: NetworkConfig) -> Iterator[SetSysctl]:
    """What belongs to the pod's whole namespace; also a device without a link may bring that."""
    for name, text in config.sysctls.items():
        if not is_per_interface(name):
            yield SetSysctl(build_sysctl_path(name, ""), str(text), early=False)


def _find_values(inputs: PlanInput) -> Mapping[str, int]:
    """What the parameters set, by folder and name.

    Forwarding makes IPv6 ignore router advertisements, unless ``acceptRA`` is 2.
    """
    interface, ipv6 = inputs.config.interface, inputs.config.interface.ipv6
    detect = ipv6.duplicate_address_detection
    asked: Mapping[str, int | None] = {
        "ipv4/conf/forwarding": interface.forwarding,
        "ipv4/conf/arp_ignore": interface.arp_ignore,
        "ipv4/conf/arp_announce": interface.arp_announce,
        "ipv6/conf/disable_ipv6": None if ipv6.enabled is None else not ipv6.enabled,
        "ipv6/conf/accept_ra": ipv6.accept_ra,
        "ipv6/conf/accept_dad": detect,
        "ipv6/conf/dad_transmits": 0 if detect is False else None,
        "ipv6/conf/forwarding": interface.forwarding,
    }
    return {
        key: value
        for key, value in asked.items()
        if value is not None and (inputs.link_has_ipv6 or not key.startswith("ipv6/"))
    }


def _link_path(key: str, ifname: str) -> str:
    folder, _, name = key.rpartition("/")
    return f"{folder}/{ifname}/{name}"


def check_sysctls(inputs: PlanInput) -> Iterator[str]:
    """Settings that no claim may write, that this kernel lacks, or that a parameter sets already."""
    for name, value in inputs.config.sysctls.items():
        problem = find_refusal(name) or _find_trouble(name, inputs) or find_value_problem(value)
        if problem:
            yield f'sysctls["{name}"]: {problem}'


def check_namespace_sysctls(config: NetworkConfig) -> Iterator[str]:
    """As :func:`check_sysctls`, for a device without a link."""
    for name, value in config.sysctls.items():
        problem = find_refusal(name) or find_value_problem(value)
        if problem:
            yield f'sysctls["{name}"]: {problem}'


def _find_trouble(name: str, inputs: PlanInput) -> str:
    """What speaks against an allowed setting on this link."""
    path = build_sysctl_path(name, inputs.pod_ifname)
    if path in {_link_path(key, inputs.pod_ifname) for key in _find_values(inputs)}:
        # The settings of the other parameters are on no claim's list.
        return "interface.ipv6.duplicateAddressDetection sets it too; leave one of them out"
    if path in VRF_SYSCTLS and inputs.config.interface.vrf:
        return "interface.vrf sets it to 1; leave it out"
    if name.startswith("net.ipv6.") and not inputs.node_has_ipv6:
        return inputs.ipv6_blocker
    return _find_absence(name, inputs) if is_per_interface(name) else ""


def _find_absence(name: str, inputs: PlanInput) -> str:
    """The kernel gives each link the same settings: what the host's link lacks, the pod's will lack."""
    if name.startswith("net.ipv6.") and not inputs.link_has_ipv6:
        return inputs.ipv6_blocker
    _, family, kind, _, key = name.split(".")
    family_was_read = any(known.startswith(f"{family}/") for known in inputs.host.sysctls)
    if family_was_read and f"{family}/{kind}/{key}" not in inputs.host.sysctls:
        return "the kernel of this node has no such setting"
    return ""
