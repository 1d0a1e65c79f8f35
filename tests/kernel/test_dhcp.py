"""The DHCP client against a real server (BusyBox' udhcpd), and against one that answers oddly."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.errors import KernelError, Reason
from dranet.kernel.dhcp import client, message
from dranet.kernel.dhcp.client import acquire_lease, end_lease, release_lease, renew_lease
from dranet.kernel.dhcp.message import Message, MessageType, Option
from dranet.kernel.netlink.inet import add_address_request
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.facts import Address
from dranet.model.plan import DhcpLease
from tests.support.dhcp_servers import (
    SERVER,
    Dnsmasq,
    RealServer,
    ScriptedServer,
    good_answers,
    reply_to,
    start_dnsmasq,
    start_udhcpd,
)
from tests.support.namespaces import Namespace, wait_settled, wait_unchanged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

MAC = "02:00:00:00:00:01"
"""Of eth1 of the node."""
OTHER_MAC = "02:77:00:00:00:05"
QUICK = 2.0
LATE_SECONDS = 10.0
"""So much later than its deadline may a client end on a busy machine; each wait for an answer is longer."""


@pytest.fixture(params=[start_udhcpd, start_dnsmasq], ids=["udhcpd", "dnsmasq"])
def server(
    request: pytest.FixtureRequest, fabric: Namespace, node: Namespace, tmp_path: Path
) -> Iterator[Callable[..., RealServer]]:
    """Start a real server on the far end of eth1; arguments are those of ``start_udhcpd``."""
    running: list[RealServer] = []

    def start(**how: Any) -> RealServer:
        running.append(request.param(fabric, "p-eth1", tmp_path, **how))
        return running[-1]

    assert node.name
    yield start
    for real in running:
        real.stop()


@pytest.fixture
def scripted(fabric: Namespace, node: Namespace) -> Callable[..., ScriptedServer]:
    """A server on the far end of eth1 that says what the test wants."""
    assert node.name

    def make(answer: Callable[[Message], Sequence[bytes | Message]]) -> ScriptedServer:
        fabric.ip("addr", "replace", f"{SERVER}/24", "dev", "p-eth1")
        return ScriptedServer(fabric, "p-eth1", answer)

    return make


@pytest.fixture
def says_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the client waits for the answer."""
    monkeypatch.setattr(client, "_FIRST_WAITS_SECONDS", (60.0, 60.0))


