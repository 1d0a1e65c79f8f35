"""The watch sees what a scan would show, gathers bursts, and keeps quiet about the rest."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dranet.kernel import watch as watch_module
from dranet.kernel.inet import add_address_request
from dranet.kernel.rtnl import RTM_NEWADDR, RTM_NEWLINK
from dranet.kernel.watch import ChangeFilter, ChangeWatch
from dranet.model.facts import Address
from tests.namespaces import Namespace

pytestmark = pytest.mark.kernel

Scenario = Callable[[ChangeWatch], Coroutine[Any, Any, None]]


def watch_in(namespace: Namespace, scenario: Scenario) -> None:
    """Run a scenario with a watch, on a loop of its own inside the namespace."""

    async def whole() -> None:
        async with ChangeWatch() as watch:
            await scenario(watch)

    namespace.run(lambda: asyncio.run(whole()))


async def changed_within(watch: ChangeWatch, seconds: float) -> bool:
    try:
        await asyncio.wait_for(watch.wait_changed(), seconds)
    except TimeoutError:
        return False
    return True


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
        while await changed_within(watch, 1.5):
            pass  # what the kernel adds by itself after that
        await ip(
            node,
            "route add 10.200.0.0/24 via 192.0.2.9\nroute add default via 192.0.2.9 table 500\n"
            "neigh add 192.0.2.7 lladdr 02:00:00:00:11:11 dev uplink nud permanent\nlink set eth2 mtu 1501\n",
        )
        assert not await changed_within(watch, 0.5)

    watch_in(node, scenario)


def test_a_burst_is_told_once(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        await ip(node, "".join(f"link add a{n} type veth peer name b{n}\n" for n in range(100)))
        assert await changed_within(watch, 5.0)
        assert not await changed_within(watch, 0.3)

    watch_in(node, scenario)


def test_a_burst_that_does_not_end_is_told_after_a_second(node: Namespace) -> None:
    async def scenario(watch: ChangeWatch) -> None:
        stop = asyncio.Event()

        async def never_quiet() -> None:
            mtu = 1280
            while not stop.is_set():
                mtu += 1
                await ip(node, f"link set eth2 mtu {mtu}\n")

        noise = asyncio.create_task(never_quiet())
        loop = asyncio.get_running_loop()
        begin = loop.time()
        assert await changed_within(watch, 10.0)
        took = loop.time() - begin
        stop.set()
        await noise
        assert 0.9 < took < 5.0

    watch_in(node, scenario)


def test_an_overrun_is_a_change_and_the_watch_goes_on(
    node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_RECEIVE_BUFFER_BYTES", 4096)

    async def scenario(watch: ChangeWatch) -> None:
        burst = "".join(f"link add a{n} type veth peer name b{n}\n" for n in range(200))
        node.ip_lines(burst)  # blocking on purpose: the loop cannot read meanwhile
        assert await changed_within(watch, 5.0)
        assert watch.overruns > 0
        while await changed_within(watch, 1.5):
            pass
        await ip(node, "link set eth2 mtu 1400\n")
        assert await changed_within(watch, 5.0)

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
        assert await changed_within(watch, 5.0)

    watch_in(node, scenario)


def test_a_notification_that_cannot_be_read_counts_as_a_change() -> None:
    noise = ChangeFilter()
    assert noise.is_change(RTM_NEWLINK, b"\0\0")
    assert noise.is_change(RTM_NEWADDR, b"")


def test_an_address_that_only_got_a_new_lifetime_is_no_change() -> None:
    told = ChangeFilter()
    for seconds, is_news in ((600, True), (599, False)):
        address = Address("2001:db8::1/64", valid_seconds=seconds, preferred_seconds=seconds)
        payload = add_address_request(7, address, "eth1").body
        assert told.is_change(RTM_NEWADDR, payload) is is_news
