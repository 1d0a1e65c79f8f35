"""The model of what alignment is worth: against exact numbers, and its page against its results."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from math import comb
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.alignment_model.__main__ import PAGE, PICTURE, RESULTS, as_json, of_machine
from benchmarks.alignment_model.figures import (
    BANDWIDTHS,
    BOTH_ENDS,
    EXPERIMENTS,
    ONE_IN_EIGHT,
    check,
    fit_far,
)
from benchmarks.alignment_model.machines import TITLES, Machine, read_machine
from benchmarks.alignment_model.page import write_page
from benchmarks.alignment_model.plot import WIDTH, draw
from benchmarks.alignment_model.simulate import SEED, SIZES, Node, Policy, estimate, run, sizes_on
from dranet.claims.alignment import level
from dranet.desk.allocation.allocator import Unschedulable
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.kubeapi.objects import MAX_RESULTS
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.model.facts import Distance
from dranet.pictures.layout import text_width
from tests.data.layouts import CLAIMED_LAYOUTS, take_layout
from tests.desk.templates.distances import allocate_choice, distances_of
from tests.desk.templates.layout_clusters import world

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def b200() -> Machine:
    return read_machine("hgx-b200")


# --- what is published is there, and is what the code makes ---------------------------------------------


def test_page_and_picture_are_those_of_the_results(results: dict[str, Any]) -> None:
    mend = "run python -m benchmarks alignment_model"
    assert PAGE.read_text(encoding="utf-8") == write_page(results), mend
    assert PICTURE.read_text(encoding="utf-8") == draw(results), mend


@pytest.mark.parametrize("name", ["azure-gb300", "hgx-b200"])
def test_the_results_are_those_that_the_seed_gives(results: dict[str, Any], name: str) -> None:
    assert results["machines"][name] == json.loads(json.dumps(of_machine(read_machine(name))))


def test_the_checks_are_those_that_the_figures_give(results: dict[str, Any]) -> None:
    found = [
        as_json(check(experiment, chance))
        for chance in (ONE_IN_EIGHT, BOTH_ENDS)
        for experiment in EXPERIMENTS
    ]
    assert results["checks"] == found


def test_every_layout_with_gpus_is_in_it_but_the_virtual_machine(results: dict[str, Any]) -> None:
    with_gpus = {name for name in CLAIMED_LAYOUTS if any(d.device.kind == "gpu" for d in take_layout(name))}
    assert set(TITLES) == with_gpus - {"virtual-node"}
    assert set(results["machines"]) == set(TITLES)


def test_page_and_picture_say_that_it_is_a_model() -> None:
    for path in (PAGE, PICTURE):
        assert "A model, not a measurement" in path.read_text(encoding="utf-8")


def test_every_figure_is_cited() -> None:
    """Of this machine or of another whose ratio stands in: what was run, and a link to who says so."""
    page = PAGE.read_text(encoding="utf-8")
    assert set(BANDWIDTHS) == set(TITLES)
    for figures in BANDWIDTHS.values():
        assert f"[{figures.source}]({figures.url})" in page
        assert figures.url.startswith(("https://arxiv.org/", "https://github.com/kubernetes-sigs/dranet/"))


# --- the model against exact numbers --------------------------------------------------------------------


def test_the_fitted_bandwidth_gives_the_published_mean() -> None:
    for experiment in EXPERIMENTS:
        far = fit_far(experiment)
        assert far < experiment.aligned
        assert (experiment.aligned + 7 * far) / 8 == pytest.approx(experiment.unaligned)


def test_one_choice_in_eight_gives_the_published_spread_and_two_choices_do_not() -> None:
    """Of the long all-gather, for which the numbers of the page stand."""
    one, two = check(EXPERIMENTS[0]), check(EXPERIMENTS[0], BOTH_ENDS)
    assert one.sd == pytest.approx(6.57, abs=0.01)
    assert (one.agrees, two.agrees) == (True, False)


@pytest.mark.parametrize(("name", "chance"), [("hgx-b200", Fraction(1, 8)), ("dgx-a100", Fraction(1, 4))])
def test_a_random_job_of_one_gpu_is_aligned_as_often_as_pairs_are(name: str, chance: Fraction) -> None:
    machine = read_machine(name)
    exact = Counter(machine.is_near(machine.distances((g,), (n,))[0]) for g in range(8) for n in range(8))
    assert Fraction(exact[True], 64) == chance
    shares = []
    for replica in range(20):
        jobs = [job for job in run(machine, Policy.RANDOM, replica) if job.size == 1]
        shares.append(sum(job.is_near for job in jobs) / len(jobs))
    found = estimate(shares)
    assert abs(found.value - chance) <= 2 * found.plus_minus


def test_a_random_job_of_two_gpus_is_aligned_as_often_as_sets_match(b200: Machine) -> None:
    sets = list(combinations(range(8), 2))
    near = sum(all(map(b200.is_near, b200.distances(gpus, nics))) for gpus in sets for nics in sets)
    assert Fraction(near, len(sets) ** 2) == Fraction(1, comb(8, 2)), "one set of NICs for each set of GPUs"


@pytest.mark.parametrize("name", TITLES)
def test_who_asks_for_near_devices_gets_no_others_and_finds_some_as_long_as_all_ask(name: str) -> None:
    machine = read_machine(name)
    for job in run(machine, Policy.ALIGNED, 0, jobs=150):
        assert job.is_possible
        assert job.is_near


def test_a_job_with_the_whole_machine_is_aligned_however_it_was_chosen(b200: Machine) -> None:
    whole = [job for job in run(b200, Policy.RANDOM, 0) if job.size == 8]
    assert whole
    assert all(job.is_near for job in whole)


@given(seed=st.integers(0, 2**32), taken=st.integers(0, 7), size=st.sampled_from(sorted(SIZES)))
def test_near_devices_are_found_wherever_there_are_some(seed: int, taken: int, size: int) -> None:
    """Against all choices, on a machine where each GPU has one near NIC."""
    node, draw_from = Node(read_machine_once("hgx-b200")), Random(seed)
    devices = node.find_any(taken, draw_from)
    assert devices is not None
    node.take(devices)
    matched = sum(
        any(node.machine.is_near(node.machine.distances((g,), (n,))[0]) for n in node.nics) for g in node.gpus
    )
    found = node.find_near(size)
    assert (found is not None) == (matched >= size)
    if found is not None:
        assert all(map(node.machine.is_near, node.machine.distances(*found)))


# --- the model against the scheduler's algorithm and the claim that ``claim new`` writes ------------------


def near_jobs(machine: Machine, size: int) -> list[list[int]]:
    """What jobs of this size get in the model until no near devices are left."""
    node, found = Node(machine), []
    while (devices := node.find_near(size)) is not None:
        node.take(devices)
        found.append(sorted(map(level, machine.distances(*devices))))
    return found


LADDER, STRICTER = "infiniband-only", "mi300x"
"""Where the generated claim is not the model's job, as the page says: the one takes farther devices rather
than none, the other waits for the same PCIe root."""


@pytest.mark.parametrize("name", TITLES)
def test_the_allocator_gives_the_generated_claim_what_the_model_gives_a_job(name: str) -> None:
    machine, hardware = read_machine_once(name), read_hardware(world(name).slices)
    for size in sizes_on(machine):
        nics = size * machine.nics_per_gpu
        if size + nics > MAX_RESULTS:
            continue  # the page says so
        (trial,) = choose_claim(ClaimRequest(size, nics, rdma=True), hardware).attempt.trials
        given, jobs = [sorted(map(level, pod.distances)) for pod in trial.pods], near_jobs(machine, size)
        if name == LADDER:
            assert given[0] == jobs[0]
        else:
            assert given == jobs, "the same number of jobs at the same distances"


@pytest.mark.parametrize("name", ["azure-nd-h100-v5", "dgx-a100", "dgx-h100", "hgx-b200", STRICTER])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_so_it_does_on_a_node_of_which_others_have_any_devices(name: str, size: int) -> None:
    machine, there = read_machine_once(name), world(name)
    choice, draw_from = (
        choose_claim(ClaimRequest(size, size, rdma=True), read_hardware(there.slices)),
        Random(SEED),
    )
    for taken in range(8 - size):
        node = Node(machine)
        devices = node.find_any(taken, draw_from)
        assert devices is not None
        node.take(devices)
        others = {machine.gpus[g].name for g in devices[0]} | {machine.nics[n].name for n in devices[1]}
        try:
            given = distances_of(allocate_choice(choice, there, others), there)
        except Unschedulable:
            given = ()
        is_near, is_possible = bool(given) and all(map(machine.is_near, given)), node.find_near(size)
        assert is_near == bool(is_possible) or (name == STRICTER and not given), others


def test_a_whole_aws_p5_is_more_than_one_claim_can_name() -> None:
    with pytest.raises(NotAvailable, match="40 devices, and 32 are the most in a claim"):
        choose_claim(ClaimRequest(8, 32, rdma=True), read_hardware(world("aws-p5").slices))


_MACHINES: dict[str, Machine] = {}


def read_machine_once(name: str) -> Machine:
    if name not in _MACHINES:
        _MACHINES[name] = read_machine(name)
    return _MACHINES[name]


# --- the picture ----------------------------------------------------------------------------------------


def iter_texts() -> Iterator[tuple[str, float, float, float, float]]:
    """Text, left, right, base line and size of each."""
    for element in ET.fromstring(PICTURE.read_text(encoding="utf-8")).iter(f"{SVG}text"):
        text, size = element.text or "", float(element.attrib["font-size"])
        width = text_width(text, size, bold="font-weight" in element.attrib)
        shift = {"middle": width / 2, "end": width}.get(element.attrib.get("text-anchor", ""), 0.0)
        left = float(element.attrib["x"]) - shift
        yield text, left, left + width, float(element.attrib["y"]), size


def test_no_text_runs_into_another_or_out_of_the_picture() -> None:
    texts = list(iter_texts())
    for text, left, right, _, _ in texts:
        assert left >= 0, text
        assert right <= WIDTH, text
    for one, other in combinations(texts, 2):
        apart = one[2] <= other[1] or other[2] <= one[1] or abs(one[3] - other[3]) >= min(one[4], other[4])
        assert apart, f"{one[0]} and {other[0]}"


def test_it_has_colours_for_dark_pages_and_names_every_distance_that_it_shows() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme:dark)" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", ""), "nothing comes from outside"
    shown = {Distance(int(found)).name for found in re.findall(r'<rect class="l([0-4])"', svg)}
    assert all(any(text.startswith(f"{name}: ") for text, *_ in iter_texts()) for name in shown)
