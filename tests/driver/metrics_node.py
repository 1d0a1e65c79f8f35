"""A node of which scrapers are told: devices and pods that come and go, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from dranet.claims.alignment import Measured, Verdict
from dranet.driver.alignment.watch import NicKey
from dranet.driver.health import DeviceStates
from dranet.driver.metrics.reading import Snapshot, take_snapshot
from dranet.driver.publish import View
from dranet.kernel.counters import CountedLink
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind, Doubt, GpuSource, PodGpu
from dranet.model.facts import Distance, Gpu, Link, NodeFacts, PciFunction
from dranet.model.health import CARRIER_LOSSES, PcieLink
from dranet.model.plan import AttachPlan, CreateLink, LinkState, MoveLink, PreparedClaim, PreparedDevice


def near(
    distance: Distance | None = Distance.PHB, *, is_unclear: bool = False, is_worse: bool = False
) -> Verdict:
    doubts = (Doubt("unclear"),) if is_unclear else ()
    return Verdict((), None, distance, None, is_worse=is_worse, doubts=doubts)


def with_gpus(verdict: Verdict, *gpus: Device, matched: int = 0) -> Verdict:
    """The same of a pod that has these GPUs, whoever allocated them."""
    row = tuple(Measured(PodGpu(gpu, GpuSource.POD_RESOURCES), verdict.distance) for gpu in gpus)
    return replace(verdict, row=row, gpu=row[matched].gpu)


def gpu(number: int) -> Gpu:
    return Gpu(f"0000:{number}b:00.0", "nvidia", uuid=f"GPU-0000000{number}-0000-4000-8000-000000000000")


def gpu_device(fact: Gpu) -> Device:
    name = f"gpu-{fact.pci_address.replace(':', '-').replace('.', '-')}"
    return Device(name, DeviceKind.GPU, pci_address=fact.pci_address)


class Links(PodLinks):
    """The links of a :class:`Node`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def get_links(self, pod_uid: str) -> Sequence[CountedLink]:
        return tuple(self._node.seen.get(pod_uid, ()))

    def open_namespaces(self) -> dict[str, NetworkNamespace]:
        namespaces = self._node.namespaces
        return {uid: NetworkNamespace.from_fd(netns.fileno()) for uid, netns in namespaces.items()}


def nic(number: int, rdma: bool = False) -> Device:
    return Device(
        f"net-{number}",
        DeviceKind.NIC,
        ifname=f"eth{number}",
        pci_address=f"0000:0{number}:00.0",
        numa_node=number % 2,
        rdma_device=f"mlx5_{number}" if rdma else "",
    )


@dataclass
class Node:
    """What inventory, store, links in pods, health watch and verdicts say."""

    devices: Sequence[Device]
    records: list[PreparedClaim] = field(default_factory=list)
    seen: dict[str, list[CountedLink]] = field(default_factory=dict)
    namespaces: dict[str, NetworkNamespace] = field(default_factory=dict)
    verdicts: dict[str, Mapping[NicKey, Verdict]] = field(default_factory=dict)
    healthy: dict[str, bool | None] = field(default_factory=dict)
    faults: dict[str, Sequence[str]] = field(default_factory=dict)
    pcie: dict[str, PcieLink] = field(default_factory=dict)
    exclusive: bool = False
    gpus: Sequence[Gpu] = ()

    def add_pod(
        self, name: str, devices: Sequence[Device], shared: bool = False, ifindex: int = 1
    ) -> PreparedClaim:
        """With a claim of its own, its devices as ``net0``, ``net1`` ..., and no namespace yet."""
        record = PreparedClaim(
            ClaimRef("team-a", f"claim-{name}", f"claim-uid-{name}"),
            PodRef("team-a", name, f"uid-{name}"),
            tuple(_prepare(device, f"net{n}", shared=shared) for n, device in enumerate(devices)),
            "boot",
            sandbox_id=f"sandbox-{name}",
            netns_path=f"/run/netns/{name}",
        )
        self.records.append(record)
        self.seen[record.pod.uid] = [
            CountedLink(
                Link(
                    ifindex + n,
                    f"net{n}",
                    mtu=9000,
                    operstate="up",
                    carrier=True,
                    pci_address="" if shared else device.pci_address,
                ),
                {CARRIER_LOSSES: 3},
            )
            for n, device in enumerate(devices)
        ]
        self.verdicts[record.pod.uid] = {(record.claim.uid, n): near() for n in range(len(devices))}
        return record

    def end_pod(self, record: PreparedClaim) -> None:
        self.records.remove(record)
        for known in (self.seen, self.namespaces, self.verdicts):
            known.pop(record.pod.uid, None)

    def take(self) -> Snapshot:
        held = {d.device.name for r in self.records for d in r.devices if d.plan and not d.plan.is_on_top}
        links = {
            device.ifname: Link(40 + n, device.ifname, mtu=1500, operstate="down", speed_mbps=100_000)
            for n, device in enumerate(self.devices)
            if device.name not in held
        }
        functions = tuple(PciFunction(d.pci_address, 0x20000, 0, 0, driver="mlx5_core") for d in self.devices)
        view = View(
            offered={device.name: device for device in self.devices},
            links=links,
            facts=NodeFacts(
                pci_functions=functions, gpus=tuple(self.gpus), rdma_netns_exclusive=self.exclusive
            ),
        )
        states = DeviceStates(self.healthy, self.faults, self.pcie)
        return take_snapshot(view, tuple(self.records), Links(self), states, self.get_latest)

    def get_latest(self, pod_uid: str) -> Mapping[NicKey, Verdict]:
        return self.verdicts.get(pod_uid, {})


def _prepare(device: Device, pod_ifname: str, *, shared: bool) -> PreparedDevice:
    if shared:
        create = CreateLink(pod_ifname, "macvlan", 40, device.ifname, "02:00:00:00:00:01", mode="bridge")
        plan = AttachPlan(device.name, (create,), pod_ifname)
    else:
        host = LinkState(40, device.ifname, "02:00:00:00:00:01", 1500, up=True)
        plan = AttachPlan(device.name, (MoveLink(pod_ifname),), pod_ifname, host)
    return PreparedDevice("nics", "node", device, plan=plan)
