"""Publishing to servers that do not keep everything: what is left out, what is said, and what it costs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from dranet.cluster import paths
from dranet.cluster.capabilities import Support
from dranet.cluster.client import Backoff, JsonObject
from dranet.cluster.slice_plan import Feature
from dranet.cluster.slices import PublishListeners
from dranet.errors import Reason
from dranet.model.device import Bandwidth, Taint, TaintEffect
from dranet.telemetry import Metrics
from testbed.apiserver.faults import Trouble
from testbed.apiserver.server import ApiServer
from tests.cluster.publishing import (
    NODE,
    CountingClient,
    build_publisher,
    device,
    device_names,
    held,
    held_devices,
    pages,
    publish,
    running,
)

pytestmark = pytest.mark.socket

WaitUntil = Callable[[Callable[[], bool]], Awaitable[None]]

DOWN = Taint("dra.net/link-down", TaintEffect.NO_SCHEDULE, "carrier")
SHOWN = Taint("dra.net/pcie-degraded", TaintEffect.NONE)
NUMA = "resource.kubernetes.io/numaNode"
RICH = [[device("a", numa=(1, 0), shared=True), device("b")]]
"""With every optional field, together with the taints of :data:`SICK`."""
SICK = {"a": [DOWN, SHOWN]}


@contextlib.asynccontextmanager
async def cluster(version: str = "1.37", **gates: bool) -> AsyncIterator[tuple[ApiServer, CountingClient]]:
    """A server of that version with a Node, and the publisher's client for it."""
    async with ApiServer(profile=version, gates=gates) as server, CountingClient(server) as own:
        await own.create(paths.NODES, {"metadata": {"name": NODE}})
        own.writes.clear()
        yield server, own


def taints_of(server: ApiServer) -> dict[str, list[tuple[str, str]]]:
    """Key and effect, by device."""
    return {
        found["name"]: [(taint["key"], taint["effect"]) for taint in found["taints"]]
        for found in held_devices(server)
        if found.get("taints")
    }


def times_of(server: ApiServer) -> dict[str, str]:
    """When each taint was added, by its key."""
    return {
        taint["key"]: taint["timeAdded"]
        for found in held_devices(server)
        for taint in found.get("taints", ())
    }


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_server_that_keeps_everything_gets_everything_in_the_first_write() -> None:
    async with (
        cluster(DRAListTypeAttributes=True) as (server, own),
        running(build_publisher(own)) as publisher,
    ):
        await publish(publisher, RICH, SICK)
        first = held_devices(server)[0]
        assert first["allowMultipleAllocations"] is True
        assert first["attributes"][NUMA] == {"ints": [1, 0]}
        assert taints_of(server) == {"a": [(DOWN.key, "NoSchedule"), (SHOWN.key, "None")]}
        assert own.writes == {"create": 1}


