"""Links that the kernel pins to their network namespace.

Since Linux 6.15 a link says so itself. The machine lane has a kernel before that, and shows that its answer
is taken; here it is shown that asking changes nothing and happens once for each link.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.kernel.discovery import scan
from dranet.kernel.discovery.scan import NodeScanner, read_pins
from dranet.kernel.discovery.watch import Changes
from dranet.kernel.netlink.rtnl import parse_link
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.facts import Link, NodeFacts
from tests.support.namespaces import Namespace

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


def test_to_ask_the_kernel_changes_nothing(node: Namespace) -> None:
    node.ip_lines("link add br0 type bridge\nlink add mv0 link eth1 type macvlan\nlink set mv0 up\n")
    before = node.picture()
    indexes = {entry["ifname"]: entry["ifindex"] for entry in node.read_raw("link")}

    def ask() -> frozenset[int] | None:
        with NetlinkSocket.open() as rtnl:
            return read_pins(rtnl, [*indexes.values(), 9999])

    told = node.run(ask)
    assert node.picture() == before
    assert told is None or told == {indexes["lo"], indexes["br0"]}  # by the version of the kernel


@pytest.mark.parametrize("tells", [True, False])
def test_where_links_do_not_say_it_the_kernel_is_asked_once_for_each(
    node: Namespace, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    asked: list[list[int]] = []
    node.ip_lines("link add br0 type bridge\nlink add mv0 link eth1 type macvlan\n")
    indexes = {entry["ifname"]: entry["ifindex"] for entry in node.read_raw("link")}

    def read(_: NetlinkSocket, ifindexes: Collection[int]) -> frozenset[int] | None:
        asked.append(sorted(ifindexes))
        return frozenset({1, indexes["mv0"]}) if tells else None

    monkeypatch.setattr(scan, "reports_netns_immutable", lambda _: False)
    monkeypatch.setattr(scan, "parse_link", _without_immutable(parse_link))
    monkeypatch.setattr(scan, "read_pins", read)
    scanner = NodeScanner(NOWHERE, NOWHERE)
    expected = {"mv0"} if tells else {"br0"}
    assert pinned(node.run(scanner.read)) == expected
    assert pinned(node.run(scanner.read)) == expected
    changes = Changes(links=frozenset({indexes["mv0"]}))
    assert pinned(node.run(lambda: scanner.read(changes))) == expected
    assert asked == [sorted([indexes["br0"], indexes["mv0"]]), [], [indexes["mv0"]]]


def test_a_card_with_an_embedded_switch_may_be_pinned_where_the_kernel_does_not_tell() -> None:
    card = Link(2, "enp1s0f0np0", phys_switch_id="b8599f0300c1", phys_port_name="p0")
    assert scan._may_be_pinned(card)
    assert not scan._may_be_pinned(replace(card, phys_switch_id=""))


def _without_immutable(parse: Callable[..., Link]) -> Callable[..., Link]:
    return lambda *arguments, **named: replace(parse(*arguments, **named), netns_immutable=False)
