"""Rate limits: what the kernel was told (``tc`` and ``ip`` tell), what passes, and that nothing is left."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.claims.plan.device import plan_device
from dranet.errors import KernelError, Reason
from dranet.kernel.attachment import traffic
from dranet.kernel.attachment.links import open_pod_side
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.attachment.traffic import (
    PacketSizes,
    choose_bucket,
    ifb_name,
    limit_rate,
    read_timer_seconds,
    remove_limits,
)
from dranet.kernel.netlink import tc as tc_messages
from dranet.kernel.netlink.socket import Request
from dranet.kernel.netlink.tc import TokenBucket, set_bucket_request
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import ValidationError, build_decoder
from dranet.model.parameters.values import Ifname
from dranet.model.plan import LimitRate
from tests.kernel.loaded import ifindex_of, tc
from tests.kernel.plans import attach_from
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

M, G = 10**6, 10**9
BOTH = LimitRate(egress_bits_per_second=10 * M, ingress_bits_per_second=5 * M)
USUAL = PacketSizes(1500, 65536)


# --- how large ------------------------------------------------------------------------------------------


@given(
    bits=st.integers(8_000, 100 * 10**12),
    burst=st.none() | st.integers(1, 2**62),
    mtu=st.integers(68, 65535),
    merged=st.integers(65536, 524280),
)
def test_a_packet_always_fits_and_the_numbers_are_the_kernels(
    bits: int, burst: int | None, mtu: int, merged: int
) -> None:
    bucket = choose_bucket(bits, burst, PacketSizes(mtu, merged))
    assert 0 <= bits / 8 - bucket.bytes_per_second < 1
    assert mtu < bucket.burst_bytes < 2**32
    assert bucket.limit_bytes >= bucket.burst_bytes + 10 * mtu
    set_bucket_request(7, 0x10000, bucket, "net1")  # packs


@given(bits=st.integers(1 * M, 100 * G), merged=st.integers(65536, 524280))
def test_what_passes_at_once_is_little_beside_a_second_and_enough_for_a_late_timer(
    bits: int, merged: int
) -> None:
    bucket = choose_bucket(bits, None, PacketSizes(1500, merged))
    assert bucket.burst_bytes <= max(0.03 * bucket.bytes_per_second, 2 * 1564)
    assert bucket.burst_bytes - 1564 >= 0.0039 * bucket.bytes_per_second


@pytest.mark.parametrize("bits", [100 * M, 1 * G, 40 * G])
def test_a_gso_packet_passes_whole_where_the_rate_carries_it(bits: int) -> None:
    assert choose_bucket(bits, None, USUAL).burst_bytes > 65536


def test_a_burst_that_is_asked_for_is_kept() -> None:
    assert choose_bucket(1 * G, 100_000, USUAL).burst_bytes == 100_000
    assert choose_bucket(1 * G, 100, USUAL).burst_bytes == 1564, "a packet must fit"


def test_a_kernel_without_a_fine_timer_gets_a_larger_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = choose_bucket(1 * G, None, USUAL).burst_bytes
    monkeypatch.setattr(traffic, "read_timer_seconds", lambda: 0.01)
    assert choose_bucket(1 * G, None, USUAL).burst_bytes > 2 * fine


@pytest.mark.kernel
def test_the_timer_is_read_from_the_kernel() -> None:
    assert 0 < read_timer_seconds() <= 0.01


# --- names ----------------------------------------------------------------------------------------------

IFNAMES = st.text("abcxyz019-_.~", min_size=1, max_size=15)


@given(first=IFNAMES, second=IFNAMES)
def test_each_interface_has_an_ifb_of_its_own_whose_name_no_claim_can_give(first: str, second: str) -> None:
    name = ifb_name(first)
    assert len(name.encode()) <= 15
    assert (name == ifb_name(second)) == (first == second)
    with pytest.raises(ValidationError):
        build_decoder(Ifname)(name)


def test_a_short_name_can_be_read_in_that_of_its_ifb() -> None:
    assert (ifb_name("net1"), ifb_name("eleven-byte")) == ("ifb~net1", "ifb~eleven-byte")
    assert ifb_name("twelve-bytes").startswith("ifb~~")


# --- what the kernel is told ----------------------------------------------------------------------------


@dataclass
class Nic:
    """An interface of a pod, and its far end in the fabric."""

    pod: Namespace
    fabric: Namespace
    ifindex: int
    name: str = "net1"

    def limit(self, step: LimitRate) -> None:
        with open_pod_side(self.pod.netns) as side:
            limit_rate(side, self.ifindex, self.name, step)

    def remove(self) -> None:
        with open_pod_side(self.pod.netns) as side:
            remove_limits(side, self.ifindex, self.name)

    def qdiscs(self, link: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(tc(self.pod, "-j", "-d", "-s", "qdisc", "show", "dev", link))
        return found

    def bucket(self, link: str) -> dict[str, Any]:
        """The token bucket of a link, with its counters."""
        (found,) = (qdisc for qdisc in self.qdiscs(link) if qdisc["kind"] == "tbf")
        return found

    def picture(self) -> tuple[object, ...]:
        """Links and qdiscs of the pod, without counters."""
        return self.pod.picture()["links"], tc(self.pod, "-d", "qdisc", "show"), self.filters()

    def filters(self) -> str:
        return tc(self.pod, "filter", "show", "dev", self.name, "ingress")


@pytest.fixture
def nic(pod: Namespace, fabric: Namespace) -> Nic:
    queues = ["numtxqueues", "4", "numrxqueues", "4"]
    end = ["peer", "name", "far", "netns", fabric.name]
    pod.ip("link", "add", "net1", *queues, "type", "veth", *end)
    pod.ip_lines("addr add 198.51.100.1/24 dev net1\nlink set net1 up\n")
    fabric.ip_lines("addr add 198.51.100.2/24 dev far\nlink set far up\n")
    return Nic(pod, fabric, ifindex_of(pod, "net1"))


@pytest.mark.kernel
@pytest.mark.parametrize("bits", [8_000, 1 * M, 1_234_567_000, 10 * G, 34 * G, 35 * G, 40 * G, 100_000 * G])
def test_the_kernel_has_the_rate_burst_and_latency_of_any_rate(nic: Nic, bits: int) -> None:
    nic.limit(LimitRate(egress_bits_per_second=bits, ingress_bits_per_second=bits))
    wanted = choose_bucket(bits, None, USUAL)
    tick = wanted.bytes_per_second * 1e-6 + 1  # tc works it out from microseconds
    for link in ("net1", "ifb~net1"):
        told = nic.bucket(link)
        assert (told["handle"], told["root"]) == ("d2a0:", True)
        assert told["options"]["rate"] == bits // 8
        assert burst_of(told) == pytest.approx(wanted.burst_bytes, abs=tick)
        queue = wanted.limit_bytes - wanted.burst_bytes
        if wanted.limit_bytes < 2**32:
            assert told["options"]["lat"] == pytest.approx(queue / wanted.bytes_per_second * 1e6, rel=0.01)


def burst_of(bucket: dict[str, Any]) -> int:
    """``65536b/1``"""
    return int(bucket["options"]["burst"].partition("b")[0])


@pytest.mark.kernel
def test_a_burst_and_a_large_mtu_reach_the_kernel(nic: Nic) -> None:
    nic.pod.ip("link", "set", "net1", "mtu", "9000")
    nic.limit(LimitRate(1 * M, None, 80 * M, 1_000_000))
    assert 9000 + 14 < burst_of(nic.bucket("net1")) < 12_000
    assert burst_of(nic.bucket("ifb~net1")) == pytest.approx(1_000_000, abs=12)


@pytest.mark.kernel
def test_what_arrives_goes_through_a_link_that_has_no_address(nic: Nic) -> None:
    nic.limit(LimitRate(ingress_bits_per_second=5 * M))
    (ifb,) = nic.pod.read_raw("addr", "show", "dev", "ifb~net1")
    assert (ifb["linkinfo"]["info_kind"], ifb["ifalias"]) == ("ifb", "dranet: what net1 receives")
    assert "UP" in ifb["flags"]
    assert ifb["addr_info"] == []
    filters = nic.filters()
    assert "pref 1 u32" in filters
    assert "match 00000000/00000000 at 0" in filters
    assert "mirred (Egress Redirect to device ifb~net1) stolen" in filters
    assert [qdisc["kind"] for qdisc in nic.qdiscs("net1")].count("tbf") == 0, "sending is not limited"


@pytest.mark.kernel
def test_the_ifb_has_no_address_where_the_kernel_would_make_one(
    make_namespace: Callable[..., Namespace],
) -> None:
    pod = make_namespace(lively=True)
    pod.ip("link", "add", "net1", "type", "veth", "peer", "name", "far")
    pod.ip_lines("link set net1 up\nlink set far up\n")
    Nic(pod, pod, ifindex_of(pod, "net1")).limit(BOTH)
    wait_until(lambda: bool(pod.read_raw("addr", "show", "dev", "net1")[0]["addr_info"]), "net1 has one")
    assert pod.read_raw("addr", "show", "dev", "ifb~net1")[0]["addr_info"] == []


@pytest.mark.kernel
def test_again_changes_nothing_and_other_numbers_replace(nic: Nic) -> None:
    nic.limit(BOTH)
    first = nic.picture()
    nic.limit(BOTH)
    assert without_ids(nic.picture()) == without_ids(first)
    nic.limit(LimitRate(20 * M, None, 40 * M, None))
    assert nic.bucket("net1")["options"]["rate"] == 20 * M // 8
    assert nic.bucket("ifb~net1")["options"]["rate"] == 40 * M // 8
    assert nic.filters().count("mirred") == 1


def without_ids(picture: tuple[object, ...]) -> str:
    """The action of a filter that was put there anew has a new number."""
    return "".join(line for line in str(picture).split("\\n") if "index" not in line)


@pytest.mark.kernel
def test_a_link_that_is_down_is_limited_when_it_comes_up(nic: Nic) -> None:
    """Then the kernel need not wait until nobody uses the old queues."""
    nic.pod.ip("link", "set", "net1", "down")
    nic.limit(BOTH)
    nic.pod.ip("link", "set", "net1", "up")
    assert nic.bucket("net1")["options"]["rate"] == 10 * M // 8
    assert "mirred" in nic.filters()


# --- giving back ----------------------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("step", [BOTH, LimitRate(1 * M), LimitRate(None, None, 1 * M)])
def test_removing_leaves_the_pod_as_it_was(nic: Nic, step: LimitRate) -> None:
    before = nic.picture()
    nic.remove()
    assert nic.picture() == before
    nic.limit(step)
    assert nic.picture() != before
    for _ in range(2):
        nic.remove()
        assert nic.picture() == before


@pytest.mark.kernel
def test_a_multi_queue_root_is_replaced(nic: Nic) -> None:
    tc(nic.pod, "qdisc", "add", "dev", "net1", "root", "handle", "1:", "mq")
    nic.limit(LimitRate(1 * M))
    assert [qdisc["kind"] for qdisc in nic.qdiscs("net1")] == ["tbf"]


@pytest.mark.kernel
@pytest.mark.parametrize("is_index_known", [True, False])
def test_the_ifb_goes_when_the_link_has_left_the_pod(nic: Nic, is_index_known: bool) -> None:
    nic.limit(BOTH)
    nic.pod.ip("link", "set", "net1", "netns", nic.fabric.name)
    nic.ifindex = nic.ifindex if is_index_known else 0
    nic.remove()
    assert [link["ifname"] for link in nic.pod.read("link", "show", "type", "ifb")] == []
    nic.remove()


@pytest.mark.kernel
def test_an_ifb_that_the_tenant_renamed_goes_and_another_stays(nic: Nic) -> None:
    nic.limit(BOTH)
    nic.pod.ip_lines("link set ifb~net1 down\nlink set ifb~net1 name mine\nlink add ifb~net2 type ifb\n")
    nic.remove()
    assert [link["ifname"] for link in nic.pod.read("link", "show", "type", "ifb")] == ["ifb~net2"]


@pytest.mark.kernel
def test_what_the_tenant_put_beside_the_limits_stays(nic: Nic) -> None:
    tc(nic.pod, "qdisc", "add", "dev", "net1", "clsact")
    match = ["protocol", "ip", "u32", "match", "ip", "dst", "192.0.2.1/32", "flowid", "1:1"]
    tc(nic.pod, "filter", "add", "dev", "net1", "egress", *match)
    nic.limit(BOTH)
    tc(nic.pod, "filter", "add", "dev", "net1", "ingress", "prio", "9", *match)
    tc(nic.pod, "qdisc", "replace", "dev", "net1", "root", "handle", "7:", "pfifo", "limit", "5")
    nic.remove()
    assert sorted(qdisc["handle"] for qdisc in nic.qdiscs("net1")) == ["7:", "ffff:"]
    assert "pref 9 u32" in nic.filters()
    assert "mirred" not in nic.filters()
    assert "u32" in tc(nic.pod, "filter", "show", "dev", "net1", "egress")


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_somebody_elses_link_of_that_name_is_refused_and_kept(nic: Nic) -> None:
    nic.pod.ip("link", "add", "ifb~net1", "type", "veth", "peer", "name", "other")
    before = nic.picture()
    with pytest.raises(KernelError, match="another program has a link of that name") as refusal:
        nic.limit(BOTH)
    assert (refusal.value.errno, refusal.value.reason) == (errno.EEXIST, Reason.ATTACH_FAILED)
    assert nic.picture() == before, "the limit of what is sent is undone"


@pytest.mark.kernel
def test_a_link_that_is_gone_is_an_error(nic: Nic) -> None:
    nic.pod.ip("link", "del", "net1")
    with pytest.raises(KernelError) as refusal:
        nic.limit(BOTH)
    assert (refusal.value.operation, refusal.value.link) == ("limit-rate", "net1")


def _of_kind(kind: bytes) -> Callable[..., Request]:
    """A request builder that asks for a kind that no kernel has."""

    def build(ifindex: int, handle: int, bucket: TokenBucket, link: str) -> Request:
        request = set_bucket_request(ifindex, handle, bucket, link)
        body = request.body.replace(b"tbf\0", kind)
        return Request(request.type, body, request.flags, request.operation, link)

    return build


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("place", "name", "lacking", "module"),
    [
        (traffic, "_IFB", "nosuch", "ifb"),
        (tc_messages, "set_bucket_request", _of_kind(b"tbx\0"), "sch_tbf"),
    ],
)
def test_a_kernel_that_lacks_a_module_is_told_by_its_name_and_nothing_is_left(
    nic: Nic, monkeypatch: pytest.MonkeyPatch, place: ModuleType, name: str, lacking: object, module: str
) -> None:
    before = nic.picture()
    monkeypatch.setattr(place, name, lacking)
    with pytest.raises(KernelError) as refusal:
        nic.limit(BOTH)
    monkeypatch.undo()
    assert refusal.value.reason is Reason.MISSING_FEATURE
    assert module in refusal.value.hint
    assert not refusal.value.retryable
    assert nic.picture() == before


# --- what passes ----------------------------------------------------------------------------------------


@contextmanager
def flow(sender: Namespace, receiver: Namespace, address: str) -> Iterator[None]:
    """A TCP connection that is always full."""
    stop = threading.Event()
    with ExitStack() as stack:
        listener = stack.enter_context(receiver.run(lambda: socket.create_server((address, 0))))
        port = listener.getsockname()[1]
        sending = stack.enter_context(sender.run(lambda: socket.create_connection((address, port), 10)))
        receiving = stack.enter_context(listener.accept()[0])
        threads = [
            threading.Thread(target=pump, args=(stop, lambda: sending.send(bytes(65536)))),
            threading.Thread(target=pump, args=(stop, lambda: receiving.recv(65536))),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for end in (sending, receiving):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def pump(stop: threading.Event, action: Callable[[], object]) -> None:
    with suppress(OSError):
        while not stop.is_set():
            action()


@pytest.mark.kernel
@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_a_second_of_traffic_has_the_rate_that_was_asked_for(nic: Nic, direction: str) -> None:
    """Counted by the bucket itself. It never passes more than its rate and a burst (2.4 % of a second); that
    it passes no less than 90 % may take a busy machine more than one try."""
    rate, link = 20 * M, "net1" if direction == "egress" else "ifb~net1"
    nic.limit(LimitRate(rate, None, None, None) if direction == "egress" else LimitRate(None, None, rate))
    ends = (nic.pod, nic.fabric, "198.51.100.2")
    if direction == "ingress":
        ends = (nic.fabric, nic.pod, "198.51.100.1")

    def passes_as_much() -> bool:
        start, before = time.monotonic(), nic.bucket(link)["bytes"]
        wait_until(lambda: time.monotonic() - start > 1, "a second")
        passed = nic.bucket(link)["bytes"] - before
        due = rate / 8 * (time.monotonic() - start)  # while both readings took their time
        assert passed <= due + choose_bucket(rate, None, USUAL).burst_bytes
        return bool(passed >= 0.9 * due)

    with flow(*ends):
        wait_until(passes_as_much, f"a second within 10 % of {rate} bit/s", 20)


@pytest.mark.kernel
def test_the_shares_of_a_nic_send_what_their_claims_took_and_together_no_more(
    node: Namespace, fabric: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    """From the allocation to the port: two pods, each with a macvlan on the NIC and always something to send.
    Counted by the far end of the port, which knows nothing of limits."""
    node.ip("link", "add", "port", "type", "veth", "peer", "name", "far", "netns", fabric.name)
    node.ip("link", "set", "port", "up")
    fabric.ip_lines("addr add 198.51.100.2/24 dev far\nlink set far up\n")
    nic = Device("nic", DeviceKind.NIC, ifname="port", shared=True)
    pods = [make_namespace(), make_namespace()]
    for number, (pod, taken) in enumerate(zip(pods, (20 * M, 10 * M), strict=True)):
        address = f"198.51.100.{10 + number}/24"
        config = NetworkConfig.model_validate({"interface": {"type": "macvlan", "addresses": [address]}})
        parent = node.run(lambda: read_link_state("port"))
        seed = f"share-{number}"
        plan = plan_device(nic, parent, config, rdma_exclusive=False, mac_seed=seed, bandwidth=taken)
        attach_from(node, pod, plan)

    def read_bytes() -> int:
        (far,) = fabric.read_raw("-s", "link", "show", "dev", "far")
        return int(far["stats64"]["rx"]["bytes"])

    def passes_as_much() -> bool:
        start, before = time.monotonic(), read_bytes()
        wait_until(lambda: time.monotonic() - start > 1, "a second")
        passed, due = read_bytes() - before, 30 * M / 8 * (time.monotonic() - start)
        bursts = sum(choose_bucket(rate, None, USUAL).burst_bytes for rate in (20 * M, 10 * M))
        assert passed <= due + bursts
        return passed >= 0.9 * due

    with ExitStack() as flows:
        for pod in pods:
            flows.enter_context(flow(pod, fabric, "198.51.100.2"))
        wait_until(passes_as_much, "a second within 10 % of 30 Mbit/s", 20)
