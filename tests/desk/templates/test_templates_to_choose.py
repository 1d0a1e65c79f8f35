"""Where no constraint can keep groups of GPUs apart there is a template for each group."""

from __future__ import annotations

import pytest

from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.request import ClaimRequest
from dranet.model.facts import Distance
from tests.desk.hardware.test_places import without_our_words
from tests.desk.templates.layout_clusters import Gpus, world

HYPER_V = "azure-nd-h100-v5"
"""NVIDIA's driver finds no root there, and DraNet's NICs have another name for the address."""


def ask(layout: str, gpus: int = 1, nics: int = 1, published: Gpus = Gpus.VENDOR_OWN_NAMES) -> Choice:
    return choose_claim(ClaimRequest(gpus, nics), read_hardware(world(layout, published).slices))


def test_each_numa_node_has_a_template_and_a_pod() -> None:
    choice = ask(HYPER_V)
    names = ["1-gpu-1-nic-numa-0", "1-gpu-1-nic-numa-1"]

    assert [one["metadata"]["name"] for one in choice.templates] == names
    assert [pod["metadata"]["name"] for pod in choice.pods] == names
    assert [pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] for pod in choice.pods] == names


@pytest.mark.parametrize(("gpus", "pods"), [(1, 8), (2, 4), (4, 2)])
def test_together_they_fill_the_node_with_the_nearest(gpus: int, pods: int) -> None:
    (trial,) = ask(HYPER_V, gpus, gpus).attempt.trials

    assert [pod.distances for pod in trial.pods] == [(Distance.NODE,) * gpus] * pods
    assert trial.pods_of_choices == (pods // 2, pods // 2)


def test_the_notes_say_how_many_pods_take_which() -> None:
    assert "4 of 1-gpu-1-nic-numa-0, 4 of 1-gpu-1-nic-numa-1 on node-1." in " ".join(describe(ask(HYPER_V)))


def test_a_name_of_the_users_is_the_beginning_of_each() -> None:
    hardware = read_hardware(world(HYPER_V, Gpus.VENDOR_OWN_NAMES).slices)
    choice = choose_claim(ClaimRequest(name="train", namespace="ml"), hardware)

    assert [one["metadata"] for one in choice.templates] == [
        {"name": "train-numa-0", "namespace": "ml"},
        {"name": "train-numa-1", "namespace": "ml"},
    ]


def test_one_template_does_where_an_attribute_keeps_the_groups_apart() -> None:
    assert len(ask(HYPER_V, published=Gpus.VENDOR).templates) == 1
    assert len(ask("azure-gb300").templates) == 1, "by pcieRoot"


def test_more_than_a_group_has_is_not_asked_of_one() -> None:
    assert ask(HYPER_V, 6, 6).attempt.shape.choices == {}


@pytest.mark.parametrize("layout", ["azure-gb300", "oci-gb200", HYPER_V])
@pytest.mark.parametrize("count", [1, 2])
def test_dranets_nics_get_the_gpus_of_their_numa_node_by_assumption(layout: str, count: int) -> None:
    slices = without_our_words(world(layout, Gpus.VENDOR))
    choice = choose_claim(ClaimRequest(count, count), read_hardware(slices))
    (trial,) = choice.attempt.trials

    assert {pod.distances for pod in trial.pods} == {(Distance.NODE,) * count}
    assert len(trial.pods) == trial.possible
    assert "Assumed on node-1: " in " ".join(describe(choice))


def test_a_claim_without_a_constraint_is_never_right_by_the_order_of_a_vendors_devices() -> None:
    """NVIDIA's and Intel's driver publish their devices in random order."""
    choice = ask(HYPER_V)
    (luck,) = [one for one in choice.tried if one.shape.is_by_chance]

    assert luck.trials[0].is_perfect
    assert not luck.is_perfect
    assert not luck.is_best_first
