"""The watch sees what a scan would show, gathers bursts, and keeps quiet about the rest."""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import selectors
import socket
from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dranet.errors import KernelError
from dranet.kernel.discovery import watch as watch_module
from dranet.kernel.discovery.watch import EVERYTHING, ChangeFilter, Changes, ChangeWatch, Patience
from dranet.kernel.netlink.inet import add_address_request
from dranet.kernel.netlink.rtnl import RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE
from dranet.model.facts import Address
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

T = TypeVar("T")
Scenario = Callable[[ChangeWatch], Coroutine[Any, Any, None]]


def watch_in(
    namespace: Namespace, scenario: Scenario, run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
) -> None:
    """Run a scenario with a watch, on a loop of its own inside the namespace."""

    async def whole() -> None:
        async with ChangeWatch() as watch:
            await scenario(watch)

    namespace.run(lambda: run(whole()))


async def changed_within(watch: ChangeWatch, seconds: float) -> Changes:
    try:
        return await asyncio.wait_for(watch.wait_changed(), seconds)
    except TimeoutError:
        return Changes()


async def settle(watch: ChangeWatch) -> None:
    """Until the kernel has said all of the new links: it tells a carrier up to a second late. What came and
    was not told when the time was over is waited for, too."""
    while await changed_within(watch, 1.5) or watch._pending:
        pass


async def ip(namespace: Namespace, text: str) -> None:
    await asyncio.to_thread(namespace.ip_lines, text)