@pytest.mark.parametrize(
    ("version", "gates", "missing"),
    [
        ("1.34", {}, {"DRADeviceTaints", "DRAConsumableCapacity", "DRAListTypeAttributes"}),
        (
            "1.34",
            {"DRADeviceTaints": True},
            {"DRADeviceTaints", "DRAConsumableCapacity", "DRAListTypeAttributes"},
        ),
        ("1.35", {"DRADeviceTaints": True}, {"DRAConsumableCapacity", "DRAListTypeAttributes"}),
        ("1.36", {"DRAConsumableCapacity": False}, {"DRAConsumableCapacity", "DRAListTypeAttributes"}),
        ("1.37", {}, {"DRAListTypeAttributes"}),
    ],
)
async def test_what_the_server_does_not_keep_is_left_out_and_named_once_and_costs_no_write(
    version: str, gates: Mapping[str, bool], missing: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[frozenset[str]] = []
    async with cluster(version, **gates) as (server, own):
        publisher = build_publisher(own, listeners=PublishListeners(missing=told.append))
        async with running(publisher):
            await publish(publisher, RICH, SICK)
            await publish(publisher, [*RICH, [device("c")]], SICK)
        assert device_names(server) == [["a", "b"], ["c"]]
        assert held_devices(server)[0]["attributes"][NUMA] == {"int": 1}
        kept = {"allowMultipleAllocations", "taints"} & held_devices(server)[0].keys()
        assert ("allowMultipleAllocations" in kept) is ("DRAConsumableCapacity" not in missing)
        assert ("taints" in kept) is (version != "1.34" or "DRADeviceTaints" in gates)
        assert own.writes == {"create": 2, "update": 1}
        assert publisher.failures == {}
    assert told == [missing]
    named = [gate for text in warnings(caplog) for gate in missing if gate in text]
    assert set(named) == missing
    assert len(warnings(caplog)) == len(set(warnings(caplog)))


async def test_a_server_of_1_34_with_taints_gets_those_with_an_effect_that_it_knows() -> None:
    known = cluster("1.34", DRADeviceTaints=True)
    async with known as (server, own), running(build_publisher(own)) as publisher:
        await publish(publisher, RICH, SICK)
        assert taints_of(server) == {"a": [(DOWN.key, "NoSchedule")]}


async def test_the_driver_can_tell_that_a_device_is_not_shared_for_the_cluster() -> None:
    async with cluster("1.35") as (_, own), running(build_publisher(own)) as publisher:
        await publish(publisher, RICH)
        assert publisher.features is not None
        assert publisher.features[Feature.SHARED_DEVICES] is Support.DROPPED


async def test_a_cluster_that_counts_no_bandwidth_gets_none_and_the_log_and_the_metric_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    listeners = PublishListeners(missing=metrics.slices.show_missing)
    port = [[device("a", shared=True, bandwidth=Bandwidth(10**11, 10**9))]]
    async with cluster("1.36", DRAConsumableCapacity=False) as (server, own):
        publisher = build_publisher(own, listeners=listeners)
        async with running(publisher):
            await publish(publisher, port)
            assert publisher.features is not None
            assert publisher.features[Feature.BANDWIDTH] is Support.DROPPED
        assert "capacity" not in held_devices(server)[0]
        assert own.writes == {"create": 1}
    (told,) = [text for text in warnings(caplog) if "bandwidth" in text]
    assert "without the bandwidth of shared devices" in told
    assert "DRAConsumableCapacity" in told
    shown = metrics.render().decode()
    assert 'dranet_slice_fields_missing{gate="DRAConsumableCapacity"} 1.0' in shown


async def test_a_cluster_that_counts_bandwidth_gets_it_in_the_first_write() -> None:
    port = [[device("a", shared=True, bandwidth=Bandwidth(10**11, 10**9))]]
    async with cluster("1.36") as (server, own), running(build_publisher(own)) as publisher:
        await publish(publisher, port)
        (capacity,) = held_devices(server)[0]["capacity"].values()
        assert capacity["requestPolicy"]["default"] == "1G"
        assert own.writes == {"create": 1}


# Taints.


async def test_a_taint_that_comes_or_goes_is_an_update_in_place_and_moves_no_device() -> None:
    async with cluster() as (server, own), running(build_publisher(own)) as publisher:
        await publish(publisher, pages(["a", "b"], ["c"]))
        uids = [found["metadata"]["uid"] for found in held(server)]
        await publish(publisher, pages(["a", "b"], ["c"]), {"b": [DOWN]})
        assert taints_of(server) == {"b": [(DOWN.key, "NoSchedule")]}
        await publish(publisher, pages(["a", "b"], ["c"]))
        assert taints_of(server) == {}
        assert [found["metadata"]["uid"] for found in held(server)] == uids
        assert device_names(server) == [["a", "b"], ["c"]]
        assert (publisher.generation, own.writes) == (1, {"create": 2, "update": 2})


async def test_a_taint_that_stays_keeps_the_time_that_the_server_gave_it() -> None:
    async with cluster() as (server, own), running(build_publisher(own)) as publisher:
        await publish(publisher, pages(["a", "b"]), {"a": [DOWN]})
        await backdate(server)
        other = Taint("dra.net/firmware-changed", TaintEffect.NO_SCHEDULE)
        await publish(publisher, pages(["a", "b"]), {"a": [DOWN], "b": [other]})
        times = times_of(server)
        assert times[DOWN.key] == "2026-01-01T00:00:00Z"
        assert times[other.key] > "2026-01-01T00:00:00Z"


async def backdate(server: ApiServer) -> None:
    """Make the taints of the one slice old, as if they had been there for long."""
    (found,) = held(server)
    for entry in found["spec"]["devices"]:
        for taint in entry.get("taints", ()):
            taint["timeAdded"] = "2026-01-01T00:00:00Z"
    async with CountingClient(server) as client:
        await client.replace(paths.resource_slice(found["metadata"]["name"]), found)


async def test_a_time_that_the_server_or_somebody_sets_is_nothing_to_repair(wait_until: WaitUntil) -> None:
    async with cluster() as (server, own), running(build_publisher(own)) as publisher:
        await wait_until(lambda: server.open_watches() == 1)
        await publish(publisher, pages(["a"]), {"a": [DOWN]})
        await backdate(server)
        await publish(publisher, pages(["a"]), {"a": [DOWN]})
        await publish(publisher, pages(["a", "b"]), {"a": [DOWN]})
        assert own.writes == {"create": 1, "update": 1}
        assert times_of(server) == {DOWN.key: "2026-01-01T00:00:00Z"}


async def test_equal_taints_again_are_nothing_new() -> None:
    async with cluster() as (_, own), running(build_publisher(own)) as publisher:
        for _ in range(3):
            await publish(publisher, pages(["a"]), {"a": [Taint(DOWN.key, DOWN.effect, DOWN.value)]})
        assert own.writes == {"create": 1}


# A server that is slow to say what it keeps.


async def test_a_server_that_does_not_answer_the_question_delays_no_publication(
    wait_until: WaitUntil,
) -> None:
    async with cluster() as (server, own):
        server.trouble_next("POST", paths.RESOURCE_SLICES, Trouble(stalls=True))
        own._timeout_seconds = 3.0  # the publication below has so long
        async with running(build_publisher(own, patience_seconds=0.05)) as publisher:
            publisher._follower._retry = Backoff(0.01, 0.01)
            await publish(publisher, RICH, SICK)
            assert publisher.features is None
            assert device_names(server) == [["a", "b"]]
            assert taints_of(server) == {}
            assert held_devices(server)[0]["attributes"][NUMA] == {"int": 1}
            await wait_until(lambda: bool(taints_of(server)))
            assert held_devices(server)[0]["allowMultipleAllocations"] is True
            await wait_until(lambda: publisher.is_published)
            assert own.writes == {"create": 1, "update": 1}
            assert publisher.generation == 1


async def test_a_restart_takes_back_nothing_that_is_published_while_the_server_is_slow() -> None:
    """A flag that goes and comes again would strand the shares that claims hold."""
    async with cluster() as (server, own):
        rich = [[device("a", shared=True), device("b")]]
        async with running(build_publisher(own)) as first:
            await publish(first, rich, SICK)
        before = held(server)
        server.trouble_next("POST", paths.RESOURCE_SLICES, Trouble(stalls=True), count=100)
        async with running(build_publisher(own, patience_seconds=0.01)) as second:
            await publish(second, rich, SICK)
            assert second.features is None
        assert held(server) == before
        assert own.writes == {"create": 1}


# Servers that differ from what their dry run said.


class MixedClient(CountingClient):
    """Talks through a load balancer: dry runs reach one server, writes another, which knows no taints."""

    def __init__(self, server: ApiServer, *, refuses: bool = False) -> None:
        super().__init__(server)
        self.is_mixed = True
        self._refuses = refuses

    def _pass(self, body: JsonObject) -> JsonObject:
        spec = body.get("spec", {})
        if not self.is_mixed or not any(entry.get("taints") for entry in spec.get("devices", ())):
            return body
        if self._refuses:
            return {**body, "spec": {**spec, "devices": [{"name": "Refused"}]}}
        kept = [{key: value for key, value in entry.items() if key != "taints"} for entry in spec["devices"]]
        return {**body, "spec": {**spec, "devices": kept}}

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        return await super().create(path, body if dry_run else self._pass(body), dry_run=dry_run)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        return await super().replace(path, self._pass(body))


@contextlib.asynccontextmanager
async def mixed_cluster(*, refuses: bool = False) -> AsyncIterator[tuple[ApiServer, MixedClient]]:
    async with ApiServer() as server, MixedClient(server, refuses=refuses) as own:
        await own.create(paths.NODES, {"metadata": {"name": NODE}})
        own.writes.clear()
        yield server, own


async def test_a_field_that_a_write_drops_is_adopted_once_with_its_gate_and_no_slice_is_written_again(
    caplog: pytest.LogCaptureFixture, wait_until: WaitUntil
) -> None:
    told: list[frozenset[str]] = []
    async with mixed_cluster() as (server, own):
        listeners = PublishListeners(missing=told.append)
        async with running(build_publisher(own, listeners=listeners)) as publisher:
            sick = {"a": [DOWN], "b": [DOWN], "c": [DOWN]}
            await publish(publisher, pages(["a"], ["b"], ["c"]), sick)
            await wait_until(lambda: bool(told))
            await publish(publisher, pages(["a"], ["b"], ["c"]), {**sick, "c": [SHOWN]})
            assert publisher.features is not None
            assert publisher.features[Feature.TAINTS] is Support.DROPPED
            assert own.writes == {"create": 3}
            assert taints_of(server) == {}
    assert told == [{"DRADeviceTaints"}]
    assert len([text for text in warnings(caplog) if "device taints:" in text]) == 1


async def test_when_the_servers_agree_again_the_field_comes_back(wait_until: WaitUntil) -> None:
    async with mixed_cluster() as (server, own):
        publisher = build_publisher(own)
        publisher._follower._again = Backoff(0.05, 0.05)
        async with running(publisher):
            await publish(publisher, pages(["a"]), {"a": [DOWN]})
            own.is_mixed = False
            await wait_until(lambda: taints_of(server) == {"a": [(DOWN.key, "NoSchedule")]})
            assert own.writes == {"create": 1, "update": 1}


async def test_an_optional_field_never_costs_the_slice(
    caplog: pytest.LogCaptureFixture, wait_until: WaitUntil
) -> None:
    async with mixed_cluster(refuses=True) as (server, own), running(build_publisher(own)) as publisher:
        await publish(publisher, pages(["a"], ["b"]), {"b": [DOWN]})
        assert device_names(server) == [["a"], ["b"]]
        assert own.writes["create"] == 3
        assert publisher.failures == {}
        assert publisher.features is not None
        assert publisher.features[Feature.TAINTS] is Support.REFUSED
        await publish(publisher, pages(["a"], ["c"]), {"c": [DOWN]})
        assert own.writes["create"] == 3
        await wait_until(lambda: any("DRADeviceTaints" in text for text in warnings(caplog)))


async def test_a_slice_that_is_refused_without_its_optional_fields_too_is_tried_bare_only_once(
    wait_until: WaitUntil,
) -> None:
    async with cluster() as (server, own), running(build_publisher(own)) as publisher:
        await wait_until(lambda: publisher.features is not None)
        publisher.set_desired(pages(["Bad_Name"]), {"Bad_Name": [DOWN]})
        await wait_until(lambda: publisher.failures[Reason.API_INVALID] >= 4)
        failures = publisher.failures[Reason.API_INVALID]
        assert own.writes["create"] <= failures + 2  # the bare one, and one that is under way
        await publish(publisher, pages(["good"]), {"good": [DOWN]})
        assert taints_of(server) == {"good": [(DOWN.key, "NoSchedule")]}


class DenyingClient(CountingClient):
    """Of a cluster where a webhook denies slices with taints, be it a dry run or not; 400 is what the API
    server makes of a denial without a code."""

    def __init__(self, server: ApiServer, status: int) -> None:
        super().__init__(server)
        self._server = server
        self._status = status

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        if any(entry.get("taints") for entry in body.get("spec", {}).get("devices", ())):
            self._server.fail_next("POST", path, self._status)
        return await super().create(path, body, dry_run=dry_run)


@pytest.mark.parametrize("status", [400, 403])
async def test_a_field_that_the_cluster_denies_costs_no_slice(status: int) -> None:
    async with ApiServer() as server, DenyingClient(server, status) as own:
        await own.create(paths.NODES, {"metadata": {"name": NODE}})
        async with running(build_publisher(own)) as publisher:
            await publish(publisher, pages(["a"]), {"a": [DOWN]})
        assert device_names(server) == [["a"]]
        assert own.dry_runs <= 5  # and no more of them, however long this goes on


class CarelessClient(CountingClient):
    """Of a server that takes a dry run for a create."""

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        stored = await super().create(path, body)
        if dry_run:
            assert stored["spec"]["pool"]["resourceSliceCount"] > 100  # so no pool of it is ever complete
        return stored


async def test_dry_runs_that_are_stored_are_deleted_and_offer_nothing_meanwhile(
    wait_until: WaitUntil,
) -> None:
    async with ApiServer(profile="1.37") as server, CarelessClient(server) as own:
        await own.create(paths.NODES, {"metadata": {"name": NODE}})
        async with running(build_publisher(own)) as publisher:
            await publish(publisher, RICH, SICK)
            await wait_until(lambda: device_names(server) == [["a", "b"]])
            assert own.writes["delete"] >= 2


async def test_the_server_is_asked_again_after_its_watch_was_cut_off(wait_until: WaitUntil) -> None:
    """As when a control plane is upgraded: the gate is on afterwards."""
    async with cluster("1.36", DRADeviceTaints=False) as (server, own):
        publisher = build_publisher(own)
        publisher._follower._again = Backoff(0.01, 0.01)
        async with running(publisher):
            await wait_until(lambda: server.open_watches() == 1)
            await publish(publisher, pages(["a"]), {"a": [DOWN]})
            assert taints_of(server) == {}
            upgrade(server, DRADeviceTaints=True)
            await wait_until(lambda: bool(taints_of(server)))
            assert own.writes == {"create": 1, "update": 1}


def upgrade(server: ApiServer, **gates: bool) -> None:
    """The same cluster with other gates; its watches end."""
    other = ApiServer(gates=gates)
    server._rest._profile = other._profile
    server.drop_watches()


async def test_metrics_count_writes_and_show_the_missing_gate(wait_until: WaitUntil) -> None:
    metrics = Metrics()
    listeners = PublishListeners(
        wrote=lambda verb: metrics.slices.writes.labels(verb).inc(), missing=metrics.slices.show_missing
    )
    async with cluster("1.35") as (_, own), running(build_publisher(own, listeners=listeners)) as publisher:
        await publish(publisher, pages(["a"], ["b"]), {"a": [DOWN]})
        await publish(publisher, pages(["b"]), {"b": [DOWN]})
        shown = metrics.render().decode()
        assert 'dranet_slice_writes_total{verb="create"} 2.0' in shown
        assert 'dranet_slice_writes_total{verb="delete"} 1.0' in shown
        assert 'dranet_slice_fields_missing{gate="DRADeviceTaints"} 1.0' in shown
        await publish(publisher, pages(["b"]))
        await wait_until(lambda: 'gate="DRADeviceTaints"} 0.0' in metrics.render().decode())
