"""Real drivers and qdiscs of a stock kernel: what the node gets back from a tenant who changes everything."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.attachment.record import read_link_state
from dranet.model.plan import AttachPlan, MoveLink, SetUp
from dranet.testbed.machine.hardware import MACHINE
from tests.kernel.settings_of_links import ADDRESSES, HOST_SETTINGS, VANDALISM, vandalise
from tests.machine import kernel_view
from tests.namespaces import Namespace, read_ethtool, read_sysctls
from tests.waiting import wait_until

pytestmark = pytest.mark.machine

DUMMY = "soft0"

EVERYWHERE = (
    "ip link set {link} mtu 1400 alias 'rack 7' txqueuelen 333 group 7 promisc on\n"
    + HOST_SETTINGS["alternative names"].replace("enp33s0f0np0", "{link}-again")
    + "\nip link set {link} gso_max_size 30000 gso_max_segs 60 gro_max_size 40000\n"
    + "ethtool -K {link} gro off gso off\n"
    + "for f in rp_filter forwarding arp_ignore; do echo 1 > /proc/sys/net/ipv4/conf/{link}/$f; done\n"
    + "echo 2 > /proc/sys/net/ipv6/conf/{link}/accept_ra\n"
    # Without an address that the kernel makes by itself when the carrier comes.
    + "echo 1 > /proc/sys/net/ipv6/conf/{link}/addr_gen_mode\n"
    + "ip link set {link} down; ip link set {link} up\n"
    + ADDRESSES
    + "ip route add 10.50.0.0/16 via 10.1.0.1 metric 50\n"
    + "ip neigh add 10.1.0.9 lladdr 02:00:00:00:99:99 dev {link} nud permanent\n"
)

ONE_CHANNEL = "ethtool -L {link} combined 1"

BY_DRIVER = {
    "igb0": (
        f"ethtool -G {{link}} rx 512 tx 128; {ONE_CHANNEL}; ethtool -C {{link}} rx-usecs 10\n"
        "ethtool -K {link} tso off rxvlan off ntuple on; ethtool --set-priv-flags {link} legacy-rx on"
    ),
    "igb0/1": "ethtool -G {link} rx 512 tx 512",
    "virtio0": "true",
    DUMMY: "ip link set {link} arp on",
}

QDISCS = {
    "fq": "tc qdisc replace dev {link} root handle 1: fq limit 5000 flow_limit 50 quantum 3000",
    "fq_codel": (
        "tc qdisc replace dev {link} root handle 2: fq_codel limit 2000 target 7ms interval 90ms noecn\n"
        "tc qdisc add dev {link} clsact"
    ),
    "htb": HOST_SETTINGS["htb"] + "\ntc qdisc add dev {link} parent 1:20 handle 20: fq_codel target 9ms",
    "tbf": "tc qdisc replace dev {link} root handle 3: tbf rate 20mbit burst 32k latency 30ms",
    "mq": (
        "tc qdisc replace dev {link} root handle 4: mq\n"
        "tc qdisc replace dev {link} parent 4:1 handle 41: fq limit 4000"
    ),
}

PAIRS = (
    *(("igb0", qdisc) for qdisc in QDISCS),
    *(("igb0/1", "fq"), ("igb0/1", "htb"), ("virtio0", "fq_codel"), ("virtio0", "tbf"), (DUMMY, "htb")),
)
"""igb, igbvf, virtio_net and a dummy: each driver with all that it has, and each qdisc on a link of several
queues and on one of a single queue (which takes no mq). The qdisc knows nothing of the driver below."""


def sh(script: str, link: str) -> None:
    command = ["sh", "-ec", script.replace("{link}", link)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    """A namespace; whatever a failed test left in it goes back to the node with its end."""
    return make_namespace()


@pytest.fixture
def nic(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """What it is and its name; afterwards it is as the machine's script left it."""
    name: str = request.param
    if name == DUMMY:
        kernel_view.run("ip", "link", "add", DUMMY, "type", "dummy")
        kernel_view.run("ip", "link", "set", DUMMY, "up")
        yield name, DUMMY
        kernel_view.run("ip", "link", "del", DUMMY)
        return
    link = kernel_view.ifname(MACHINE.function(name).address)
    plain = plan_for(link)
    kernel_view.raise_links()
    yield name, link
    now = kernel_view.ifname(MACHINE.function(name).address)
    for qdisc in ("root", "clsact"):
        subprocess.run(["tc", "qdisc", "del", "dev", now, qdisc], capture_output=True)
    kernel_view.run("ip", "addr", "flush", "dev", now)
    kernel_view.run("ip", "neigh", "flush", "dev", now, "nud", "permanent")
    detach([plain], None)
    assert kernel_view.ifname(MACHINE.function(name).address) == link


