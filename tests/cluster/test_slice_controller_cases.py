"""The cases that a controller of slices must pass, against the API server stand-in, with every write counted.

The names are those of ``TestControllerSyncPool`` in ``k8s.io/dynamic-resource-allocation/resourceslice``, so
that both lists can be laid side by side; words and data are ours. Of the 34 cases 21 are about what a driver
of node-local network cards does, and are here. The others are not, because of what this driver never
publishes:

* devices that several nodes reach, and pools that are chosen by name (no slice of ours is without
``nodeName``): update-node-selector, add-one-network-device-all-nodes, add-one-network-device-some-nodes,
reconcile-with-pool-name-create-slice-no-node-name, reconcile-with-pool-name-with-node-selector,
reconcile-with-pool-name-with-perdevice-node-selector; and with them
``TestControllerUpdateReconcilePoolWithNameValidation`` and the filters of watches by pool name, in whose
place the server selects by driver and node (``test_slices.py``). A selector that somebody left in a
slice of ours is in ``test_slice_plan.py``; a server lets nobody put it beside ``nodeName``. *
counters of partitionable devices: drop-partitionable-devices, create-partitionable-devices,
detect-resource-pools-with-duplicate-counter-sets, detect-device-referencing-unknown-counter-set,
detect-device-referencing-unknown-counter-in-counter-set * binding conditions:
drop-device-with-binding-condition, create-device-with-binding-condition * several pools of one driver on a
node: none of the 34, but of remove-pool the half that empties the only pool; ours always has a slice, which
says that the pool is complete.

``TestGetIndexLength``, ``TestEncodeIndex`` and ``TestDecodeIndex`` are in ``test_slice_plan.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from dranet.cluster import paths
from dranet.cluster.capabilities import Support
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.slice_plan import Feature
from dranet.cluster.slices import PublishListeners
from dranet.cluster.transport import access_from_url
from dranet.model.device import Device, DeviceKind, Taint, TaintEffect
from testbed.apiserver.server import ApiServer
from tests.cluster.publishing import (
    DRIVER,
    NODE,
    CountingClient,
    build_publisher,
    held,
    held_devices,
    publish,
    running,
)

pytestmark = pytest.mark.socket

LONG_AGO = "2026-01-01T00:00:00Z"
BROKEN = Taint("example.com/broken", TaintEffect.NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class Found:
    """A slice that is there when the publisher comes. ``name`` is its index, or the whole name."""

    name: int | str
    devices: str
    """One letter each."""
    generation: int = 1
    count: int = 1
    pool: str = NODE
    tainted: bool = False
    """Each device has the taint, since long ago."""


@dataclass(frozen=True, slots=True)
class Case:
    """``desired``: the devices of each slice, a letter each. ``generation`` is the one afterwards."""

    desired: Sequence[str]
    found: Sequence[Found] = ()
    creates: int = 0
    updates: int = 0
    deletes: int = 0
    generation: int = 1
    taints: Mapping[str, Sequence[Taint]] = field(default_factory=dict)
    shared: bool = False
    gates: Mapping[str, bool] = field(default_factory=dict)
    missing: Feature | None = None
    """What the server does not keep."""


THREE = tuple(Found(index, devices, count=3) for index, devices in enumerate("abc"))

CASES = {
    "create-slice": Case(["a"], creates=1),
    "keep-slice-unchanged": Case(["a"], [Found(0, "a")]),
    "keep-taint-unchanged": Case(["a"], [Found(0, "a", tainted=True)], taints={"a": [BROKEN]}),
    "add-taints": Case(["a"], [Found(0, "a")], updates=1, taints={"a": [BROKEN]}),
    "drop-taints": Case(
        ["a"],
        [Found(0, "a")],
        taints={"a": [BROKEN]},
        gates={"DRADeviceTaints": False},
        missing=Feature.TAINTS,
    ),
    "drop-consumable-capacity-field": Case(
        ["a"], creates=1, shared=True, gates={"DRAConsumableCapacity": False}, missing=Feature.SHARED_DEVICES
    ),
    "remove-pool": Case(
        ["a"], [Found(0, "a"), Found("of-an-old-pool", "x", generation=4, pool="old")], deletes=1
    ),
    "delete-redundant-slice": Case(["a"], [Found(0, "a"), Found(1, "b")], deletes=1),
    "one-existing-and-one-desired-slice-should-be-updated-inplace": Case(["b"], [Found(0, "a")], updates=1),
    "update-slice": Case(["ab"], [Found(0, "a")], updates=1),
    "update-slice-many-devices": Case(["abcdefgxijklmnop"], [Found(0, "abcdefghijklmnop")], updates=1),
    "update-slice-when-more-than-one-existing-or-desired-slice": Case(
        ["a", "x"], [Found(0, "a", count=2), Found(1, "b", count=2)], updates=1
    ),
    "multiple-resourceslices-existing-no-changes": Case(["a", "b", "c"], THREE),
    "multiple-resourceslices-existing-with-different-resource-pool-generation": Case(
        ["a"],
        [Found(0, "a", 1, count=3), Found(1, "b", 2, count=3), Found(2, "c", 1, count=3)],
        creates=1,
        deletes=3,
        generation=3,
    ),
    "multiple-resourceslices-existing-one-changed": Case(["a", "x", "c"], THREE, updates=1),
    "multiple-resourceslices-existing-two-changed": Case(["x", "y", "c"], THREE, updates=3, generation=2),
    "multiple-resourceslices-existing-one-removed": Case(
        ["a", "b"], THREE, updates=2, deletes=1, generation=2
    ),
    "multiple-resourceslices-existing-one-added": Case(
        ["a", "b", "c", "d"], THREE, creates=1, updates=3, generation=2
    ),
    "migration-from-random-naming-to-index-based-naming": Case(
        ["a", "b", "c"],
        [
            Found(f"{NODE}-{DRIVER}-{suffix}", devices, count=3)
            for suffix, devices in zip("xyz", "abc", strict=True)
        ],
        creates=3,
        deletes=3,
        generation=2,
    ),
    "migration-mixed-naming": Case(
        ["a", "b"],
        [Found(0, "a", count=2), Found(f"{NODE}-{DRIVER}-x", "b", count=2)],
        creates=1,
        updates=1,
        deletes=1,
        generation=2,
    ),
}


def to_slice(found: Found, owner: JsonObject) -> JsonObject:
    index = f"{found.name:05x}-{DRIVER}-{NODE}-abcde" if isinstance(found.name, int) else found.name
    taint = {"key": BROKEN.key, "effect": BROKEN.effect.value, "timeAdded": LONG_AGO}
    return {
        "metadata": {"name": index, "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": found.pool, "generation": found.generation, "resourceSliceCount": found.count},
            "devices": [
                {"name": name, **({"taints": [taint]} if found.tainted else {})} for name in found.devices
            ],
        },
    }


async def prepare(server: ApiServer, found: Sequence[Found]) -> None:
    """The Node, and what is there already."""
    async with ApiClient(access_from_url(server.url)) as client:
        node = await client.create(paths.NODES, {"metadata": {"name": NODE}})
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": NODE,
            "uid": node["metadata"]["uid"],
            "controller": True,
        }
        for one in found:
            await client.create(paths.RESOURCE_SLICES, to_slice(one, owner))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_writes_are_those_of_the_upstream_controller(case: Case) -> None:
    told: list[frozenset[str]] = []
    async with ApiServer(gates=case.gates) as server, CountingClient(server) as own:
        await prepare(server, case.found)
        before = {one["metadata"]["uid"] for one in held(server)}
        wanted = [
            [Device(name, DeviceKind.NIC, shared=case.shared) for name in page] for page in case.desired
        ]
        publisher = build_publisher(own, listeners=PublishListeners(missing=told.append))
        async with running(publisher):
            for _ in range(2):  # the second time is nothing new
                await publish(publisher, wanted, case.taints)
            assert own.writes == +Counter(create=case.creates, update=case.updates, delete=case.deletes)
            assert publisher.generation == case.generation
            assert publisher.failures == {}
        check_pool(server, case)
        kept = before & {one["metadata"]["uid"] for one in held(server)}
        assert len(kept) == len(before) - case.deletes
    check_missing(case, told)


def check_pool(server: ApiServer, case: Case) -> None:
    """What is there is complete, of one generation, ours, and what was desired."""
    slices = held(server)
    assert ["".join(one["name"] for one in found["spec"].get("devices", ())) for found in slices] == [
        *case.desired
    ]
    expected = {"name": NODE, "generation": case.generation, "resourceSliceCount": len(case.desired)}
    for index, found in enumerate(slices):
        assert found["spec"]["pool"] == expected
        assert found["metadata"]["name"].startswith(f"{index:05x}-{DRIVER}-{NODE}-")
        assert [owner["kind"] for owner in found["metadata"]["ownerReferences"]] == ["Node"]
    for found in held_devices(server):
        keeps_taints = case.missing is not Feature.TAINTS
        keys = [taint["key"] for taint in found.get("taints", ())]
        assert keys == [taint.key for taint in case.taints.get(found["name"], ()) if keeps_taints]
        assert found.get("allowMultipleAllocations", False) is (
            case.shared and case.missing is not Feature.SHARED_DEVICES
        )
    if any(one.tainted for one in case.found):
        assert {taint["timeAdded"] for found in held_devices(server) for taint in found["taints"]} == {
            LONG_AGO
        }


def check_missing(case: Case, told: Sequence[frozenset[str]]) -> None:
    assert told == ([frozenset({case.missing.gate})] if case.missing else [])


async def test_detect_duplicate_devices() -> None:
    async with ApiServer() as server, CountingClient(server) as own:
        await prepare(server, [Found(0, "a")])
        async with running(build_publisher(own)) as publisher:
            await publish(publisher, [[Device("a", DeviceKind.NIC)]])
            with pytest.raises(ValueError, match="not unique"):
                publisher.set_desired([[Device("a", DeviceKind.NIC)], [Device("a", DeviceKind.NIC)]])
            assert publisher.is_published  # what was desired before still is
        assert own.writes == {}
        assert len(held(server)) == 1


@pytest.mark.parametrize("name", ["drop-taints", "drop-consumable-capacity-field"])
async def test_a_case_that_drops_a_field_does_not_loop_where_no_dry_run_told_of_it_either(name: str) -> None:
    """As upstream, which asks nobody: the answer to the write says it, once."""
    case = CASES[name]
    assert case.missing is not None
    async with ApiServer(gates=case.gates) as server, UnaskedClient(server) as own:
        await prepare(server, case.found)
        wanted = [
            [Device(name, DeviceKind.NIC, shared=case.shared) for name in page] for page in case.desired
        ]
        async with running(build_publisher(own)) as publisher:
            for _ in range(3):
                await publish(publisher, wanted, case.taints)
            assert own.writes.total() == 1
            assert publisher.features is not None
            assert publisher.features[case.missing] is Support.DROPPED
        check_pool(server, case)


class UnaskedClient(CountingClient):
    """A webhook of this cluster knows no dry runs."""

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        if dry_run:
            body = {
                "metadata": {"generateName": "x-", "resourceVersion": "1"},
                "spec": {},
            }  # answered with 400
        return await super().create(path, body, dry_run=dry_run)
