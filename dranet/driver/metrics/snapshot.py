"""What a scrape covers: the devices, and the pods that have them now, from memory.

Taken on the event loop, where links of pods, health and alignment verdicts change. The rest of a scrape
happens in another thread. A pod that has ended is not included, so its series end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct, field

from dranet.claims.alignment import Verdict
from dranet.driver.alignment.verdicts import NicKey
from dranet.driver.health.monitor import DeviceStates
from dranet.driver.health.observations import find_moved_link
from dranet.driver.publish import View
from dranet.kernel.attachment.traffic import ifb_name
from dranet.kernel.counters import CountedLink
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, Link
from dranet.model.health import CARRIER_LOSSES, PcieLink
from dranet.model.plan import AttachPlan, LimitRate, LinkState, PreparedClaim, PreparedDevice


class PodDevice(Struct, frozen=True):
    """One device of a claim that is in its pod."""

    record: PreparedClaim
    prepared: PreparedDevice
    is_shared: bool
    """Whether the pod has a link on top of it."""
    seen: CountedLink | None
    """The pod's link, as far as it is known."""
    distance: Distance | None = None
    """To the pod's GPU; ``None`` without a GPU or if unknown."""
    is_worse: bool = False
    """Whether the node had a closer one."""
    limited: Mapping[str, int] = field(default_factory=dict)
    """Index of the link whose queue has the rate limit, by direction."""

    @property
    def pod_ifname(self) -> str:
        return self.prepared.plan.pod_ifname if self.prepared.plan is not None else ""


class NodeDevice(Struct, frozen=True):
    """One offered network device."""

    device: Device
    link: Link | None
    """On the node or in a pod; ``None``: it has none, or it is out of sight."""
    ifname: str
    """Name of its link on the node, even while a pod has it."""
    carrier_losses: int | None
    """As reported from its pod; on the node it must be read."""
    pod_uid: str = ""
    """UID of the pod that it was moved into."""
    healthy: bool | None = None
    faults: Sequence[str] = ()
    pcie: PcieLink | None = None
    driver: str = ""


class Snapshot(Struct, frozen=True):
    """The devices and pods of one scrape. The owner closes it."""

    devices: Sequence[NodeDevice]
    in_pods: Sequence[PodDevice]
    wanted_pods: frozenset[str]
    """UIDs of those with links or RDMA devices in ``devices`` or ``in_pods``."""
    namespaces: dict[str, NetworkNamespace]
    """Those of ``wanted_pods`` that could be opened, until they are handed out."""
    is_rdma_exclusive: bool = False
    """Whether RDMA devices in pods are only visible in their namespace."""

    def hand_out(self) -> Iterator[tuple[str, NetworkNamespace]]:
        """Yield one namespace after another, each to one caller only, on any thread; closed afterwards."""
        while True:
            try:
                uid, netns = self.namespaces.popitem()
            except KeyError:
                return
            with netns:
                yield uid, netns

    def close(self) -> None:
        """Close what was not handed out; on any thread."""
        for _ in self.hand_out():
            pass


def take_snapshot(
    view: View,
    records: Sequence[PreparedClaim],
    links: PodLinks,
    states: DeviceStates,
    get_verdicts: Callable[[str], Mapping[NicKey, Verdict]],
) -> Snapshot:
    """Take it on the event loop; nothing waits."""
    in_pods = list(_find_in_pods(records, links, get_verdicts))
    moved = {found.prepared.device.name: found for found in in_pods if not found.is_shared}
    devices = list(_find_devices(view, moved, states))
    wanted = {
        found.record.pod.uid
        for found in in_pods
        if found.seen is not None or found.prepared.device.rdma_device
    }
    namespaces = _open_wanted(links, wanted)
    return Snapshot(devices, in_pods, frozenset(wanted), namespaces, view.facts.rdma_netns_exclusive)


def _open_wanted(links: PodLinks, wanted: Collection[str]) -> dict[str, NetworkNamespace]:
    opened = links.open_namespaces() if wanted else {}
    for uid in opened.keys() - wanted:
        opened[uid].close()
    return {uid: netns for uid, netns in opened.items() if uid in wanted}


def _find_in_pods(
    records: Sequence[PreparedClaim], links: PodLinks, get_verdicts: Callable[[str], Mapping[NicKey, Verdict]]
) -> Iterator[PodDevice]:
    seen_in: dict[str, Sequence[CountedLink]] = {}
    for record in records:
        if not record.netns_path:
            continue
        uid = record.pod.uid
        known = get_verdicts(uid)
        if uid not in seen_in:
            seen_in[uid] = links.get_links(uid)
        for position, prepared in enumerate(record.devices):
            if prepared.plan is None or prepared.device.kind is DeviceKind.GPU:
                continue
            shared = prepared.plan.is_on_top
            seen = _find_link(prepared, seen_in[uid], is_shared=shared)
            verdict = known.get((record.claim.uid, position))
            is_clear = verdict is not None and not verdict.is_unclear
            yield PodDevice(
                record,
                prepared,
                shared,
                seen,
                verdict.distance if verdict is not None and is_clear else None,
                is_worse=verdict is not None and verdict.is_surely_worse,
                limited=dict(_find_limited(prepared.plan, seen, seen_in[uid])),
            )


def _find_limited(
    plan: AttachPlan, seen: CountedLink | None, links: Sequence[CountedLink]
) -> Iterator[tuple[str, int]]:
    """What the pod receives is queued on a link of its own."""
    limit = next((step for step in plan.steps if isinstance(step, LimitRate)), None)
    if limit is None:
        return
    if limit.egress_bits_per_second is not None and seen is not None:
        yield "transmit", seen.link.ifindex
    name = ifb_name(plan.pod_ifname)
    ifb = next((other for other in links if other.link.ifname == name), None)
    if limit.ingress_bits_per_second is not None and ifb is not None:
        yield "receive", ifb.link.ifindex


def _find_link(
    prepared: PreparedDevice, links: Sequence[CountedLink], *, is_shared: bool
) -> CountedLink | None:
    ifname = prepared.plan.pod_ifname if prepared.plan is not None else ""
    if not ifname:
        return None
    if is_shared:
        return next((seen for seen in links if seen.link.ifname == ifname), None)
    return find_moved_link(prepared.device, ifname, links)


def _find_devices(view: View, moved: Mapping[str, PodDevice], states: DeviceStates) -> Iterator[NodeDevice]:
    drivers = {function.address: function.driver for function in view.facts.pci_functions}
    for device in view.offered.values():
        if device.kind is DeviceKind.GPU:
            continue
        holder = moved.get(device.name)
        host = holder.prepared.plan.host if holder is not None and holder.prepared.plan is not None else None
        seen = holder.seen if holder is not None else None
        link = (
            seen.link if seen is not None else None if holder is not None else view.links.get(device.ifname)
        )
        yield NodeDevice(
            device,
            link,
            _host_name(device, host),
            seen.counters.get(CARRIER_LOSSES) if seen is not None else None,
            pod_uid=holder.record.pod.uid if holder is not None else "",
            healthy=states.healthy.get(device.name),
            faults=states.faults.get(device.name, ()),
            pcie=states.pcie.get(device.name),
            driver=drivers.get(device.pci_address, ""),
        )


def _host_name(device: Device, host: LinkState | None) -> str:
    return host.ifname if host is not None else device.ifname
