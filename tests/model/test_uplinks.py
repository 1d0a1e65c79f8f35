"""Which interface a pod's traffic takes, in whatever order the kernel tells its routes."""

from __future__ import annotations

from itertools import permutations

from dranet.model.facts import Route
from dranet.model.uplinks import order_outputs

V4, V6 = "0.0.0.0/0", "::/0"


def test_ipv4_comes_first_then_the_lowest_metric_however_they_are_listed() -> None:
    routes = (
        Route(V6, ifindex=5, metric=1),
        Route(V4, ifindex=4, metric=4096),
        Route(V4, ifindex=3, metric=10),
        Route(V6, ifindex=3, metric=1024),
        Route(V4, type=7, metric=1),  # unreachable: leads nowhere
    )
    assert {order_outputs(listed) for listed in permutations(routes)} == {(3, 4, 5)}


def test_every_next_hop_of_a_route_is_one() -> None:
    assert order_outputs([Route(V4, next_hops=(9, 7), metric=5), Route(V4, ifindex=8)]) == (8, 7, 9)


def test_without_a_default_route_there_is_none() -> None:
    assert order_outputs(()) == ()