@pytest.fixture
def says_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon after the first time, and then the client waits."""
    monkeypatch.setattr(client, "_FIRST_WAITS_SECONDS", (0.2, 60.0))


def refusal_of(act: Callable[[float], object], words: str) -> KernelError:
    """What it says that has half a second, or on a busy machine more."""
    for seconds in (0.5, 10.0):
        with pytest.raises(KernelError) as caught:
            act(seconds)
        if re.search(words, str(caught.value)):
            return caught.value
    pytest.fail(f"not {words!r} but {caught.value}")


def acquire(node: Namespace, mac: str = MAC, seconds: float = 10.0, wanted: str = "") -> DhcpLease:
    return node.run(lambda: acquire_lease("eth1", mac, timeout_seconds=seconds, wanted=wanted))


# --- a real server -------------------------------------------------------------------------------------


def test_a_lease_from_a_real_server(node: Namespace, server: Callable[..., RealServer]) -> None:
    real = server()
    before = time.time()
    lease = acquire(node)
    assert real.leased() == {MAC: lease.address.partition("/")[0]}
    assert lease.address.endswith("/24")
    assert lease.address.startswith("10.77.0.1")
    assert lease.server == SERVER
    assert lease.routers == (SERVER,)
    assert lease.classless_routes == (("10.99.0.0/16", "10.77.0.9"), ("0.0.0.0/0", "10.77.0.8"))
    assert lease.mtu == 1450
    assert (lease.lease_seconds, lease.renew_seconds, lease.rebind_seconds) == (600, 300, 525)
    assert before <= lease.obtained_at <= time.time()
    assert lease.client_mac == MAC


def test_the_servers_hardware_address_is_that_of_its_link(
    node: Namespace, fabric: Namespace, server: Callable[..., RealServer]
) -> None:
    server()
    (far_end,) = fabric.read("link", "show", "p-eth1")
    assert acquire(node).server_mac == far_end["address"]


def test_a_link_that_was_up_is_as_before(node: Namespace, server: Callable[..., RealServer]) -> None:
    server()
    before = node.picture()
    acquire(node)
    wait_unchanged(before, node)


def test_a_link_that_was_down_is_raised_and_lowered_with_all_that_it_had(
    node: Namespace, server: Callable[..., RealServer]
) -> None:
    server()
    node.ip("link", "set", "eth1", "down")
    node.ip("addr", "add", "2001:db8::5/64", "dev", "eth1")
    node.ip("addr", "add", "198.51.100.5/24", "dev", "eth1")
    node.ip("neigh", "add", "198.51.100.9", "lladdr", "02:aa:00:00:00:09", "dev", "eth1", "nud", "permanent")
    before = node.picture()
    assert "UP" not in before["links"][2]["flags"]
    acquire(node)
    wait_unchanged(before, node)


def test_what_ipv6_does_by_itself_on_a_raised_link_goes_with_it(
    lively_node: Namespace, fabric: Namespace, tmp_path: Path
) -> None:
    wait_settled(lively_node)
    lively_node.ip("link", "set", "eth1", "down")
    lively_node.ip("addr", "add", "2001:db8::5/64", "dev", "eth1")
    before = lively_node.picture()
    server = start_udhcpd(fabric, "p-eth1", tmp_path)
    try:
        acquire(lively_node)
    finally:
        server.stop()
    wait_unchanged(before, lively_node)


def test_a_link_that_was_down_is_lowered_after_a_failure(node: Namespace) -> None:
    node.ip("link", "set", "eth1", "down")
    before = node.picture()
    with pytest.raises(KernelError):
        acquire(node, seconds=0.5)
    wait_unchanged(before, node)


def test_an_address_for_a_mac_that_no_link_has(node: Namespace, server: Callable[..., RealServer]) -> None:
    real = server()
    lease = acquire(node, OTHER_MAC)
    assert lease.client_mac == OTHER_MAC
    assert real.leased() == {OTHER_MAC: lease.address.partition("/")[0]}


def test_a_lease_for_a_macvlan_that_does_not_exist_yet_then_exists(
    node: Namespace, server: Callable[..., RealServer]
) -> None:
    """Other links on the parent do not disturb: it is not the client's to move."""
    real = server()
    node.ip("link", "add", "other", "link", "eth1", "type", "macvlan", "mode", "bridge")
    first = acquire(node, OTHER_MAC)
    assert acquire(node, OTHER_MAC).address == first.address
    assert list(real.leased()) == [OTHER_MAC]


def test_the_same_client_gets_the_address_that_it_wants_again(
    node: Namespace, server: Callable[..., RealServer]
) -> None:
    server()
    assert acquire(node, wanted="10.77.0.107").address == "10.77.0.107/24"


def test_a_released_lease_is_free_on_the_server(node: Namespace, server: Callable[..., RealServer]) -> None:
    real = server()
    lease = acquire(node)
    assert real.leased()
    node.run(lambda: release_lease(lease, "eth1"))
    wait_until(lambda: not real.leased(), "the server has its address back")


def test_a_release_from_a_link_that_is_down(node: Namespace, server: Callable[..., RealServer]) -> None:
    real = server()
    lease = acquire(node, OTHER_MAC)
    node.ip("link", "set", "eth1", "down")
    before = node.picture()
    node.run(lambda: release_lease(lease, "eth1"))
    wait_until(lambda: not real.leased(), "the server has its address back")
    wait_unchanged(before, node)


# --- renewal in the pod --------------------------------------------------------------------------------


