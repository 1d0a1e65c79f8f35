"""The two sides of an attach: a thread that stays in the pod's namespace, and what lives there."""

from __future__ import annotations

import threading

import pytest

from dranet.errors import KernelError
from dranet.kernel.attachment.links import open_host_side, open_pod_side, read_link
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.socket import resolve_family
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel


def test_one_thread_stays_inside_for_all_calls(pod: Namespace) -> None:
    with NetworkNamespace.current() as here, pod.netns.enter() as visit:
        threads = {visit.run(threading.get_ident) for _ in range(3)}
        assert len(threads) == 1
        assert threads != {threading.get_ident()}
        with visit.run(NetworkNamespace.current) as inside:
            assert inside == pod.netns != here
        with NetworkNamespace.current() as still:
            assert still == here


def test_what_a_call_raises_reaches_the_caller_and_the_thread_stays(pod: Namespace) -> None:
    with pod.netns.enter() as visit:
        with pytest.raises(ZeroDivisionError):
            visit.run(lambda: 1 // 0)
        assert visit.run(lambda: 7) == 7


def test_a_call_may_call_again(pod: Namespace) -> None:
    with pod.netns.enter() as visit:
        assert visit.run(lambda: visit.run(lambda: 7)) == 7


def test_the_thread_ends_with_the_visit(pod: Namespace) -> None:
    before = set(threading.enumerate())  # of which others may end at any time
    with pod.netns.enter() as visit:
        assert len(set(threading.enumerate()) - before) == 1
        visit.run(lambda: None)
    assert set(threading.enumerate()) <= before


def test_a_namespace_that_cannot_be_entered_leaves_no_thread(pod: Namespace) -> None:
    before = set(threading.enumerate())
    closed = NetworkNamespace.from_fd(pod.netns.fileno())
    closed.close()
    calls: list[int] = []
    with closed.enter() as visit:
        for _ in range(2):
            with pytest.raises(KernelError, match="enter network namespace"):
                visit.run(lambda: calls.append(1))
    assert calls == []
    with pytest.raises(KernelError, match="enter network namespace"), open_pod_side(closed):
        pytest.fail("it was entered")
    assert set(threading.enumerate()) <= before


def test_the_sockets_of_a_side_live_in_its_namespace(node: Namespace, pod: Namespace) -> None:
    with open_pod_side(pod.netns) as side:
        link = read_link(side.rtnl, ifname="cni0")
        assert link is not None
        assert read_link(side.rtnl, ifname="uplink") is None
        assert resolve_family(side.genl, "nlctrl") == 16
        assert side.genl is side.genl
        with side.run(NetworkNamespace.current) as inside:
            assert inside == pod.netns

    def names_on_the_host_side() -> tuple[bool, bool]:
        with open_host_side() as side:
            here = side.run(threading.get_ident) == threading.get_ident()
            return here, read_link(side.rtnl, ifname="uplink") is not None

    assert node.run(names_on_the_host_side) == (True, True)


def test_a_side_closes_what_it_opened(pod: Namespace) -> None:
    with open_pod_side(pod.netns) as side:
        genl, rtnl = side.genl, side.rtnl
    assert (genl.fileno(), rtnl.fileno()) == (-1, -1)
