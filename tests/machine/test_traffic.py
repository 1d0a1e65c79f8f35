"""Traffic control of a stock kernel: kinds of qdiscs, rate limits and BPF programs on a NIC that moves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dranet.errors import KernelError
from dranet.kernel.attachment.hardware import read_program_names, remove_programs
from dranet.kernel.attachment.links import open_host_side, open_pod_side
from dranet.kernel.attachment.traffic import limit_rate, remove_limits
from dranet.kernel.discovery.programs import BPF_TCX_INGRESS
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.netlink.tc import CLSACT_INGRESS, add_requests, read_filters, read_traffic_control
from dranet.model.plan import LimitRate, TrafficControl
from testbed.machine.hardware import MACHINE
from tests.kernel.loaded import BPF_XDP, XDP, attach_filter, ifindex_of, loader
from tests.machine import kernel_view
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.machine

IGB = MACHINE.function("igb0")
XDP_GENERIC = 1 << 1

ROOT = "qdisc add dev soft0 root handle 1:"

QDISCS = {
    "fq": [f"{ROOT} fq limit 5000 flow_limit 50 quantum 4000 maxrate 90mbit"],
    "fq of the defaults": [f"{ROOT} fq"],
    "fq_codel": [f"{ROOT} fq_codel limit 999 target 7ms interval 77ms ce_threshold 3ms flows 64"],
    "fq_codel of the defaults": [f"{ROOT} fq_codel"],
    "codel": [f"{ROOT} codel limit 77 target 3ms interval 33ms ecn"],
    "pie": [f"{ROOT} pie limit 77 target 11ms tupdate 20ms ecn"],
    "fq_pie": [f"{ROOT} fq_pie limit 77 target 13ms tupdate 20ms"],
    "sfq": [f"{ROOT} sfq perturb 10 limit 99 depth 33 divisor 512 headdrop"],
    "sfq with red": [
        f"{ROOT} sfq limit 3000 flows 512 redflowlimit 100000 min 8000 max 60000 probability 0.2 ecn headdrop"
    ],
    "prio": [
        f"{ROOT} prio bands 4 priomap 1 2 2 2 1 2 0 0 1 1 1 1 3 3 3 3",
        "qdisc add dev soft0 parent 1:3 handle 30: sfq perturb 5",
    ],
    "mq": [
        f"{ROOT} mq",
        "qdisc replace dev soft0 parent 1:2 handle 20: fq",
        "qdisc replace dev soft0 parent 1:1 handle 10: fq_codel limit 500",
    ],
    "mqprio": [
        f"{ROOT} mqprio num_tc 2 map 0 0 0 1 1 1 0 0 0 0 0 0 0 0 0 0 queues 1@0 3@1 hw 0",
        "qdisc replace dev soft0 parent 1:2 handle 20: sfq",
    ],
    "multiq": [f"{ROOT} multiq"],
    "cake": [f"{ROOT} cake bandwidth 20mbit diffserv4 nat rtt 50ms overhead 18 mpu 64"],
    "cake of the defaults": [f"{ROOT} cake"],
    "netem": [
        f"{ROOT} netem delay 10ms 3ms 25% loss 1% duplicate 1% reorder 5% 50%",
        "qdisc add dev soft0 parent 1:1 handle 10: tbf rate 1mbit burst 4kb latency 30ms",
    ],
    "netem with a loss model": [f"{ROOT} netem loss gemodel 1% 10% 70% 0.1%"],
    "ets": [f"{ROOT} ets bands 4 strict 2 quanta 4000 3000 priomap 3 2 1 0"],
    "hfsc": [
        f"{ROOT} hfsc default 2",
        "class add dev soft0 parent 1: classid 1:1 hfsc sc rate 7mbit ul rate 9mbit",
        "class add dev soft0 parent 1:1 classid 1:2 hfsc sc m1 3mbit d 10ms m2 1333kbit",
    ],
    "drr": [
        f"{ROOT} drr",
        "class add dev soft0 parent 1: classid 1:1 drr quantum 3000",
    ],
    "qfq": [
        f"{ROOT} qfq",
        "class add dev soft0 parent 1: classid 1:1 qfq weight 7 maxpkt 2048",
    ],
    "hhf": [f"{ROOT} hhf limit 900 quantum 3000 hh_limit 99 reset_timeout 80ms"],
    "skbprio": [f"{ROOT} skbprio limit 77"],
    "htb": [
        f"{ROOT} htb default 20",
        "class add dev soft0 parent 1: classid 1:1 htb rate 40gbit ceil 40gbit burst 500k",
        "class add dev soft0 parent 1:1 classid 1:20 htb rate 1mbit ceil 2mbit prio 3 quantum 2000",
        "qdisc add dev soft0 parent 1:20 handle 5: fq_codel target 9ms",
    ],
}

FLOWS = ("class cake", "class fq_codel", "class fq_pie", "class sfq")

REFUSED = {
    "red": f"{ROOT} red limit 400000 min 30000 max 90000 avpkt 1000 burst 55",
    "choke": f"{ROOT} choke limit 400 bandwidth 10mbit min 83 max 250",
}


@pytest.fixture(scope="module", autouse=True)
def soft0() -> Iterator[None]:
    """A link of four queues on the node, for what needs no hardware."""
    kernel_view.run("ip", "link", "add", "soft0", "numtxqueues", "4", "type", "dummy")
    kernel_view.run("ip", "link", "set", "soft0", "up")
    yield
    kernel_view.run("ip", "link", "del", "soft0")


@pytest.fixture(autouse=True)
def bare_soft0() -> Iterator[None]:
    yield
    for place in ("root", "clsact"):
        subprocess.run(["tc", "qdisc", "del", "dev", "soft0", place], capture_output=True)


def tc_line(line: str) -> None:
    done = subprocess.run(["tc", *line.split()], capture_output=True, text=True)
    if "kind is unknown" in done.stderr or "not found" in done.stderr:
        pytest.skip(f"the guest's modules lack what it takes: {line}")
    assert done.returncode == 0, f"{line}: {done.stderr}"


def shown(link: str) -> list[str]:
    """Qdiscs and classes as ``tc`` prints them, sorted; without classes that are flows of the moment."""
    texts = [kernel_view.run("tc", "-details", what, "show", "dev", link) for what in ("qdisc", "class")]
    lines = (line.strip() for text in texts for line in text.splitlines())
    return sorted(line for line in lines if not line.startswith(FLOWS))


def index_of(link: str) -> int:
    return int(kernel_view.ip("link", "show", "dev", link)[0]["ifindex"])


def read(link: str) -> tuple[TrafficControl, ...]:
    with NetlinkSocket.open() as rtnl:
        return read_traffic_control(rtnl, index_of(link))


def put_back(link: str, items: tuple[TrafficControl, ...]) -> list[str]:
    with NetlinkSocket.open() as rtnl:
        outcomes = rtnl.batch(add_requests(index_of(link), items, link))
    return [outcome.message for outcome in outcomes if isinstance(outcome, KernelError)]


@pytest.mark.parametrize("kind", QDISCS)
def test_what_was_on_a_link_can_be_put_back(kind: str) -> None:
    for line in QDISCS[kind]:
        tc_line(line)
    before, items = shown("soft0"), read("soft0")
    assert len(items) == len(QDISCS[kind])
    kernel_view.run("tc", "qdisc", "del", "dev", "soft0", "root")
    assert shown("soft0") != before
    assert put_back("soft0", items) == []
    assert shown("soft0") == before
    assert read("soft0") == items


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_kernel_does_not_tell_whole_is_refused_by_name(kind: str) -> None:
    tc_line(REFUSED[kind])
    items = read("soft0")
    assert [item.kind for item in items] == [kind]
    kernel_view.run("tc", "qdisc", "del", "dev", "soft0", "root")
    (refusal,) = put_back("soft0", items)
    assert f"qdisc {kind} 1: of soft0" in refusal
    assert read("soft0") == ()


def test_filters_of_other_kinds_are_said_in_words() -> None:
    tc_line("qdisc add dev soft0 clsact")
    tc_line("filter add dev soft0 ingress protocol ip flower dst_ip 192.0.2.1 action drop")
    tc_line("filter add dev soft0 egress matchall action drop")
    with NetlinkSocket.open() as rtnl:
        words = read_filters(rtnl, index_of("soft0"))
    assert words == ("flower filter 0x1 on ingress", "matchall filter 0x1 on egress")


# --- a NIC that moves -----------------------------------------------------------------------------------


@pytest.fixture
def nic(make_namespace: Callable[..., Namespace]) -> Iterator[tuple[str, Namespace]]:
    """The name of a physical NIC, and a pod; the NIC is on the node again in the end."""
    ifname, pod = kernel_view.ifname(IGB.address), make_namespace()
    yield ifname, pod
    if not kernel_view.ifname(IGB.address):
        pod.ip("link", "set", ifname, "netns", "1")
    kernel_view.run("ip", "link", "set", ifname, "up")


def test_limits_of_a_multi_queue_nic_come_and_go(nic: tuple[str, Namespace]) -> None:
    ifname, pod = nic
    before = shown(ifname)
    assert any(line.startswith("qdisc mq 0:") for line in before), "a NIC with several queues"
    assert read(ifname) == (), "all of it the kernel's own"
    kernel_view.run("ip", "link", "set", ifname, "netns", pod.name)
    pod.ip("link", "set", ifname, "up")
    step = LimitRate(egress_bits_per_second=40 * 10**9, ingress_bits_per_second=10**9)
    with open_pod_side(pod.netns) as side:
        limit_rate(side, ifindex_of(pod, ifname), ifname, step)
        assert bucket(pod, ifname)["options"]["rate"] == 5 * 10**9
        assert bucket(pod, f"ifb~{ifname}")["options"]["rate"] == 125 * 10**6
        remove_limits(side, ifindex_of(pod, ifname), ifname)
    assert [qdisc["kind"] for qdisc in qdiscs(pod, ifname) if qdisc.get("root")] == ["mq"]
    assert pod.read("link", "show", "type", "ifb") == []
    pod.ip("link", "set", ifname, "netns", "1")
    kernel_view.run("ip", "link", "set", ifname, "up")
    assert shown(ifname) == before


def qdiscs(pod: Namespace, link: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        kernel_view.run("tc", "-n", pod.name, "-j", "-d", "qdisc", "show", "dev", link)
    )
    return found


def bucket(pod: Namespace, link: str) -> dict[str, Any]:
    (found,) = (qdisc for qdisc in qdiscs(pod, link) if qdisc["kind"] == "tbf")
    return found


def test_qdiscs_of_a_nic_survive_its_journey(nic: tuple[str, Namespace]) -> None:
    ifname, pod = nic
    for line in QDISCS["mq"][:2]:
        tc_line(line.replace("soft0", ifname))
    before, items = shown(ifname), read(ifname)
    kernel_view.run("ip", "link", "set", ifname, "netns", pod.name)
    pod.ip("link", "set", ifname, "netns", "1")
    try:
        assert put_back(ifname, items) == []
        kernel_view.run("ip", "link", "set", ifname, "up")
        assert shown(ifname) == before
    finally:
        kernel_view.run("tc", "qdisc", "del", "dev", ifname, "root")


def test_programs_of_a_nic_are_named_on_the_node_and_gone_in_the_pod(nic: tuple[str, Namespace]) -> None:
    ifname, pod = nic
    ifindex = index_of(ifname)
    with loader() as loaded, open_host_side() as home:
        kernel_view.run("tc", "qdisc", "add", "dev", ifname, "clsact")
        here = Namespace("", home.netns)
        attach_filter(here, loaded.load("filter"), ifindex, CLSACT_INGRESS, b"filter.o:[tc]")
        loaded.attach_by_link(here, loaded.load("tcx"), ifindex, BPF_TCX_INGRESS)
        loaded.attach_by_link(here, loaded.load("xdp", XDP), ifindex, BPF_XDP, XDP_GENERIC)
        assert read_program_names(home, ifindex) == ("tc ingress filter.o:[tc]", "tcx ingress tcx", "xdp xdp")
        kernel_view.run("ip", "link", "set", ifname, "netns", pod.name)
        with open_pod_side(pod.netns) as side:
            ifindex = ifindex_of(pod, ifname)
            assert "xdp xdp" in read_program_names(side, ifindex)
            remove_programs(side, ifindex, ifname)
            assert read_program_names(side, ifindex) == ()
        assert "xdp" not in pod.read_raw("link", "show", "dev", ifname)[0]
