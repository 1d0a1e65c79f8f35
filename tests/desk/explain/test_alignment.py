"""``explain`` names the distance of each allocated NIC to its GPU, whichever driver publishes the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dranet.claims.alignment import level
from dranet.desk.explain.explain import ClusterView, explain
from dranet.desk.explain.explanation import Alignment, Explanation
from dranet.desk.explain.subject import Subject, WantedClaim
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.choose import choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.model.device import Device
from dranet.model.facts import Distance, distance
from tests.data import gpu_drivers
from tests.data.layouts import CLAIMED_LAYOUTS, read_gpus
from tests.desk.templates.distances import classes_of, has_rdma
from tests.desk.templates.layout_clusters import Gpus, World, world

Json = dict[str, Any]
PIX, NODE, SYS = Distance.PIX, Distance.NODE, Distance.SYS
IS_NIC = 'device.driver == "dra.net" && device.attributes["dra.net"].?type.orValue("") != "gpu"'
IS_GPU = (
    'device.driver.startsWith("gpu.") || '
    'device.driver == "dra.net" && device.attributes["dra.net"].?type.orValue("") == "gpu"'
)
WITH_GPUS = [layout for layout in CLAIMED_LAYOUTS if world(layout).gpus and has_rdma(world(layout))]


def device_class(name: str, expression: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


CLASSES = [device_class("nic", f'{IS_NIC} && device.attributes["dra.net"].rdma'), device_class("gpu", IS_GPU)]


def request(name: str, address: str = "", **exactly: Any) -> Json:
    """For a device of class ``name``; the one with this PCI address."""
    names = ("resource.kubernetes.io", "pciBusID"), ("gpu.nvidia.com", "pcieBusID")
    texts = (f'device.attributes["{domain}"].?{key}.orValue("") == "{address}"' for domain, key in names)
    pins = [{"cel": {"expression": " || ".join(texts)}}] if address else []
    return {"name": name, "exactly": {"deviceClassName": name, "selectors": pins, **exactly}}


def claim(*requests: Json, name: str = "train", got: Sequence[tuple[str, str, str, str]] = ()) -> Json:
    body: Json = {
        "metadata": {"namespace": "n", "name": name},
        "spec": {"devices": {"requests": list(requests)}},
    }
    if got:
        keys = ("request", "driver", "pool", "device")
        results = [dict(zip(keys, one, strict=True)) for one in got]
        body["status"] = {"allocation": {"devices": {"results": results}}}
    return body


def explained(
    machine: World, *claims: Json, others: Iterable[Json] = (), classes: Sequence[Json] = CLASSES
) -> Explanation:
    view = ClusterView(machine.slices, classes, [*claims, *others])
    return explain(Subject("pod", "n/train", tuple(map(WantedClaim, claims))), view)


def alignment_of(explanation: Explanation) -> Alignment:
    """Of the only node, or of what is allocated."""
    found = explanation.alignment
    if explanation.groups:
        (group,) = explanation.groups
        found = group.report.alignment
    assert found is not None
    return found


def dgx(gpus: Gpus = Gpus.VENDOR) -> World:
    return world("dgx-h100", gpus)


NVIDIA, GPU = "gpu.nvidia.com", "gpu-0"
NIC, FAR_NIC = "pci-0000-18-00-0", "pci-0000-9a-00-0"
NIC_ADDRESS, GPU_ADDRESS, FAR_ADDRESS = "0000:18:00.0", "0000:1b:00.0", "0000:9a:00.0"


@pytest.mark.parametrize("gpus", Gpus)
@pytest.mark.parametrize("layout", WITH_GPUS)
def test_no_distance_is_told_smaller_than_it_is_and_the_best_is_that_of_the_machine(
    layout: str, gpus: Gpus
) -> None:
    machine = world(layout, gpus)
    found = alignment_of(explained(machine, claim(request("gpu"), request("nic"))))
    (pair,) = [device.pair for device in found.taken if device.pair]
    nic, gpu = machine.nics[pair.nic[2]], machine.gpus[pair.gpu[2]]
    network = [n for n in machine.nics.values() if n.attributes.get("dra.net/rdma") and alike(n, nic)]
    best = min(level(distance(one, other)) for one in network for other in machine.gpus.values())

    assert level(pair.distance) >= level(distance(nic, gpu))
    assert [level(one) for one in found.best] == [best]
    assert bool(found.better) == (level(pair.distance) > best)


def alike(nic: Device, other: Device) -> bool:
    layer = "dra.net/rdmaLinkLayer"
    return nic.attributes.get(layer) == other.attributes.get(layer)


@pytest.mark.parametrize("gpus", Gpus)
@pytest.mark.parametrize("layout", WITH_GPUS)
def test_what_claim_new_writes_is_told_as_aligned(layout: str, gpus: Gpus) -> None:
    machine = world(layout, gpus)
    choice = choose_claim(ClaimRequest(1, 1, rdma=True), read_hardware(machine.slices))
    (template,) = choice.first_templates
    body = {"metadata": {"namespace": "n", "name": "train"}, "spec": template["spec"]["spec"]}
    found = alignment_of(explained(machine, body, classes=list(classes_of(choice).values())))

    assert found.better == ()
    assert found.distances == found.best


@pytest.mark.parametrize("gpus", Gpus)
def test_a_pair_that_could_be_nearer_names_one_that_is_free_and_the_claim_that_gets_it(gpus: Gpus) -> None:
    machine = dgx(gpus)
    body = claim(request("gpu", GPU_ADDRESS), request("nic", FAR_ADDRESS))
    found = alignment_of(explained(machine, body))

    assert (found.distances, found.best, found.holders) == ((SYS,), (PIX,), ())
    (better,) = found.better
    (pair,) = [device.pair for device in found.taken if device.pair]
    assert (better.nic[2], better.gpu, better.distance) == (NIC, pair.gpu, PIX)
    assert pair.gpu[0] == machine.gpu_driver
    assert found.fix.startswith("dranet claim new --gpus 1 --nics 1 writes a claim that gets PIX (")


@pytest.mark.parametrize("gpus", [gpus for gpus in Gpus if gpus is not Gpus.VENDOR_NO_ROOT])
def test_the_fix_has_the_constraint(gpus: Gpus) -> None:
    body = claim(request("gpu", GPU_ADDRESS), request("nic", FAR_ADDRESS))

    assert alignment_of(explained(dgx(gpus), body)).fix.endswith(
        "(constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot, requests: [nic, gpu]}])"
    )


def test_a_claim_that_is_allocated_is_measured_by_the_slices() -> None:
    got = [("gpu", NVIDIA, "node-1", GPU), ("nic", "dra.net", "node-1", FAR_NIC)]
    explanation = explained(dgx(), claim(got=got))
    found = alignment_of(explanation)

    assert found.distances == (SYS,)
    assert [device.pair.gpu[2] for device in explanation.allocated if device.pair] == [GPU]
    assert (found.better[0].nic[2], found.holders) == (NIC, ())


def test_what_others_have_is_named_and_the_claim_that_waits_for_it() -> None:
    """Others hold all devices except its own GPU and a NIC of another root."""
    machine = dgx()
    own = claim(got=[("gpu", NVIDIA, "node-1", GPU), ("nic", "dra.net", "node-1", FAR_NIC)])
    held = [name for name in machine.nics if name != FAR_NIC]
    other = claim(name="other", got=[("nics", "dra.net", "node-1", name) for name in held])
    others_gpus = [name for name in machine.gpus if name != GPU]
    gpu_holder = claim(name="gpus", got=[("gpus", NVIDIA, "node-1", name) for name in others_gpus])
    found = alignment_of(explained(machine, own, others=[other, gpu_holder]))

    assert found.distances == (SYS,)
    assert found.holders == ("n/other",)
    assert [better.nic[2] for better in found.better] == [NIC]
    assert found.fix.startswith("dranet claim new --gpus 1 --nics 1 writes a claim that waits for PIX")


def test_the_claims_of_a_pod_are_measured_together_and_one_claim_is_proposed() -> None:
    claims = claim(request("gpu", GPU_ADDRESS), name="gpu"), claim(request("nic", FAR_ADDRESS), name="nic")
    found = alignment_of(explained(dgx(), *claims))

    assert found.distances == (SYS,)
    assert found.fix.startswith("one claim for all: dranet claim new --gpus 1 --nics 1 ")


def test_a_claim_that_is_allocated_counts_for_one_that_is_not() -> None:
    has_gpu = claim(name="gpu", got=[("gpu", NVIDIA, "node-1", GPU)])
    explanation = explained(dgx(), claim(request("nic", NIC_ADDRESS), name="nic"), has_gpu)
    (group,) = explanation.groups

    assert [device.pair.distance for device in group.report.allocated if device.pair] == [PIX]


def test_nics_of_a_claim_of_their_own_beside_a_pair_are_not_to_be_joined_to_it() -> None:
    pair = claim(request("gpu", GPU_ADDRESS), request("nic", NIC_ADDRESS), name="pair")
    storage = claim(request("nic", FAR_ADDRESS), name="storage")
    found = alignment_of(explained(dgx(), pair, storage))

    assert found.distances == (PIX, SYS)
    assert found.fix == ""


def test_devices_that_are_only_watched_do_not_count() -> None:
    watched = claim(request("gpu", GPU_ADDRESS, adminAccess=True), request("nic", FAR_ADDRESS))
    (group,) = explained(dgx(), watched).groups

    assert len(group.report.allocated) == 2
    assert group.report.alignment is None


@pytest.mark.parametrize("requests", [("gpu",), ("nic",)])
def test_without_a_nic_and_a_gpu_there_is_no_distance(requests: tuple[str, ...]) -> None:
    (group,) = explained(dgx(), claim(*map(request, requests))).groups

    assert group.report.alignment is None


def with_mig(machine: World, *without: str) -> tuple[World, list[str]]:
    """Two MIG devices of one GPU next to the other GPUs, and their names."""
    gpu = machine.gpus[GPU]
    parts = [gpu_drivers.nvidia_mig_0_5(gpu, gpu_drivers.MIG_3G, start) for start in (0, 4)]
    for part in parts:
        part["attributes"] = {key: value for key, value in part["attributes"].items() if key not in without}
    nics, gpus = machine.slices
    devices = [*gpus["spec"]["devices"], *parts]
    changed = {**gpus, "spec": {**gpus["spec"], "devices": devices}}
    return World(machine.node, (nics, changed), machine.gpus, machine.nics), [part["name"] for part in parts]


PLACE = ("resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot")


@pytest.mark.parametrize("without", [(), ("parentUUID",), PLACE])
def test_a_mig_device_is_where_its_gpu_is_and_two_of_one_gpu_count_once(without: tuple[str, ...]) -> None:
    machine, names = with_mig(dgx(), *without)
    parts = [("gpu", NVIDIA, "node-1", name) for name in names]
    nics = [("nic", "dra.net", "node-1", name) for name in (NIC, FAR_NIC)]
    found = alignment_of(explained(machine, claim(got=[*parts, *nics])))

    assert found.distances == (PIX, SYS)
    assert {device.pair.gpu[2] for device in found.taken if device.pair} == {names[0]}
    assert found.fix == ""


@pytest.mark.parametrize(
    ("layout", "profile"), [("dgx-h100", "3g.40gb"), ("mi300x", "cpx_nps1")], ids=["MIG", "AMD"]
)
def test_the_fix_for_a_part_names_its_profile(layout: str, profile: str) -> None:
    machine = world(layout, Gpus.VENDOR)
    gpus, driver = read_gpus(layout), machine.gpu_driver
    parts = [part for gpu in gpus for part in cut(gpu)]
    slices = (machine.slices[0], gpu_drivers.build_slice(driver, "node-1", parts))
    far = next(nic for nic in machine.nics.values() if distance(nic, gpus[0]) is SYS and has_rdma_itself(nic))
    got = [("gpu", driver, "node-1", parts[0]["name"]), ("nic", "dra.net", "node-1", far.name)]
    classes = [*CLASSES, *gpu_drivers.device_classes()]
    body = claim(got=got)
    view = ClusterView(slices, classes, [body])
    found = explain(Subject("claim", "n/train", (WantedClaim(body),)), view).alignment

    assert found is not None
    assert found.distances == (SYS,)
    assert f"dranet claim new --gpus 1 --nics 1 --gpu-part {profile} writes a claim that gets " in found.fix


def cut(gpu: Device) -> list[Json]:
    """A MIG device, or all partitions of a GPU of AMD."""
    if gpu_drivers.driver_of(gpu) is gpu_drivers.Driver.AMD:
        return gpu_drivers.amd_partitions(gpu)
    return [gpu_drivers.nvidia_mig_0_4(gpu, gpu_drivers.MIG_3G, 0)]


def has_rdma_itself(nic: Device) -> bool:
    return nic.attributes.get("dra.net/rdma") is True


def without_gpus(nic: Json) -> Json:
    kept = {name: value for name, value in nic["attributes"].items() if "Gpu" not in name}
    return {**nic, "attributes": kept}


def test_next_to_nics_of_dranet_the_numa_nodes_of_gpus_are_assumed_and_that_is_said() -> None:
    """DraNet publishes nothing about GPUs."""
    machine = world("oci-gb200", Gpus.VENDOR)
    nics, gpus = machine.slices
    silent = {
        **nics,
        "spec": {**nics["spec"], "devices": [without_gpus(nic) for nic in nics["spec"]["devices"]]},
    }
    for slices, assumption in ((machine.slices, ""), ((silent, gpus), "NVIDIA GB200 and GB300")):
        body = claim(request("gpu"), request("nic"))
        found = alignment_of(explained(World("node-1", slices, {}, {}), body))
        assert (found.distances, found.best) == ((NODE,), (NODE,))
        assert found.assumption.startswith(assumption)
        assert bool(found.assumption) is bool(assumption)


@pytest.mark.parametrize("gpus", [Gpus.VENDOR, Gpus.VENDOR_NUMA])
@pytest.mark.parametrize("layout", ["gb200-nvl72", "oci-gb200", "azure-gb300"])
def test_the_channel_of_a_compute_domain_has_no_place_and_changes_nothing(layout: str, gpus: Gpus) -> None:
    """A claim of its own in the same pod."""
    alone = world(layout, gpus)
    rack = World(alone.node, (*alone.slices, gpu_drivers.compute_domain_slice(alone.node)), {}, {})
    channel = claim(request("channel"), name="channel")
    channel["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = CHANNEL_CLASS
    classes = [*CLASSES, *gpu_drivers.device_classes()]
    nic = next(nic.pci_address for nic in alone.nics.values() if nic.numa_node == 1)
    for first in ("", nic):
        devices = claim(request("gpu"), request("nic", first))
        found = alignment_of(explained(rack, devices, channel, classes=classes))
        without_channel = alignment_of(explained(alone, devices, classes=classes))
        assert replace(found, taken=found.taken[:2]) == without_channel
        assert found.distances == ((SYS,) if first else (NODE,))


CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"


def test_nodes_with_other_distances_are_other_stories() -> None:
    """On one of two nodes the NIC beside the first GPU is tainted."""
    first, second = world("dgx-h100", Gpus.VENDOR, "node-1"), world("dgx-h100", Gpus.VENDOR, "node-2")
    slices = [*first.slices, *map(without_first_nic, second.slices)]
    body = claim(request("gpu", GPU_ADDRESS), request("nic"))
    view = ClusterView(slices, CLASSES, [body])
    groups = explain(Subject("claim", "n/train", (WantedClaim(body),)), view).groups
    found = {group.nodes: group.report.alignment for group in groups}

    assert {nodes: a.distances for nodes, a in found.items() if a} == {
        ("node-1",): (PIX,),
        ("node-2",): (NODE,),
    }


def without_first_nic(entry: Json) -> Json:
    devices = [device for device in entry["spec"]["devices"] if device["name"] != NIC]
    return {**entry, "spec": {**entry["spec"], "devices": devices}}
