"""Verdicts on the layouts of real machines: the best choice is never called worse than possible, any other
one always is, and a device of the best distance is named."""

from __future__ import annotations

import pytest

from dranet.claims.alignment import AlignmentCandidate, build_condition, choose, judge_pod, level
from dranet.model.attributes import RDMA_LINK_LAYER
from dranet.model.device import Device, DeviceKind, GpusOfPod, GpuSource, PodGpu
from dranet.model.facts import Distance, distance
from tests.data.layouts import LAYOUTS, take_layout


class Node:
    def __init__(self, layout: str) -> None:
        decisions = take_layout(layout)
        self.gpus = [d.device for d in decisions if d.device.kind is DeviceKind.GPU]
        offered = [d.device for d in decisions if d.published and d.device.kind is not DeviceKind.GPU]
        self.rails = [nic for nic in offered if nic.kind is DeviceKind.RDMA or nic.rdma_device]
        self.candidates = [AlignmentCandidate(nic) for nic in offered]


def layer(nic: Device) -> object:
    return nic.attributes.get(RDMA_LINK_LAYER.qualified)


def of_pod(gpus: list[Device]) -> GpusOfPod:
    return GpusOfPod(tuple(PodGpu(gpu, GpuSource.CLAIM) for gpu in gpus))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_best_choice_for_any_number_of_gpus_is_aligned_or_not_known(layout: str) -> None:
    node = Node(layout)
    for count in range(1, len(node.gpus) + 1):
        gpus = node.gpus[:count]
        nics = [node.rails[found.nic] for found in choose(node.rails, gpus, count)]
        for verdict in judge_pod(nics, of_pod(gpus), node.candidates):
            assert verdict is not None
            assert build_condition(verdict).status is (None if verdict.distance is None else True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_single_pair_is_judged_by_the_nearest_device_that_there_is(layout: str) -> None:
    node = Node(layout)
    for gpu in node.gpus:
        for nic in node.rails:
            alike = [other for other in node.rails if layer(other) == layer(nic)]
            nearest = min(level(distance(other, gpu)) for other in alike)
            (verdict,) = judge_pod([nic], of_pod([gpu]), node.candidates)
            assert verdict is not None
            found = distance(nic, gpu)
            assert verdict.distance is found
            if found is None:
                continue
            assert build_condition(verdict).status is (found == nearest)
            if verdict.is_worse:
                assert verdict.better is not None
                assert nearest is not None
                assert distance(verdict.better.candidate.device, gpu) is Distance(nearest)


def test_a_dgx_h100_with_crossed_rails_is_told_which_rail_is_right() -> None:
    """GPU 0 and the rail of GPU 7: other socket."""
    node = Node("dgx-h100")
    gpu = node.gpus[0]
    far = max(node.rails, key=lambda nic: level(distance(nic, gpu)))
    near = min(node.rails, key=lambda nic: level(distance(nic, gpu)))
    (verdict,) = judge_pod([far], of_pod([gpu]), node.candidates)
    assert verdict is not None
    condition = build_condition(verdict)
    assert (condition.status, condition.reason) == (False, "WorseThanPossible")
    assert condition.message.startswith(f"SYS to {gpu.name}")
    assert f"{near.name} is PIX to it and free" in condition.message
