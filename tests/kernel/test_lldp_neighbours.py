"""Which neighbour a link has, as time passes, cables move and links go to pods and return."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dranet.kernel.lldp.message import NEAREST_BRIDGE, Message
from dranet.kernel.lldp.neighbours import MAX_ABSENT_LINKS, MAX_NEIGHBOURS_PER_LINK, Neighbours
from dranet.model.facts import LldpNeighbour
from tests.support.lldp_switch import CUSTOMER_BRIDGE

LEAF, OTHER = Message("leaf", "swp1", 120, "leaf-1"), Message("other", "swp9", 120, "leaf-2")
ETH0 = {"eth0": True}


def names(neighbours: Neighbours) -> list[tuple[str, str]]:
    return [(one.ifname, one.system_name) for one in neighbours.shown]


def heard(message: Message = LEAF, now: float = 0.0) -> Neighbours:
    found = Neighbours()
    found.follow(ETH0, now)
    found.hear("eth0", NEAREST_BRIDGE, message, now)
    return found


def test_a_neighbour_is_known_until_its_time_is_over() -> None:
    found = heard()
    assert found.expire(119.0) == 120.0
    assert names(found) == [("eth0", "leaf-1")]
    assert found.expire(120.0) is None
    assert names(found) == []


def test_each_frame_renews_it_and_a_goodbye_ends_it() -> None:
    found = heard()
    found.hear("eth0", NEAREST_BRIDGE, LEAF, 100.0)
    assert found.expire(150.0) == 220.0
    found.hear("eth0", NEAREST_BRIDGE, Message("leaf", "swp1", 0), 150.0)
    assert names(found) == []


def test_a_link_in_a_pod_keeps_its_neighbour_and_has_the_whole_time_again_when_it_returns() -> None:
    found = heard()
    found.follow({}, 10.0)
    assert found.expire(5000.0) is None
    assert names(found) == [("eth0", "leaf-1")]
    found.follow(ETH0, 6000.0)
    assert found.expire(6119.0) == 6120.0
    found.expire(6120.0)
    assert names(found) == []


def test_a_cable_that_was_moved_while_a_pod_had_the_link_shows_at_the_first_frame() -> None:
    found = heard()
    found.follow({}, 10.0)
    found.follow(ETH0, 20.0)
    found.hear("eth0", NEAREST_BRIDGE, OTHER, 21.0)
    assert names(found) == [("eth0", "leaf-2")]


def test_a_cable_that_was_moved_shows_at_the_first_frame_after_the_carrier_was_lost() -> None:
    found = heard()
    found.follow({"eth0": False}, 10.0)
    assert names(found) == [("eth0", "leaf-1")]
    found.follow(ETH0, 11.0)
    found.hear("eth0", NEAREST_BRIDGE, OTHER, 12.0)
    assert names(found) == [("eth0", "leaf-2")]


def test_of_two_nearest_bridges_none_is_shown_and_the_link_is_named() -> None:
    found = heard()
    found.hear("eth0", NEAREST_BRIDGE, OTHER, 1.0)
    assert names(found) == []
    assert found.ambiguous == {"eth0": 2}


def test_the_nearest_bridge_counts_before_one_whose_frames_were_forwarded() -> None:
    found = heard()
    found.hear("eth0", CUSTOMER_BRIDGE, OTHER, 1.0)
    found.hear("eth0", CUSTOMER_BRIDGE, LEAF, 2.0)  # it speaks to several groups
    assert names(found) == [("eth0", "leaf-1")]


def test_frames_of_links_that_are_not_followed_do_not_count() -> None:
    found = heard()
    found.hear("lo", NEAREST_BRIDGE, OTHER, 1.0)
    assert names(found) == [("eth0", "leaf-1")]


def test_the_neighbours_of_an_earlier_run_hold_until_a_frame_or_their_time() -> None:
    known = [LldpNeighbour(ifname, "leaf", "swp1", "leaf-1") for ifname in ("eth0", "in-pod")]
    found = Neighbours(known)
    found.follow(ETH0, 1000.0)
    assert names(found) == [("eth0", "leaf-1"), ("in-pod", "leaf-1")]
    found.expire(1120.0)
    assert names(found) == [("in-pod", "leaf-1")]
    again = Neighbours(known)
    again.follow(ETH0, 0.0)
    again.hear("eth0", NEAREST_BRIDGE, OTHER, 1.0)
    assert names(again) == [("eth0", "leaf-2"), ("in-pod", "leaf-1")]


def test_a_neighbour_that_invents_names_fills_no_memory() -> None:
    found = heard()
    for number in range(1000):
        found.hear("eth0", NEAREST_BRIDGE, Message(f"c{number}", "p", 60000), 1.0)
    assert found.ambiguous == {"eth0": MAX_NEIGHBOURS_PER_LINK}


def test_links_that_come_and_go_fill_no_memory() -> None:
    found = Neighbours()
    for number in range(3 * MAX_ABSENT_LINKS):
        found.follow({f"v{number}": True}, 0.0)
        found.hear(f"v{number}", NEAREST_BRIDGE, LEAF, 0.0)
    assert len(found.shown) == MAX_ABSENT_LINKS + 1


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("here"), st.sets(st.sampled_from(["a", "b"]))),
        st.tuples(st.just("heard"), st.sampled_from(["a", "b"]), st.sampled_from([LEAF, OTHER])),
        st.tuples(st.just("later"), st.integers(1, 200)),
    ),
    max_size=30,
)


@given(EVENTS)
def test_whatever_happens_a_shown_neighbour_was_heard_on_that_link_and_has_time_left(
    events: list[tuple[object, ...]],
) -> None:
    found, now, said, here = Neighbours(), 0.0, dict[str, set[str]](), set[str]()
    for event in events:
        match event:
            case ("here", set() as links):
                here = links
                found.follow(dict.fromkeys(sorted(here), True), now)
            case ("heard", str() as link, Message() as message):
                found.hear(link, NEAREST_BRIDGE, message, now)
                if link in here:
                    said.setdefault(link, set()).add(message.chassis_id)
            case ("later", int() as seconds):
                now += seconds
        deadline = found.expire(now)
        assert deadline is None or deadline > now
        assert all(one.chassis_id in said[one.ifname] for one in found.shown)
        assert deadline is not None or not here & {one.ifname for one in found.shown}
