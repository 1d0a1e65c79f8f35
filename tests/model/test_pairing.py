"""Devices with GPUs: as well as trying every match out."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from dranet.claims.alignment import Pairing, best_possible, choose, level, pair, rank
from dranet.model.facts import Distance, distance
from tests.support.executed_lines import count_steps


class Place(Struct, frozen=True):
    pci_path: tuple[str, ...]
    pcie_root: str
    numa_node: int | None


def on_switch(root: str, port: str, function: str, numa: int | None = 0) -> Place:
    return Place((f"{root}.{port}", f"{port}.up", f"{port}.down.{function}", function), root, numa)


UNPLACED = Place((), "", None)
PLACES = st.one_of(
    st.builds(
        on_switch,
        st.sampled_from(["pci0000:00", "pci0000:40", "pci0000:80"]),
        st.sampled_from(["01", "02"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([0, 1, None]),
    ),
    st.just(UNPLACED),
)


def every_even_match(nics: int, gpus: int) -> Iterator[tuple[int, ...]]:
    """The GPU of each device, such that no GPU has two more than another."""
    for match in itertools.product(range(gpus), repeat=nics):
        uses = Counter(match)
        counts = [uses[gpu] for gpu in range(gpus)]
        if max(counts) - min(counts) <= 1:
            yield match


def best_rank(nics: Sequence[Place], gpus: Sequence[Place]) -> tuple[int, int]:
    return min(
        rank([distance(nic, gpus[gpu]) for nic, gpu in zip(nics, match, strict=True)])
        for match in every_even_match(len(nics), len(gpus))
    )


@given(st.lists(PLACES, max_size=5), st.lists(PLACES, min_size=1, max_size=4))
def test_no_even_match_is_better_than_the_pairing(nics: list[Place], gpus: list[Place]) -> None:
    pairing = pair(nics, gpus)
    assert pairing.rank == (best_rank(nics, gpus) if nics else (0, 0))
    assert [found.nic for found in pairing.pairs] == list(range(len(nics)))
    used = Counter(found.gpu for found in pairing.pairs)
    assert max(used[gpu] for gpu in range(len(gpus))) - min(used[gpu] for gpu in range(len(gpus))) <= 1
    for found in pairing.pairs:
        assert found.gpu is not None
        assert found.distance == distance(nics[found.nic], gpus[found.gpu])


@given(st.lists(PLACES, max_size=6), st.lists(PLACES, min_size=1, max_size=3), st.integers(0, 4))
def test_no_choice_is_better_than_the_best_possible(
    candidates: list[Place], gpus: list[Place], count: int
) -> None:
    best = best_possible(candidates, gpus, count)
    assert len(best) == min(count, len(candidates))
    assert list(best) == sorted(best, key=level)
    tried = [best_rank(some, gpus) for some in itertools.combinations(candidates, len(best))]
    assert rank(best) == (min(tried) if best else (0, 0))


@given(
    st.lists(st.tuples(PLACES, st.integers(0, 2)), max_size=6),
    st.lists(PLACES, min_size=1, max_size=3),
    st.integers(0, 3),
)
def test_of_equal_choices_the_least_disliked_is_taken(
    candidates: list[tuple[Place, int]], gpus: list[Place], count: int
) -> None:
    places, dislikes = [place for place, _ in candidates], [dislike for _, dislike in candidates]
    chosen = choose(places, gpus, count, dislikes)
    tried = min(
        (*best_rank([places[i] for i in some], gpus), sum(dislikes[i] for i in some))
        for some in itertools.combinations(range(len(places)), min(count, len(places)))
    )
    distances = [found.distance for found in chosen]
    assert (*rank(distances), sum(dislikes[found.nic] for found in chosen)) == (
        tried if chosen else (0, 0, 0)
    )


def test_the_worst_distance_counts_before_the_sum() -> None:
    """One at PIX and one at SYS has the smaller sum of levels, and is worse than two at NODE."""
    assert rank([Distance.NODE, Distance.NODE]) < rank([Distance.PIX, Distance.SYS])


def test_an_unknown_distance_is_worse_than_any_known_one_and_stays_unknown() -> None:
    gpu = on_switch("pci0000:00", "01", "g")
    far = on_switch("pci0000:80", "01", "n", numa=1)
    assert best_possible([UNPLACED, far], [gpu], 2) == (Distance.SYS, None)
    assert best_possible([UNPLACED, far], [gpu], 1) == (Distance.SYS,)
    assert pair([UNPLACED], [gpu]).distances == (None,)


def test_each_gpu_gets_its_own_device_where_every_device_is_near_to_one() -> None:
    gpus = [on_switch("pci0000:00", f"{n}", "g") for n in range(4)]
    nics = [on_switch("pci0000:00", f"{n}", "n") for n in (2, 0, 3, 1)]
    assert [found.gpu for found in pair(nics, gpus).pairs] == [2, 0, 3, 1]
    assert set(pair(nics, gpus).distances) == {Distance.PIX}


def test_two_devices_at_the_first_gpu_leave_one_for_the_second() -> None:
    gpus = [on_switch("pci0000:00", "01", "g"), on_switch("pci0000:80", "01", "g", numa=1)]
    nics = [on_switch("pci0000:00", "01", "a"), on_switch("pci0000:00", "01", "b")]
    assert sorted(pair(nics, gpus).distances, key=level) == [Distance.PIX, Distance.SYS]


def test_without_gpus_nothing_is_known() -> None:
    assert pair([UNPLACED, UNPLACED], []) == Pairing(choose([UNPLACED, UNPLACED], [], 2))
    assert best_possible([UNPLACED], [], 1) == (None,)
    assert pair([], []).distances == ()


def big_node(functions: int) -> tuple[list[Place], list[Place]]:
    """16 GPUs, and virtual functions all over it."""
    gpus = [on_switch(f"pci{n // 4:04}:00", f"{n}", "g", numa=n // 8) for n in range(16)]
    nics = [on_switch(f"pci{n % 8:04}:00", f"{n % 16}", f"{n}", numa=n % 2) for n in range(functions)]
    return nics, gpus


def test_twice_as_many_functions_are_no_more_than_twice_the_work() -> None:
    """It is done on the event loop of the driver, for a pod that may have 256 of a node's thousand."""
    some, gpus = big_node(256)
    many, _ = big_node(512)
    steps = count_steps(lambda: pair(some, gpus))
    assert count_steps(lambda: pair(many, gpus)) < 2.5 * steps
    steps = count_steps(lambda: best_possible(many, gpus, 32))
    assert count_steps(lambda: best_possible(many, gpus, 512)) < 2.5 * steps


def test_on_a_big_node_as_many_as_are_asked_for_are_chosen_once_each() -> None:
    nics, gpus = big_node(100)
    chosen = choose(nics, gpus, 70)
    assert len({found.nic for found in chosen}) == 70
    assert sorted(Counter(found.gpu for found in chosen).values()) == [4] * 10 + [5] * 6
