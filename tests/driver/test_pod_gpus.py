"""Who the GPUs of a pod are, by everybody who may tell."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dranet.cluster.client import ApiClient, Snapshot
from dranet.cluster.nodes import NodeDevice, NodeDevices
from dranet.cluster.transport import access_from_url
from dranet.driver.alignment.pod_gpus import MAX_CONTAINERS, UNREAD, GpuName, PodGpus, observe_container
from dranet.driver.publish import View
from dranet.inventory.policy import Decision
from dranet.model.claim import AllocationResult, ClaimRef, Container, PodRef
from dranet.model.device import Device, DeviceKind, GpuSource
from dranet.model.facts import CharDevice, Gpu, NodeFacts, PciFunction
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from tests.data import gpu_drivers
from tests.data.layouts import read_gpus, read_layout, take_layout

POD = PodRef("team", "p", "pod-uid")
ADDRESSES = [f"0000:{n}b:00.0" for n in (1, 2, 3)]
GPUS = tuple(
    Gpu(address, "nvidia", uuid=f"GPU-{n}", char_devices=(CharDevice(f"/dev/nvidia{n}", 195, n),))
    for n, address in enumerate(ADDRESSES)
)
FUNCTIONS = tuple(PciFunction(address, 0x030200, 0x10DE, 0x2330) for address in (*ADDRESSES, "0000:99:00.0"))
FACTS = NodeFacts(gpus=GPUS, pci_functions=FUNCTIONS)


def device(address: str) -> Device:
    return Device(f"gpu-{address}", DeviceKind.GPU, pci_address=address)


VIEW = View.of(
    FACTS,
    [
        Decision(device(ADDRESSES[0]), True, ""),
        *(Decision(device(address), False, "is another driver's") for address in ADDRESSES[1:]),
    ],
)
NIC = PreparedDevice("nic", "node", Device("nic", DeviceKind.NIC), plan=AttachPlan("nic"))
VENDOR = "gpu.example.com"


def result(name: str, driver: str = VENDOR, *, admin: bool = False) -> AllocationResult:
    return AllocationResult("gpu", driver, "pool", name, admin_access=admin)


def record(uid: str, *devices: PreparedDevice, others: tuple[AllocationResult, ...] = ()) -> PreparedClaim:
    return PreparedClaim(ClaimRef("team", uid, uid), POD, devices, "boot", others=others)


class Slices(NodeDevices):
    """What other drivers offer here."""

    def __init__(self, *devices: NodeDevice) -> None:
        self.devices = {(d.driver, d.pool, d.name): d for d in devices}
        self.is_known = True

    is_awaited = False

    def find(self, driver: str, pool: str, device: str) -> NodeDevice | None:
        return self.devices.get((driver, pool, device))

    def get_all(self) -> tuple[NodeDevice, ...]:
        return tuple(self.devices.values())


def offered(name: str, address: str = "", driver: str = VENDOR, **attributes: str) -> NodeDevice:
    return NodeDevice(
        driver, "pool", name, address, {f"{driver}/{key}": value for key, value in attributes.items()}
    )


class Bench:
    def __init__(self, *records: PreparedClaim, slices: NodeDevices | None = None) -> None:
        self.records = records
        self.slices = slices if isinstance(slices, Slices) else Slices()
        self.view = VIEW
        self.told: list[str] = []
        self.gpus = PodGpus(lambda: self.view, self.of_pod, slices or self.slices, "dra.net")
        self.gpus.listeners.append(self.told.append)

    def of_pod(self, pod_uid: str) -> tuple[PreparedClaim, ...]:
        return tuple(record for record in self.records if record.pod.uid == pod_uid)

    def known(self) -> list[tuple[str, GpuSource]]:
        return [(gpu.device.pci_address, gpu.source) for gpu in self.gpus.get(POD.uid).gpus]

    def doubts(self) -> list[str]:
        return [doubt.text for doubt in self.gpus.get(POD.uid).doubts]

    def show(self, name: str = "main", **env: str) -> None:
        self.gpus.note_container(POD.uid, observe_container(Container("id", name, "sandbox", env=env)))


def own(address: str, *, admin: bool = False) -> PreparedDevice:
    return PreparedDevice("gpu", "node", device(address), admin_access=admin)


def test_the_gpus_of_all_claims_of_the_pod_count_and_no_admin_access() -> None:
    bench = Bench(record("a", NIC, own(ADDRESSES[2], admin=True)), record("b", own(ADDRESSES[1])))
    assert bench.known() == [(ADDRESSES[1], GpuSource.CLAIM)]
    (gpu,) = bench.gpus.get(POD.uid).gpus
    assert gpu.holder == "claim team/b"


def test_a_device_of_another_driver_in_our_claim_is_found_by_the_address_in_its_slice() -> None:
    slices = Slices(offered("gpu-0", ADDRESSES[1]), offered("mig", "", parentUUID="GPU-2"))
    bench = Bench(record("a", NIC, others=(result("gpu-0"), result("mig"))), slices=slices)
    assert bench.doubts() == [UNREAD], "another claim of the pod may have more"
    bench.gpus.note_claims(POD.uid, ())
    assert bench.known() == [
        (ADDRESSES[1], GpuSource.OTHER_DRIVERS_CLAIM),
        (ADDRESSES[2], GpuSource.OTHER_DRIVERS_CLAIM),
    ]
    assert bench.doubts() == []


def test_mig_devices_of_a_claim_are_the_gpu_that_they_are_parts_of() -> None:
    """As NVIDIA's driver publishes them. The channel of a ComputeDomain in the same claim is no GPU."""
    first, second = read_gpus("dgx-h100")[:2]
    parts = [gpu_drivers.nvidia_mig_0_5(second, gpu_drivers.MIG_1G, start) for start in (0, 3)]
    slices = [
        gpu_drivers.build_slice("gpu.nvidia.com", "pool", [gpu_drivers.nvidia_0_5(first), *parts]),
        gpu_drivers.compute_domain_slice("pool"),
    ]
    served = [{**body, "metadata": {"uid": body["metadata"]["name"]}} for body in slices]
    devices = NodeDevices(ApiClient(access_from_url("http://127.0.0.1:1")), "dra.net", "pool")
    devices.take(Snapshot(tuple(served), "1"))
    others = [result(part["name"], "gpu.nvidia.com") for part in parts]
    others.append(result("channel-0", "compute-domain.nvidia.com"))
    bench = Bench(record("a", NIC, others=tuple(others)), slices=devices)
    bench.view = View.of(read_layout("dgx-h100").facts, take_layout("dgx-h100"))
    bench.gpus.note_claims(POD.uid, ())

    assert bench.known() == [(second.pci_address, GpuSource.OTHER_DRIVERS_CLAIM)]
    assert bench.doubts() == []


