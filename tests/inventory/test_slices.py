"""Slices that the API server takes: the attribute budget, faults left out, pages within the limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.inventory.policy import Policy
from dranet.inventory.slices import NO_ROOM, build_slices, fit_attributes, plan_slices
from dranet.model import attributes as a
from dranet.model.attributes import AttributeType, Stability
from dranet.model.device import AttributeValue, Device, DeviceKind

LISTS = Policy(list_attributes=True)
VALUES: dict[AttributeType, AttributeValue] = {
    AttributeType.STRING: "x" * 64,
    AttributeType.INT: 7,
    AttributeType.BOOL: True,
}


def device(name: str = "eth0", **more: AttributeValue) -> Device:
    """With attributes in our domain."""
    return Device(name, DeviceKind.NIC, {f"dra.net/{key}": value for key, value in more.items()})


def knowing(*stabilities: Stability, own: int = 0) -> Device:
    """A device that knows all of the catalogue of these stabilities, and ``own`` of the operator's."""
    known = {e.qualified: VALUES[e.type] for e in a.CATALOGUE if e.stability in stabilities}
    known |= {f"example.com/own{i:02}": f"value {i}" for i in range(own)}
    return Device("eth0", DeviceKind.NIC, known)


EVERYTHING = knowing(*Stability, own=5)


def test_a_device_that_knows_little_is_kept_as_it_is() -> None:
    plain = device(ifName="eth0", rdma=False)

    assert fit_attributes(plain).kept == plain.attributes
    assert build_slices([plain])[0][0] is plain


def test_everything_of_dranet_and_five_of_the_operators_fit_whole() -> None:
    everything = knowing(Stability.DRANET, Stability.STANDARD, own=5)
    fitted = fit_attributes(everything)

    assert len(everything.attributes) == 32
    assert (fitted.kept, fitted.left_out) == (everything.attributes, {})


def test_of_everything_there_is_what_comes_last_by_its_place_gives_way() -> None:
    fitted = fit_attributes(EVERYTHING)
    places = [entry.qualified for entry in a.CATALOGUE if not entry.may_be_set]
    own = {a.RAIL.qualified, *(f"example.com/own{i:02}" for i in range(5))}

    assert fitted.kept.keys() == {*places[:26], *own}
    assert fitted.left_out == dict.fromkeys(places[26:], NO_ROOM)


VOLATILE = {"dra.net/ipv4", "dra.net/ipv6", "dra.net/tcFilterNames", "dra.net/tcxProgramNames"}
ALIGNMENT = {"dra.net/nearestGpus", "dra.net/nearestGpuDistance", "dra.net/sriovPfAddress"}
ALIGNMENT |= {"dra.net/sriovVfIndex", "dra.net/rdmaLinkLayer", "dra.net/numaNode", "dra.net/rdmaDevice"}
NOT_ON_A_VF = {"sriovVfs", "erdma", "bond", "bridge", "parent", "vlanId", "gpuVendor", "gpuModel", "gpuUUID"}
NOT_ON_A_VF |= {"rail"}  # it counts as one of the operator's


@given(own=st.integers(0, 5), gone=st.sets(st.sampled_from(sorted(VOLATILE))))
def test_addresses_and_programs_that_come_and_go_cost_a_virtual_function_nothing(
    own: int, gone: set[str]
) -> None:
    everything = knowing(*Stability, own=own)
    known = {n: v for n, v in everything.attributes.items() if n.rpartition("/")[2] not in NOT_ON_A_VF}
    before = fit_attributes(replace(everything, attributes=known)).kept
    after = fit_attributes(
        replace(everything, attributes={n: v for n, v in known.items() if n not in gone})
    ).kept

    assert before.keys() - VOLATILE <= after.keys()
    assert before.keys() >= ALIGNMENT | a.ESSENTIAL_NAMES
    assert sum(name.startswith("example.com/") for name in before) == own


def test_without_the_operators_the_most_useful_of_ours_fill_the_room() -> None:
    kept = fit_attributes(knowing(*Stability)).kept
    ours = [e.name for e in a.CATALOGUE if e.qualified in kept and e.stability is Stability.KEPT]

    assert len(kept) == 32
    assert ours == [
        *("nearestGpus", "nearestGpuDistance", "pcieSwitch", "sriovPfAddress", "sriovVfIndex"),
        *("rdmaLinkLayer", "rdmaPortState", "rdmaRateGbps", "rail"),
    ]


