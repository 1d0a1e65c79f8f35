"""Plan a claim: claim + inventory + link state -> :class:`PreparedClaim`, the data that the hook will replay.

:meth:`Planner.decode` finds what the claim asks for, and on which links a DHCP server has to be asked first;
:meth:`Planner.plan` reads the links and plans, while the caller holds the node's devices. Neither changes
anything. Slow look-ups belong here (:class:`NodeReader`), not in the hook.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.claims.config import SelectedResult, choose_pod, decode_configs, select_results
from dranet.claims.plan.device import check_pod, limit_vf, plan_device, plan_workload
from dranet.claims.plan.link import check_parents, make_mac, plan_rdma_access
from dranet.claims.workload import merge_settings
from dranet.driver.ipam import Obtained, no_ipam_file
from dranet.driver.leases import LeaseRequest
from dranet.driver.node_reader import NodeReader
from dranet.errors import ClaimError, DeviceError, DeviceHeldError, Reason
from dranet.kernel.netlink.rdma import read_cm_defaults
from dranet.model.claim import AllocationResult, Claim, ClaimRef, PodRef
from dranet.model.cpus import CpuSurroundings
from dranet.model.device import Device, DeviceKind
from dranet.model.ipam import AddressSource, CniNetwork, IpamAnswer, IpamRequest, PoolNode
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.values import is_per_interface
from dranet.model.plan import (
    AddRule,
    AttachPlan,
    IpoibState,
    LinkState,
    MoveRdma,
    PreparedClaim,
    PreparedDevice,
    RdmaAccess,
)
from dranet.model.provider import ProfileRequest, ProvidedConfig, identify
from dranet.model.virtual_functions import VfSettings
from dranet.store.claim_store import ClaimStore

_ETHERNET_MAC_LENGTH = len("02:00:00:00:00:01")


class DecodedDevice(Struct, frozen=True):
    """One of our results with what the claim asks for it."""

    result: AllocationResult
    device: Device
    config: NetworkConfig
    vendor_cdi_id: str = ""
    """The vendor's CDI device that is this GPU."""

    @property
    def key(self) -> str:
        """Distinguishes the devices of a claim: it may hold several shares of one."""
        return _key(self.result)

    @property
    def moves(self) -> bool:
        """One pod alone gets something of it; a GPU, and admin access, are the runtime's to give to all."""
        return self.device.kind is not DeviceKind.GPU and not self.result.admin_access

    @property
    def is_link(self) -> bool:
        """The pod gets a link of it."""
        return self.device.kind is DeviceKind.NIC and not self.result.admin_access

    @property
    def is_on_top(self) -> bool:
        """The pod gets a link on top of it, and it stays on the node."""
        return self.is_link and not self.config.interface.is_passthrough


class DecodedClaim(Struct, frozen=True):
    """A claim that this node can serve, as far as can be known without reading its links."""

    claim: ClaimRef
    pod: PodRef
    devices: tuple[DecodedDevice, ...]
    dhcp: tuple[LeaseRequest, ...] = ()
    profiles: tuple[ProfileRequest, ...] = ()
    """Those to ask for; their configs may change everything else."""
    ipam: tuple[IpamRequest, ...] = ()
    others: tuple[AllocationResult, ...] = ()
    """Results of other drivers, in the same claim."""
    pooled: Mapping[str, IpamAnswer] = field(default_factory=dict)
    """Addresses from pools, by :attr:`DecodedDevice.key`."""


class Lookups(Struct, frozen=True):
    """What the names in a claim stand for."""

    get_offered: Callable[[str], Device]
    """Raises DeviceError for a device that is not on offer."""
    vendor_device: Callable[[Device], str] | None = None
    """The vendor's CDI device of a GPU, or empty."""
    find_ipam: Callable[[str], AddressSource] = no_ipam_file
    """Raises ClaimError for an unknown name."""
    find_node: Callable[[], PoolNode] = PoolNode
    """This node, as address pools number it."""
    find_config: Callable[[Device], ProvidedConfig | None] = lambda _: None
    """What a provider wants for the device; raises ProviderError where that is not known yet."""
    has_profiles: bool = False
    """Whether a provider can be asked for one."""


NO_PROFILES: Mapping[str, ProvidedConfig] = {}


