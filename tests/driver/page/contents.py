"""Nodes to show on a page: empty, full of GPUs, hostile, and very large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dranet.claims.alignment import AlignmentCandidate, Verdict, judge_pod
from dranet.driver.probes.server import PartState
from dranet.driver.reports.reporter import RecentEvent
from dranet.driver.status_page.content import Content, DeviceKey, Driver, SeenClaim
from dranet.health import DeviceHealth
from dranet.inventory.offer import take_inventory
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind, GpusOfPod, GpuSource, PodGpu
from dranet.model.facts import Link, NodeFacts
from dranet.model.findings import Finding, Severity, ok
from dranet.model.plan import AttachPlan, LinkState, PreparedClaim, PreparedDevice
from tests.data.layouts import read_layout

NOW = 1_790_000_000.0
DRIVER = Driver("node-1", "dra.net", "0.1.0", "on-duty", NOW - 93_000)
HOSTILE = (
    "</style></td></svg><script>alert(1)</script><img src=http://x.example/ onerror=alert(1)>"
    "\"'&\x1b[31m\u202e"
)


def new_parts(**others: PartState) -> Mapping[str, PartState]:
    parts = {name: PartState(True) for name in ("driver", "runtime", "kubelet", "slices")}
    return {**parts, **others}


def empty() -> Content:
    """Just started, on a node without hardware."""
    away = PartState(
        False, "NRI is not connected: [Errno 2] No such file or directory: /var/run/nri/nri.sock"
    )
    return Content(DRIVER, NOW, new_parts(runtime=away), NodeFacts())


def new_claim(
    number: int, pod: str, devices: Sequence[Device], *, name: str = "", netns: str = "/run/netns/x"
) -> PreparedClaim:
    """Every NIC of it is moved into the pod, GPUs stay where they are."""
    return PreparedClaim(
        ClaimRef("train", name or f"{pod}-nics", f"claim-{number}"),
        PodRef("train", pod, f"pod-{number}"),
        tuple(_prepare(device, position) for position, device in enumerate(devices)),
        boot_id="boot",
        netns_path=netns,
    )


def _prepare(device: Device, position: int) -> PreparedDevice:
    if device.kind is DeviceKind.GPU:
        return PreparedDevice("gpu", "node-1", device)
    host = LinkState(position + 2, device.ifname, "02:00:00:00:00:01", 9000, True) if device.ifname else None
    pod_ifname = f"net{position}" if device.ifname else ""
    return PreparedDevice("nic", "node-1", device, plan=AttachPlan(device.name, (), pod_ifname, host))


def full(layout: str = "dgx-h100") -> Content:
    """Pods with near NICs, one with a far NIC, one that waits, and a NIC without a cable."""
    facts = read_layout(layout).facts
    offered = [decision.device for decision in take_inventory(facts, {}) if decision.published]
    gpus = [device for device in offered if device.kind is DeviceKind.GPU]
    nics = [device for device in offered if device.kind is not DeviceKind.GPU]
    near = sorted(nics, key=lambda nic: nic.pci_address)
    records = [
        new_claim(0, "llama-worker-0", [*gpus[:2], *near[:2]]),
        new_claim(1, "llama-worker-1", [gpus[2], near[-1]]),
        new_claim(2, "llama-worker-2", [near[3]], netns=""),
    ]
    held = {d.device.name: d.device for record in records if record.netns_path for d in record.devices}
    return build(facts, records, held, offered, faulty=near[4].name)


def bare(layout: str) -> Content:
    """A machine that nobody has claimed anything of."""
    facts = read_layout(layout).facts
    offered = [decision.device for decision in take_inventory(facts, {}) if decision.published]
    return build(facts, [], {}, offered)


def build(
    facts: NodeFacts,
    records: Sequence[PreparedClaim],
    held: Mapping[str, Device],
    offered: Sequence[Device],
    faulty: str = "",
) -> Content:
    gone = {device.ifname for device in held.values()}
    now = replace(facts, links=tuple(link for link in facts.links if link.ifname not in gone))
    message = "link-down: enp79s0np0 has no carrier"
    return Content(
        DRIVER,
        NOW,
        new_parts(instance=PartState(True, "pod 6e4b6f5d is on-duty")),
        now,
        take_inventory(now, held),
        FINDINGS,
        {device.name: DeviceHealth(True) for device in offered}
        | ({faulty: DeviceHealth(False, message)} if faulty else {}),
        [SeenClaim(record, is_attached=bool(record.netns_path), since=NOW - 4000) for record in records],
        verdicts=judge(records, [device for device in offered if device.name != faulty]),
        recent_events=HAPPENINGS,
    )


def judge(records: Sequence[PreparedClaim], working: Sequence[Device]) -> Mapping[DeviceKey, Verdict]:
    """As the driver does: a device of another claim is not free, though its pod may not run yet."""
    holders = {d.device.name: record.claim for record in records for d in record.devices}
    verdicts: dict[DeviceKey, Verdict] = {}
    for record in records:
        nics = {i: d.device for i, d in enumerate(record.devices) if d.plan is not None}
        gpus = [PodGpu(d.device, GpuSource.CLAIM) for d in record.devices if d.device.kind is DeviceKind.GPU]
        others = {name: str(claim) for name, claim in holders.items() if claim != record.claim}
        candidates = [
            AlignmentCandidate(device, others.get(device.name, ""))
            for device in working
            if device.kind is not DeviceKind.GPU
        ]
        for position, verdict in zip(
            nics, judge_pod([*nics.values()], GpusOfPod(tuple(gpus)), candidates), strict=True
        ):
            if verdict is not None:
                verdicts[(record.claim.uid, position)] = verdict
    return verdicts


FINDINGS = (
    ok("api", "device taints kept"),
    ok("kubelet", "registered since 2026-09-21T10:00:00+00:00"),
    Finding("runtime", Severity.NOTE, "no container has come with a CDI device of ours yet"),
    Finding(
        "api",
        Severity.WARNING,
        "shared devices dropped (feature gate DRAConsumableCapacity)",
        "a device goes to one claim only, although --shared-devices names it",
        "turn DRAConsumableCapacity on in the API server and the scheduler, or do without it",
    ),
)
HAPPENINGS = (
    RecentEvent(NOW - 90_000, "Normal", "Started", "node node-1", "dranet 0.1.0"),
    RecentEvent(
        NOW - 4_000,
        "Normal",
        "Attached",
        "pod train/llama-worker-0",
        "4 devices of claim train/llama-worker-0-nics",
    ),
    RecentEvent(
        NOW - 300,
        "Warning",
        "DeviceUnhealthy",
        "node node-1",
        "device pci-0000-4f-00-0: link-down: enp79s0np0 has no carrier",
        count=3,
    ),
)


def hostile(text: str = HOSTILE) -> Content:
    """Every name that comes from outside is ``text``; names on the node as long as the kernel takes."""
    content = full()
    long = text + "very-long-name-without-a-space" * 8
    record = new_claim(9, long, [content.claims[0].record.devices[-1].device], name=long)
    device = replace(record.devices[0].device, name=long, ifname=text)
    record = replace(record, devices=(replace(record.devices[0], device=device, request=long),))
    facts = replace(
        content.facts,
        links=tuple(replace(link, ifname=f"{text}{link.ifindex}") for link in content.facts.links),
        gpus=tuple(replace(gpu, model=long) for gpu in content.facts.gpus),
        host=replace(content.facts.host, name=long, product=long),
        warnings=(long,),
    )
    decisions = tuple(
        replace(d, device=replace(d.device, ifname=f"{text}{n}", rdma_device=text), reason=long)
        for n, d in enumerate(content.decisions)
    )
    return replace(
        content,
        driver=Driver(long, text, text, text, NOW),
        parts={text: PartState(False, long)},
        facts=facts,
        decisions=decisions,
        findings=(Finding(text, Severity.PROBLEM, long, long, long),),
        health={d.device.name: DeviceHealth(False, long) for d in decisions},
        claims=[SeenClaim(record, True, NOW), *content.claims],
        recent_events=(RecentEvent(NOW, "Warning", text, long, long),),
    )


def large() -> Content:
    """1,000 links that are offered, 128 of them held, 300 claims."""
    links = tuple(
        Link(n, f"veth{n}", kind="veth", virtual=True, operstate="up", carrier=True, flags=1)
        for n in range(2, 1002)
    )
    content = full()
    facts = replace(content.facts, links=(*content.facts.links, *links))
    devices = [Device(f"veth{n}", DeviceKind.NIC, ifname=f"veth{n}") for n in range(2, 302)]
    records = [new_claim(n, f"pod-{n}", [device]) for n, device in enumerate(devices)]
    made = build(facts, records, {}, devices)
    return replace(made, recent_events=HAPPENINGS * 66)
