"""The outcome of Prepare: how to attach each device, and the host state to restore.

A plan is data. ``claims.plan`` builds it, ``store`` keeps it, ``kernel.attachment`` applies it in the
runtime's hook and undoes it at release, perhaps after a restart of the driver. A field that is added later
needs a default, so that the records of an earlier version can still be read, and a new
:data:`RECORD_VERSION`, so that an earlier driver lets the record alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.model.claim import NO_WORKLOAD_SETTINGS, AllocationResult, ClaimRef, PodRef, WorkloadSettings
from dranet.model.device import Device, RdmaIdentity
from dranet.model.facts import Address, CharDevice, Neighbour, Route
from dranet.model.ipam import IpamAnswer
from dranet.model.virtual_functions import VfSettings

RECORD_VERSION = 4
"""Version of the records that this driver writes. Version 1 had neither this number nor the fields that
follow it in :class:`LinkState`; 2 lacked the alternative of a request that won and the metadata files for
containers; 3 lacked what brings a workload near its devices: files for its libraries, memory, CPUs."""

WHOLE_STATE_VERSION = 2
"""The first that recorded the whole host state of a link."""


class EthtoolState(Struct, frozen=True):
    """What ``ethtool`` reads and sets on a link. What the driver does not support is absent.

    Names of rings, channels and coalescing are those of ``EthtoolConfig``
    (``rx_mini``, ``combined``, ``rx_usecs``); a switch among them is 0 or 1.
    """

    features: Mapping[str, bool] = field(default_factory=dict)
    """By the kernel's name: what is asked for, of those features that can be changed."""
    fixed: Mapping[str, bool] = field(default_factory=dict)
    """By the kernel's name: what is so, of those that cannot. A plan is made with it and keeps none of it."""
    private_flags: Mapping[str, bool] = field(default_factory=dict)
    rings: Mapping[str, int] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    coalesce: Mapping[str, int] = field(default_factory=dict)
    maxima: Mapping[str, int] = field(default_factory=dict)
    """The most that the device takes, by ``rings.rx``, ``channels.combined``."""
    pause: Mapping[str, int] = field(default_factory=dict)
    """``autoneg``, ``rx``, ``tx``."""
    eee: Mapping[str, int] = field(default_factory=dict)
    """``enabled``, ``tx_lpi_enabled``, ``tx_lpi_timer``, and modes by name (``100baseT/Full``)."""
    fec: Mapping[str, int] = field(default_factory=dict)
    """``auto``, and the kernel's name of each encoding (``RS``)."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By field of this class: the error of a driver that failed to report it. A plan is made with it and does
    not keep it."""


class RssContext(Struct, frozen=True):
    """One table that spreads what a NIC receives over its queues; number 0 is that of all other traffic."""

    number: int = 0
    table: str = ""
    """``equal 8``: queues in turn, as the kernel makes it; else the queue of each entry: ``0,0,1,1``."""
    key: str = ""
    """In hex; empty where the driver has none."""
    function: int = 0
    """``ETH_RSS_HASH_*``; 0 where the driver does not report it."""
    transform: int = 0
    """``RXH_XFRM_*``: what is done to the packet's fields before they are hashed."""


class FlowRule(Struct, frozen=True):
    """One rule that steers packets of a flow to a queue (``ethtool -N``, n-tuple)."""

    location: int
    spec: str
    """``struct ethtool_rx_flow_spec`` in hex, without its location and without zeros at its end."""
    context: int = 0
    """The RSS context that it spreads over."""


class SteeringState(Struct, frozen=True):
    """How a NIC chooses the queue for what it receives; ``None``: the driver does not report it."""

    rss: RssContext | None = None
    contexts: tuple[RssContext, ...] | None = None
    """The additional ones."""
    hash_fields: Mapping[str, int] = field(default_factory=dict)
    """``RXH_*`` by ethtool's word for the flow (``udp4``)."""
    rules: tuple[FlowRule, ...] | None = None


class DcbState(Struct, frozen=True):
    """Data Center Bridging of a port (IEEE 802.1Qaz, ``dcb``); a driver without it has neither."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """``ets``, ``pfc``, ``maxrate`` and ``dcbx``, each as the kernel's structure in hex, without counters."""
    apps: tuple[str, ...] | None = None
    """``APP`` table, by attribute and ``struct dcb_app``: ``1:5,3,24`` is DSCP 24 to priority 3."""