class Planner:
    """Plans claims. ``device_id`` names a claim's device for CDI."""

    def __init__(
        self,
        driver_name: str,
        boot_id: str,
        lookups: Lookups,
        store: ClaimStore,
        device_id: Callable[[str, str], str],
        node: NodeReader,
    ) -> None:
        self._driver_name = driver_name
        self._boot_id = boot_id
        self._get_offered = lookups.get_offered
        self._store = store
        self._device_id = device_id
        self._node = node
        self._vendor_device = lookups.vendor_device
        self._find_ipam = lookups.find_ipam
        self._lookups = lookups
        self._find_node = lookups.find_node

    def decode(self, claim: Claim, profiles: Mapping[str, ProvidedConfig] = NO_PROFILES) -> DecodedClaim:
        """What the claim asks of which devices. Raises ClaimError for what is invalid or unsupported, with
        every bad field at once, DeviceError for a device that is gone, busy or not offered, and ProviderError
        for one whose config is not known yet. ``profiles``: what a provider has given for those of an earlier
        answer, by ``key``."""
        selections = select_results(claim, self._driver_name)
        offered = [self._get_offered(selection.result.device) for selection in selections]
        pairs = list(zip(selections, offered, strict=True))
        configs = decode_configs(
            [(self._add_provided(selection, device, profiles), device.kind) for selection, device in pairs],
            has_profiles=self._lookups.has_profiles,
        )
        devices = tuple(
            DecodedDevice(selection.result, device, config, self._find_vendor_device(device))
            for selection, device, config in zip(selections, offered, configs, strict=True)
        )
        pod = choose_pod(claim, moves=any(decoded.moves for decoded in devices))
        _check_shares(devices)
        self._check_free(claim.ref, devices)
        others = tuple(result for result in claim.results if result.driver != self._driver_name)
        requests = () if profiles else tuple(_profile_requests(devices))
        dhcp = tuple(self._lease_requests(claim.ref, devices))
        sources = {d.config.interface.ipam for d in devices if d.is_link and d.config.interface.ipam}
        found = {name: self._find_ipam(name) for name in sorted(sources)}
        ipam = tuple(self._ipam_requests(claim.ref, pod, devices, found))
        pooled = self._take_from_pools(claim.ref, devices, found)
        return DecodedClaim(claim.ref, pod, devices, dhcp, requests, ipam, others, pooled)

    def plan(self, decoded: DecodedClaim, obtained: Obtained) -> PreparedClaim:
        """Plan every device of the claim that is ours; whether they and the addresses are free is looked at
        again. Raises ClaimError for what a device, or those of the pod together, cannot have (every bad field
        at once), DeviceError for one that is gone or busy, AddressTakenError, and KernelError."""
        self._check_free(decoded.claim, decoded.devices)
        self._check_pooled(decoded)
        obtained = replace(obtained, addresses={**decoded.pooled, **obtained.addresses})
        devices = self._plan_all(decoded, obtained)
        record = PreparedClaim(
            decoded.claim, decoded.pod, devices, boot_id=self._boot_id, others=decoded.others
        )
        of_pod = [c for c in self._store.get_by_pod(record.pod.uid) if c.claim.uid != record.claim.uid]
        check_pod([plan for claim in (record, *of_pod) for plan in claim.plans])
        merge_settings([record, *of_pod])
        others = [(f"claim {c.claim} (pod {c.pod})", c.plans) for c in self._get_others(decoded.claim)]
        check_parents(record.plans, ((name, plan) for name, plans in others for plan in plans))
        return record

    def _add_provided(
        self, selection: SelectedResult, device: Device, profiles: Mapping[str, ProvidedConfig]
    ) -> SelectedResult:
        layers = (profiles.get(_key(selection.result)), self._lookups.find_config(device))
        return replace(selection, provided=tuple(layer for layer in layers if layer is not None))

    def _find_vendor_device(self, device: Device) -> str:
        """A GPU is given by its device nodes, by us or by its vendor's spec. With neither (DeviceError) a
        container would find nothing."""
        if device.kind is not DeviceKind.GPU:
            return ""
        if not device.char_devices:
            raise DeviceError(
                f"device {device.name} has no device node that a container could be given",
                hint="is its driver loaded, and the GPU well?",
                reason=Reason.DEVICE_EXCLUDED,
            )
        return "" if self._vendor_device is None else self._vendor_device(device)

    def _lease_requests(self, claim: ClaimRef, devices: Sequence[DecodedDevice]) -> Iterator[LeaseRequest]:
        for decoded in devices:
            if decoded.is_link and decoded.config.interface.dhcp:
                yield LeaseRequest(decoded.key, decoded.device.ifname, self._client_mac(claim, decoded))

    def _client_mac(self, claim: ClaimRef, decoded: DecodedDevice) -> str:
        device, interface = decoded.device, decoded.config.interface
        if not device.ifname:
            raise DeviceError(f"device {device.name} has no network interface on the host")
        own = self._node.read_mac(device.ifname)
        if len(own) != _ETHERNET_MAC_LENGTH:
            raise ClaimError(
                f"device {device.name}: interface.dhcp: needs an Ethernet device; {device.ifname} is not",
                reason=Reason.INVALID_CONFIG,
            )
        if interface.hardware_addr:
            return interface.hardware_addr
        return make_mac(_mac_seed(claim, decoded)) if decoded.is_on_top else own

    def _ipam_requests(
        self,
        claim: ClaimRef,
        pod: PodRef,
        devices: Sequence[DecodedDevice],
        sources: Mapping[str, AddressSource],
    ) -> Iterator[IpamRequest]:
        """For some plugins pod and interface are what an address belongs to, so no two may have one name."""
        others = (c for c in self._store.get_by_pod(pod.uid) if c.claim.uid != claim.uid)
        taken = {plan.pod_ifname: plan.device for other in others for plan in other.plans}
        for decoded in devices:
            interface = decoded.config.interface
            source = sources.get(interface.ipam or "")
            if not decoded.is_link or not interface.ipam or not isinstance(source, CniNetwork):
                continue
            ifname = interface.name or decoded.device.ifname
            if ifname in taken:
                raise ClaimError(
                    f"interface.name: {taken[ifname]}, {decoded.device.name} would all be {ifname}",
                    hint="give each device a config of its own, by the name of its request",
                )
            taken[ifname] = decoded.device.name
            yield IpamRequest(
                decoded.key,
                interface.ipam,
                source,
                f"{claim.uid}.{pod.uid}",
                ifname,
                pod.namespace,
                pod.name,
                pod.uid,
            )

    def _take_from_pools(
        self, claim: ClaimRef, devices: Sequence[DecodedDevice], sources: Mapping[str, AddressSource]
    ) -> Mapping[str, IpamAnswer]:
        """The caller holds the devices, so no other claim gets a share of them meanwhile. One for another
        device of the rail may: :meth:`plan` looks again."""
        pools = {name: source for name, source in sources.items() if not isinstance(source, CniNetwork)}
        if not pools:
            return {}
        from dranet.driver.pools import take_addresses

        wanted = [
            (d.key, d.device, bool(d.result.share_id), d.config.interface.ipam or "")
            for d in devices
            if d.is_link
        ]
        return take_addresses(pools, self._find_node(), wanted, self._plans_of_others(claim))

    def _check_pooled(self, decoded: DecodedClaim) -> None:
        if decoded.pooled:
            from dranet.driver.pools import check_not_taken

            check_not_taken(decoded.pooled, self._plans_of_others(decoded.claim))

    def _plans_of_others(self, claim: ClaimRef) -> list[AttachPlan]:
        return [plan for other in self._get_others(claim) for plan in other.plans]

    def _plan_all(self, decoded: DecodedClaim, obtained: Obtained) -> tuple[PreparedDevice, ...]:
        """Every device is checked before the first error is raised, so that none hides another's."""
        prepared: list[PreparedDevice] = []
        errors: list[ClaimError] = []
        rules = self._read_rules(decoded.devices)
        for device in decoded.devices:
            try:
                prepared.append(self._plan_one(decoded.claim, device, obtained, rules))
            except ClaimError as error:
                errors.append(error)
        if errors:
            raise _join(errors)
        return tuple(prepared)

    def _read_rules(self, devices: Sequence[DecodedDevice]) -> tuple[AddRule, ...]:
        """The node's policy rules, once for a claim, where a link moves that may have some."""
        moving = [decoded for decoded in devices if decoded.is_link and not decoded.is_on_top]
        may_inherit = any(decoded.config.interface.inherit_routing is not False for decoded in moving)
        return self._node.read_rules() if may_inherit else ()

    def _plan_one(
        self, claim: ClaimRef, decoded: DecodedDevice, obtained: Obtained, rules: tuple[AddRule, ...]
    ) -> PreparedDevice:
        result, device = decoded.result, decoded.device
        prepared = PreparedDevice(
            request=result.main_request,
            pool=result.pool,
            device=device,
            share_id=result.share_id,
            admin_access=result.admin_access,
            cdi_ids=tuple(filter(None, (self._device_id(claim.uid, device.name), decoded.vendor_cdi_id))),
            vendor_cdi_id=decoded.vendor_cdi_id,
        )
        if device.kind is DeviceKind.GPU:
            if not result.admin_access:
                plan_device(device, None, decoded.config, rdma_exclusive=False)  # refuses what is not for it
            return prepared
        if result.admin_access:
            return replace(prepared, cdi_ids=())
        exclusive = bool(device.rdma_device) and self._node.read_rdma_exclusive()
        plan = self._plan_device(claim, decoded, obtained, exclusive, rules)
        rdma, workload = self._plan_rdma(decoded, exclusive), plan_workload(decoded.config)
        fixed = device.bandwidth.total if device.bandwidth is not None and not device.shared else None
        return replace(prepared, plan=plan, rdma=rdma, workload=workload, bandwidth=result.bandwidth or fixed)

    def _plan_device(
        self,
        claim: ClaimRef,
        decoded: DecodedDevice,
        obtained: Obtained,
        exclusive: bool,
        rules: tuple[AddRule, ...],
    ) -> AttachPlan:
        device, config = decoded.device, decoded.config
        parent_mtu = None
        if device.physical_function and config.interface.mtu is not None:
            parent_mtu = self._node.read_physical_function_mtu(device.physical_function)
        plan = plan_device(
            device,
            self._read_host(decoded),
            config,
            rdma_exclusive=exclusive,
            lease=obtained.leases.get(decoded.key),
            mac_seed=_mac_seed(claim, decoded),
            physical_function_mtu=parent_mtu,
            cpus=self._read_cpus(decoded),
            host_rules=rules,
            ipoib=self._read_ipoib(device, exclusive),
            vf=self._read_vf(decoded),
            ipam=obtained.addresses.get(decoded.key),
            bandwidth=decoded.result.bandwidth,
        )
        self._check_sysctls(device, config)
        if any(isinstance(step, MoveRdma) for step in plan.steps):
            return replace(plan, rdma_cm=read_cm_defaults(device.rdma_device))
        return plan

    def _read_vf(self, decoded: DecodedDevice) -> VfSettings | None:
        device = decoded.device
        if device.vf_index is None or limit_vf(device, decoded.config).is_empty:
            return None
        return self._node.read_vf(device.physical_function, device.vf_index)

    def _read_cpus(self, decoded: DecodedDevice) -> CpuSurroundings | None:
        asked, device = decoded.config.cpu_locality.asked, decoded.device
        if not asked or decoded.is_on_top:
            return None
        return self._node.read_cpu_surroundings(device.pci_address, device.ifname, asked)

    def _read_ipoib(self, device: Device, exclusive: bool) -> tuple[IpoibState, ...]:
        """What the kernel destroys with the move of an RDMA device that has no link of its own."""
        moves_alone = exclusive and device.kind is DeviceKind.RDMA and device.rdma_pci_address
        return self._node.read_ipoib(device.rdma_pci_address) if moves_alone else ()

    @staticmethod
    def _check_sysctls(device: Device, config: NetworkConfig) -> None:
        """Those of the whole namespace: the kernel of the node has what that of the pod has."""
        asked = [name for name in config.sysctls if not is_per_interface(name)]
        files = {f'sysctls["{name}"]': Path("/proc/sys", *name.split(".")) for name in asked}
        absent = [name for name, path in files.items() if not path.exists()]
        if absent:
            raise ClaimError(
                f"device {device.name}: {', '.join(absent)}: the kernel of this node has no such setting",
                hint="its module may not be loaded, or it is misspelt",
            )

    def _read_host(self, decoded: DecodedDevice) -> LinkState | None:
        ifname = decoded.device.ifname
        if not ifname or not decoded.is_link:
            return None
        return self._node.read_parent(ifname) if decoded.is_on_top else self._node.read_link(ifname)

    def _plan_rdma(self, decoded: DecodedDevice, exclusive: bool) -> RdmaAccess:
        device, config = decoded.device, decoded.config
        wants_nodes = config.rdma.management_devices
        nodes = self._node.read_management_nodes(device.rdma_device) if wants_nodes else ()
        return plan_rdma_access(device, config, nodes, exclusive=exclusive)

    def _get_others(self, claim: ClaimRef) -> Iterator[PreparedClaim]:
        for other in self._store.get_all():
            if other.claim.uid != claim.uid and other.boot_id == self._boot_id:
                yield other

    def _check_free(self, claim: ClaimRef, devices: Sequence[DecodedDevice]) -> None:
        """The last line of defence against a double allocation."""
        wanted = {own.device.name: own.result.share_id for own in devices if not own.result.admin_access}
        for other in self._get_others(claim):
            for held in other.devices:
                for own in devices:
                    if not held.admin_access and not own.result.admin_access:
                        _check_parts(own, held, other)
                is_held = held.device.name in wanted and not held.admin_access
                if is_held and not (wanted[held.device.name] and _is_share(held)):
                    raise DeviceHeldError(
                        f"device {held.device.name} is prepared for claim {other.claim} (pod {other.pod})",
                        holder=other.claim.uid,
                        hint="it is free once that pod has ended",
                    )


