"""Verdicts and metrics of pods whose GPUs are published by the drivers of NVIDIA, AMD and Intel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from dranet.claims.alignment import Verdict, build_alignment, build_condition, level
from dranet.cluster.client import ApiClient, Snapshot
from dranet.cluster.nodes import NodeDevices
from dranet.cluster.transport import access_from_url
from dranet.driver.alignment.pod_gpus import PodGpus
from dranet.driver.alignment.watch import LEVELS, Verdicts
from dranet.driver.publish import View
from dranet.model.attributes import RDMA_LINK_LAYER
from dranet.model.claim import AllocationResult, ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind, GpuSource
from dranet.model.facts import Distance, distance
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.data import gpu_drivers
from tests.data.layouts import CLAIMED_LAYOUTS, read_gpus, read_layout, take_layout

JsonObject = dict[str, Any]

POD = PodRef("team", "train", "pod-uid")
SHAPES = {
    "own names": gpu_drivers.OWN_NAMES,
    "no NUMA node": gpu_drivers.NO_NUMA,
    "newest": gpu_drivers.NEWEST,
}
PIX, SYS = Distance.PIX, Distance.SYS


class Records(ClaimStore):
    """One claim in memory."""

    def __init__(self) -> None:
        self.records: tuple[PreparedClaim, ...] = ()

    def get_all(self) -> tuple[PreparedClaim, ...]:
        return self.records

    def get_by_pod(self, pod_uid: str) -> tuple[PreparedClaim, ...]:
        return tuple(record for record in self.records if record.pod.uid == pod_uid)


class Node:
    """A machine of a layout, with slices of other drivers as its API server would list them."""

    def __init__(self, layout: str, slices: Iterable[JsonObject]) -> None:
        self.view = View.of(read_layout(layout).facts, take_layout(layout))
        self.nics = [device for device in self.view.offered.values() if device.kind is not DeviceKind.GPU]
        self.devices = NodeDevices(ApiClient(access_from_url("http://127.0.0.1:1")), "dra.net", layout)
        served = ({**body, "metadata": {"uid": body["metadata"]["name"]}} for body in slices)
        self.devices.take(Snapshot(tuple(served), "1"))
        self.store = Records()
        self.gpus = PodGpus(lambda: self.view, self.store.get_by_pod, self.devices, "dra.net")
        self.gpus.note_claims(POD.uid, ())
        self.verdicts = Verdicts(self.gpus, lambda: self.view, self.store, tuple, Metrics().alignment)

    def judge(self, nics: Sequence[Device], names: Iterable[str]) -> list[Verdict]:
        """The verdicts on these NICs in a claim that also has the other drivers' devices of these names."""
        others = tuple(AllocationResult("gpu", *key) for key in self._keys(names))
        prepared = tuple(PreparedDevice("nic", "node", nic, plan=AttachPlan(nic.name)) for nic in nics)
        claim = ClaimRef("team", "train", "claim-uid")
        self.store.records = (
            PreparedClaim(claim, POD, prepared, "boot", netns_path="/run/netns/p", others=others),
        )
        found = self.verdicts.judge(POD.uid)
        return [found["claim-uid", position] for position in range(len(nics))]

    def _keys(self, names: Iterable[str]) -> list[tuple[str, str, str]]:
        by_name = {
            device.name: (device.driver, device.pool, device.name) for device in self.devices.get_all()
        }
        return [by_name[name] for name in names]

    def working(self) -> list[Device]:
        """The NICs whose link is not switched on without a carrier."""
        links = self.view.links
        down = {name for name, link in links.items() if link.is_up and not link.carrier}
        return [nic for nic in self.nics if nic.ifname not in down]

    def count_levels(self) -> Mapping[str, int]:
        counts = {name: self.verdicts.count_level(name) for name in LEVELS}
        return {name: count for name, count in counts.items() if count}


def publish(layout: str, shapes: gpu_drivers.Shapes) -> tuple[Node, dict[str, Device]]:
    """The node, and its GPUs by the names that their driver gives them."""
    gpus, host = read_gpus(layout), read_layout(layout).facts.host
    node = Node(layout, gpu_drivers.publish(gpus, host, layout, shapes))
    return node, {gpu_drivers.publish_gpu(gpu, shapes)["name"]: gpu for gpu in gpus}


def network_of(nic: Device) -> tuple[object, object]:
    return nic.attributes.get("dra.net/rdma"), nic.attributes.get(RDMA_LINK_LAYER.qualified)


@pytest.mark.parametrize("release", SHAPES)
@pytest.mark.parametrize("layout", [layout for layout in CLAIMED_LAYOUTS if read_gpus(layout)])
def test_each_pair_has_the_distance_of_the_machine_whatever_the_slices_publish(
    layout: str, release: str
) -> None:
    node, gpus = publish(layout, SHAPES[release])
    for nic in (nic for nic in node.nics if nic.pci_address):
        for name, gpu in gpus.items():
            (verdict,) = node.judge([nic], [name])
            others = (other for other in node.working() if network_of(other) == network_of(nic))
            best = min(level(distance(other, gpu)) for other in (nic, *others))
            assert verdict.distance is distance(nic, gpu), (nic.name, name)
            assert verdict.gpu is not None
            assert (verdict.gpu.device, verdict.gpu.source) == (gpu, GpuSource.OTHER_DRIVERS_CLAIM)
            assert level(verdict.best) == best
            assert verdict.is_surely_worse == (verdict.distance is not None and verdict.distance > best)
            word = "unknown" if verdict.distance is None else verdict.distance.name
            assert node.count_levels() == {word: 1}
            assert node.verdicts.count_worse() == verdict.is_surely_worse


