"""What scrapes read of the kernel: against ``/proc/net/dev``, and from trees as drivers fill them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dranet.errors import KernelError
from dranet.kernel.attachment.traffic import BUCKET_HANDLE
from dranet.kernel.counters import (
    Traffic,
    parse_rate,
    read_limit_drops,
    read_port_counters,
    read_traffic,
)
from dranet.kernel.netlink.socket import NetlinkSocket, attribute, nested
from dranet.kernel.netlink.tc import Pauses, TokenBucket, get_pauses_request, parse_pauses, set_bucket_request
from tests.kernel.trees import Tree
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

PORTS = "class/infiniband/mlx5_0/ports"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def read_proc() -> dict[str, list[int]]:
    """The other way to the same counters; fields are those of its two header lines."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return {name.strip(): list(map(int, rest.split())) for name, _, rest in (x.partition(":") for x in lines)}


@pytest.mark.kernel
def test_traffic_is_what_proc_net_dev_says(make_namespace: Callable[..., Namespace]) -> None:
    left, right = make_namespace(), make_namespace()
    left.ip("link", "add", "left", "type", "veth", "peer", "name", "right", "netns", right.name)
    for side, link, address in ((left, "left", "192.0.2.1/24"), (right, "right", "192.0.2.2/24")):
        side.ip("addr", "add", address, "dev", link)
        side.ip("link", "set", link, "up")
        side.ip("link", "set", "lo", "up")
    # The kernel drops what is sent before it has noticed the carrier, and queues little for a neighbor
    left.ip("neigh", "add", "192.0.2.2", "lladdr", "02:00:00:00:00:02", "dev", "left")
    wait_until(lambda: left.read_raw("link", "show", "dev", "left")[0]["operstate"] == "UP", "no carrier")
    left.run(send_some)

    traffic, proc = left.run(lambda: (read_traffic(), read_proc()))
    ifindex = left.read("link", "show", "dev", "left")[0]["ifindex"]
    seen, said = traffic[ifindex], proc["left"]
    assert seen.transmit_packets > 10
    assert seen == Traffic(
        receive_packets=said[1],
        transmit_packets=said[9],
        receive_bytes=said[0],
        transmit_bytes=said[8],
        receive_errors=said[2],
        transmit_errors=said[10],
        receive_dropped=said[3],
        transmit_dropped=said[11],
    )


def send_some(packets: int = 20, size: int = 100) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(packets):
            with suppress(OSError):  # dropped on the way out
                sock.sendto(b"x" * size, ("192.0.2.2", 9))


@pytest.mark.kernel
def test_what_a_token_bucket_of_ours_drops_is_what_tc_says(make_namespace: Callable[..., Namespace]) -> None:
    pod = make_namespace()
    pod.ip("link", "add", "net1", "type", "veth", "peer", "name", "peer")
    pod.ip("addr", "add", "192.0.2.1/24", "dev", "net1")
    for link in ("net1", "peer"):
        pod.ip("link", "set", link, "up")
    pod.ip("neigh", "add", "192.0.2.2", "lladdr", "02:00:00:00:00:02", "dev", "net1")
    ifindex = pod.read("link", "show", "dev", "net1")[0]["ifindex"]
    pod.run(lambda: add_bucket(ifindex))
    assert pod.run(read_limit_drops) == {ifindex: 0}
    pod.run(lambda: send_some(packets=200, size=1000))
    (bucket,) = [one for one in pod.tc("-s", "qdisc", "show", "dev", "net1") if one["kind"] == "tbf"]
    assert bucket["drops"] > 0
    assert pod.run(read_limit_drops)[ifindex] >= bucket["drops"]


def add_bucket(ifindex: int) -> None:
    with NetlinkSocket.open() as rtnl:
        bucket = TokenBucket(bytes_per_second=10_000, burst_bytes=4_000, limit_bytes=8_000)
        rtnl.request(set_bucket_request(ifindex, BUCKET_HANDLE, bucket, "net1"))


@pytest.mark.kernel
def test_a_driver_without_flow_control_says_so(node: Namespace) -> None:
    def ask() -> object:
        with NetlinkSocket.open() as rtnl:
            return rtnl.batch([get_pauses_request("eth1"), get_pauses_request("nobody")])

    outcomes = node.run(ask)
    assert isinstance(outcomes, list)
    assert all(isinstance(outcome, KernelError) for outcome in outcomes)


