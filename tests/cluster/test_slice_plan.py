"""The decision about slice writes: the scenarios of the upstream controller's ``TestControllerSyncPool``
table that a node-local pool can meet, and our own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster.capabilities import build_probe
from dranet.cluster.client import JsonObject
from dranet.cluster.slice_plan import (
    CreateSlice,
    DeleteSlice,
    DesiredPool,
    UpdateSlice,
    build_owner,
    decode_index,
    iter_adopted,
    name_prefix,
    plan_sync,
)
from dranet.desk.kubeapi.formats import is_subdomain

DRIVER, NODE, POOL = "dra.net", "node-a", "pool-a"
OWNER = build_owner({"metadata": {"name": NODE, "uid": "n"}})


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
            "ownerReferences": [OWNER],
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
    assert metadata["ownerReferences"] == [OWNER]
    assert "managedFields" not in metadata


def test_a_delete_is_bound_to_what_was_judged() -> None:
    write = plan_sync([found(3, ["d0"])], desired([])).writes[0]
    assert write == DeleteSlice(f"00003-{DRIVER}-{NODE}-abcde", f"uid-00003-{DRIVER}-{NODE}-abcde", "103")


def test_what_a_server_spells_as_empty_or_knows_beyond_us_is_no_difference() -> None:
    existing = found(0, ["d0"])
    existing["spec"]["devices"][0] |= {"attributes": {}, "taints": []}
    existing["spec"] |= {"sharedCounters": [], "allNodes": False, "skipNodeOperations": []}
    existing["spec"]["pool"]["newer"] = 1
    assert plan_sync([existing], desired(["d0"])).writes == ()


def tainted(time: str = "") -> DesiredPool:
    """Two devices, the second with a taint of this time, or without one."""
    taint = {"key": "k", "effect": "NoSchedule"}
    if time:
        taint["timeAdded"] = time
    return DesiredPool(DRIVER, NODE, POOL, (({"name": "d0"}, {"name": "d1", "taints": [taint]}),))


def test_a_taint_that_stays_keeps_its_time_when_its_slice_is_written_for_another_reason() -> None:
    existing = found(0, ["d0"])
    existing["spec"]["devices"] = list(tainted("2026-01-01T00:00:00Z").pages[0])[1:]
    (write,) = plan_sync([existing], tainted()).writes
    assert isinstance(write, UpdateSlice)
    assert write.body["spec"]["devices"] == list(tainted("2026-01-01T00:00:00Z").pages[0])


def test_a_taint_keeps_its_time_also_when_its_slice_is_made_anew() -> None:
    existing = found(0, ["d0"], name="a-random-name")
    existing["spec"]["devices"] = list(tainted("2026-01-01T00:00:00Z").pages[0])
    (create,) = [write for write in plan_sync([existing], tainted()).writes if isinstance(write, CreateSlice)]
    assert create.body["spec"]["devices"][1]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


def test_slices_of_a_node_object_that_is_gone_are_given_to_the_new_one_and_nothing_else_changes() -> None:
    new = build_owner({"metadata": {"name": NODE, "uid": "n2"}})
    other = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x", "uid": "y"}
    existing = [*TWO, found(2, ["d2"])]
    existing = [
        {**one, "metadata": {**one["metadata"], "ownerReferences": [other, OWNER]}} for one in existing
    ]
    plan = plan_sync(existing[:2], desired(["d0"], ["d1"]), new)
    assert plan.generation == 1
    assert [type(write) for write in plan.writes] == [UpdateSlice, UpdateSlice]
    for write, before in zip(plan.writes, existing, strict=False):
        assert isinstance(write, UpdateSlice)
        assert write.body["metadata"]["ownerReferences"] == [other, new]
        assert write.body["spec"] == before["spec"]


def test_a_changed_slice_of_a_node_object_that_is_gone_takes_one_write() -> None:
    new = build_owner({"metadata": {"name": NODE, "uid": "n2"}})
    plan = plan_sync(TWO, desired(["x"], ["d1"]), new)
    assert (plan.generation, len(plan.writes)) == (1, 2)
    assert plan_sync(TWO, desired(["d0"], ["d1"]), OWNER).writes == ()


def test_created_slices_have_the_owner() -> None:
    (write,) = plan_sync([], desired(["d0"]), OWNER).writes
    assert isinstance(write, CreateSlice)
    assert write.body["metadata"]["ownerReferences"] == [OWNER]


@given(count=st.integers(1, 3), others=st.text("0123456789abcdefxyz-.", max_size=70))
def test_every_name_that_we_give_is_decoded_and_no_other_is(count: int, others: str) -> None:
    wanted = desired(*[[] for _ in range(count)])
    for index in range(count):
        assert decode_index(name_prefix(wanted, index)[:58] + "abcde", wanted) == index
    assert decode_index(name_prefix(desired(*[[] for _ in range(9)]), 8) + "abcde", wanted) is None
    prefixes = tuple(name_prefix(wanted, index)[:58] for index in range(count))
    assert (decode_index(others, wanted) is None) or others.startswith(prefixes)


@pytest.mark.parametrize(("count", "digits"), [(1, 5), (0x100000, 5), (0x100001, 6)])
def test_the_index_has_at_least_five_digits_and_as_many_as_the_last_one_takes(
    count: int, digits: int
) -> None:
    wanted = DesiredPool(DRIVER, NODE, POOL, ((),) * count)
    for index in (0, count - 1):
        prefix = name_prefix(wanted, index)
        assert prefix.index("-") == digits
        assert decode_index(prefix + "abcde", wanted) == index


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


@pytest.mark.parametrize("length", range(225, 254))
def test_with_the_longest_node_name_the_prefix_is_one_that_the_server_takes(length: int) -> None:
    """It checks all of a prefix as a name, with a dash at its end, before it cuts it."""
    node = ".".join(["n" * 61] * 4)[:length].rstrip(".")
    desired = DesiredPool("driver-of-some-length.example.com", node, node, ((),))
    prefix = name_prefix(desired, 0)
    for one in (prefix, build_probe(desired.driver, node, ())["metadata"]["generateName"]):
        assert is_subdomain(f"{one[:-1]}a")
    assert decode_index(f"{prefix[:58]}x7k2p", desired) == 0


def test_a_random_name_that_begins_like_an_index_is_not_taken_for_one() -> None:
    existing = found(0, ["d0"], name="00000-other-zzzzz")
    assert counts([existing], desired(["d0"])) == (1, 0, 1, 2)


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