def _check_parts(own: DecodedDevice, held: PreparedDevice, other: PreparedClaim) -> None:
    """A physical function goes to a pod or its virtual functions do, also where the scheduler did not see the
    counters that state so. Raises DeviceHeldError."""
    if _exclude_each_other(own, held):
        raise DeviceHeldError(
            f"device {own.device.name} shares its hardware with {held.device.name}, which is prepared for "
            f"claim {other.claim} (pod {other.pod})",
            holder=other.claim.uid,
            hint="a physical function and its virtual functions are not given out at the same time",
        )


def _exclude_each_other(own: DecodedDevice, held: PreparedDevice) -> bool:
    """Counters of one side alone are of a rule that came or went meanwhile. What a claim has set on a virtual
    function is restored through the physical function, which must not be away then."""
    ours, theirs = own.device, held.device
    if theirs.physical_function and theirs.physical_function == ours.pci_address:
        stays, is_set = own.is_on_top, held.plan is not None and held.plan.vf is not None
    elif ours.physical_function and ours.physical_function == theirs.pci_address:
        stays, is_set = held.plan is not None and held.plan.is_on_top, False
    else:
        return False
    if ours.counters is not None and theirs.counters is not None:
        return True
    return not stays and (is_set or ours.counters is not None or theirs.counters is not None)