def test_flow_control_is_told_by_priority() -> None:
    frames = struct.pack("@BBBxH2x8Q8Q", 8, 0b0000_1001, 0, 0, *range(10, 18), *range(20, 28))
    message = struct.pack("=BBH", 0, 21, 0) + nested(13, attribute(1, b"ets"), attribute(2, frames))
    assert parse_pauses(message) == (Pauses(0, 10, 20), Pauses(3, 13, 23))


@pytest.mark.parametrize("told", [b"", b"\x08\xff", b"x" * 100])
def test_an_answer_that_is_cut_tells_of_no_flow_control(told: bytes) -> None:
    assert parse_pauses(struct.pack("=BBH", 0, 21, 0) + nested(13, attribute(2, told))) == ()


def test_words_of_infiniband_are_bytes_and_vendors_counters_have_one_name(tree: Tree) -> None:
    tree.write_all(f"{PORTS}/1", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")
    tree.write_all(f"{PORTS}/1/counters", port_rcv_data="100", port_xmit_data="7", port_rcv_packets="3")
    tree.write_all(f"{PORTS}/1/hw_counters", out_of_sequence="5", np_cnp_sent="6", lifespan="10")
    (port,) = read_port_counters(tree.root, "mlx5_0")
    assert (port.number, port.state, port.rate) == (1, "ACTIVE", "400 Gb/sec (4X NDR)")
    assert port.counters == {
        "receive_bytes": 400,
        "transmit_bytes": 28,
        "receive_packets": 3,
        "out_of_sequence": 5,
        "cnp_transmitted": 6,
    }


@pytest.mark.parametrize(
    ("driver", "counters"),
    [
        ({"to_retransmits": "4", "seq_err_naks_rcvd": "2"}, {"retransmits": 4, "sequence_naks": 2}),
        ({"retrans_pkts": "9", "rx_bytes": "12"}, {"retransmits": 9, "receive_bytes": 12}),
        ({"RxECNMrkd": "1", "cnpSent": "2"}, {"ecn_marked": 1, "cnp_transmitted": 2}),
        ({"tcpRetransSegs": "5"}, {"retransmits": 5}),
        (
            {"tx_cnp_pkts": "3", "rx_cnp_pkts": "4", "rx_ecn_marked_pkts": "5"},
            {"cnp_transmitted": 3, "cnp_received": 4, "ecn_marked": 5},
        ),
    ],
)
def test_counters_of_a_device_count_for_its_only_port(
    tree: Tree, driver: dict[str, str], counters: dict[str, int]
) -> None:
    tree.write(f"{PORTS}/1/state", "1: DOWN")
    tree.write_all("class/infiniband/mlx5_0/hw_counters", **driver)
    (port,) = read_port_counters(tree.root, "mlx5_0")
    assert port.counters == counters


def test_of_two_ports_none_is_given_what_the_device_counts(tree: Tree) -> None:
    for number in (1, 2):
        tree.write(f"{PORTS}/{number}/state", "4: ACTIVE")
    tree.write("class/infiniband/mlx5_0/hw_counters/retrans_pkts", "9")
    assert [port.counters for port in read_port_counters(tree.root, "mlx5_0")] == [{}, {}]


@pytest.mark.parametrize("text", ["N/A (no PMA)", "", "-1", "1e3", "9" * 30, "٣"])
def test_what_is_no_count_is_absent_and_not_0(tree: Tree, text: str) -> None:
    tree.write(f"{PORTS}/1/counters/port_xmit_wait", text)
    (port,) = read_port_counters(tree.root, "mlx5_0")
    assert port.counters == {}


def test_a_device_that_is_not_there_has_no_ports(tree: Tree) -> None:
    assert read_port_counters(tree.root, "mlx5_9") == ()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 50_000_000_000),
        ("2.5 Gb/sec (1X SDR)", 312_500_000),
        ("", None),
        ("fast", None),
        ("x Gb/sec", None),
        ("inf Gb/sec", None),
    ],
)
def test_rates_are_bytes_a_second(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate
