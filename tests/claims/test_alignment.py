"""The verdict on a pod: how near its network devices are to its GPUs, and what would have been nearer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.claims.alignment import (
    MAX_GPUS_IN_DATA,
    AlignmentCandidate,
    Verdict,
    build_alignment,
    build_condition,
    judge_pod,
    level,
    pair,
    rank,
)
from dranet.model.attributes import RDMA_LINK_LAYER
from dranet.model.device import Device, DeviceKind, Doubt, GpusOfPod, GpuSource, PodGpu
from dranet.model.facts import Distance
from dranet.model.status import Condition, ConditionType
from tests.support.executed_lines import count_steps


def device(
    name: str, root: str, port: str = "", numa: int | None = 0, *, rdma: bool = True, gpu: bool = False
) -> Device:
    """Below a switch of its root: ``port`` names the switch; without one, below a root port of its own."""
    path = (f"{port}-root", f"{port}-up", f"{name}-down", name) if port else (f"{name}-root", name)
    return Device(
        name,
        DeviceKind.GPU if gpu else DeviceKind.NIC,
        pcie_root=root,
        numa_node=numa,
        pci_path=path if root else (),
        pci_address=name,
        rdma_device="" if gpu or not rdma else f"rdma-{name}",
    )


def gpus(*devices: Device, doubts: Sequence[Doubt] = (), source: GpuSource = GpuSource.CLAIM) -> GpusOfPod:
    return GpusOfPod(tuple(PodGpu(one, source, f"claim of {one.name}") for one in devices), tuple(doubts))


GPU = device("gpu", "pci0000:10", "a", gpu=True)
PIX = device("pix", "pci0000:10", "a")
PHB = device("phb", "pci0000:10", "b")
NODE = device("node", "pci0000:20", "c")
SYS = device("sys", "pci0000:80", "d", numa=1)
NOWHERE = device("nowhere", "")


def verdict_on(nic: Device, *others: Device, of: GpusOfPod | None = None, held: str = "") -> Verdict:
    (verdict,) = judge_pod(
        [nic], of or gpus(GPU), [AlignmentCandidate(other, held) for other in (nic, *others)]
    )
    assert verdict is not None
    return verdict


def told(verdict: Verdict) -> tuple[bool | None, str]:
    condition = build_condition(verdict)
    assert condition.type is ConditionType.ALIGNED
    return condition.status, condition.reason


def message(verdict: Verdict) -> str:
    return build_condition(verdict).message


@pytest.mark.parametrize(
    ("nic", "reason", "named"),
    [
        (PIX, "SamePCIeSwitch", "PIX to gpu: the same PCIe switch"),
        (PHB, "SamePCIeRoot", "PHB to gpu: the CPU's PCIe host bridge; nothing nearer on this node"),
        (NODE, "SameNUMANode", "NODE to gpu: several host bridges of one NUMA node; nothing nearer"),
        (SYS, "NearestPossible", "SYS to gpu: the link between NUMA nodes; nothing nearer on this node"),
    ],
)
def test_what_is_as_near_as_the_node_could_give_is_aligned(nic: Device, reason: str, named: str) -> None:
    verdict = verdict_on(nic)
    assert told(verdict) == (True, reason)
    assert message(verdict).startswith(named)


def test_a_nearer_device_that_is_free_is_named() -> None:
    verdict = verdict_on(SYS, PHB, PIX, NODE)
    assert told(verdict) == (False, "WorseThanPossible")
    assert message(verdict) == "SYS to gpu: the link between NUMA nodes; pix is PIX to it and free"


def test_a_nearer_device_that_another_pod_has_counts_and_its_claim_is_named() -> None:
    verdict = verdict_on(NODE, PIX, held="team/first")
    assert told(verdict) == (False, "WorseThanPossible")
    assert "pix is PIX to it and held by claim team/first" in message(verdict)


def test_of_two_equally_near_devices_the_free_one_is_named() -> None:
    twin = device("twin", "pci0000:10", "a")
    candidates = [AlignmentCandidate(PIX, "team/first"), AlignmentCandidate(twin)]
    (verdict,) = judge_pod([SYS], gpus(GPU), candidates)
    assert verdict is not None
    assert verdict.better is not None
    assert verdict.better.candidate.device is twin


def test_a_device_without_rdma_is_no_alternative_to_one_with_it_nor_the_other_way() -> None:
    plain = device("plain", "pci0000:10", "a", rdma=False)
    assert told(verdict_on(SYS, plain)) == (True, "NearestPossible")
    assert told(verdict_on(device("far", "pci0000:80", "d", 1, rdma=False), PIX)) == (True, "NearestPossible")


def test_an_infiniband_rail_and_the_ethernet_of_the_storage_are_no_alternatives() -> None:
    """Both do RDMA, and no cable leads from one to the other."""

    def of(layer: str, nic: Device) -> Device:
        return replace(nic, attributes={RDMA_LINK_LAYER.qualified: layer})

    far, rail, port = of("Ethernet", SYS), of("InfiniBand", PIX), of("Ethernet", PHB)
    assert told(verdict_on(far, rail)) == (True, "NearestPossible")
    assert "phb is PHB to it" in message(verdict_on(far, rail, port))


def test_devices_that_could_all_be_nearer_name_one_each() -> None:
    """Two that are told of the same one would be one short."""
    near = [PIX, device("pix-2", "pci0000:10", "a")]
    far = [SYS, device("sys-2", "pci0000:80", "d", numa=1)]
    verdicts = judge_pod(far, gpus(GPU), [AlignmentCandidate(one) for one in (*near, *far)])
    named = [one.better.candidate.device.name for one in verdicts if one is not None and one.better]
    assert sorted(named) == ["pix", "pix-2"]


def test_of_two_nics_beside_one_gpu_that_has_room_for_one_each_is_judged_fairly() -> None:
    """The far one is as near as a second one can be, and is not worse for it."""
    near, far = judge_pod([PIX, NODE], gpus(GPU), [AlignmentCandidate(one) for one in (PIX, NODE, SYS)])
    assert near is not None
    assert far is not None
    assert (told(near), told(far)) == ((True, "SamePCIeSwitch"), (True, "SameNUMANode"))
    near, far = judge_pod([PIX, SYS], gpus(GPU), [AlignmentCandidate(one) for one in (PIX, NODE, SYS)])
    assert near is not None
    assert far is not None
    assert (told(near), told(far)) == ((True, "SamePCIeSwitch"), (False, "WorseThanPossible"))
    assert "node is NODE to it and free" in message(far)


def test_twice_as_many_devices_in_a_pod_are_little_more_than_twice_the_work() -> None:
    """It is done on the event loop of the driver, which has other pods."""
    sockets = [(f"pci0000:{n}0", f"s{n}", n // 4) for n in range(8)]
    all_gpus = gpus(
        *(device(f"g{n}", root, port, numa, gpu=True) for n, (root, port, numa) in enumerate(sockets))
    )

    def steps(count: int) -> int:
        nics = [device(f"far-{n}", "pci0000:90", f"{n % 4}", 1) for n in range(count)]
        near = [
            AlignmentCandidate(device(f"near-{n}", *sockets[n % 8][:2], sockets[n % 8][2]))
            for n in range(count)
        ]
        return count_steps(lambda: judge_pod(nics, all_gpus, near))

    assert steps(256) < 3 * steps(128)


def test_where_a_gpu_is_in_doubt_no_best_one_is_named_to_programs() -> None:
    doubt = Doubt("a device of another driver", is_other_driver=True)
    data = build_alignment(verdict_on(SYS, PIX, of=gpus(GPU, doubts=[doubt])))
    assert (data["distance"], data["best"], "better" in data) == ("SYS", "unknown", False)


def test_each_of_several_devices_is_judged_by_its_own_gpu() -> None:
    """Two NICs at the first GPU leave the second GPU with a far one, and one is enough for the first."""
    other_gpu = device("gpu-2", "pci0000:80", "d", numa=1, gpu=True)
    twin = device("twin", "pci0000:10", "a")
    first, second = judge_pod([PIX, twin], gpus(GPU, other_gpu), [AlignmentCandidate(SYS)])
    assert first is not None
    assert second is not None
    assert {told(first), told(second)} == {(True, "SamePCIeSwitch"), (False, "WorseThanPossible")}
    worse = first if first.is_worse else second
    assert worse.better is not None
    assert (worse.better.candidate.device, worse.better.distance) == (SYS, Distance.PIX)


def test_without_a_gpu_there_is_nothing_to_be_near_to() -> None:
    assert judge_pod([PIX, SYS], GpusOfPod(), [AlignmentCandidate(PIX)]) == (None, None)


def test_a_device_whose_place_nobody_tells_is_not_called_near_nor_far() -> None:
    assert told(verdict_on(NOWHERE, PIX)) == (None, "PlaceUnknown")
    lost = gpus(device("lost", "", gpu=True))
    assert told(verdict_on(PIX, SYS, of=lost)) == (None, "PlaceUnknown")


def test_an_unknown_gpu_leaves_only_the_nearest_distance_beyond_doubt() -> None:
    doubtful = gpus(GPU, doubts=[Doubt("device x of gpu.example: no slice", is_other_driver=True)])
    assert told(verdict_on(PIX, of=doubtful)) == (True, "SamePCIeSwitch")
    verdict = verdict_on(SYS, PIX, of=doubtful)
    assert told(verdict) == (None, "DevicesOfAnotherDriver")
    assert "gpu.example" in message(verdict)


def test_gpus_that_nobody_can_place_make_the_verdict_unknown_and_say_why() -> None:
    unclear = GpusOfPod((), (Doubt("the variable says 'all'"), Doubt("device x", is_other_driver=True)))
    verdict = verdict_on(PIX, of=unclear)
    assert told(verdict) == (None, "GPUsUnclear")
    assert message(verdict) == "the variable says 'all'; device x"


def test_a_gpu_that_is_not_from_our_claim_is_named_with_who_told_of_it() -> None:
    verdict = verdict_on(PIX, of=gpus(GPU, source=GpuSource.ENVIRONMENT))
    assert message(verdict).startswith("PIX to gpu (known from claim of gpu): ")
    assert build_alignment(verdict)["gpuSource"] == "Environment"


def test_the_table_for_programs_has_the_row_of_the_device_the_best_and_the_better_one() -> None:
    far = device("gpu-2", "pci0000:80", "e", numa=1, gpu=True)
    data = build_alignment(verdict_on(SYS, PIX, of=gpus(GPU)))
    assert data == {
        "distance": "SYS",
        "gpu": "gpu",
        "gpuSource": "Claim",
        "best": "PIX",
        "better": {"device": "pix", "distance": "PIX", "gpu": "gpu"},
        "distances": {"gpu": "SYS"},
    }
    row = build_alignment(verdict_on(PIX, of=gpus(GPU, far)))["distances"]
    assert row == {"gpu": "PIX", "gpu-2": "SYS"}


def test_the_table_stays_small_whatever_the_node_has() -> None:
    many = [device(f"gpu-0000-{n:02x}-00-0", f"pci0000:{n:02x}", "s", numa=1, gpu=True) for n in range(40)]
    data = build_alignment(verdict_on(PIX, of=gpus(*many, GPU)))
    assert len(data["distances"]) == MAX_GPUS_IN_DATA
    assert "gpu" in data["distances"], "the nearest are kept"
    assert len(json.dumps(data)) < 1024


# --- against trying everything out ----------------------------------------------------------------------

NICS = st.lists(st.sampled_from([PIX, PHB, NODE, SYS, NOWHERE]), min_size=1, max_size=3)
FREE = st.lists(
    st.builds(
        device,
        st.sampled_from(["f1", "f2", "f3", "f4"]),
        st.sampled_from(["pci0000:10", "pci0000:20", "pci0000:80", ""]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([0, 1, None]),
    ),
    max_size=3,
    unique_by=lambda one: one.name,
)
GPUS = st.lists(
    st.builds(
        device,
        st.sampled_from(["g1", "g2"]),
        st.sampled_from(["pci0000:10", "pci0000:80"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([0, 1]),
        gpu=st.just(True),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda one: one.name,
)


@given(NICS, FREE, GPUS)
def test_something_is_worse_than_possible_exactly_where_another_choice_is_better(
    nics: list[Device], free: list[Device], pod_gpus: list[Device]
) -> None:
    verdicts = judge_pod(nics, gpus(*pod_gpus), [AlignmentCandidate(one) for one in free])
    mine = pair(nics, pod_gpus).rank
    best = min(pair(some, pod_gpus).rank for some in itertools.combinations([*nics, *free], len(nics)))
    given_up = [verdict for verdict in verdicts if verdict is not None and verdict.is_worse]
    known = [verdict for verdict in verdicts if verdict is not None and verdict.distance is not None]
    assert rank([verdict.distance for verdict in verdicts if verdict is not None]) == mine
    if best == mine:
        assert given_up == []
    elif len(known) == len(nics):
        assert given_up != []
    for verdict in given_up:
        assert level(verdict.best) < level(verdict.distance)
        assert verdict.better is None or level(verdict.better.distance) < level(verdict.distance)
        assert isinstance(build_condition(verdict), Condition)
