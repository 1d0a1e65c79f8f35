"""What a scrape says of devices and pods, from what was read: nothing more, and nothing that was not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from dranet.driver.metrics.reading import HOST, Readings
from dranet.driver.metrics.scrape import write_devices, write_pods
from dranet.kernel.attachment.traffic import ifb_name
from dranet.kernel.counters import PORT_COUNTERS, CountedLink, PortReading, Traffic
from dranet.kernel.netlink.tc import Pauses
from dranet.model.attributes import RAIL
from dranet.model.device import Bandwidth
from dranet.model.facts import Distance, Link
from dranet.model.health import PcieLink
from dranet.model.plan import LimitRate
from dranet.telemetry.node import DeviceFamilies
from dranet.telemetry.recorder import Exposition, Recorder
from tests.driver.metrics_node import Node, gpu, gpu_device, near, nic, with_gpus

Labels = frozenset[tuple[str, str]]
Shown = dict[str, dict[Labels, float]]

RECORDER = Recorder()
DEVICES = DeviceFamilies(RECORDER)

TRAFFIC = Traffic(1, 2, 3, 4, 5, 6, 7, 8)


def show(node: Node, readings: Readings) -> Shown:
    out, snapshot = Exposition(), node.take()
    write_devices(out, DEVICES, snapshot, readings)
    write_pods(out, DEVICES, snapshot, readings)
    found: Shown = {}
    for family in text_string_to_metric_families(out.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def labels(**given: str) -> Labels:
    return frozenset(given.items())


def test_a_device_on_the_node_is_told_by_its_name_alone() -> None:
    readings = Readings(traffic={HOST: {40: TRAFFIC}}, carrier_losses={40: 9})
    shown = show(Node([nic(0)]), readings)
    device = labels(device="net-0")
    assert shown["dranet_device_receive_bytes_total"] == {device: 3}
    assert shown["dranet_device_transmit_dropped_total"] == {device: 8}
    assert shown["dranet_device_up"] == {device: 0}
    assert shown["dranet_device_mtu_bytes"] == {device: 1500}
    assert shown["dranet_device_speed_bytes_per_second"] == {device: 12_500_000_000}
    assert shown["dranet_device_carrier_losses_total"] == {device: 9}
    assert not [name for name in shown if name.startswith("dranet_pod")]


def test_a_device_goes_on_in_its_pod_and_the_pod_is_told_beside_it() -> None:
    node = Node([nic(0)])
    node.add_pod("worker", [nic(0)], ifindex=7)
    readings = Readings(traffic={HOST: {}, "uid-worker": {7: TRAFFIC}}, speeds={"net-0": 400_000})
    shown = show(node, readings)
    mine = {"namespace": "team-a", "pod": "worker", "claim": "claim-worker", "device": "net-0"}
    assert shown["dranet_device_receive_bytes_total"] == {labels(device="net-0"): 3}
    assert shown["dranet_device_speed_bytes_per_second"] == {labels(device="net-0"): 50_000_000_000}
    assert shown["dranet_device_carrier_losses_total"] == {labels(device="net-0"): 3}
    assert shown["dranet_device_mtu_bytes"] == {labels(device="net-0"): 9000}
    (info,) = shown["dranet_device_info"]
    assert dict(info)["interface"] == "eth0", "its name on the node stays, so the series does"
    pod = labels(**mine, interface="net0")
    assert shown["dranet_pod_network_transmit_packets_total"] == {pod: 2}
    info = labels(**mine, interface="net0", request="nics", shared="false")
    assert shown["dranet_pod_device_info"] == {info: 1}
    assert shown["dranet_pod_device_alignment_level"] == {labels(**mine, interface="net0", level="PHB"): 3}
    assert shown["dranet_pod_device_worse_than_possible"] == {pod: 0}


def test_links_on_a_shared_device_are_told_by_pod_and_the_device_by_itself() -> None:
    node = Node([nic(0, rdma=True)])
    for number, name in enumerate(("one", "two")):
        node.add_pod(name, [nic(0)], shared=True, ifindex=5 + number)
    traffic = {HOST: {40: Traffic(*[100] * 8)}, "uid-one": {5: TRAFFIC}, "uid-two": {6: TRAFFIC}}
    ports = {"net-0": (PortReading(1, "ACTIVE", counters={"receive_bytes": 1}),)}
    shown = show(node, Readings(traffic=dict(traffic), ports=dict(ports)))
    assert shown["dranet_device_receive_bytes_total"] == {labels(device="net-0"): 100}
    by_pod = {
        dict(one)["pod"]: value for one, value in shown["dranet_pod_network_receive_bytes_total"].items()
    }
    assert by_pod == {"one": 3, "two": 3}
    assert {dict(one)["shared"] for one in shown["dranet_pod_device_info"]} == {"true"}
    assert "dranet_pod_rdma_receive_bytes_total" not in shown, "nobody knows whose they are"


def test_what_was_not_read_is_absent_and_never_0() -> None:
    node = Node([nic(0, rdma=True)])
    node.add_pod("worker", [nic(0, rdma=True)])
    shown = show(node, Readings())
    assert sorted(shown) == [
        "dranet_device_carrier",
        "dranet_device_carrier_losses_total",
        "dranet_device_info",
        "dranet_device_mtu_bytes",
        "dranet_device_up",
        "dranet_pod_device_alignment_level",
        "dranet_pod_device_info",
        "dranet_pod_device_worse_than_possible",
    ]


def test_a_pod_without_a_gpu_or_with_one_that_nobody_knows_has_no_alignment() -> None:
    node = Node([nic(0)])
    record = node.add_pod("worker", [nic(0)])
    key = (record.claim.uid, 0)
    for verdict in (near(distance=None), near(Distance.SYS, is_unclear=True)):
        node.verdicts[record.pod.uid] = {key: verdict}
        assert "dranet_pod_device_alignment_level" not in show(node, Readings())
    node.verdicts[record.pod.uid] = {key: near(Distance.SYS, is_worse=True)}
    shown = show(node, Readings())
    assert list(shown["dranet_pod_device_alignment_level"].values()) == [5]
    assert list(shown["dranet_pod_device_worse_than_possible"].values()) == [1]


def test_a_device_names_the_gpu_that_it_is_matched_with_and_each_gpu_of_the_pod_has_a_series() -> None:
    """Two GPUs, one NIC: as many series as there are GPUs, and none for each pair."""
    facts = [gpu(1), gpu(2)]
    node = Node([nic(0)], gpus=facts)
    record = node.add_pod("worker", [nic(0)])
    verdict = with_gpus(near(Distance.PIX), *map(gpu_device, facts), matched=1)
    node.verdicts[record.pod.uid] = {(record.claim.uid, 0): verdict}
    shown = show(node, Readings())
    second = {
        "gpu": "gpu-0000-2b-00-0",
        "gpu_uuid": "GPU-00000002-0000-4000-8000-000000000000",
        "gpu_pci_address": "0000:2b:00.0",
    }
    (info,) = shown["dranet_pod_device_info"]
    assert second.items() <= dict(info).items()
    pod = {"namespace": "team-a", "pod": "worker"}
    assert labels(**pod, **second) in shown["dranet_pod_gpu_info"]
    named = {dict(one)["gpu_uuid"] for one in shown["dranet_pod_gpu_info"]}
    assert named == {fact.uuid for fact in facts}


def test_a_gpu_without_a_uuid_is_named_by_its_place_and_an_unclear_match_not_at_all() -> None:
    fact = replace(gpu(1), uuid="")
    node = Node([nic(0)], gpus=[fact])
    record = node.add_pod("worker", [nic(0)])
    key = (record.claim.uid, 0)
    node.verdicts[record.pod.uid] = {key: with_gpus(near(Distance.PHB), gpu_device(fact))}
    (info,) = show(node, Readings())["dranet_pod_device_info"]
    assert dict(info)["gpu_pci_address"] == "0000:1b:00.0"
    assert "gpu_uuid" not in dict(info)
    unclear = with_gpus(near(Distance.SYS, is_unclear=True), gpu_device(fact))
    node.verdicts[record.pod.uid] = {key: unclear}
    shown = show(node, Readings())
    (info,) = shown["dranet_pod_device_info"]
    assert "gpu" not in dict(info), "another GPU may be the one"
    assert len(shown["dranet_pod_gpu_info"]) == 1, "the pod has this one"


def test_health_is_told_where_it_is_known_and_each_fault_has_a_series() -> None:
    node = Node([nic(0), nic(1), nic(2)])
    node.healthy = {"net-0": True, "net-1": False, "net-2": None}
    node.faults = {"net-1": ("link-down", "pcie-degraded")}
    shown = show(node, Readings())
    assert shown["dranet_device_healthy"] == {labels(device="net-0"): 1, labels(device="net-1"): 0}
    faults = {(dict(one)["device"], dict(one)["fault"]) for one in shown["dranet_device_fault"]}
    assert faults == {("net-1", "link-down"), ("net-1", "pcie-degraded")}


def test_a_pcie_link_is_told_with_the_most_that_card_and_slot_can_and_asleep_not_at_all() -> None:
    node = Node([nic(0), nic(1)])
    node.pcie = {
        "net-0": PcieLink(16.0, 8, 32.0, 16, 16.0, 0),
        "net-1": PcieLink(2.5, 1, 32.0, 16, 32.0, 16, asleep=True),
    }
    shown = show(node, Readings())
    assert shown["dranet_device_pcie_speed_transfers_per_second"] == {labels(device="net-0"): 16e9}
    assert shown["dranet_device_pcie_max_speed_transfers_per_second"][labels(device="net-0")] == 16e9
    assert shown["dranet_device_pcie_max_lanes"][labels(device="net-0")] == 16
    assert shown["dranet_device_pcie_lanes"] == {labels(device="net-0"): 8}


def test_every_declared_series_of_devices_and_pods_can_be_shown_and_no_other() -> None:
    cabled = [
        replace(one, attributes={**one.attributes, RAIL.qualified: rail})
        for rail, one in enumerate((nic(0, rdma=True), nic(1, rdma=True)))
    ]
    node = Node(cabled)
    record = node.add_pod("worker", [nic(1, rdma=True)], ifindex=7)
    node.gpus = [gpu(1)]
    node.verdicts[record.pod.uid] = {(record.claim.uid, 0): with_gpus(near(), gpu_device(gpu(1)))}
    node.healthy, node.faults = {"net-0": False}, {"net-0": ("link-down",)}
    node.pcie = {"net-0": PcieLink(16.0, 8, 32.0, 16, 32.0, 16)}
    limit_rate(node, "worker", egress=True)
    node.devices = [replace(node.devices[0], bandwidth=Bandwidth(8, 8)), *node.devices[1:]]
    port = PortReading(1, "ACTIVE", "400 Gb/sec (4X NDR)", dict.fromkeys(PORT_COUNTERS, 1))
    readings = Readings(
        traffic={HOST: {40: TRAFFIC}, "uid-worker": {7: TRAFFIC}},
        carrier_losses={40: 1},
        ports={"net-0": (port,), "net-1": (port,)},
        pauses={"net-0": (Pauses(3, 1, 2),)},
        limit_drops={"uid-worker": {7: 1}},
    )
    shown = show(node, readings)
    assert sorted(shown) == sorted(family.name for family in RECORDER.declared)
    for family in RECORDER.declared:
        for one in shown[family.name]:
            assert {name for name, _ in one} <= family.labels.keys()


@pytest.mark.parametrize("name", ['tea"m', "back\\slash", "line\nbreak", "ünïcode", "{}"])
def test_odd_names_do_not_break_the_format(name: str) -> None:
    node = Node([nic(0)])
    record = node.add_pod(name, [nic(0)])
    (info,) = show(node, Readings())["dranet_pod_device_info"]
    assert dict(info)["pod"] == record.pod.name


def limit_rate(node: Node, pod: str, *, egress: bool = False, ingress: bool = False) -> None:
    """On the first device of the pod."""
    (position,) = [n for n, record in enumerate(node.records) if record.pod.name == pod]
    record = node.records[position]
    prepared = record.devices[0]
    assert prepared.plan is not None
    step = LimitRate(10**6 if egress else None, None, 10**6 if ingress else None, None)
    plan = replace(prepared.plan, steps=(*prepared.plan.steps, step))
    devices = (replace(prepared, plan=plan), *record.devices[1:])
    node.records[position] = replace(record, devices=devices)


def take_bandwidth(node: Node, pod: str, bits: int) -> None:
    """The first device of the pod has so much."""
    (position,) = [n for n, record in enumerate(node.records) if record.pod.name == pod]
    first, *others = node.records[position].devices
    devices = (replace(first, bandwidth=bits), *others)
    node.records[position] = replace(node.records[position], devices=devices)


def test_bandwidth_is_told_of_devices_that_have_it_and_adds_up_over_claims() -> None:
    port = replace(nic(0), shared=True, bandwidth=Bandwidth(100 * 10**9, 10**9))
    node = Node([port, replace(nic(1), bandwidth=Bandwidth(8 * 10**9, None)), nic(2)])
    for name in ("first", "second"):
        node.add_pod(name, [port], shared=True)
        take_bandwidth(node, name, 10**9)
    shown = show(node, Readings())
    capacity, allocated = (
        {dict(one)["device"]: value for one, value in shown[f"dranet_device_bandwidth_{name}"].items()}
        for name in ("capacity_bytes_per_second", "allocated_bytes_per_second")
    )
    assert capacity == {"net-0": 12_500_000_000, "net-1": 1_000_000_000}
    assert allocated == {"net-0": 250_000_000, "net-1": 0}


def test_what_rate_limits_drop_is_told_by_direction() -> None:
    node = Node([nic(0)])
    record = node.add_pod("worker", [nic(0)], ifindex=7)
    limit_rate(node, "worker", egress=True, ingress=True)
    node.seen[record.pod.uid].append(CountedLink(Link(9, ifb_name("net0"))))
    shown = show(node, Readings(limit_drops={record.pod.uid: {7: 5, 9: 6}}))
    drops = shown["dranet_pod_rate_limit_dropped_packets_total"]
    assert {dict(one)["direction"]: value for one, value in drops.items()} == {"transmit": 5, "receive": 6}


def test_two_claims_that_read_the_same_give_one_series() -> None:
    node = Node([nic(0)])
    node.add_pod("worker", [nic(0)])
    node.records.append(node.records[0])
    shown = show(node, Readings())
    assert len(shown["dranet_pod_device_info"]) == 1
