"""Traffic between two network namespaces over the node's NICs and fabric."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.node.node import Node
from testbed.traffic import Endpoint, TrafficFailed, TrafficResult, measure_traffic

pytestmark = [pytest.mark.kernel, pytest.mark.private_tree]

ONE = Endpoint("/run/netns/one", "net1", "10.64.0.1")
TWO = Endpoint("/run/netns/two", "net1", "10.64.1.1")


@contextmanager
def two_pods() -> Iterator[None]:
    with Node(load_hardware("two-nic"), WORK_DIR):
        for pod, nic, rail in (("one", "enp35s0np0", 0), ("two", "enp131s0np0", 1)):
            for command in (
                f"ip netns add {pod}",
                f"ip link set {nic} netns {pod} name net1",
                f"ip -n {pod} address add 10.64.{rail}.1/24 dev net1",
                f"ip -n {pod} link set net1 up",
                f"ip -n {pod} route add 10.64.0.0/16 via 10.64.{rail}.254",
            ):
                run(command)
        yield


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def measure(client: Endpoint, server: Endpoint, seconds: float = 1.0) -> TrafficResult:
    """The deadline is for interpreters to start, the seconds are so long that no pause takes them all."""
    return asyncio.run(measure_traffic(client, server, seconds=seconds, round_trips=100, deadline_seconds=30))


def test_pods_on_different_rails_talk_over_their_nics() -> None:
    with two_pods():
        result = measure(ONE, TWO)
    assert result.crossed_the_interfaces
    assert result.bytes_received > 1_000_000
    assert result.bits_per_second > 0
    assert result.round_trips == 100
    assert 0 < result.median_microseconds <= result.p99_microseconds


def test_bytes_that_stay_on_the_loopback_do_not_count_as_crossing() -> None:
    with two_pods():
        run("ip -n one link set lo up")
        result = measure(ONE, ONE)
    assert result.bytes_received > 0
    assert not result.crossed_the_interfaces


def test_a_peer_that_cannot_be_reached_is_an_error_within_the_deadline() -> None:
    with two_pods():
        run("ip -n one route del 10.64.0.0/16")
        with pytest.raises(TrafficFailed, match=r"traffic client: .*unreachable"):
            measure(ONE, TWO)


def test_an_interface_or_address_that_is_not_there_is_named() -> None:
    with two_pods():
        with pytest.raises(TrafficFailed, match=r"traffic server: .*Cannot assign requested address"):
            measure(ONE, Endpoint(TWO.netns_path, "net1", "10.64.9.9"))
        with pytest.raises(TrafficFailed, match="no interface net7"):
            measure(ONE, Endpoint(TWO.netns_path, "net7", TWO.address))


def test_a_namespace_that_is_gone_is_named() -> None:
    with two_pods(), pytest.raises(TrafficFailed, match="/run/netns/gone"):
        measure(ONE, Endpoint("/run/netns/gone", "net1", TWO.address))


def test_a_peer_that_falls_silent_is_given_up_at_the_deadline() -> None:
    with two_pods():
        run("ip -n one route replace blackhole 10.64.0.0/16")
        run("ip -n two route replace blackhole 10.64.0.0/16")
        with pytest.raises(TrafficFailed):
            asyncio.run(measure_traffic(ONE, TWO, seconds=0.1, round_trips=1, deadline_seconds=1))