AWS = (
    *("instanceType", "networkNodeLayer3", "capacityBlockId", "networkNodeLayer2", "networkNodeLayer1"),
    *("networkNodeLayer4", "placementGroup", "partition", "availabilityZoneId", "availabilityZone"),
    *("subnetId", "networkCard"),
)
SPEED = "dra.net/linkSpeedMbps"


def on_aws(room: int) -> Device:
    """A device with all of AWS' attributes, of which ``room`` fit beside what it aligns by."""
    aligned = list(a.PLACES)[: a.PLACES[SPEED] + 1][room - 32 :]
    late = ("dra.net/pciVendorId", "dra.net/rdmaPortGuid")
    names = (*aligned, *(f"aws.dra.net/{name}" for name in AWS), *late)
    return Device("eth0", DeviceKind.NIC, dict.fromkeys(names, "x"))


@pytest.mark.parametrize("room", range(1, 12))
def test_what_only_we_publish_for_a_cloud_comes_after_what_claims_align_by_the_most_useful_first(
    room: int,
) -> None:
    fitted = fit_attributes(on_aws(room))
    clouds = [name for name in AWS if f"aws.dra.net/{name}" in fitted.kept]

    assert clouds == list(AWS[:room])
    assert SPEED in fitted.kept
    assert not fitted.kept.keys() & {"dra.net/pciVendorId", "dra.net/rdmaPortGuid"}


def test_what_a_cloud_has_no_room_for_is_expected_and_may_be_preferred() -> None:
    crowded = on_aws(2)
    plan = plan_slices([crowded], Policy(prefer_attributes=("aws.dra.net/subnetId",)))

    assert plan.losses == ()
    assert "aws.dra.net/subnetId" in plan.pages[0][0].attributes
    assert "aws.dra.net/networkNodeLayer3" in plan.crowded["eth0"]


def test_what_dranet_publishes_for_a_cloud_comes_before_the_catalogue() -> None:
    names = {f"oke.dra.net/{name}" for name in ("hpcIslandId", "networkBlockId", "localBlockId", "rackId")}
    crowded = knowing(*Stability)
    fitted = fit_attributes(replace(crowded, attributes={**crowded.attributes, **dict.fromkeys(names, "x")}))

    assert names <= fitted.kept.keys()


@pytest.mark.parametrize("name", ["rdmaPortGuid", "dra.net/rdmaPortGuid"])
def test_what_the_operator_prefers_comes_before_the_rest_of_the_catalogue(name: str) -> None:
    fitted = fit_attributes(EVERYTHING, Policy(prefer_attributes=(name, "dra.net/noSuchName")))

    assert "dra.net/rdmaPortGuid" in fitted.kept
    assert "dra.net/sriovVfIndex" in fitted.left_out  # the last that has a place without it
    assert len(fitted.kept) == 32


def test_what_selectors_need_stays_whatever_the_operator_adds_and_prefers() -> None:
    crowded = knowing(*Stability, own=40)
    preferred = tuple(f"example.com/own{i:02}" for i in (39, 38))
    fitted = fit_attributes(crowded, Policy(prefer_attributes=preferred))

    own = sorted(name for name in fitted.kept if name.startswith("example.com/"))
    assert fitted.kept.keys() >= a.ESSENTIAL_NAMES
    assert own == [f"example.com/own{i:02}" for i in (*range(22), 38, 39)]


def test_a_list_counts_its_items() -> None:
    numa = a.STANDARD_NUMA_NODE.qualified
    full = replace(EVERYTHING, attributes={**EVERYTHING.attributes, numa: tuple(range(16))})
    fitted = fit_attributes(full, LISTS)
    size = sum(len(value) if isinstance(value, tuple) else 1 for value in fitted.kept.values())

    assert (fitted.kept[numa], size) == (tuple(range(16)), 47)
    assert len(fitted.kept) == 32


def test_a_list_that_is_too_long_does_not_push_out_what_comes_after_it() -> None:
    long = replace(EVERYTHING, attributes={**EVERYTHING.attributes, "example.com/own00": tuple(range(60))})
    fitted = fit_attributes(long, LISTS)

    assert fitted.left_out["example.com/own00"] == NO_ROOM
    assert len(fitted.kept) == 32