class TrafficControl(Struct, frozen=True):
    """One qdisc or class that was added to a link; the kernel's own default qdiscs are left out."""

    what: Literal["qdisc", "class"]
    kind: str
    handle: int
    parent: int
    options: str = ""
    """``TCA_OPTIONS`` in hex, as the kernel returned them and accepts them again."""


class LinkState(Struct, frozen=True):
    """The state of one link on the host, as found at Prepare and as restored at release.

    ``routes`` are those through this link in any table but ``local``, without the ones that the kernel
    makes by itself from an address or a router advertisement. ``neighbours`` are the permanent ones.
    """

    ifindex: int
    ifname: str
    mac: str
    mtu: int
    up: bool
    permanent_mac: str = ""
    alias: str = ""
    tx_queue_length: int = 0
    group: int = 0
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    parent_device: str = ""
    """``IFLA_PARENT_DEV_NAME``, the PCI address of a NIC; empty for software links and on old kernels."""
    version: int = 1
    """:data:`RECORD_VERSION` of the driver that recorded it. Before :data:`WHOLE_STATE_VERSION` the fields
    below were not recorded."""
    altnames: tuple[str, ...] = ()
    promiscuous: bool = False
    """``IFF_PROMISC`` as an administrator set it."""
    all_multicast: bool = False
    arp: bool = True
    multicast: bool = True
    offload_sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by name: ``gso_max_size``, ``gro_max_size``, ``gso_ipv4_max_size``, ``gro_ipv4_max_size``."""
    token: str = ""
    """IPv6 token, or empty."""
    ethtool: EthtoolState = field(default=EthtoolState())
    traffic_control: tuple[TrafficControl, ...] = ()
    """Parents before children."""
    programs: tuple[str, ...] = ()
    """BPF programs on the link, for the report of what a move destroys; we cannot load them again."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    """What is below ``/proc/sys/net/{ipv4,ipv6}/{conf,neigh}/<ifname>``, by ``ipv4/conf/rp_filter``."""
    steering: SteeringState = field(default=SteeringState())
    dcb: DcbState = field(default=DcbState())
    queues: Mapping[str, str] = field(default_factory=dict)
    """The CPUs of its queues where there are any (XPS, RPS), by file below ``queues``: ``tx-0/xps_cpus``."""
    read_at: float | None = None
    """Seconds since boot (``CLOCK_BOOTTIME``, which no one sets and a suspend does not stop) when this was
    read: address lifetimes count from here. ``None``: not recorded."""

    def __eq__(self, other: object) -> bool:
        """Compare everything but when it was read."""
        if not isinstance(other, LinkState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED_OF_LINK)

    def __hash__(self) -> int:
        return hash((self.ifindex, self.ifname, self.mac))


_COMPARED_OF_LINK = tuple(name for name in LinkState.__struct_fields__ if name != "read_at")


class IpoibState(Struct, frozen=True):
    """An IPoIB interface of an RDMA device that moves: the kernel destroys it then and creates another one.

    The new one has neither the name nor the index, and another hardware address: its first four bytes are
    the number of a queue pair (RFC 4391). The port of the RDMA device is what stays.
    """

    link: LinkState
    port: int
    """``dev_port``: 0 for the first port."""
    mode: int | None = None
    """``IFLA_IPOIB_MODE``: 0 datagram, 1 connected."""
    user_multicast: int | None = None
    """``IFLA_IPOIB_UMCAST``."""


class CpuState(Struct, frozen=True):
    """Which CPUs worked for a device when Prepare found it; only what its plan is to change.

    By number of the interrupt: the CPUs that it may go to (``0-55``). By file below the link's ``queues``
    (``tx-0/xps_cpus``): its content.
    """

    irqs: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, str] = field(default_factory=dict)


class AttachStep(Struct, frozen=True, tag_field="step"):
    """One step of an attach plan; on disk its word is the field ``step``."""

    @property
    def step(self) -> str:
        """The step's word, e.g. ``move-link``."""
        return str(self.__struct_config__.tag)


