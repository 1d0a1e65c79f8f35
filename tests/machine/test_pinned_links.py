"""A kernel before Linux 6.15 does not say of its links which it pins to their namespace, but answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.kernel.discovery.scan import NodeScanner
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.machine


def test_the_links_that_the_kernel_refuses_to_move_are_known(node: Namespace, pod: Namespace) -> None:
    node.ip_lines("link add br0 type bridge\nlink add bond9 type bond\nlink add dummy9 type dummy\n")
    before = node.picture()
    facts = node.run(NodeScanner(Path("/sys"), Path("/proc")).read)
    assert {link.ifname for link in facts.links if link.netns_immutable} - {"lo"} == {"br0", "bond9"}
    assert node.picture() == before
    for name in ("br0", "bond9"):
        with pytest.raises(AssertionError, match="Invalid argument"):
            node.ip("link", "set", name, "netns", pod.name)
    node.ip("link", "set", "dummy9", "netns", pod.name)