@pytest.mark.parametrize("count", [32, 48])
def test_a_device_within_both_limits_loses_nothing(count: int) -> None:
    items = count - 31
    attributes: dict[str, AttributeValue] = {f"example.com/a{i}": i for i in range(31)}
    crowded = Device("eth0", DeviceKind.NIC, attributes | {"example.com/list": tuple(range(items))})

    assert fit_attributes(crowded, LISTS).left_out == {}


def test_without_the_setting_a_recorded_numa_list_is_published_as_its_first_node() -> None:
    numa = a.STANDARD_NUMA_NODE.qualified
    recorded = Device("eth0", DeviceKind.NIC, {numa: (1, 0), "example.com/rails": (1, 2)})

    fitted = fit_attributes(recorded)
    assert fitted.kept == {numa: 1}
    assert fitted.left_out == {"example.com/rails": "is a list, and the setting list_attributes is off"}
    assert fit_attributes(recorded, LISTS).kept == recorded.attributes


def test_bad_values_and_names_are_left_out_and_long_ones_cut() -> None:
    odd = Device(
        "eth0",
        DeviceKind.NIC,
        {"example.com/a": "bad\udcff", "example.com/b": 2**70, "no name": 1, "example.com/c": "ü" * 40},
        left_out={"dra.net/alias": "is no text"},
    )
    fitted = fit_attributes(odd)

    assert fitted.kept == {"example.com/c": "ü" * 32}
    assert fitted.left_out == {
        "dra.net/alias": "is no text",
        "example.com/a": "is no text (bytes that are not UTF-8)",
        "example.com/b": "does not fit into 64 bits",
        "no name": "is no attribute name that Kubernetes takes",
    }


def test_one_line_tells_what_a_device_lost() -> None:
    odd = Device("eth0", DeviceKind.NIC, {"example.com/a": "\udcff"}, left_out={"dra.net/mac": "is odd"})

    (line,) = plan_slices([odd, device("eth1", mtu=1500)]).losses
    head, text = "is published without some attributes:", "is no text (bytes that are not UTF-8)"
    assert line == f"device eth0 {head} dra.net/mac is odd; example.com/a {text}"


def test_to_know_more_than_a_slice_takes_is_no_loss() -> None:
    plan = plan_slices([EVERYTHING, device("eth1", mtu=1500)])

    assert plan.losses == ()
    others = [entry.qualified for entry in a.CATALOGUE if not entry.may_be_set]
    assert plan.crowded == {"eth0": tuple(sorted(others[26:]))}


def test_what_the_operator_added_or_prefers_is_missed_where_there_is_no_room() -> None:
    preferred = [entry.name for entry in a.CATALOGUE if entry.qualified not in a.ESSENTIAL_NAMES]
    plan = plan_slices([knowing(*Stability, own=25)], Policy(prefer_attributes=tuple(preferred[:1])))

    (line,) = plan.losses
    assert line.endswith(f": there is no room for dra.net/{preferred[0]}, example.com/own24")
    assert not {f"dra.net/{preferred[0]}", "example.com/own24"} & set(plan.crowded["eth0"])


def test_an_odd_name_or_one_that_is_taken_hides_that_device_alone() -> None:
    names = ["eth0", "Eth1", "eth0", "", "x" * 64, "eth2"]
    plan = plan_slices([device(name) for name in names])

    assert [published.name for published in plan.pages[0]] == ["eth0", "eth2"]
    assert plan.losses == (
        "device 'Eth1' is left out: its name is no DNS label of at most 63 characters",
        "device 'eth0' is left out: another device has the same name",
        "device '' is left out: its name is no DNS label of at most 63 characters",
        f"device {'x' * 64!r} is left out: its name is no DNS label of at most 63 characters",
    )


@settings(deadline=None)
@given(count=st.integers(0, 600), lists=st.booleans(), taints=st.booleans())
def test_pages_keep_every_device_in_order_and_within_the_limit(
    count: int, *, lists: bool, taints: bool
) -> None:
    devices = [Device(f"d{i}", DeviceKind.NIC) for i in range(count)]
    limit = 64 if lists or taints else 128
    pages = build_slices(devices, Policy(list_attributes=lists, taints=taints))

    assert [device for page in pages for device in page] == devices
    assert max(map(len, pages)) <= limit
    assert len(pages) == max(1, -(-count // limit))


def test_the_device_of_a_page_carries_what_was_kept() -> None:
    ((published,),) = build_slices([EVERYTHING])

    assert published.attributes == fit_attributes(EVERYTHING).kept
    assert published.ifname == EVERYTHING.ifname