class MoveLink(AttachStep, frozen=True, tag="move-link"):
    """Move the link into the pod's namespace; name, MTU and MAC travel in the same message."""

    pod_ifname: str
    mtu: int | None = None
    mac: str | None = None


class CreateLink(AttachStep, frozen=True, tag="create-link"):
    """Make a link on top of a parent that stays on the host, straight in the pod's namespace.

    ``mode`` and ``flag`` are those of the kind (``bridge``, ``l3`` ...). The parent is known by index and MAC
    address, like the link that a :class:`MoveLink` moves.
    """

    pod_ifname: str
    kind: Literal["macvlan", "ipvlan", "vlan"]
    parent_ifindex: int
    parent_ifname: str
    parent_mac: str
    mode: str = ""
    flag: str = ""
    vlan_id: int | None = None
    vlan_protocol: str = "802.1Q"
    mtu: int | None = None
    mac: str | None = None


class SetLink(AttachStep, frozen=True, tag="set-link"):
    """Properties of the link in the pod that are not part of the move; ``None`` leaves one alone.

    ``offload_sizes`` as in :class:`LinkState`.
    """

    tx_queue_length: int | None = None
    offload_sizes: Mapping[str, int] = field(default_factory=dict)


class SetEthtool(AttachStep, frozen=True, tag="set-ethtool"):
    """What ``ethtool`` sets. Only what the config names; the driver has each of it (looked up at Prepare)."""

    settings: EthtoolState


class SetSysctl(AttachStep, frozen=True, tag="set-sysctl"):
    """Write one file below ``/proc/sys/net`` of the pod's namespace: ``ipv4/conf/net1/forwarding``.

    ``early``: before the link is up and has addresses. Undone by the value that was there, unless it belongs
    to the link and goes with it.
    """

    path: str
    value: str
    early: bool = True


class SetToken(AttachStep, frozen=True, tag="set-token"):
    token: str


class JoinVrf(AttachStep, frozen=True, tag="join-vrf"):
    """Enslave the link to the VRF of this name, made if it is not there, and let sockets of the pod accept
    connections that come through it. A link of that name that is another kind or has another table is an
    error. The last link that leaves takes the VRF that we made with it."""

    name: str
    table: int


class RemovePrograms(AttachStep, frozen=True, tag="remove-programs"):
    """Remove TC, TCX and XDP programs from the link, in the pod's namespace."""


class AddAddress(AttachStep, frozen=True, tag="add-address"):
    """Add one address to the link, in the pod's namespace.

    IPv6 duplicates are looked for unless ``address.flags`` has ``IFA_F_NODAD``.
    """

    address: Address


class SetUp(AttachStep, frozen=True, tag="set-up"):
    """Set the link administratively up, in the pod's namespace."""


class SetCpuLocality(AttachStep, frozen=True, tag="set-cpu-locality"):
    """Let near CPUs work for the device: each interrupt of the function on one of ``cpus`` in turn, each send
    queue used by a share of them (XPS), each receive queue worked off by all of them (RPS).

    Comes when the link is up: some drivers ask for interrupts, and place them, only then.
    """

    cpus: tuple[int, ...]
    """In the order in which they are taken."""
    pci_address: str = ""
    irq: bool = False
    xps: bool = False
    rps: bool = False


class SetVf(AttachStep, frozen=True, tag="set-vf"):
    """Administer the virtual function through its physical function, which stays on the host; comes while the
    link is down in the pod."""

    physical_function: str
    index: int
    settings: VfSettings


class NextHop(Struct, frozen=True):
    """One way of a multipath route; an empty ``ifname`` is the device's own link."""

    gateway: str
    ifname: str = ""
    weight: int = 1
    onlink: bool = False


class AddRoute(AttachStep, frozen=True, tag="add-route"):
    """Add one route through the link, in the pod's namespace (``route.ifindex`` is ignored).

    A route with ``next_hops`` has no gateway of its own and is added when all links of the pod are there.
    """

    route: Route
    next_hops: tuple[NextHop, ...] = ()


class AddNeighbour(AttachStep, frozen=True, tag="add-neighbour"):
    neighbour: Neighbour