def move_to_pod(node: Namespace, pod: Namespace, lease: DhcpLease, valid_seconds: int) -> None:
    """As an attach does it: the link as net1, the address with what is left of the lease."""
    node.ip("link", "set", "eth1", "netns", pod.name, "name", "net1", "address", lease.client_mac)
    pod.ip("link", "set", "net1", "up")
    put_address(pod, lease, valid_seconds)


def put_address(pod: Namespace, lease: DhcpLease, valid_seconds: int) -> None:
    address = Address(lease.address, valid_seconds=valid_seconds, preferred_seconds=valid_seconds)

    def add() -> None:
        with NetlinkSocket.open() as rtnl:
            rtnl.request(add_address_request(socket.if_nametoindex("net1"), address, "net1"))

    pod.run(add)


def lifetime(pod: Namespace) -> int:
    """Seconds that the kernel still gives the leased address; -1 where it is gone."""
    (link,) = pod.read_raw("addr", "show", "net1")
    found = [info["valid_life_time"] for info in link["addr_info"] if info["family"] == "inet"]
    return int(found[0]) if found else -1


@pytest.mark.parametrize("rebind", [False, True])
def test_a_renewal_extends_the_lease_and_the_kernels_address(
    node: Namespace, pod: Namespace, server: Callable[..., RealServer], rebind: bool
) -> None:
    server()
    lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)
    assert lifetime(pod) <= 60
    renewed = renew_lease(lease, pod.netns, "net1", rebind=rebind)
    assert renewed.address == lease.address
    assert renewed.obtained_at > lease.obtained_at
    assert renewed.server_mac == lease.server_mac
    assert lifetime(pod) > 590


def test_a_renewal_needs_no_route_and_no_right_neighbour_in_the_pod(
    node: Namespace, pod: Namespace, server: Callable[..., RealServer]
) -> None:
    """The tenant's routes are the tenant's: the server's address may well lead elsewhere."""
    server()
    lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)
    pod.ip("route", "flush", "table", "main")
    renew_lease(lease, pod.netns, "net1")
    assert lifetime(pod) > 590


def test_a_server_that_has_another_address_for_us_renews_nothing(
    node: Namespace, pod: Namespace, server: Callable[..., RealServer]
) -> None:
    """dnsmasq refuses then; udhcpd says nothing, which it may (RFC 2131, 4.3.2)."""
    first = server()
    lease = acquire(node)
    first.stop()
    second = server(reserved={MAC: "10.77.0.120"})
    move_to_pod(node, pod, lease, valid_seconds=60)
    patience = 10.0 if isinstance(second, Dnsmasq) else QUICK  # all of it is waited where nobody answers
    with pytest.raises(KernelError, match="is not renewed") as caught:
        renew_lease(lease, pod.netns, "net1", timeout_seconds=patience)
    is_refused = caught.value.reason is Reason.DHCP_LEASE_REFUSED
    assert is_refused == isinstance(second, Dnsmasq)
    assert is_refused == ("taken it back" in caught.value.message)
    assert 0 < lifetime(pod) <= 60
    left = end_lease(lease, pod.netns, "net1", is_refused=is_refused)
    assert left == 0 if is_refused else 30 < left <= 60
    assert (lifetime(pod) == -1) == is_refused


@pytest.mark.usefixtures("says_it_once")
def test_a_refused_renewal_is_told_at_once(
    node: Namespace, pod: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    with scripted(good_answers):
        lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)
    with (
        scripted(lambda said: [reply_to(said, MessageType.NAK, TEXT=b"who are you?")]) as server,
        pytest.raises(KernelError, match=r"its server has taken it back: who are you\?") as caught,
    ):
        renew_lease(lease, pod.netns, "net1")
    assert len(server.heard) == 1
    assert caught.value.reason is Reason.DHCP_LEASE_REFUSED
    assert 0 < lifetime(pod) <= 60


