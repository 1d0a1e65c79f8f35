"""Links inside pods, told by the kernel in each pod's namespace; ``ip`` makes them and takes them away."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from dranet.kernel.counters import CountedLink
from dranet.kernel.namespaces import pod_links as podlinks
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.netlink.rtnl import IFF_UP, set_link_request
from dranet.kernel.netlink.socket import open_notifications
from dranet.model.health import CARRIER_LOSSES
from tests.kernel.plans import list_descriptors
from tests.support.namespaces import Namespace
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.kernel

DEADLINE = 30.0
POD = "pod-uid"


class Followed:
    """What is followed, and what was told of it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.news = asyncio.Event()
        self.links = PodLinks(self._note)

    def _note(self, pod_uid: str) -> None:
        self.told.append(pod_uid)
        self.news.set()

    def find(self, ifname: str, pod_uid: str = POD) -> CountedLink | None:
        return next((seen for seen in self.links.get_links(pod_uid) if seen.link.ifname == ifname), None)

    def find_index(self, ifname: str) -> int:
        seen = self.find(ifname)
        assert seen is not None
        return seen.link.ifindex

    def has_carrier(self, ifname: str) -> bool:
        seen = self.find(ifname)
        return seen is not None and seen.link.carrier

    async def wait(self, condition: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.news.clear()
                await self.news.wait()
        assert condition(), what


@asynccontextmanager
async def following(*pods: tuple[str, Namespace]) -> AsyncIterator[Followed]:
    followed = Followed()
    for uid, pod in pods:
        followed.links.follow(uid, pod.netns)
    try:
        yield followed
    finally:
        followed.links.close()


@pytest.fixture
def nic(node: Namespace, pod: Namespace) -> Namespace:
    """The pod that has got eth1 of the node; its far end p-eth1 is in the fabric."""
    node.ip("link", "set", "eth1", "netns", pod.name)
    pod.ip("link", "set", "eth1", "up")
    return pod


async def run(function: Callable[..., None], *arguments: str) -> None:
    await asyncio.to_thread(function, *arguments)


def note_looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the loop looked at what the kernel had to say."""
    looks: list[float] = []
    drain = podlinks._drain

    def note(sock: socket.socket) -> tuple[Iterable[bytes], bool]:
        looks.append(time.monotonic())
        return drain(sock)

    monkeypatch.setattr(podlinks, "_drain", note)
    return looks


async def wait_descriptors(before: set[tuple[str, str]]) -> None:
    await until(lambda: list_descriptors() <= before, "no descriptor is left open")


async def test_the_state_at_the_beginning_is_read_without_any_change(nic: Namespace) -> None:
    async with following((POD, nic)) as followed:
        assert followed.links.get_links(POD) == ()
        await followed.wait(lambda: followed.has_carrier("eth1"), "the first answer")
        seen = followed.find("eth1")
        assert seen is not None
        assert seen.link.is_up
        assert {"rx_errors", "rx_crc_errors", "tx_errors", CARRIER_LOSSES} <= seen.counters.keys()
        assert {link.link.ifname for link in followed.links.get_links(POD)} >= {"lo", "eth0", "eth1"}


async def test_a_lost_carrier_in_the_pod_is_told_and_so_is_its_return(
    nic: Namespace, fabric: Namespace
) -> None:
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        before = followed.find("eth1")
        await run(fabric.ip, "link", "set", "p-eth1", "down")
        await followed.wait(lambda: not followed.has_carrier("eth1"), "down")
        after = followed.find("eth1")
        assert before is not None
        assert after is not None
        assert after.link.is_up, "nobody switched it off"
        assert after.counters[CARRIER_LOSSES] == before.counters[CARRIER_LOSSES] + 1
        await run(fabric.ip, "link", "set", "p-eth1", "up")
        await followed.wait(lambda: followed.has_carrier("eth1"), "up again")
        assert set(followed.told) == {POD}


async def test_a_link_that_leaves_the_pod_is_gone(nic: Namespace) -> None:
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        await run(nic.ip, "link", "del", "eth1")
        await followed.wait(lambda: followed.find("eth1") is None, "gone")


async def test_pods_are_told_apart(nic: Namespace, make_namespace: Callable[..., Namespace]) -> None:
    other = make_namespace()
    other.ip_lines("link add eth1 type veth peer name far\nlink set eth1 up\n")
    async with following((POD, nic), ("other", other)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "one")
        await followed.wait(lambda: followed.find("eth1", "other") is not None, "the other")
        seen = followed.find("eth1", "other")
        assert seen is not None
        assert not seen.link.carrier, "its far end is down"


async def test_nothing_wakes_up_while_nothing_changes(
    nic: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        await followed.wait(
            lambda: {seen.link.operstate for seen in followed.links.get_links(POD)} <= {"up", "unknown"},
            "the kernel has told each carrier, which it does late",
        )
        looks = note_looks(monkeypatch)
        told = len(followed.told)
        async with asyncio.timeout(DEADLINE):
            while not looks:  # the same question as at a rescan: it is heard, so silence would be as well
                followed.links.ask_again()
                await asyncio.sleep(podlinks.SETTLE_SECONDS)
        looks.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5 * podlinks.SETTLE_SECONDS):
                await asyncio.Event().wait()
        assert looks == []
        assert len(followed.told) == told


async def test_a_storm_in_one_pod_costs_a_few_looks_and_ends_in_the_truth(
    nic: Namespace, fabric: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = note_looks(monkeypatch)
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        looks.clear()
        begin = time.monotonic()
        await run(nic.ip_lines, "link set eth0 mtu 1400\nlink set eth0 mtu 1500\n" * 2000)
        await run(fabric.ip, "link", "set", "p-eth1", "down")
        await followed.wait(lambda: not followed.has_carrier("eth1"), "the truth about the NIC")
        assert len(looks) <= (time.monotonic() - begin) / podlinks.SETTLE_SECONDS + 2


async def test_a_pod_cannot_fill_our_memory_with_links(
    nic: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podlinks, "MOST_LINKS", 6)
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        await run(nic.ip_lines, "".join(f"link add x{number} type veth\n" for number in range(20)))
        await run(nic.ip, "link", "set", "eth0", "mtu", "1400")
        await followed.wait(
            lambda: (seen := followed.find("eth0")) is not None and seen.link.mtu == 1400, "mtu"
        )
        assert len(followed.links.get_links(POD)) == 6
        assert followed.has_carrier("eth1"), "what was there first stays"


async def test_a_link_with_an_odd_name_hides_no_other(nic: Namespace, fabric: Namespace) -> None:
    """The kernel takes almost any bytes for a name, and tells of several links in one datagram."""
    nic.ip(
        "link",
        "add",
        "index",
        "99",
        "name",
        "odd\udcff",
        "type",
        "veth",
        "peer",
        "name",
        "later",
        "index",
        "100",
    )
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.find("later") is not None, "the link behind it")
        await run(fabric.ip, "link", "set", "p-eth1", "down")
        await followed.wait(lambda: not followed.has_carrier("eth1"), "a later change")
        followed.links.ask_again()
        pod = followed.links._followed[POD]
        await until(lambda: pod._unseen is None, "the answer ends, so that it can be asked again")


async def test_a_pod_that_changes_its_links_all_the_time_is_looked_at_ever_less_often(
    nic: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look may end in a new status of the pod."""
    monkeypatch.setattr(podlinks, "STORM_SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(podlinks, "SETTLE_SECONDS", 0.03)
    looks = note_looks(monkeypatch)
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        looks.clear()
        begin = time.monotonic()
        with nic.netns.open_netlink() as rtnl:
            index = followed.find_index("eth1")
            while time.monotonic() - begin < 2:
                for flags in (0, IFF_UP):
                    rtnl.request(set_link_request(index, flags=flags, change=IFF_UP, operation="", link=""))
                await asyncio.sleep(0.02)
        took = time.monotonic() - begin
        # After a pause of the machine, or of the kernel's changes, it begins anew.
        calms = sum(later - earlier > 2 * 0.3 for earlier, later in pairwise((begin, *looks)))
        assert len(looks) <= (1 + calms) * podlinks.LOOKS_IN_A_ROW + took / 0.3 + 1


async def test_lost_notifications_are_made_up_for(nic: Namespace, fabric: Namespace) -> None:
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        pod = followed.links._followed[POD]
        assert pod._sock is not None
        pod._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel makes it some 2 KiB
        await run(fabric.ip, "link", "set", "p-eth1", "down")
        flips = "link set eth0 mtu 1400\nlink set eth0 mtu 1500\n" * 20
        await run(nic.ip_lines, flips + "link del eth0\n")
        await followed.wait(lambda: followed.find("eth0") is None, "what is gone is gone")
        await followed.wait(lambda: not followed.has_carrier("eth1"), "and what is down is down")


async def test_what_a_process_of_the_pod_sends_is_not_believed(nic: Namespace) -> None:
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        sock = followed.links._followed[POD]._sock
        assert sock is not None
        port = sock.getsockname()[0]

        def lie() -> None:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as liar:
                seen = followed.find("eth1")
                assert seen is not None
                body = b"\0\0\1\0" + seen.link.ifindex.to_bytes(4, "little") + bytes(8)
                header = (16 + len(body)).to_bytes(4, "little") + (17).to_bytes(2, "little") + bytes(10)
                liar.sendto(header + body, (port, 0))

        await asyncio.to_thread(nic.run, lie)
        await run(nic.ip, "link", "set", "eth0", "mtu", "1400")
        await followed.wait(
            lambda: (seen := followed.find("eth0")) is not None and seen.link.mtu == 1400, "mtu"
        )
        assert followed.has_carrier("eth1")


async def test_follow_and_forget_return_at_once_from_any_thread(nic: Namespace) -> None:
    async with following() as followed:

        def hook() -> None:
            for _ in range(20):
                followed.links.follow(POD, nic.netns)
                followed.links.forget("nobody")

        thread = threading.Thread(target=hook)
        thread.start()
        thread.join(SECONDS)  # the loop does nothing meanwhile, and they do not wait for it
        assert not thread.is_alive()
        await followed.wait(lambda: followed.has_carrier("eth1"), "followed")


async def test_a_namespace_that_cannot_be_followed_harms_nobody(nic: Namespace) -> None:
    with NetworkNamespace.open(nic.path) as closed:
        pass
    async with following((POD, nic)) as followed:
        followed.links.follow("other", closed)
        await followed.wait(lambda: followed.has_carrier("eth1"), "the other pod is followed")
        assert followed.links.pods == (POD,)


async def test_descriptors_are_given_back_however_often_pods_come_and_go(nic: Namespace) -> None:
    async with following() as followed:
        await asyncio.to_thread(lambda: None)  # the worker has its own
        before = list_descriptors()
        for number in range(20):
            followed.links.follow(POD, nic.netns)
            if number % 3 == 0:
                await followed.wait(lambda: followed.has_carrier("eth1"), "up")
            elif number % 3 == 1:
                await asyncio.sleep(0)
            followed.links.forget(POD)
            await asyncio.sleep(0)
            followed.news.clear()
        await wait_descriptors(before)
        assert followed.links.pods == ()


async def test_the_same_namespace_again_is_no_news_and_another_one_replaces_it(
    nic: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        before = list_descriptors()
        with NetworkNamespace.open(nic.path) as again:
            followed.links.follow(POD, again)
        await wait_descriptors(before)
        assert followed.has_carrier("eth1")
        second = make_namespace()
        followed.links.follow(POD, second.netns)
        await followed.wait(
            lambda: [s.link.ifname for s in followed.links.get_links(POD)] == ["lo"], "second"
        )


async def test_a_pods_namespace_ends_once_it_is_forgotten(
    fabric: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    """A socket keeps its namespace alive, and with it whatever lies in there."""
    pod = make_namespace()
    fabric.ip("link", "add", "p-last", "type", "veth", "peer", "name", "last", "netns", pod.name)
    async with following((POD, pod)) as followed:
        await followed.wait(lambda: followed.find("last") is not None, "seen")
        await asyncio.to_thread(pod.delete)
        followed.links.forget(POD)
        await until(lambda: "p-last" not in {link["ifname"] for link in fabric.read("link")}, "it ended")


async def test_a_visit_runs_in_the_pods_namespace(nic: Namespace) -> None:
    async with following((POD, nic)) as followed:
        await followed.wait(lambda: followed.has_carrier("eth1"), "up")
        names = await followed.links.visit(POD, lambda: {name for _, name in socket.if_nameindex()})
        assert names is not None
        assert {"eth0", "eth1"} <= names
        assert await followed.links.visit("nobody", lambda: 1) is None


def test_after_the_loop_has_ended_nothing_is_followed_and_nothing_leaks(nic: Namespace) -> None:
    async def make() -> PodLinks:
        return PodLinks(lambda _: None)

    links = asyncio.run(make())
    before = list_descriptors()
    links.follow(POD, nic.netns)
    links.forget(POD)
    assert list_descriptors() <= before


async def test_a_loop_that_ends_while_a_socket_is_opened_leaves_neither_it_nor_the_namespace(
    pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled task hears no more of its thread."""
    enter, opened = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def open_late(protocol: int, *groups: int) -> socket.socket:
        assert enter.wait(DEADLINE)
        return open_notifications(protocol, *groups)

    monkeypatch.setattr(podlinks, "open_notifications", open_late)
    monkeypatch.setattr(
        podlinks._FollowedPod, "_release", _then(podlinks._FollowedPod._release, loop, opened)
    )
    before = list_descriptors()
    async with following((POD, pod)) as followed:
        await asyncio.sleep(0)
        (task,) = followed.links._opening
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list_descriptors() > before, "the thread needs the namespace"
    enter.set()
    async with asyncio.timeout(DEADLINE):
        await opened.wait()
    assert list_descriptors() == before


def _then(
    release: Callable[[podlinks._FollowedPod], None], loop: asyncio.AbstractEventLoop, done: asyncio.Event
) -> Callable[[podlinks._FollowedPod], None]:
    def released(pod: podlinks._FollowedPod) -> None:
        release(pod)
        loop.call_soon_threadsafe(done.set)

    return released