class AddRule(AttachStep, frozen=True, tag="add-rule"):
    """Add one policy rule to the pod's namespace; it does not go with the link, so it is undone by name.

    ``priority`` 0 lets the kernel choose. ``family`` is 4 or 6.
    """

    family: Literal[4, 6]
    table: int
    priority: int = 0
    source: str = ""
    destination: str = ""
    mark: int | None = None
    mask: int | None = None
    input_interface: str = ""
    output_interface: str = ""


class LimitRate(AttachStep, frozen=True, tag="limit-rate"):
    """Limit what the link carries, in the pod's namespace: bits per second and bytes of burst.

    The pod's receive direction takes an ``ifb`` link in addition, which the release removes.
    """

    egress_bits_per_second: int | None = None
    egress_burst_bytes: int | None = None
    ingress_bits_per_second: int | None = None
    ingress_burst_bytes: int | None = None


class MoveRdma(AttachStep, frozen=True, tag="move-rdma"):
    """Move the RDMA device (exclusive namespace mode only)."""

    rdma_device: str
    node_guid: str = ""
    pci_address: str = ""
    """With the GUID, what the device is found by when its name has changed (:class:`RdmaIdentity`)."""

    @property
    def identity(self) -> RdmaIdentity:
        return RdmaIdentity(self.rdma_device, self.node_guid, self.pci_address)


Step = (
    MoveLink
    | CreateLink
    | SetLink
    | SetEthtool
    | SetSysctl
    | SetToken
    | JoinVrf
    | RemovePrograms
    | AddAddress
    | SetUp
    | SetVf
    | SetCpuLocality
    | AddRoute
    | AddNeighbour
    | AddRule
    | LimitRate
    | MoveRdma
)
"""On disk, ``step`` distinguishes them. ``claims.plan`` puts them into the order in which they are
applied."""


class DhcpLease(Struct, frozen=True):
    """An IPv4 lease (RFC 2131), taken at Prepare. Seconds count from ``obtained_at`` (unix time)."""

    address: str
    """With prefix length."""
    server: str
    """Server identifier (option 54)."""
    server_mac: str
    """Where its answers came from: the server, or the relay before it."""
    client_mac: str
    obtained_at: float
    lease_seconds: int
    renew_seconds: int
    """T1: ask this server for more time."""
    rebind_seconds: int
    """T2: ask any server."""
    routers: tuple[str, ...] = ()
    classless_routes: tuple[tuple[str, str], ...] = ()
    """(destination, gateway) of option 121; where there are any, ``routers`` do not count (RFC 3442)."""
    mtu: int | None = None


class AttachPlan(Struct, frozen=True):
    """Ordered steps that put one device into a pod, and what the host gets back.

    ``host`` is the state of the link that a :class:`MoveLink` moves; ``None`` for a device without a link
    and where a :class:`CreateLink` leaves the device on the host. ``pod_ifname`` is empty for a device that
    has none.
    """

    device: str
    steps: tuple[Step, ...] = ()
    pod_ifname: str = ""
    host: LinkState | None = None
    lease: DhcpLease | None = None
    cpus: CpuState | None = None
    """What to restore after a :class:`SetCpuLocality`; ``None`` when the plan has no such step."""
    ipoib: tuple[IpoibState, ...] = ()
    """The IPoIB interfaces to restore with the RDMA device of a :class:`MoveRdma`."""
    vf: VfSettings | None = None
    """What to restore after a :class:`SetVf`; ``None`` when the plan has no such step."""
    ipam: IpamAnswer | None = None
    """Where its addresses are from; its claim's entry in the journal releases them."""
    rdma_cm: Mapping[str, str] = field(default_factory=dict)
    """Defaults of ``rdma_cm`` for the device that a :class:`MoveRdma` moves, by ``1/default_roce_mode``."""

    @property
    def is_on_top(self) -> bool:
        return any(isinstance(step, CreateLink) for step in self.steps)


class RdmaAccess(Struct, frozen=True):
    """What the pod's containers get of an RDMA device, decided at Prepare."""

    nodes: tuple[CharDevice, ...] = ()
    """``uverbs``, ``rdma_cm``, and where asked for ``umad`` and ``issm``. The kernel numbers them again when
    the device moves or its driver recovers, so they are read again after the attach."""
    memlock_bytes: int | None = None
    """RLIMIT_MEMLOCK; -1 is unlimited, ``None`` leaves it alone."""
    pod_name: str = ""
    """Name of the device as found after the attach; empty: that of Prepare."""


