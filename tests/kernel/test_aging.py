"""What is left of a recorded link state after some time in a pod: any addresses, any routes."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.kernel.attachment.restore import age_state
from dranet.model.facts import Address, Route
from dranet.model.plan import LinkState

STATE = LinkState(5, "eth1", "02:00:00:00:00:01", 1500, up=True, read_at=1000.5)

seconds = st.none() | st.integers(1, 100)
numbers = st.integers(1, 6)


@st.composite
def states(draw: st.DrawFn) -> LinkState:
    """Addresses of few subnets, and routes that are about them."""
    addresses = tuple(
        Address(f"10.{subnet}.0.5/24" if version == 4 else f"fd0{subnet}::5/64", valid_seconds=left)
        for (version, subnet), left in draw(
            st.dictionaries(st.tuples(st.sampled_from((4, 6)), numbers), seconds, max_size=6)
        ).items()
    )
    routes = tuple(
        Route(
            f"192.168.{place}.0/24" if version == 4 else f"fd77:{place}::/48",
            gateway=(f"10.{near}.0.1" if version == 4 else f"fd0{near}::1") if near else "",
            source=(f"10.{source}.0.5" if version == 4 else f"fd0{source}::5") if source else "",
            protocol=protocol,
            table=table,
        )
        for place, (version, near, source, protocol, table) in enumerate(
            draw(
                st.lists(
                    st.tuples(
                        st.sampled_from((4, 6)),
                        st.integers(0, 6),
                        st.integers(0, 6),
                        st.sampled_from((2, 3, 4, 9, 16)),
                        st.sampled_from((254, 100)),
                    ),
                    max_size=6,
                )
            )
        )
    )
    return replace(STATE, addresses=addresses, routes=routes)


@given(states(), st.integers(0, 150))
def test_what_is_left_has_time_left_and_stands_by_itself(state: LinkState, elapsed: int) -> None:
    aged = age_state(state, 1000.5 + elapsed)

    before = {address.cidr: address.valid_seconds for address in state.addresses}
    after = {address.cidr: address.valid_seconds for address in aged.addresses}
    assert after == {
        cidr: left and left - elapsed for cidr, left in before.items() if left is None or left > elapsed
    }
    gone = [ip_interface(cidr) for cidr in before.keys() - after.keys()]
    for route in state.routes:
        is_kept = route in aged.routes
        needs_gone = route.source and any(ip_address(route.source) == address.ip for address in gone)
        is_out_of_reach = route.gateway and any(ip_address(route.gateway) in a.network for a in gone)
        assert is_kept is not (bool(needs_gone or is_out_of_reach) or route.protocol == 9)
    assert replace(aged, addresses=(), routes=()) == replace(state, addresses=(), routes=())


@given(states(), st.integers(0, 150))
def test_a_record_that_does_not_say_when_it_was_read_keeps_its_lifetimes(state: LinkState, now: int) -> None:
    aged = age_state(replace(state, read_at=None), now)
    assert aged.addresses == state.addresses


def test_a_clock_before_the_reading_adds_nothing() -> None:
    state = replace(STATE, addresses=(Address("10.1.0.5/24", valid_seconds=60, preferred_seconds=30),))
    assert age_state(state, 10).addresses == state.addresses


def test_a_gateway_that_another_address_or_route_reaches_still_stands() -> None:
    routes = (
        Route("0.0.0.0/0", gateway="10.1.0.1", table=100),
        Route("10.8.0.0/16", gateway="10.2.0.1"),
        Route("10.2.0.1/32", scope=253),
        Route("10.9.0.0/16", gateway="10.3.0.1", flags=4),
    )
    addresses = (
        Address("10.1.0.5/24", valid_seconds=1),
        Address("10.1.0.6/24"),
        Address("10.2.0.5/24", valid_seconds=1),
        Address("10.3.0.5/24", valid_seconds=1),
    )
    assert age_state(replace(STATE, addresses=addresses, routes=routes), 2000).routes == routes