def test_admin_access_of_another_driver_gives_no_gpu() -> None:
    bench = Bench(record("a", NIC, others=(result("gpu-0", admin=True),)))
    assert (bench.known(), bench.doubts()) == ([], [])


@pytest.mark.parametrize(
    ("slice_device", "doubt"),
    [
        (None, "no slice contains its place"),
        (offered("d"), "its slice does not contain its place"),
        (offered("d", "0000:fe:00.0"), "PCI function 0000:fe:00.0 is not of this node"),
    ],
)
def test_a_gpu_that_cannot_be_placed_is_a_doubt(slice_device: NodeDevice | None, doubt: str) -> None:
    slices = Slices(*([slice_device] if slice_device else []))
    bench = Bench(record("a", NIC, others=(result("d"),)), slices=slices)
    assert bench.known() == []
    assert bench.doubts() == [f"device d of {VENDOR}: {doubt}"]


def test_cpus_memory_and_other_pci_functions_are_no_gpus_and_no_doubt() -> None:
    slices = Slices(
        offered("cpu-0", driver="cpu.example.com"), offered("nvme", "0000:99:00.0", "disk.example")
    )
    results = (result("cpu-0", "cpu.example.com"), result("nvme", "disk.example"))
    bench = Bench(record("a", NIC, others=results), slices=slices)
    assert (bench.known(), bench.doubts()) == ([], [])