def _is_share(held: PreparedDevice) -> bool:
    return held.share_id is not None and held.plan is not None and held.plan.is_on_top


def _check_shares(devices: Sequence[DecodedDevice]) -> None:
    """A share of a device is a link on top of it: what moves can be in one pod only."""
    taken: dict[str, set[str]] = {}
    for decoded in devices:
        if decoded.result.admin_access:
            continue
        name, share = decoded.device.name, decoded.result.share_id or ""
        # Also without a share: the cluster may have ceased to know them while others still have theirs.
        is_shared = bool(share) or (decoded.device.shared and decoded.is_link)
        if is_shared and not decoded.is_on_top:
            raise _not_shareable(decoded.device)
        shares = taken.setdefault(name, set())
        if shares and ("" in (*shares, share) or share in shares):
            raise DeviceError(
                f"device {name} is allocated twice to this claim, and not as two shares",
                hint="the allocation is not one that the scheduler makes; delete the claim",
                reason=Reason.DEVICE_BUSY,
            )
        shares.add(share)


def _not_shareable(device: Device) -> ClaimError:
    if device.kind is DeviceKind.NIC:
        return ClaimError(
            f"device {device.name} is shared with other claims, so it cannot move into one pod",
            hint="set interface.type to macvlan, ipvlan or vlan",
            reason=Reason.UNSUPPORTED_CLAIM,
        )
    return ClaimError(
        f"device {device.name} is allocated as a share, which only network interfaces can be",
        hint="the operator's --shared-devices must not name it",
        reason=Reason.UNSUPPORTED_CLAIM,
    )


def _key(result: AllocationResult) -> str:
    return f"{result.device}/{result.share_id}" if result.share_id else result.device


def _profile_requests(devices: Sequence[DecodedDevice]) -> Iterator[ProfileRequest]:
    """A provider knows the name of the device and the claim, but no shares."""
    asking = [decoded for decoded in devices if decoded.moves and decoded.config.profile]
    shared = [name for name, count in Counter(own.device.name for own in asking).items() if count > 1]
    if shared:
        raise ClaimError(
            f"device {', '.join(shared)}: profile: must be set for one share of the device in a claim",
            hint="use a claim for each share",
            reason=Reason.UNSUPPORTED_CLAIM,
        )
    for own in asking:
        yield ProfileRequest(own.key, identify(own.device), own.config.to_json(exclude_unset=True))


def _mac_seed(claim: ClaimRef, decoded: DecodedDevice) -> str:
    return f"{claim.uid}/{decoded.key}"


def _join(errors: Sequence[ClaimError]) -> ClaimError:
    """One error with the text of all; the hints if each has one."""
    if len(errors) == 1:
        return errors[0]
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    messages = dict.fromkeys(error.message for error in errors)
    return ClaimError("; ".join(messages), hint="; ".join(hints), reason=errors[0].reason)
