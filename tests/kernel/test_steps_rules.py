"""The codec of policy rules and of routes with several ways: what the kernel says, and noise."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import KernelError
from dranet.kernel.netlink.inet import Hop, add_route_request, parse_hops
from dranet.kernel.netlink.rtnl import (
    add_rule_request,
    canonical_rule,
    decode,
    decode_all,
    dump_rules_request,
    parse_rule,
)
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.facts import Route
from dranet.model.plan import AddRule
from tests.support.namespaces import Namespace

U32 = st.integers(0, 2**32 - 1)
PREFIXES: Mapping[int, st.SearchStrategy[str]] = {
    4: st.ip_addresses(v=4).flatmap(lambda ip: st.just(f"{ip}/32") | st.just("10.0.0.0/8") | st.just("")),
    6: st.ip_addresses(v=6).flatmap(lambda ip: st.just(f"{ip}/128") | st.just("fd00::/8") | st.just("::/0")),
}
NAMES = st.sampled_from(["", "net1", "rail-0.100"])


@st.composite
def rules(draw: st.DrawFn) -> AddRule:
    family = draw(st.sampled_from([4, 6]))
    mark = draw(st.none() | U32)
    return AddRule(
        family=4 if family == 4 else 6,
        table=draw(U32),
        priority=draw(U32),
        source=draw(PREFIXES[family]),
        destination=draw(PREFIXES[family]),
        mark=mark,
        mask=draw(st.none() | U32) if mark is not None else None,
        input_interface=draw(NAMES),
        output_interface=draw(NAMES),
    )


@given(rules())
def test_what_is_written_is_what_is_read(rule: AddRule) -> None:
    assert parse_rule(add_rule_request(rule, "net1").body) == canonical_rule(rule)


@given(rules())
def test_the_canonical_spelling_is_stable(rule: AddRule) -> None:
    once = canonical_rule(rule)
    assert canonical_rule(once) == once


@given(st.binary(max_size=120), rules())
def test_hostile_bytes_are_an_error_or_no_rule_of_ours(noise: bytes, rule: AddRule) -> None:
    for payload in (noise, add_rule_request(rule, "").body + noise, add_rule_request(rule, "").body[:-3]):
        try:
            found = decode(parse_rule, payload)
        except KernelError:
            continue
        assert found is None or isinstance(found, AddRule)


FOREIGN = (
    "from 10.0.0.0/8 goto 300",
    "from all blackhole",
    "from all tos 0x10 lookup 7",
    "not from all lookup 7",
    "from all ipproto tcp dport 80 lookup 7",
    "from all lookup main suppress_prefixlength 0",
    "from all uidrange 0-5 lookup 7",
)


@pytest.mark.kernel
def test_rules_that_no_claim_can_ask_for_are_told_apart(pod: Namespace) -> None:
    def read() -> list[AddRule]:
        with NetlinkSocket.open() as rtnl:
            return decode_all(parse_rule, rtnl.dump(dump_rules_request(4)), [])

    pod.ip("rule", "add", "from", "all", "lookup", "9", "priority", "300")
    before = pod.run(read)
    assert AddRule(4, 9, 300) in before
    for text in FOREIGN:
        pod.ip("rule", "add", *text.split())
        assert pod.run(read) == before, text


@given(
    st.lists(
        st.builds(
            Hop,
            st.integers(1, 2**31 - 1),
            st.ip_addresses(v=4).map(str)
            | st.ip_addresses(v=6).map(lambda ip: f"fe80::1:{int(ip) & 0xFFFF:x}"),
            st.integers(1, 256),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_ways_of_a_route_are_read_as_they_were_written(hops: list[Hop]) -> None:
    body = add_route_request(0, Route("10.9.0.0/16"), "net1", hops).body
    assert parse_hops(body) == tuple(hops)


@given(st.binary(max_size=120))
def test_hostile_bytes_are_an_error_or_ways(noise: bytes) -> None:
    body = add_route_request(0, Route("10.9.0.0/16"), "net1", [Hop(1, "10.0.0.1")]).body
    for payload in (noise, body + noise, body[: len(body) - len(noise) % 30]):
        try:
            found = decode(parse_hops, payload)
        except KernelError:
            continue
        assert all(isinstance(hop, Hop) for hop in found)