def test_slices_that_come_later_settle_the_doubt() -> None:
    bench = Bench(record("a", NIC, others=(result("gpu-0"),)))
    bench.gpus.changed(POD.uid)
    assert len(bench.doubts()) == 1
    bench.slices.devices[VENDOR, "pool", "gpu-0"] = offered("gpu-0", ADDRESSES[0])
    bench.gpus.note_claims(POD.uid, ())
    assert (len(bench.known()), bench.doubts()) == (1, [])
    assert bench.told == [POD.uid, POD.uid]


def test_a_pod_keeps_the_gpu_whose_slice_goes_while_its_driver_is_updated() -> None:
    """A vendor's driver writes slices anew for many reasons; nothing of the pod is different, nor told."""
    slices = Slices(offered("gpu-0", ADDRESSES[1]))
    bench = Bench(record("a", NIC, others=(result("gpu-0"),)), slices=slices)
    bench.gpus.note_claims(POD.uid, ())
    known, told = bench.gpus.get(POD.uid), list(bench.told)
    slices.devices.clear()
    bench.gpus.changed(POD.uid)
    assert (bench.gpus.get(POD.uid), bench.told) == (known, told)
    slices.devices[VENDOR, "pool", "gpu-0"] = offered("gpu-0", ADDRESSES[2])
    bench.gpus.changed(POD.uid)
    assert bench.known() == [(ADDRESSES[2], GpuSource.OTHER_DRIVERS_CLAIM)], "what is told now counts"
    slices.devices.clear()
    bench.gpus.keep_only(set())
    assert len(bench.doubts()) == 1, "it ends with the pod"


def test_other_claims_of_the_pod_are_looked_for_only_where_another_driver_has_gpus_of_this_node() -> None:
    bench = Bench(record("a", NIC), slices=Slices(offered("cpu-0", driver="cpu.example.com")))
    assert not bench.gpus.are_served_by_others
    by_uuid = Bench(record("a", NIC), slices=Slices(offered("x", uuid="GPU-1")))
    assert by_uuid.gpus.are_served_by_others
    bench = Bench(record("a", NIC), slices=Slices(offered("gpu-0", ADDRESSES[0])))
    assert bench.gpus.are_served_by_others
    assert not bench.gpus.has_read_claims(POD.uid)
    bench.gpus.note_claims(POD.uid, [result("gpu-0")])
    assert bench.gpus.has_read_claims(POD.uid)
    assert bench.known() == [(ADDRESSES[0], GpuSource.OTHER_DRIVERS_CLAIM)]


def test_claims_that_cannot_be_read_are_a_doubt_until_they_can() -> None:
    bench = Bench(record("a", NIC))
    bench.gpus.note_claims(POD.uid, (), "the pod's other claims cannot be read: forbidden")
    assert bench.doubts() == ["the pod's other claims cannot be read: forbidden"]
    bench.gpus.note_claims(POD.uid, ())
    assert bench.doubts() == []


def test_a_gpu_that_several_tell_of_counts_once_by_the_first_of_them() -> None:
    bench = Bench(record("a", NIC, own(ADDRESSES[0])))
    bench.show(NVIDIA_VISIBLE_DEVICES="GPU-0,GPU-1")
    assert bench.known() == [(ADDRESSES[0], GpuSource.CLAIM), (ADDRESSES[1], GpuSource.ENVIRONMENT)]


def test_what_a_container_does_not_make_clear_counts_only_where_no_claim_gives_gpus() -> None:
    """An image may say ``all`` of a container that was given one."""
    bench = Bench(record("a", NIC))
    bench.show(NVIDIA_VISIBLE_DEVICES="all")
    assert len(bench.doubts()) == 1
    bench.records = (record("a", NIC, own(ADDRESSES[0])),)
    assert (len(bench.known()), bench.doubts()) == (1, [])