def test_who_did_not_give_a_lease_cannot_take_it_back(
    node: Namespace, pod: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    """All servers are asked at last. One refuses first, one gives another address, then our own renews."""
    with scripted(good_answers):
        lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)

    def answer(said: Message) -> list[Message]:
        refusal = reply_to(said, MessageType.NAK, server="10.77.0.2")
        other = reply_to(said, MessageType.ACK, "10.77.0.51", server="10.77.0.2")
        return [refusal, other, *good_answers(said)]

    with scripted(answer):
        renewed = renew_lease(lease, pod.netns, "net1", rebind=True)
    assert (renewed.server, renewed.address) == (lease.server, lease.address)
    assert lifetime(pod) > 590
    with scripted(lambda said: [reply_to(said, MessageType.NAK, server="10.77.0.2", TEXT=b"mine")]):
        refusal = refusal_of(
            lambda seconds: renew_lease(lease, pod.netns, "net1", rebind=True, timeout_seconds=seconds),
            r"10\.77\.0\.2, which did not give it, refused: mine",
        )
    assert refusal.reason is Reason.DHCP_FAILED


def test_another_mask_is_no_other_address(
    node: Namespace, pod: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    with scripted(good_answers):
        lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)
    with scripted(lambda said: good_answers(said, SUBNET_MASK=bytes((255, 255, 0, 0)))):
        renewed = renew_lease(lease, pod.netns, "net1")
    assert renewed.address == lease.address
    assert lifetime(pod) > 590


def test_an_ended_lease_leaves_the_link_and_a_tenants_addresses_stay(
    node: Namespace, pod: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    with scripted(good_answers):
        lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=2)
    pod.ip("addr", "add", "198.51.100.5/24", "dev", "net1")
    assert end_lease(lease, pod.netns, "net1", is_refused=False) == 0
    assert end_lease(lease, pod.netns, "net1", is_refused=True) == 0  # and once more
    (link,) = pod.read_raw("addr", "show", "net1")
    assert [info["local"] for info in link["addr_info"] if info["family"] == "inet"] == ["198.51.100.5"]


def test_an_address_that_the_kernel_took_away_is_not_put_back(
    node: Namespace, pod: Namespace, server: Callable[..., RealServer]
) -> None:
    server()
    lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)
    pod.ip("addr", "flush", "dev", "net1")
    with pytest.raises(KernelError) as caught:
        renew_lease(lease, pod.netns, "net1")
    assert caught.value.reason is Reason.DHCP_LEASE_EXPIRED
    assert lifetime(pod) == -1


def test_the_kernel_takes_the_address_away_when_the_lease_ends(
    node: Namespace, pod: Namespace, server: Callable[..., RealServer]
) -> None:
    server()
    lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=1)
    wait_until(lambda: lifetime(pod) == -1, "the address is gone")


@pytest.mark.usefixtures("says_it_twice")
def test_a_silent_server_is_told_within_the_attempts_time(
    node: Namespace, pod: Namespace, server: Callable[..., RealServer]
) -> None:
    real = server()
    lease = acquire(node)
    real.stop()
    move_to_pod(node, pod, lease, valid_seconds=60)
    start = time.monotonic()
    with pytest.raises(KernelError, match="asked 2 times") as caught:
        renew_lease(lease, pod.netns, "net1", timeout_seconds=QUICK)
    assert caught.value.reason is Reason.DHCP_FAILED
    assert time.monotonic() - start < QUICK + LATE_SECONDS
    assert 0 < lifetime(pod) <= 60


def test_an_answer_of_another_server_is_no_renewal_but_a_rebinding(
    node: Namespace, pod: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    with scripted(good_answers):
        lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)
    with scripted(lambda said: good_answers(said, server="10.77.0.2")):
        with pytest.raises(KernelError, match="not renewed"):
            renew_lease(lease, pod.netns, "net1", timeout_seconds=0.5)
        renewed = renew_lease(lease, pod.netns, "net1", rebind=True)
    assert renewed.server == "10.77.0.2"