class PreparedDevice(Struct, frozen=True):
    """One allocated device of a claim, ready for its pod.

    ``plan`` is ``None`` where nothing moves: a GPU, or admin access to a NIC that another claim holds.
    """

    request: str
    """Main request name, as the kubelet wants it back."""
    pool: str
    device: Device
    """The device as published when it was prepared; its facts are out of sight while a pod has it."""
    cdi_ids: tuple[str, ...] = ()
    plan: AttachPlan | None = None
    share_id: str | None = None
    admin_access: bool = False
    rdma: RdmaAccess = field(default=RdmaAccess())
    workload: WorkloadSettings = field(default=NO_WORKLOAD_SETTINGS)
    """What the containers that name the claim get in addition to the device."""
    vendor_cdi_id: str = ""
    """The vendor's CDI device that gives a GPU to containers, which is among ``cdi_ids``; empty where our own
    spec has its device nodes."""
    alternative: str = ""
    """The sub-request that won (KEP-4816); empty where the request has none."""
    bandwidth: int | None = None
    """Bits per second that the claim has of the device; ``None`` where they are not counted."""

    @property
    def is_set_down_early(self) -> bool:
        """Whether Prepare sets the link down, so that the move need not wait for the NIC's driver.

        Hardware alone is slow. A link with a DHCP lease stays up, so that the lease can be renewed.
        """
        plan = self.plan
        is_up = plan is not None and plan.host is not None and plan.host.up and plan.lease is None
        return is_up and bool(self.device.pci_address)

    @property
    def request_reference(self) -> str:
        """The request as the allocation names it: ``request`` or ``request/alternative``."""
        return f"{self.request}/{self.alternative}" if self.alternative else self.request


def sum_bandwidth(records: Iterable[PreparedClaim]) -> Mapping[str, int]:
    """Bits per second that claims have, by device."""
    total: Counter[str] = Counter()
    for prepared in (device for record in records for device in record.devices):
        total[prepared.device.name] += prepared.bandwidth or 0
    return total


class RequestMetadata(Struct, frozen=True):
    """That the containers of one request get a file about its devices (KEP-5304), decided at Prepare."""

    request: str
    """Main request name."""
    whole_folder: bool = True
    """The file is mounted with its folder, so that running containers see it replaced. Alone where other
    drivers have devices of the request: their files belong into a folder of that name."""


class PreparedClaim(Struct, frozen=True):
    """What the store keeps of one claim, keyed by ``claim.uid`` and found by ``pod.uid``.

    ``sandbox_id``, ``netns_path`` and ``netns_id`` are set (and committed) before the first step in that
    namespace and cleared after the release, so that a restart knows where to look; a pod may get a second
    sandbox. ``netns_id`` distinguishes the namespace from a later one at the same path; it is empty in
    records of earlier versions. ``boot_id`` marks a record of an earlier boot, whose kernel state is gone.
    ``pod_claim_name`` is what the pod's spec calls a claim that was made from a template, else empty.
    ``metadata`` is empty where no files are wanted, and in records of earlier versions. ``others`` are the
    claim's devices of other drivers, which may be GPUs. ``stopped_sandbox_id`` is the last sandbox of the pod
    that the runtime has stopped, through any instance of the driver: nothing is attached to it any more.
    """

    claim: ClaimRef
    pod: PodRef
    devices: tuple[PreparedDevice, ...]
    boot_id: str
    sandbox_id: str = ""
    netns_path: str = ""
    netns_id: str = ""
    pod_claim_name: str = ""
    metadata: tuple[RequestMetadata, ...] = ()
    others: tuple[AllocationResult, ...] = ()
    stopped_sandbox_id: str = ""

    @property
    def plans(self) -> tuple[AttachPlan, ...]:
        """The plans of the devices that move, in the order of the claim's results."""
        return tuple(d.plan for d in self.devices if d.plan is not None)

    def without_leases(self) -> PreparedClaim:
        """What renewals, which come at any time, leave alone."""
        devices = (
            d if d.plan is None else replace(d, plan=replace(d.plan, lease=None)) for d in self.devices
        )
        return replace(self, devices=tuple(devices))