def test_the_kubelets_word_settles_what_is_unclear_also_where_it_gave_nothing() -> None:
    bench = Bench(record("a", NIC))
    bench.show(NVIDIA_VISIBLE_DEVICES="all")
    assert bench.gpus.may_kubelet_know(POD.uid)
    bench.gpus.note_kubelet(POD.uid, [], [])
    assert not bench.gpus.may_kubelet_know(POD.uid)
    assert (bench.known(), bench.doubts()) == ([], [])
    bench.gpus.note_kubelet(POD.uid, [GpuName(GpuSource.POD_RESOURCES, "nvidia", "GPU-1::2")], [])
    assert bench.known() == [(ADDRESSES[1], GpuSource.POD_RESOURCES)]
    bench.gpus.note_kubelet(POD.uid, [GpuName(GpuSource.POD_RESOURCES, "nvidia", "GPU-of-nobody")], [])
    assert len(bench.doubts()) == 1


def test_a_kubelet_that_tells_of_no_claim_has_not_told_that_there_is_none() -> None:
    """Its devices of claims are behind a feature gate, and the pod has ours at least."""
    bench = Bench(record("a", NIC), slices=Slices(offered("gpu-0", ADDRESSES[0])))
    bench.gpus.note_claims(POD.uid, (), "the pod's other claims cannot be read: forbidden")
    bench.gpus.note_kubelet(POD.uid, [GpuName(GpuSource.POD_RESOURCES, "nvidia", "GPU-1")], [])
    assert bench.known() == [(ADDRESSES[1], GpuSource.POD_RESOURCES)]
    assert bench.doubts() == ["the pod's other claims cannot be read: forbidden"]
    bench.gpus.note_kubelet(POD.uid, [], [result("nic", "dra.net"), result("gpu-0")])
    assert bench.known() == [(ADDRESSES[0], GpuSource.OTHER_DRIVERS_CLAIM)]
    assert bench.doubts() == []


def test_an_id_of_the_kubelet_that_means_nothing_here_is_a_doubt_beside_a_gpu_that_is_known() -> None:
    """One container has a GPU, another a MIG device, whose name does not say where it is."""
    bench = Bench(record("a", NIC))
    bench.show("whole", NVIDIA_VISIBLE_DEVICES="GPU-0")
    bench.show("part", NVIDIA_VISIBLE_DEVICES="MIG-5d5ba0d6")
    ids = [GpuName(GpuSource.POD_RESOURCES, "nvidia", name) for name in ("GPU-0", "MIG-5d5ba0d6")]
    bench.gpus.note_kubelet(POD.uid, ids, [])
    assert bench.known() == [(ADDRESSES[0], GpuSource.ENVIRONMENT)]
    assert bench.doubts() == ["the kubelet's pod resources socket has 'MIG-5d5ba0d6'"]
    shown = Container("id", "part", "sandbox", env={"NVIDIA_VISIBLE_DEVICES": "MIG-5d5ba0d6"})
    nodes = replace(shown, devices=GPUS[2].char_devices)
    bench.gpus.note_container(POD.uid, observe_container(nodes))
    assert len(bench.known()) == 2
    assert bench.doubts() == [], "its node says which GPU it is a part of"


def test_the_kubelet_is_not_asked_what_an_image_means_where_a_claim_gives_the_gpu() -> None:
    bench = Bench(record("a", NIC, own(ADDRESSES[0])))
    bench.show(NVIDIA_VISIBLE_DEVICES="all")
    assert not bench.gpus.may_kubelet_know(POD.uid)
    assert not bench.gpus.is_awaited(POD.uid)