def test_another_address_is_an_error_and_changes_nothing(
    node: Namespace, pod: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    with scripted(good_answers):
        lease = acquire(node)
    move_to_pod(node, pod, lease, valid_seconds=60)
    with (
        scripted(lambda said: good_answers(said, address="10.77.0.51")),
        pytest.raises(KernelError, match=r"gives 10\.77\.0\.51/24 instead"),
    ):
        renew_lease(lease, pod.netns, "net1")
    assert 0 < lifetime(pod) <= 60


# --- no lease ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("says_it_twice")
def test_no_server_is_told_within_the_deadline(node: Namespace) -> None:
    start = time.monotonic()
    with pytest.raises(KernelError, match="no DHCP lease on eth1: asked 2 times within") as caught:
        acquire(node, seconds=QUICK)
    assert QUICK - 0.1 < time.monotonic() - start < QUICK + LATE_SECONDS
    assert caught.value.reason is Reason.DHCP_FAILED
    assert "server" in caught.value.hint


def test_a_link_without_a_carrier_is_told_as_that(node: Namespace, fabric: Namespace) -> None:
    fabric.ip("link", "set", "p-eth1", "down")
    with pytest.raises(KernelError, match="eth1 has no carrier"):
        acquire(node, seconds=0.5)


def test_a_carrier_that_comes_late_is_waited_for(
    node: Namespace, fabric: Namespace, server: Callable[..., RealServer]
) -> None:
    server()
    fabric.ip("link", "set", "p-eth1", "down")
    with ThreadPoolExecutor(1) as threads:
        lease = threads.submit(acquire, node)
        wait_until(lambda: node.run(has_link_listener), "the client waits for the carrier")
        fabric.ip("link", "set", "p-eth1", "up")
        assert lease.result().address.startswith("10.77.0.1")


def has_link_listener() -> bool:
    """Whether a route netlink socket of this namespace listens for links (group 1)."""
    rows = [line.split() for line in Path("/proc/thread-self/net/netlink").read_text().splitlines()[1:]]
    return any(row[1] == "0" and int(row[3], 16) & 1 for row in rows)


def test_no_such_link(node: Namespace) -> None:
    with pytest.raises(KernelError, match="nosuch"):
        node.run(lambda: acquire_lease("nosuch", MAC, timeout_seconds=1))


def test_a_link_that_is_no_ethernet_is_refused_with_a_mend(node: Namespace) -> None:
    with pytest.raises(KernelError, match="no Ethernet link") as caught:
        node.run(lambda: acquire_lease("lo", MAC, timeout_seconds=1))
    assert caught.value.reason is Reason.MISSING_FEATURE
    assert "addresses" in caught.value.hint


# --- odd answers ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("says_it_once")
def test_a_plain_servers_answer_is_taken_although_its_checksum_was_left_to_hardware(
    node: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    with scripted(good_answers) as server:
        assert acquire(node).address == "10.77.0.50/24"
    assert server.heard_types() == [MessageType.DISCOVER, MessageType.REQUEST]
    assert all(said.broadcast for said in server.heard)


def test_the_waits_for_an_answer_grow_to_four_seconds() -> None:
    for seconds, wait in zip((1, 2, 4, 4, 4), islice(client._waits(), 5), strict=True):
        assert 0.75 * seconds <= wait <= 1.25 * seconds


@pytest.mark.usefixtures("says_it_twice")
def test_what_is_lost_is_said_again(node: Namespace, scripted: Callable[..., ScriptedServer]) -> None:
    seen: list[MessageType] = []

    def every_second(said: Message) -> list[Message]:
        seen.append(said.type)
        return good_answers(said) if seen.count(said.type) == 2 else []

    with scripted(every_second) as server:
        assert acquire(node).address == "10.77.0.50/24"
    kinds = server.heard_types()
    assert kinds == [MessageType.DISCOVER] * 2 + [MessageType.REQUEST] * 2
    assert len({said.xid for said in server.heard}) == 1


def test_after_a_refusal_it_starts_anew(node: Namespace, scripted: Callable[..., ScriptedServer]) -> None:
    refused: list[Message] = []

    def refuse_once(said: Message) -> list[Message]:
        if said.type is MessageType.REQUEST and not refused:
            refused.append(said)
            return [reply_to(said, MessageType.NAK)]
        return good_answers(said)

    with scripted(refuse_once) as server:
        assert acquire(node).address == "10.77.0.50/24"
    assert len({said.xid for said in server.heard}) == 2


def test_a_server_that_always_refuses_is_quoted(
    node: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    def refuse(said: Message) -> list[Message]:
        if said.type is MessageType.REQUEST:
            return [reply_to(said, MessageType.NAK, TEXT=b"not on my\nnetwork")]
        return good_answers(said)

    with scripted(refuse), pytest.raises(KernelError, match=r"the server refused: not on my\?network"):
        acquire(node)


def test_the_first_of_two_offers_is_taken(node: Namespace, scripted: Callable[..., ScriptedServer]) -> None:
    def two(said: Message) -> list[Message]:
        if said.type is not MessageType.DISCOVER:
            return good_answers(said, address=str_of(said.options[Option.REQUESTED_ADDRESS]))
        return [
            reply_to(said, MessageType.OFFER, "10.77.0.61"),
            reply_to(said, MessageType.OFFER, "10.77.0.62", "10.77.0.2"),
        ]

    with scripted(two) as server:
        assert acquire(node).address == "10.77.0.61/24"
    assert server.heard[-1].server == SERVER


def test_what_a_server_says_that_was_not_chosen_does_not_count(
    node: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    def with_a_rival(said: Message) -> list[Message]:
        if said.type is not MessageType.REQUEST:
            return good_answers(said)
        rival = "10.77.0.2"
        return [
            reply_to(said, MessageType.NAK, server=rival),
            reply_to(said, MessageType.ACK, "10.77.0.66", rival),
            *good_answers(said),
        ]

    with scripted(with_a_rival) as server:
        assert acquire(node).address == "10.77.0.50/24"
    assert len({said.xid for said in server.heard}) == 1


@pytest.mark.usefixtures("says_it_once")
def test_the_device_takes_frames_for_a_mac_that_it_does_not_have_meanwhile(
    node: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    """A veth has no filter of addresses, so the kernel lets it take everything; a NIC takes one more."""
    seen: list[int] = []

    def promiscuity() -> int:
        return int(node.read("link", "show", "eth1")[0]["promiscuity"])

    def looking(said: Message) -> list[Message]:
        seen.append(promiscuity())
        return good_answers(said)

    with scripted(looking):
        acquire(node, OTHER_MAC)
        assert seen == [1, 1]
        acquire(node)
    assert seen[2:] == [0, 0]
    assert promiscuity() == 0


def str_of(address: bytes) -> str:
    return socket.inet_ntoa(address)


Mangle = Callable[[Message], bytes | Message]

ODD: dict[str, Mangle] = {
    "another transaction": lambda offer: replace(offer, xid=offer.xid ^ 1),
    "another client": lambda offer: replace(offer, client_mac=OTHER_MAC),
    "a request": lambda offer: replace(offer, is_reply=False),
    "an ACK that nobody asked for": lambda offer: replace(offer, type=MessageType.ACK),
    "no server identifier": lambda offer: without(offer, Option.SERVER_ID),
    "no lease time": lambda offer: without(offer, Option.LEASE_TIME),
    "no mask": lambda offer: without(offer, Option.SUBNET_MASK),
    "a broken mask": lambda offer: having(offer, Option.SUBNET_MASK, b"\xff\x00\xff\x00"),
    "no address": lambda offer: replace(offer, your_address="0.0.0.0"),
    "a multicast address": lambda offer: replace(offer, your_address="224.0.0.5"),
    "the network's own address": lambda offer: replace(offer, your_address="10.77.0.0"),
    "a lease of a second": lambda offer: having(offer, Option.LEASE_TIME, (1).to_bytes(4)),
    "a broken route": lambda offer: having(offer, Option.CLASSLESS_ROUTES, b"\x21"),
    "cut short": lambda offer: message.encode(offer)[:100],
    "an option beyond the end": lambda offer: message.encode(offer)[:240] + b"\x35\x01\x02\x36\xff",
    "BOOTP": lambda offer: message.encode(offer)[:236] + bytes(64),
    "noise": lambda offer: message.encode(offer)[:8] + b"\xff" * 300,
}


def without(said: Message, option: Option) -> Message:
    return replace(said, options={code: value for code, value in said.options.items() if code != option})


def having(said: Message, option: Option, value: bytes) -> Message:
    return replace(said, options={**said.options, option: value})


@pytest.mark.usefixtures("says_it_once")
@pytest.mark.parametrize("how", ODD)
def test_an_odd_offer_is_passed_over_and_a_good_one_taken(
    node: Namespace, scripted: Callable[..., ScriptedServer], how: str
) -> None:
    def odd_then_good(said: Message) -> list[bytes | Message]:
        if said.type is not MessageType.DISCOVER:
            return [*good_answers(said)]
        odd = ODD[how](reply_to(said, MessageType.OFFER, "10.77.0.66"))
        return [odd, *good_answers(said)]

    with scripted(odd_then_good) as server:
        assert acquire(node).address == "10.77.0.50/24"
    (request,) = [said for said in server.heard if said.type is MessageType.REQUEST]
    assert request.options[Option.REQUESTED_ADDRESS] == socket.inet_aton("10.77.0.50")


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("no mask", "subnet mask is missing"),
        ("cut short", "DHCP message of 100 bytes"),
        ("a lease of a second", "lease time is 1"),
    ],
)
def test_where_nothing_better_comes_the_odd_offer_is_named(
    node: Namespace, scripted: Callable[..., ScriptedServer], how: str, complaint: str
) -> None:
    def odd(said: Message) -> list[bytes | Message]:
        return [ODD[how](good) for good in good_answers(said)]

    with scripted(odd):
        refusal_of(lambda seconds: acquire(node, seconds=seconds), complaint)


def test_options_in_the_name_and_file_fields_count(
    node: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    def overloaded(said: Message) -> list[bytes]:
        return [overload(good) for good in good_answers(said, ROUTER=b"")]

    with scripted(overloaded):
        lease = acquire(node)
    assert lease.routers == ("10.77.0.9",)
    assert lease.mtu == 9000


def overload(said: Message) -> bytes:
    """Router in ``file``, MTU in ``sname``, by the layout of RFC 2131, figure 1."""
    data = bytearray(message.encode(having(said, Option.OVERLOAD, b"\x03")))
    data[108:114] = struct.pack("!BB4s", 3, 4, socket.inet_aton("10.77.0.9"))
    data[114] = 255
    data[44:48] = struct.pack("!BBH", 26, 2, 9000)
    data[48] = 255
    return bytes(data)


@pytest.mark.usefixtures("says_it_twice")
def test_a_server_that_offers_and_falls_silent_is_told(
    node: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    def offers_only(said: Message) -> list[Message]:
        return good_answers(said) if said.type is MessageType.DISCOVER else []

    start = time.monotonic()
    with scripted(offers_only), pytest.raises(KernelError, match="no DHCP lease"):
        acquire(node, seconds=QUICK)
    assert time.monotonic() - start < QUICK + LATE_SECONDS


def test_a_flood_does_not_hold_it_beyond_the_deadline(
    node: Namespace, scripted: Callable[..., ScriptedServer]
) -> None:
    def flood(said: Message) -> list[bytes]:
        return [message.encode(good)[:100] for good in good_answers(said)] * 2000

    took: list[float] = []
    for _ in range(3):
        start = time.monotonic()
        with scripted(flood), pytest.raises(KernelError):
            acquire(node, seconds=0.5)
        took.append(time.monotonic() - start)
    assert min(took) < 2, "a busy machine may hold up one of them"
