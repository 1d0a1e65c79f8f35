"""The decision about slice writes: the scenarios of the upstream controller's ``TestControllerSyncPool``
table that a node-local pool can meet, and our own."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster.client import JsonObject
from dranet.cluster.slice_plan import (
    CreateSlice,
    DeleteSlice,
    DesiredPool,
    UpdateSlice,
    build_pages,
    device_to_json,
    iter_adopted,
    name_prefix,
    plan_sync,
)
from dranet.model.device import Device, DeviceKind

DRIVER, NODE, POOL = "dra.net", "node-a", "pool-a"


def desired(*pages: Sequence[str], pool: str = POOL) -> DesiredPool:
    return DesiredPool(DRIVER, NODE, pool, tuple(tuple({"name": name} for name in page) for page in pages))


def found(
    index: int,
    devices: Sequence[str],
    *,
    generation: int = 1,
    count: int = 1,
    pool: str = POOL,
    name: str = "",
    uid: str = "",
) -> JsonObject:
    """A slice as the API server has it."""
    name = name or f"{index:05x}-{DRIVER}-{NODE}-abcde"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": f"{100 + index}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "x"}],
            "ownerReferences": [{"kind": "Node", "uid": "n"}],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": device} for device in devices],
        },
    }


def counts(existing: Sequence[JsonObject], wanted: DesiredPool) -> tuple[int, int, int, int]:
    """Deletes, updates, creates, and the generation after them."""
    plan = plan_sync(existing, wanted)
    kinds = [type(write) for write in plan.writes]
    assert kinds == sorted(kinds, key=[DeleteSlice, UpdateSlice, CreateSlice].index), "delete, update, create"
    return kinds.count(DeleteSlice), kinds.count(UpdateSlice), kinds.count(CreateSlice), plan.generation


TWO = [found(i, [f"d{i}"], count=2) for i in range(2)]
THREE = [found(i, [f"d{i}"], count=3) for i in range(3)]


@pytest.mark.parametrize(
    ("existing", "wanted", "expected"),
    [
        pytest.param([], desired(["d0"]), (0, 0, 1, 1), id="create-slice"),
        pytest.param([], desired([]), (0, 0, 1, 1), id="an-empty-pool-is-one-empty-slice"),
        pytest.param([found(0, ["d0"])], desired(["d0"]), (0, 0, 0, 1), id="keep-slice-unchanged"),
        pytest.param([found(0, [])], desired([]), (0, 0, 0, 1), id="keep-empty-slice-unchanged"),
        pytest.param([found(0, ["d0"], generation=7)], desired(["d0"]), (0, 0, 0, 7), id="keep-generation"),
        pytest.param([found(0, ["d0"])], desired(["d1"]), (0, 1, 0, 1), id="one-slice-is-updated-in-place"),
        pytest.param(
            [found(0, ["d0", "d1"])], desired(["d1", "d0"]), (0, 1, 0, 1), id="order-of-devices-counts"
        ),
        pytest.param(TWO, desired(["d0"]), (1, 1, 0, 1), id="two-to-one-keeps-g"),
        pytest.param(THREE, desired(["d0"], ["d1"], ["d2"]), (0, 0, 0, 1), id="several-no-changes"),
        pytest.param(THREE, desired(["d0"], ["x"], ["d2"]), (0, 1, 0, 1), id="several-one-changed"),
        pytest.param(THREE, desired(["x"], ["y"], ["d2"]), (0, 3, 0, 2), id="several-two-changed"),
        pytest.param(THREE, desired(["d0"], ["d1"]), (1, 2, 0, 2), id="several-one-removed"),
        pytest.param(THREE, desired(["d0"], ["d1"], ["d2"], ["d3"]), (0, 3, 1, 2), id="several-one-added"),
        pytest.param(
            [
                found(0, ["d0"], generation=1, count=3),
                found(1, ["d1"], generation=2, count=3),
                found(2, ["d2"], generation=1, count=3),
            ],
            desired(["d0"]),
            (3, 0, 1, 3),
            id="mixed-generations-newest-out-of-range",
        ),
        pytest.param(
            [found(0, ["d0"], count=1), found(5, ["d5"], count=1)],
            desired(["d0"]),
            (1, 0, 0, 1),
            id="delete-redundant-slice",
        ),
        pytest.param(
            [found(i, [f"d{i}"], count=3, name=f"{NODE}-{DRIVER}-{i}zzzz") for i in range(3)],
            desired(["d0"], ["d1"], ["d2"]),
            (3, 0, 3, 2),
            id="migration-from-random-names",
        ),
        pytest.param(
            [found(0, ["d0"], count=2), found(1, ["d1"], count=2, name=f"{NODE}-{DRIVER}-zzzzz")],
            desired(["d0"], ["d1"]),
            (1, 1, 1, 2),
            id="migration-from-mixed-names",
        ),
        pytest.param(
            [found(0, ["d0"], pool="old-pool")], desired(["d0"]), (1, 0, 1, 1), id="another-pool-is-removed"
        ),
        pytest.param(
            [found(0, ["d0"], uid="a"), found(0, ["d0"], uid="b", name=f"00000-{DRIVER}-{NODE}-zzzzz")],
            desired(["d0"]),
            (1, 0, 0, 1),
            id="a-duplicate-index-goes",
        ),
        pytest.param(
            [found(0, ["d0"], count=3), found(2, ["d2"], count=3)],
            desired(["d0"], ["d1"], ["d2"]),
            (0, 2, 1, 2),
            id="one-of-three-was-wiped",
        ),
    ],
)
def test_the_writes_are_those_of_the_upstream_controller(
    existing: list[JsonObject], wanted: DesiredPool, expected: tuple[int, int, int, int]
) -> None:
    assert counts(existing, wanted) == expected


def test_of_two_slices_with_one_index_the_older_stays() -> None:
    older, newer = (
        found(0, ["d0"], uid="old"),
        found(0, ["d0"], uid="new", name=f"00000-{DRIVER}-{NODE}-aaaaa"),
    )
    newer["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    (write,) = plan_sync([newer, older], desired(["d0"])).writes
    assert isinstance(write, DeleteSlice)
    assert write.uid == "new"


@pytest.mark.parametrize(
    "extra",
    [
        {"allNodes": True},
        {"nodeSelector": {"nodeSelectorTerms": []}},
        {"sharedCounters": [{"name": "c"}]},
        {"perDeviceNodeSelection": True},
    ],
)
def test_a_foreign_field_of_a_slice_is_overwritten(extra: JsonObject) -> None:
    existing = found(0, ["d0"])
    existing["spec"].update(extra)
    (write,) = plan_sync([existing], desired(["d0"])).writes
    assert isinstance(write, UpdateSlice)
    assert set(write.body["spec"]) == {"driver", "nodeName", "pool", "devices"}


def test_an_update_keeps_the_objects_identity_and_owner_and_carries_its_version() -> None:
    (write,) = plan_sync([found(0, ["d0"])], desired(["d1"])).writes
    assert isinstance(write, UpdateSlice)
    metadata = write.body["metadata"]
    assert metadata["resourceVersion"] == "100"
    assert metadata["ownerReferences"] == [{"kind": "Node", "uid": "n"}]
    assert "managedFields" not in metadata


def test_a_delete_is_bound_to_what_was_judged() -> None:
    write = plan_sync([found(3, ["d0"])], desired([])).writes[0]
    assert write == DeleteSlice(f"00003-{DRIVER}-{NODE}-abcde", f"uid-00003-{DRIVER}-{NODE}-abcde", "103")


def test_what_a_server_spells_as_empty_is_no_difference() -> None:
    existing = found(0, ["d0"])
    existing["spec"]["devices"][0] |= {"attributes": {}, "taints": []}
    existing["spec"]["sharedCounters"] = []
    assert plan_sync([existing], desired(["d0"])).writes == ()


def test_names_order_the_slices_and_carry_driver_and_node() -> None:
    wanted = desired(*[[] for _ in range(20)])
    assert name_prefix(wanted, 0) == f"00000-{DRIVER}-{NODE}-"
    assert name_prefix(wanted, 19) == f"00013-{DRIVER}-{NODE}-"


def test_a_name_that_the_server_cut_is_still_ours() -> None:
    node = "n" * 80
    wanted = DesiredPool(DRIVER, node, POOL, (({"name": "d0"},),))
    cut = name_prefix(wanted, 0)[:58] + "abcde"
    existing = found(0, ["d0"], name=cut)
    existing["spec"]["nodeName"] = node
    assert plan_sync([existing], wanted).writes == ()


def test_a_random_name_that_begins_like_an_index_is_not_taken_for_one() -> None:
    existing = found(0, ["d0"], name="00000-other-zzzzz")
    assert counts([existing], desired(["d0"])) == (1, 0, 1, 2)


def test_attributes_are_typed_and_a_bool_is_not_an_int() -> None:
    device = Device(
        "eth0", DeviceKind.NIC, {"dra.net/mtu": 1500, "dra.net/rdma": True, "dra.net/ifName": "eth0"}
    )
    assert device_to_json(device) == {
        "name": "eth0",
        "attributes": {
            "dra.net/ifName": {"string": "eth0"},
            "dra.net/mtu": {"int": 1500},
            "dra.net/rdma": {"bool": True},
        },
    }


def test_a_list_attribute_keeps_its_order() -> None:
    device = Device("eth0", DeviceKind.NIC, {"resource.kubernetes.io/numaNode": (1, 0)})
    assert device_to_json(device)["attributes"] == {"resource.kubernetes.io/numaNode": {"ints": [1, 0]}}


def test_a_shared_device_may_be_allocated_several_times() -> None:
    assert device_to_json(Device("a", DeviceKind.NIC, shared=True)) == {
        "name": "a",
        "allowMultipleAllocations": True,
    }


def test_a_list_attribute_is_compared_by_value() -> None:
    def numa(*nodes: int) -> Device:
        return Device("eth0", DeviceKind.NIC, {"resource.kubernetes.io/numaNode": nodes})

    wanted = DesiredPool(DRIVER, NODE, POOL, build_pages([[numa(1, 0)]]))
    existing = found(0, [])
    existing["spec"]["devices"] = [json.loads(json.dumps(device_to_json(numa(1, 0))))]
    assert counts([existing], wanted) == (0, 0, 0, 1)
    existing["spec"]["devices"] = [device_to_json(numa(0, 1))]
    assert counts([existing], wanted) == (0, 1, 0, 1)


def test_a_device_name_that_is_there_twice_is_refused() -> None:
    twice = Device("eth0", DeviceKind.NIC)
    with pytest.raises(ValueError, match="eth0"):
        build_pages([[twice], [twice]])


def test_no_pages_are_one_empty_page() -> None:
    assert build_pages([]) == ((),)


def test_an_adopted_page_counts_only_as_long_as_the_same_is_wanted() -> None:
    sent, stored = ({"name": "a", "attributes": {"x": {"int": 1}}},), ({"name": "a"},)
    assert list(iter_adopted([sent], {0: (sent, stored)})) == [stored]
    assert list(iter_adopted([({"name": "b"},)], {0: (sent, stored)})) == [({"name": "b"},)]


_pages = st.lists(st.lists(st.sampled_from("abcdef"), max_size=3, unique=True), min_size=1, max_size=4)


def carry_out(existing: Sequence[JsonObject], wanted: DesiredPool) -> list[JsonObject]:
    """What an API server holds after the planned writes."""
    held = {item["metadata"]["uid"]: item for item in existing}
    for number, write in enumerate(plan_sync(existing, wanted).writes):
        match write:
            case DeleteSlice():
                del held[write.uid]
            case UpdateSlice():
                held[write.body["metadata"]["uid"]] = write.body
            case CreateSlice():
                name = write.body["metadata"]["generateName"][:58] + f"{number:05d}"
                metadata = {"name": name, "uid": f"new-{name}", "resourceVersion": "1"}
                held[metadata["uid"]] = {**write.body, "metadata": metadata}
    return list(held.values())


@given(st.lists(_pages, min_size=1, max_size=4), st.integers(0, 15))
def test_any_history_ends_in_a_complete_pool_and_then_nothing_is_written(
    history: list[list[list[str]]], wiped: int
) -> None:
    held: list[JsonObject] = []
    generation = 0
    for pages in history:
        wanted = desired(*pages)
        held = carry_out(held, wanted)
        pools = [item["spec"]["pool"] for item in held]
        assert len(held) == len(pages)
        assert {pool["resourceSliceCount"] for pool in pools} == {len(pages)}
        assert len({pool["generation"] for pool in pools}) == 1
        assert pools[0]["generation"] >= generation
        generation = pools[0]["generation"]
        assert plan_sync(held, wanted).writes == ()
        names = sorted(item["metadata"]["name"] for item in held)
        by_name = {item["metadata"]["name"]: item["spec"]["devices"] for item in held}
        assert [[device["name"] for device in by_name[name]] for name in names] == pages
    left = [item for bit, item in enumerate(held) if not wiped >> bit & 1]
    assert plan_sync(carry_out(left, wanted), wanted).writes == ()
