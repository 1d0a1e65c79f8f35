"""A kernel before Linux 6.15 says only by ethtool which links it pins to their namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.kernel.discovery.ethtool import read_netns_local
from dranet.kernel.discovery.scan import NodeScanner
from tests.namespaces import Namespace

pytestmark = pytest.mark.machine


def test_the_links_that_the_kernel_refuses_to_move_are_known(node: Namespace, pod: Namespace) -> None:
    node.ip_lines("link add br0 type bridge\nlink add bond9 type bond\nlink add dummy9 type dummy\n")
    facts = node.run(NodeScanner(Path("/sys"), Path("/proc")).read)
    warnings: list[str] = []
    known = node.run(lambda: read_netns_local([link.ifindex for link in facts.links], warnings))
    names = {link.ifindex: link.ifname for link in facts.links}
    assert {names[index] for index in known} == {"lo", "br0", "bond9"}
    assert {link.ifname for link in facts.links if link.netns_immutable} - {"lo"} == {"br0", "bond9"}
    assert not warnings
    for name in ("br0", "bond9"):
        with pytest.raises(AssertionError, match="Invalid argument"):
            node.ip("link", "set", name, "netns", pod.name)
    node.ip("link", "set", "dummy9", "netns", pod.name)
