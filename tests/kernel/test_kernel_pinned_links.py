"""Links that the kernel pins to their network namespace: read from netlink, before Linux 6.15 from ethtool.

A bridge is such a link on every kernel. The machine lane has a kernel before 6.15 and shows that the word of
ethtool is read; here it is shown that ethtool is asked only for links that are new or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.kernel.discovery import linktable
from dranet.kernel.discovery.changes import Changes
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.rtnl import parse_link
from dranet.model.facts import Link, NodeFacts
from tests.namespaces import Namespace

pytestmark = pytest.mark.kernel

NOWHERE = Path("/nonexistent")
BRIDGES = Policy(offer_link_kinds=frozenset({"bridge"}))


def pinned(facts: NodeFacts) -> set[str]:
    return {link.ifname for link in facts.links if link.netns_immutable} - {"lo"}


def test_a_pinned_link_is_not_offered_even_where_its_kind_is(node: Namespace) -> None:
    node.ip_lines("link add br0 type bridge\nlink set br0 up\n")
    facts = node.run(NodeScanner(NOWHERE, NOWHERE).read)
    assert pinned(facts) == {"br0"}
    (decision,) = [d for d in take_inventory(facts, {}, BRIDGES) if d.device.ifname == "br0"]
    assert not decision.published
    assert decision.reason == (
        "cannot move into a pod: the kernel pins br0 to the node's network namespace; "
        "shared_devices may offer it as the parent of links on top"
    )
    card = replace(next(link for link in facts.links if link.ifname == "br0"), kind="", virtual=False)
    for is_pinned in (True, False):  # as the physical function in switchdev mode is
        links = (replace(card, netns_immutable=is_pinned),)
        (decision,) = take_inventory(replace(facts, links=links, default_routes=()), {})
        assert decision.published is not is_pinned


def test_where_netlink_does_not_say_it_ethtool_is_asked_once_for_each_link(
    node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    indexes = {}

    def read(ifindexes: set[int], _: list[str]) -> frozenset[int]:
        asked.append(set(ifindexes))
        return frozenset(ifindexes & set(indexes.values()))

    def index_of(name: str) -> int:
        return int(node.read_raw("link", "show", name)[0]["ifindex"])

    monkeypatch.setattr(linktable, "tells_netns_immutable", lambda _: False)
    monkeypatch.setattr(linktable, "parse_link", _without_immutable(parse_link))
    monkeypatch.setattr(linktable, "read_netns_local", read)
    node.ip_lines("link add br0 type bridge\nlink add mv0 link eth1 type macvlan\n")
    indexes["br0"] = index_of("br0")
    scanner = NodeScanner(NOWHERE, NOWHERE)
    assert pinned(node.run(scanner.read)) == {"br0"}
    assert pinned(node.run(scanner.read)) == {"br0"}
    indexes["mv0"] = index_of("mv0")
    changes = Changes(links=frozenset({indexes["mv0"]}))
    assert pinned(node.run(lambda: scanner.read(changes))) == {"br0", "mv0"}
    assert asked == [{indexes["br0"], indexes["mv0"]}, set(), {indexes["mv0"]}]


def _without_immutable(parse: Callable[..., Link]) -> Callable[..., Link]:
    return lambda *arguments, **named: replace(parse(*arguments, **named), netns_immutable=False)