def test_who_is_still_to_be_heard_is_awaited_and_who_fails_is_not() -> None:
    """What a claim says from before a restart stands that long."""
    bench = Bench(record("a", NIC, others=(result("gpu-0"),)))
    assert not bench.gpus.is_awaited(POD.uid)
    bench.slices.is_known = False
    assert bench.gpus.is_awaited(POD.uid), "nobody has followed the slices yet"
    bench.slices.is_known = True
    bench.slices.devices[VENDOR, "pool", "gpu-0"] = offered("gpu-0", ADDRESSES[0])
    assert bench.gpus.is_awaited(POD.uid), "the other claims"
    bench.gpus.note_claims(POD.uid, (), "they cannot be read")
    assert not bench.gpus.is_awaited(POD.uid)
    bench.show(NVIDIA_VISIBLE_DEVICES="all")
    assert bench.gpus.is_awaited(POD.uid), "the kubelet"
    bench.gpus.note_mute_kubelet(POD.uid)
    assert not bench.gpus.is_awaited(POD.uid)


def test_the_kubelet_tells_of_our_own_devices_too_and_they_are_no_doubt() -> None:
    """It lists the devices of all DRA drivers; ours are in no slice of others."""
    bench = Bench(record("a", NIC, own(ADDRESSES[0])))
    bench.gpus.note_kubelet(POD.uid, [], [result("nic", "dra.net"), result("gpu", "dra.net")])
    assert (bench.known(), bench.doubts()) == ([(ADDRESSES[0], GpuSource.CLAIM)], [])


def test_a_gpu_of_ours_in_a_claim_that_pods_share_is_each_ones() -> None:
    """The record has the first of them alone."""
    bench = Bench(record("a", NIC, own(ADDRESSES[2], admin=True)))
    told = [result(f"gpu-{address}", "dra.net") for address in (ADDRESSES[0], ADDRESSES[2])]
    bench.gpus.note_claims(POD.uid, [result("nic", "dra.net"), *told])
    assert bench.known() == [(ADDRESSES[0], GpuSource.CLAIM)]
    assert bench.doubts() == []


def test_a_clear_container_asks_nobody() -> None:
    bench = Bench(record("a", NIC))
    bench.show(NVIDIA_VISIBLE_DEVICES="GPU-1")
    assert not bench.gpus.may_kubelet_know(POD.uid)
    assert not bench.gpus.may_kubelet_know("another pod")


def test_listeners_hear_of_what_is_news_alone() -> None:
    bench = Bench(record("a", NIC))
    bench.show(NVIDIA_VISIBLE_DEVICES="GPU-1")
    bench.show(NVIDIA_VISIBLE_DEVICES="GPU-1")
    bench.show("second", PATH="/bin")
    assert bench.told == [POD.uid]
    bench.show("second", NVIDIA_VISIBLE_DEVICES="GPU-2")
    assert bench.told == [POD.uid, POD.uid]


def test_facts_that_come_later_make_the_names_mean_something() -> None:
    """The vendor's kernel driver was not loaded yet at the first scan."""
    bench = Bench(record("a", NIC))
    bench.view = View.of(NodeFacts(gpus=tuple(replace(gpu, uuid="") for gpu in GPUS)), [])
    bench.show(NVIDIA_VISIBLE_DEVICES="GPU-1")
    assert (bench.known(), len(bench.doubts())) == ([], 1)
    bench.view = VIEW
    assert bench.known() == [(ADDRESSES[1], GpuSource.ENVIRONMENT)]


def test_what_is_remembered_of_pods_is_bounded_and_ends_with_them() -> None:
    bench = Bench(record("a", NIC))
    for number in range(3 * MAX_CONTAINERS):
        bench.show(f"init-{number}", NVIDIA_VISIBLE_DEVICES="GPU-1")
    bench.show("one-more", NVIDIA_VISIBLE_DEVICES="GPU-2")
    assert bench.known() == [(ADDRESSES[1], GpuSource.ENVIRONMENT)]
    assert bench.doubts() == [f"it has more than {MAX_CONTAINERS} containers that may have GPUs"]
    bench.gpus.keep_only(set())
    assert (bench.known(), bench.doubts()) == ([], [])


def test_a_container_that_comes_again_without_its_gpu_has_none() -> None:
    bench = Bench(record("a", NIC))
    bench.show(NVIDIA_VISIBLE_DEVICES="GPU-1")
    bench.show(PATH="/bin")
    assert bench.known() == []
    assert bench.told == [POD.uid, POD.uid]