def plan_for(link: str) -> AttachPlan:
    return AttachPlan(f"dev-{link}", (MoveLink("net1"), SetUp()), "net1", read_link_state(link))


def shown(link: str) -> dict[str, Any]:
    """What ip, tc, ethtool and /proc/sys say of a link, without what follows the carrier."""
    wait_until(lambda: NO_MAC not in vf_macs(link), "every virtual function has its address", 60)
    (entry,) = kernel_view.ip("addr", "show", "dev", link)
    flags = sorted(set(entry.pop("flags")) - {"NO-CARRIER", "LOWER_UP"})
    addresses = [without_time(info) for info in entry.pop("addr_info") if info]
    for key in ("operstate", "qdisc", "promiscuity", "allmulti"):  # follow carrier, qdiscs and listeners
        entry.pop(key, None)
    entry["altnames"] = sorted(entry.get("altnames", ()))
    routes = kernel_view.ip("route", "show", "table", "all", "dev", link)
    for route in routes:
        route["flags"] = [flag for flag in route["flags"] if flag != "linkdown"]
    classes = kernel_view.run("tc", "-d", "class", "show", "dev", link).splitlines()
    qdiscs = json.loads(kernel_view.run("tc", "-j", "-d", "qdisc", "show", "dev", link))
    for qdisc in qdiscs:
        qdisc.pop("refcnt", None)
        qdisc.get("options", {}).pop("direct_packets_stat", None)
    return {
        "link": entry,
        "flags": flags,
        "addresses": addresses,
        "routes": sorted(str(route) for route in routes if route["dst"] != "ff00::/8"),
        "neighbours": kernel_view.ip("neigh", "show", "nud", "permanent", "dev", link),
        "qdiscs": sorted(str(qdisc) for qdisc in qdiscs if qdisc["handle"] != "0:"),
        "classes": sorted(line for line in classes if "class htb" in line),  # others come and go with flows
        "ethtool": read_ethtool([link]),
        "sysctls": read_sysctls([link]),
    }


NO_MAC = "00:00:00:00:00:00"
"""Of a virtual function while its driver starts anew, as it does after the physical one was down."""


def vf_macs(link: str) -> list[str]:
    (entry,) = kernel_view.ip("link", "show", "dev", link)
    return [vf["address"] for vf in entry.get("vfinfo_list", ())]


def without_time(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if "life_time" not in key}


@pytest.mark.parametrize(("nic", "qdisc"), PAIRS, indirect=["nic"])
def test_a_tenant_who_changes_everything_changes_nothing_for_the_node(
    nic: tuple[str, str], pod: Namespace, qdisc: str
) -> None:
    name, link = nic
    settings = EVERYWHERE + BY_DRIVER[name] + "\n" + QDISCS[qdisc]
    if qdisc == "mq":
        settings = settings.replace(ONE_CHANNEL, "true")
    sh(settings, link)
    before = shown(link)
    plan = plan_for(link)
    attach([plan], pod.netns)
    vandalise(pod, "net1", VANDALISM)
    report = detach([plan], pod.netns)
    assert report == DetachReport(restored=(plan.device,))
    after = shown(link)
    assert {key: (before[key], after[key]) for key in before if before[key] != after[key]} == {}