CHANGES = {
    "a new link": "link add eth9 type veth peer name eth10\n",
    "a link that goes": "link del eth2\n",
    "a rename": "link set eth2 down\nlink set eth2 name eth22\n",
    "a link that goes down": "link set eth2 down\n",
    "another mtu": "link set eth2 mtu 1400\n",
    "an alias": "link set eth2 alias rack\n",
    "a new master": "link add br0 type bridge\nlink set eth2 master br0\n",
    "an address": "addr add 10.1.1.1/24 dev eth2\n",
    "an IPv6 address": "addr add 2001:db8:9::1/64 dev eth2\n",
    "an address that goes": "addr del 192.0.2.2/24 dev uplink\n",
    "another default route": "addr add 10.1.1.1/24 dev eth2\nroute add default via 10.1.1.2 metric 9\n",
    "a default route that goes": "route del default\n",
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_tells_of(node: Namespace, change: str) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        await ip(node, CHANGES[change])
        assert await changed_within(watch, 5.0)

    watch_in(node, scenario)


def test_it_says_nothing_when_nothing_changes_or_only_pods_routes_and_neighbours(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        await ip(node, "link set eth2 mtu 1501\n")
        assert await changed_within(watch, 5.0)
        await settle(watch)
        await ip(
            node,
            "route add 10.200.0.0/24 via 192.0.2.9\nroute add default via 192.0.2.9 table 500\n"
            "neigh add 192.0.2.7 lladdr 02:00:00:00:11:11 dev uplink nud permanent\nlink set eth2 mtu 1501\n",
        )
        assert not await changed_within(watch, 0.5)

    watch_in(node, scenario)


def test_a_burst_is_told_once(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        await settle(watch)
        await ip(node, "".join(f"link add a{n} type veth peer name b{n}\n" for n in range(100)))
        assert await changed_within(watch, 5.0)
        assert not await changed_within(watch, 1.0)  # a second telling would come after 0.4 s

    watch_in(node, scenario)


async def make_noise(node: Namespace, stop: asyncio.Event) -> None:
    """A change every few milliseconds, from one process: to start another for each may take longer than the
    silence that ends a burst."""
    process = await asyncio.create_subprocess_exec(
        "ip", "-n", node.name, "-batch", "-", stdin=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    mtu = 1280
    while not stop.is_set():
        mtu += 1
        process.stdin.write(f"link set eth2 mtu {mtu}\n".encode())
        await process.stdin.drain()
        await asyncio.sleep(0.005)
    process.stdin.close()
    assert await process.wait() == 0


def test_a_burst_that_does_not_end_is_told_all_the_same(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        stop = asyncio.Event()

        noise = asyncio.create_task(make_noise(node, stop))
        told = await changed_within(watch, 10.0)
        stop.set()
        await noise
        assert told

    watch_in(node, scenario)


def test_a_burst_that_does_not_end_is_told_after_a_second() -> None:
    assert tell(0.005, 600)[0] == pytest.approx(1.0, abs=0.01)


def test_an_overrun_means_that_everything_may_have_changed_and_the_watch_goes_on(
    node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_RECEIVE_BUFFER_BYTES", 4096)

    turns = Turns()

    async def scenario(watch: ChangeWatch) -> None:
        burst = "".join(f"link add a{n} type veth peer name b{n}\n" for n in range(200))
        node.ip_lines(burst)  # blocking on purpose: the loop cannot read meanwhile
        assert (await changed_within(watch, 5.0)).everything
        assert watch.overruns > 0
        await settle(watch)
        seen, turns.count = watch.overruns, 0
        assert not await changed_within(watch, 1.0)
        assert turns.count < 10, "an overrun must not keep the loop busy"
        await ip(node, "link set eth2 mtu 1400\n")
        assert (await changed_within(watch, 5.0)).links
        assert watch.overruns == seen

    watch_in(node, scenario, turns.run)


def test_a_socket_that_cannot_be_read_any_more_ends_the_watch(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        (sock,) = [s for s in watch._readers.values() if isinstance(s, socket.socket)]
        watch._note_failure(sock, OSError(errno.EIO, "broken"))
        for _ in range(2):
            with pytest.raises(KernelError, match="notifications"):
                await watch.wait_changed()

    watch_in(node, scenario)


def test_two_thousand_events_fit_the_buffer_while_the_loop_is_held_up(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        node.ip_lines("".join(f"link add a{n} type veth peer name b{n}\n" for n in range(500)))
        assert await changed_within(watch, 5.0)
        assert watch.overruns == 0

    watch_in(node, scenario)


def test_without_libudev_it_watches_netlink_and_says_what_it_misses(
    node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(f"no {name} here")

    monkeypatch.setattr(importlib, "import_module", refuse)

    async def scenario(watch: ChangeWatch) -> None:
        assert watch.without_hardware_events == "no pyudev here"
        await ip(node, "link set eth2 mtu 1400\n")
        assert await changed_within(watch, 5.0)

    watch_in(node, scenario)


def test_with_libudev_a_kernel_event_of_a_pci_function_is_a_change(node: Namespace) -> None:
    functions = sorted(Path("/sys/bus/pci/devices").glob("*/uevent"))
    if not functions or not os.access(functions[0], os.W_OK):
        pytest.skip("no PCI function whose uevent can be asked for")

    async def scenario(watch: ChangeWatch) -> None:
        if watch.without_hardware_events:
            pytest.skip(f"no libudev: {watch.without_hardware_events}")
        functions[0].write_text("change")  # a synthetic event; nothing happens to the function
        assert functions[0].parent.name in (await changed_within(watch, 5.0)).hardware

    watch_in(node, scenario)


def test_lost_hardware_events_mean_that_everything_may_have_changed_and_the_watch_goes_on(
    node: Namespace,
) -> None:
    functions = sorted(Path("/sys/bus/pci/devices").glob("*/uevent"))
    if not functions or not os.access(functions[0], os.W_OK):
        pytest.skip("no PCI function whose uevent can be asked for")

    async def scenario(watch: ChangeWatch) -> None:
        if watch.without_hardware_events:
            pytest.skip(f"no libudev: {watch.without_hardware_events}")
        (monitor,) = [s for s in watch._readers.values() if not isinstance(s, socket.socket)]
        monitor.set_receive_buffer_size(4096)
        for _ in range(300):
            functions[0].write_text("change")  # blocking on purpose: the loop cannot read meanwhile
        assert (await changed_within(watch, 5.0)).everything
        assert watch.overruns > 0
        await settle(watch)
        functions[0].write_text("change")
        assert functions[0].parent.name in (await changed_within(watch, 5.0)).hardware

    watch_in(node, scenario)


def test_a_notification_that_cannot_be_read_may_be_anything() -> None:
    noise = ChangeFilter()
    assert noise.judge(RTM_NEWLINK, b"\0\0") == EVERYTHING
    assert noise.judge(RTM_NEWADDR, b"") == EVERYTHING
    noise.protected_addresses = (bytes(4),)
    assert noise.judge(RTM_NEWROUTE, b"") == EVERYTHING


def test_an_address_that_only_got_a_new_lifetime_is_no_change() -> None:
    told = ChangeFilter()
    for seconds, changes in ((600, Changes(links=frozenset({7}))), (599, Changes())):
        address = Address("2001:db8::1/64", valid_seconds=seconds, preferred_seconds=seconds)
        assert told.judge(RTM_NEWADDR, add_address_request(7, address, "eth1").body) == changes


# --- what is named --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["link set eth2 mtu 1400\n", "addr add 10.1.1.1/24 dev eth2\n", "link set eth2 down\n"]
)
def test_a_change_names_the_link_and_nothing_else(node: Namespace, line: str) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        await settle(watch)
        await ip(node, line)
        assert await changed_within(watch, 5.0) == Changes(links=frozenset({eth2}))

    eth2 = node.run(lambda: socket.if_nametoindex("eth2"))
    watch_in(node, scenario)


def test_a_link_that_went_is_named(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        await ip(node, "link del eth2\n")
        assert eth2 in (await changed_within(watch, 5.0)).links

    eth2 = node.run(lambda: socket.if_nametoindex("eth2"))
    watch_in(node, scenario)


def test_a_route_that_contains_a_protected_link_is_told_and_others_are_not(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        watch.set_protected_addresses([ip_address("10.9.0.1").packed, ip_address("2001:db8:9::1").packed])
        await settle(watch)
        await ip(
            node, "route add 10.8.0.0/16 via 192.0.2.9\nroute add 2001:db8:8::/48 via 2001:db8:ffff::9\n"
        )
        assert not await changed_within(watch, 0.5)
        for line in ("10.9.0.0/16 via 192.0.2.9", "2001:db8:9::/64 via 2001:db8:ffff::9"):
            await ip(node, f"route add {line}\n")
            assert await changed_within(watch, 5.0) == Changes(routes=True)

    watch_in(node, scenario)


@pytest.mark.parametrize(
    "line",
    [
        "route add default via 192.0.2.9 table 500",
        "route add ::/0 via 2001:db8:ffff::9 table 500",
        "rule add to 10.9.0.0/16 table 500",
        "-6 rule add to 2001:db8:9::/48 table 500",
    ],
)
def test_routing_by_policy_is_told_since_it_may_carry_a_protected_link(node: Namespace, line: str) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        watch.set_protected_addresses([ip_address("10.9.0.1").packed, ip_address("2001:db8:9::1").packed])
        await settle(watch)
        await asyncio.to_thread(node.ip, *line.split())
        assert await changed_within(watch, 5.0) == Changes(routes=True)

    watch_in(node, scenario)


def test_without_protected_links_rules_nexthop_objects_and_tables_that_rules_look_up_are_told(
    node: Namespace,
) -> None:
    """Any of them may make a link an uplink."""

    async def scenario(watch: ChangeWatch) -> None:
        await settle(watch)
        for line in (
            "rule add from 10.1.0.30 table 500",
            "-6 rule add from 2001:db8:1::30 table 500",
            "nexthop add id 7 via 192.0.2.9 dev uplink",
        ):
            await asyncio.to_thread(node.ip, *line.split())
            assert await changed_within(watch, 5.0) == Changes(routes=True)
        await ip(node, "route add default via 192.0.2.9 table 500\n")
        assert not await changed_within(watch, 0.5), "the table is not known yet"
        watch.set_tables({500})
        assert await changed_within(watch, 5.0) == Changes(routes=True), "what it held was not looked at"
        watch.set_tables({500})
        assert not await changed_within(watch, 0.5)
        await ip(node, "route add 10.8.0.0/16 via 192.0.2.9 table 500\n")
        assert await changed_within(watch, 5.0) == Changes(routes=True)

    watch_in(node, scenario)


def test_what_somebody_else_knows_is_told_with_the_rest(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        await settle(watch)
        watch.note(Changes(routes=True))
        watch.note(Changes())
        assert await changed_within(watch, 5.0) == Changes(routes=True)

    watch_in(node, scenario)


def test_a_wait_that_is_given_up_loses_nothing(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        watch.note(Changes(routes=True))
        assert not await changed_within(watch, 0.05)  # given up while the change settles
        watch.note(Changes(hardware=frozenset({"mlx5_0"})))
        told = await changed_within(watch, 10.0)  # the kernel may add a carrier that it tells late
        assert (told.routes, told.hardware) == (True, frozenset({"mlx5_0"}))

    watch_in(node, scenario)


# --- storms ---------------------------------------------------------------------------------------------


def test_a_single_change_is_told_at_once() -> None:
    assert tell(1000.0, 1) == pytest.approx([0.1]), "100 ms of silence and no more"


def test_a_storm_of_five_thousand_link_events_is_told_three_times_at_most(node: Namespace) -> None:
    """Each ``set mtu`` is an event or more; a quarter of a second between its parts makes it many bursts. How
    long ``ip`` takes over a part does not count: time passes between them alone."""

    async def scenario(watch: ChangeWatch) -> None:
        told: list[Changes] = []
        told_again = asyncio.Event()

        async def count() -> None:
            while True:
                told.append(await watch.wait_changed())
                told_again.set()

        counting = asyncio.create_task(count())
        for part in range(10):
            mtus = range(1000 + part, 1500 + part)
            node.ip_lines("".join(f"link set eth{1 + mtu % 3} mtu {mtu}\n" for mtu in mtus))
            await asyncio.sleep(0.25)
        told_again.clear()
        node.ip("link", "set", "eth1", "mtu", "1281")
        async with asyncio.timeout(30):
            await told_again.wait()
        counting.cancel()
        assert len(told) <= 3
        assert not watch._pending, "the last change of the storm was told"
        assert watch.overruns == 0

    watch_in(node, scenario, VirtualClock().run)


def tell(gap_seconds: float, times: int) -> list[float]:
    """When it tells of so many changes, on a clock of its own."""
    clock = VirtualClock()

    async def scenario() -> list[float]:
        watch = ChangeWatch()
        told: list[float] = []

        async def count() -> None:
            while True:
                await watch.wait_changed()
                told.append(clock.time())

        counting = asyncio.create_task(count())
        for _ in range(times):
            watch.note(Changes(links=frozenset({7})))
            await asyncio.sleep(gap_seconds)
        await asyncio.sleep(5)
        counting.cancel()
        return told

    return clock.run(scenario())


def test_a_storm_of_39_seconds_is_told_three_times_and_its_end() -> None:
    told = tell(0.01, 3900)
    assert len(told) <= 4
    assert told[-1] >= 38.9, "the last change is told"


@pytest.mark.parametrize("gap_seconds", [0.05, 0.15, 0.3], ids=["20 a second", "7 a second", "3 a second"])
def test_a_trickle_that_never_ends_is_told_every_eight_seconds(gap_seconds: float) -> None:
    """It costs little, and whatever else changes must not wait for half a minute behind it."""
    told = tell(gap_seconds, int(600 / gap_seconds))
    waits = [after - before for before, after in pairwise((0.0, *told))]
    assert max(waits) < 8.5
    assert len(told) < 600 / 7


def test_after_a_calm_a_change_is_told_at_once_again() -> None:
    clock = VirtualClock()

    async def scenario() -> list[float]:
        watch = ChangeWatch()
        waits: list[float] = []
        for pause in (0.0, 0.2, 0.2, 2.0):
            await asyncio.sleep(pause)
            begin = clock.time()
            watch.note(Changes(routes=True))
            await watch.wait_changed()
            waits.append(round(clock.time() - begin, 3))
        return waits

    assert clock.run(scenario()) == [0.1, 0.4, 1.6, 0.1]


class VirtualClock(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer, for what would take long."""

    def __init__(self) -> None:
        self._jumps = Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        try:
            return self.run_until_complete(scenario)
        finally:
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.run_until_complete(asyncio.sleep(0))
            self.close()


class Jumps(selectors.EpollSelector):
    """Never waits, but notes how long it would have where nothing is there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            self.now += timeout or 0.0
        return ready


class Turns(selectors.EpollSelector):
    """Counts how often its loop wakes up. Not its time: what else the process does takes some of that."""

    count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.count += 1
        return super().select(timeout)

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self)) as runner:
            runner.run(scenario)


def test_idle_costs_nothing(node: Namespace) -> None:
    turns = Turns()

    async def scenario(watch: ChangeWatch) -> None:
        await settle(watch)
        turns.count = 0
        assert not await changed_within(watch, 1.0)
        assert turns.count < 10

    watch_in(node, scenario, turns.run)


async def test_a_wait_that_is_cancelled_while_it_gathers_leaves_the_change_for_the_next() -> None:
    async with ChangeWatch((Patience(0.2, 0.2),)) as watch:
        watch.note(Changes(links=frozenset({77})))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.wait_changed(), 0.05)
        assert 77 in (await asyncio.wait_for(watch.wait_changed(), 5)).links


@pytest.mark.parametrize("turns", range(4))
async def test_a_wait_that_is_cancelled_while_something_arrives_is_cancelled(turns: int) -> None:
    """Else whoever ends the driver waits for ever."""
    watch = ChangeWatch()
    watch.note(Changes(routes=True))
    waiting = asyncio.create_task(watch.wait_changed())
    for _ in range(5):  # until it gathers
        await asyncio.sleep(0)
    watch.note(Changes(links=frozenset({1})))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