@pytest.mark.parametrize("release", SHAPES)
def test_a_pod_with_all_gpus_and_their_nics_is_aligned(release: str) -> None:
    node, gpus = publish("dgx-h100", SHAPES[release])
    nics = [nic for nic in node.nics if any(distance(nic, gpu) is PIX for gpu in gpus.values())]
    verdicts = node.judge(nics, gpus)

    assert [verdict.distance for verdict in verdicts] == [PIX] * 8
    assert node.count_levels() == {"PIX": 8}
    assert node.verdicts.count_worse() == 0


def test_the_condition_names_the_vendors_device_and_the_nic_that_is_better() -> None:
    node, gpus = publish("dgx-h100", gpu_drivers.NEWEST)
    far = next(nic for nic in node.nics if distance(nic, gpus["gpu-0"]) is SYS and network_of(nic)[0])
    (verdict,) = node.judge([far], ["gpu-0"])
    condition = build_condition(verdict)

    assert (condition.status, condition.reason) == (False, "WorseThanPossible")
    assert "known from device gpu-0 of gpu.nvidia.com, by its slices" in condition.message
    assert "pci-0000-18-00-0 is PIX to it and free" in condition.message
    data = build_alignment(verdict)
    assert (data["gpu"], data["gpuSource"]) == ("gpu-0000-1b-00-0", "OtherDriversClaim")
    assert (data["distance"], data["best"]) == ("SYS", "PIX")


# --- parts of GPUs -----------------------------------------------------------------------------------


def without(device: JsonObject, *names: str) -> JsonObject:
    kept = {
        name: value for name, value in device["attributes"].items() if name.rpartition("/")[2] not in names
    }
    return {**device, "attributes": kept}


def parts_of(kind: str) -> tuple[str, Device, list[JsonObject]]:
    """Layout, GPU and its parts, as some release publishes them."""
    nvidia, amd = read_gpus("dgx-h100")[0], read_gpus("mi300x")[0]
    static = [gpu_drivers.nvidia_mig_0_4(nvidia, gpu_drivers.MIG_3G, start) for start in (0, 4)]
    place = ("pciBusID", "pcieRoot")
    return {
        "MIG": ("dgx-h100", nvidia, static),
        "MIG, UUID of its GPU alone": ("dgx-h100", nvidia, [without(part, *place) for part in static]),
        "dynamic MIG": ("dgx-h100", nvidia, gpu_drivers.nvidia_dynamic_mig(nvidia)[1:3]),
        "AMD partitions": ("mi300x", amd, gpu_drivers.amd_partitions(amd)[:2]),
    }[kind]


PARTS = ("MIG", "MIG, UUID of its GPU alone", "dynamic MIG", "AMD partitions")


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_of_a_gpu_is_where_the_gpu_is(kind: str) -> None:
    layout, gpu, parts = parts_of(kind)
    driver = str(gpu_drivers.driver_of(gpu))
    node = Node(layout, [gpu_drivers.build_slice(driver, layout, parts)])
    for nic in (nic for nic in node.nics if nic.pci_address):
        (verdict,) = node.judge([nic], [parts[0]["name"]])
        assert verdict.distance is distance(nic, gpu), nic.name
        assert verdict.gpu is not None
        assert verdict.gpu.device == gpu


@pytest.mark.parametrize("kind", PARTS)
def test_two_parts_of_one_gpu_are_one_gpu_of_the_pod(kind: str) -> None:
    layout, gpu, parts = parts_of(kind)
    node = Node(layout, [gpu_drivers.build_slice(str(gpu_drivers.driver_of(gpu)), layout, parts)])
    near = min((nic for nic in node.nics if nic.pci_address), key=lambda nic: level(distance(nic, gpu)))
    (verdict,) = node.judge([near], [part["name"] for part in parts[:2]])

    assert [measured.gpu.device for measured in verdict.row] == [gpu]
    assert not verdict.is_surely_worse
    assert node.verdicts.count_worse() == 0


def test_the_channel_of_a_compute_domain_is_no_gpu_and_no_doubt() -> None:
    gpus, host = read_gpus("oci-gb200"), read_layout("oci-gb200").facts.host
    slices = gpu_drivers.publish(gpus, host, "node-1")
    node = Node("oci-gb200", [*slices, gpu_drivers.compute_domain_slice("node-1")])
    nic = next(nic for nic in node.nics if distance(nic, gpus[0]) is Distance.NODE)
    (verdict,) = node.judge(
        [nic], [gpu_drivers.publish_gpu(gpus[0], gpu_drivers.NEWEST)["name"], "channel-0"]
    )

    assert (verdict.distance, verdict.doubts) == (Distance.NODE, ())
    assert node.count_levels() == {"NODE": 1}
