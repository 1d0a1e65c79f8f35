"""Real drivers and qdiscs of a stock kernel: what the node gets back from a tenant who changes everything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.ethtool.steering import SRSSH, SRXCLSRLDEL, SRXCLSRLINS, SRXFH, Nic
from dranet.model.plan import AttachPlan, MoveLink, SetUp
from testbed.machine.hardware import MACHINE
from tests.kernel.settings_of_links import ADDRESSES, HOST_SETTINGS, VANDALISM, vandalise
from tests.machine import kernel_view
from tests.support.namespaces import Namespace, read_ethtool, read_sysctls
from tests.support.waiting import wait_until

pytestmark = pytest.mark.machine

DUMMY, CARD = "soft0", "card0"
"""``CARD`` is a link of our module ``vnode_nic``, which has what no card of QEMU has."""

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


# --- what the card keeps, one by one -------------------------------------------------------------------


class Kept(NamedTuple):
    """A setting that stays on a link that moves: ``host`` makes it, ``tenant`` changes it, ``shown`` by."""

    host: str
    tenant: str
    shown: str


KEPT = {
    "pause": Kept(
        "ethtool -A {link} autoneg off rx on tx off", "ethtool -A {link} rx off tx on", "ethtool -a {link}"
    ),
    "pause, autoneg": Kept(
        "ethtool -A {link} autoneg off", "ethtool -A {link} autoneg on", "ethtool -a {link}"
    ),
    "fec": Kept(
        "ethtool --set-fec {link} encoding rs", "ethtool --set-fec {link} encoding baser off",
        "ethtool --show-fec {link}",
    ),
    "fec, by itself": Kept("true", "ethtool --set-fec {link} encoding off", "ethtool --show-fec {link}"),
    "eee": Kept(
        "ethtool --set-eee {link} eee on tx-lpi on tx-timer 17 advertise 0x008",
        "ethtool --set-eee {link} eee off tx-lpi off tx-timer 99 advertise 0x020",
        "ethtool --show-eee {link}",
    ),
    "rss table": Kept("ethtool -X {link} weight 1 2 3 1", "ethtool -X {link} equal 2", "ethtool -x {link}"),
    "rss table of the kernel": Kept("true", "ethtool -X {link} weight 0 1", "ethtool -x {link}"),
    "rss table, more channels": Kept(
        "true",
        "ethtool -L {link} combined 8; ethtool -X {link} equal 8",
        "ethtool -x {link}; ethtool -l {link}",
    ),
    "rss key": Kept(
        "ethtool -X {link} hkey " + ":".join(["5a"] * 40), "ethtool -X {link} hkey " + ":".join(["a5"] * 40),
        "ethtool -x {link}",
    ),
    "rss function": Kept("true", "ethtool -X {link} hfunc xor", "ethtool -x {link}"),
    "rss contexts of a tenant": Kept(
        "true",
        "ethtool -X {link} context new equal 2; ethtool -X {link} context new equal 3\n"
        "ethtool -N {link} flow-type tcp4 dst-port 443 context 1 loc 2",
        "ethtool -x {link}; ethtool -n {link}; ethtool -x {link} context 1; ethtool -x {link} context 2",
    ),
    "rss contexts of the node": Kept(
        "ethtool -X {link} context new equal 3; ethtool -X {link} context new equal 2\n"
        "ethtool -N {link} flow-type tcp4 dst-port 80 context 2 loc 5",
        "ethtool -N {link} delete 5; ethtool -X {link} context 2 delete; ethtool -X {link} context 1 equal 4",
        "ethtool -n {link}; ethtool -x {link} context 1; ethtool -x {link} context 2",
    ),
    "hash fields": Kept(
        "ethtool -N {link} rx-flow-hash udp4 sdfn",
        "ethtool -N {link} rx-flow-hash udp4 s; ethtool -N {link} rx-flow-hash tcp6 d",
        "for f in tcp4 udp4 tcp6 udp6 sctp4; do ethtool -n {link} rx-flow-hash $f; done",
    ),
    "flow rules": Kept(
        "ethtool -N {link} flow-type udp4 dst-port 4791 action 3 loc 4\n"
        "ethtool -N {link} flow-type tcp4 src-ip 10.1.2.3 action -1 loc 7",
        "ethtool -N {link} delete 7; ethtool -N {link} flow-type tcp4 dst-port 22 action 1 loc 4\n"
        "ethtool -N {link} flow-type ether dst 02:00:00:00:00:07 action 2 loc 1",
        "ethtool -n {link}",
    ),
    "dcb pfc": Kept(
        "dcb pfc set dev {link} prio-pfc all:off 3:on delay 100",
        "dcb pfc set dev {link} prio-pfc all:off 5:on",
        "dcb -j pfc show dev {link} prio-pfc delay",
    ),
    "dcb ets": Kept(
        "dcb ets set dev {link} tc-tsa all:strict 0:ets 1:ets tc-bw all:0 0:40 1:60 prio-tc all:0 3:1",
        "dcb ets set dev {link} tc-tsa all:strict tc-bw all:0 prio-tc all:0", "dcb -j ets show dev {link}",
    ),
    "dcb maxrate": Kept(
        "dcb maxrate set dev {link} tc-maxrate 3:10Gbit", "dcb maxrate set dev {link} tc-maxrate 3:1Mbit",
        "dcb -j maxrate show dev {link}",
    ),
    "dcb app": Kept(
        "dcb app add dev {link} dscp-prio 24:3 26:3 ethtype-prio 0x8915:3",
        "dcb app flush dev {link}; dcb app add dev {link} dscp-prio 24:0", "dcb -j app show dev {link}",
    ),
    "dcb app, by the move itself": Kept(
        "dcb app add dev {link} dscp-prio 24:3", "true", "dcb -j app show dev {link}"
    ),
    "dcbx": Kept(
        "true", "dcb dcbx set dev {link} host ieee cee", "dcb -j dcbx show dev {link}"
    ),
    "xps, by the driver itself": Kept(
        "cd /sys/class/net/{link}/queues; echo 2 > tx-1/xps_cpus; echo 3 > tx-2/xps_cpus",
        "true", "cat /sys/class/net/{link}/queues/tx-*/xps_cpus",
    ),
    "rps of the node": Kept(
        "echo 2 > /sys/class/net/{link}/queues/rx-1/rps_cpus",
        "mount -t sysfs s /mnt; echo 1 > /mnt/class/net/{link}/queues/rx-1/rps_cpus; umount /mnt",
        "cat /sys/class/net/{link}/queues/rx-*/rps_cpus",
    ),
}  # fmt: skip


@pytest.fixture
def card() -> Iterator[str]:
    kernel_view.run("modprobe", "vnode_nic")
    kernel_view.run(*f"ip link add {CARD} numtxqueues 4 numrxqueues 4 type vnode_nic".split())
    kernel_view.run("ip", "link", "set", CARD, "addrgenmode", "none")
    kernel_view.run("ip", "link", "set", CARD, "up")
    yield CARD
    kernel_view.run("ip", "link", "del", CARD)


def shown_by(command: str, link: str) -> str:
    done = subprocess.run(["sh", "-c", command.replace("{link}", link)], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", KEPT)
def test_what_a_card_keeps_is_as_it_was_after_a_tenant_with_net_admin(
    card: str, pod: Namespace, name: str
) -> None:
    kept = KEPT[name]
    sh(kept.host, card)
    before, all_before = shown_by(kept.shown, card), shown(card)
    plan = plan_for(card)
    attach([plan], pod.netns)
    if kept.tenant != "true":
        pod.run(lambda: sh(kept.tenant, "net1"))
        inside = pod.run(lambda: shown_by(kept.shown, "net1"))
        assert inside.replace("net1", card) != before, "the tenant could do it"
    assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    assert shown_by(kept.shown, card) == before
    assert shown(card) == all_before


def test_a_tenant_who_changes_all_that_a_card_keeps_changes_nothing_for_the_node(
    card: str, pod: Namespace
) -> None:
    alike = ("rss table", "rss key", "eee", "fec", "flow rules", "hash fields", "rps of the node", "pause")
    together = [*alike, "dcb pfc", "dcb ets", "dcb maxrate", "dcb app", "xps, by the driver itself"]
    for name in together:
        sh(KEPT[name].host, card)
    before = {name: shown_by(KEPT[name].shown, card) for name in KEPT}
    plan = plan_for(card)
    attach([plan], pod.netns)
    for name in [*together, "rss contexts of a tenant", "rss table, more channels", "dcbx"]:
        pod.run(lambda name=name: subprocess.run(["sh", "-c", KEPT[name].tenant.replace("{link}", "net1")]))  # type: ignore[misc]
    assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    assert {name: shown_by(KEPT[name].shown, card) for name in KEPT} == before


def test_a_card_that_is_as_it_was_is_read_and_not_written(
    card: str, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sh(KEPT["flow rules"].host + "\n" + KEPT["rss table"].host, card)
    plan = plan_for(card)
    attach([plan], pod.netns)
    asked: list[int] = []
    ask = Nic.ask

    def record(nic: Nic, data: bytes, operation: str) -> bytes:
        asked.append(int.from_bytes(data[:4], sys.byteorder))
        return ask(nic, data, operation)

    monkeypatch.setattr(Nic, "ask", record)
    assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    assert asked
    assert not {SRSSH, SRXFH, SRXCLSRLINS, SRXCLSRLDEL} & set(asked)


OF_IGB = {
    "pause": Kept("true", "ethtool -A {link} autoneg off", "ethtool -a {link} | grep Autoneg"),
    "rss table": Kept("ethtool -X {link} weight 1 3", "ethtool -X {link} equal 1", "ethtool -x {link}"),
    "hash fields": Kept(
        "ethtool -N {link} rx-flow-hash udp4 sdfn",
        "ethtool -N {link} rx-flow-hash udp4 sd; ethtool -N {link} rx-flow-hash udp6 sdfn",
        "ethtool -n {link} rx-flow-hash udp4; ethtool -n {link} rx-flow-hash udp6",
    ),
}
"""As the 82576 of QEMU has it: no flow rules, no EEE, no key that can be read. The directions of its pause
frames follow the carrier."""


@pytest.mark.parametrize("nic", ["igb0"], indirect=True)
@pytest.mark.parametrize("name", OF_IGB)
def test_what_a_real_card_keeps_is_as_it_was_after_a_tenant(
    nic: tuple[str, str], pod: Namespace, name: str
) -> None:
    _, link = nic
    kept = OF_IGB[name]
    sh(kept.host, link)
    before = shown_by(kept.shown, link)
    plan = plan_for(link)
    attach([plan], pod.netns)
    pod.run(lambda: sh(kept.tenant, "net1"))
    inside = pod.run(lambda: shown_by(kept.shown, "net1"))
    assert inside.replace("net1", link) != before, "the tenant could do it"
    assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    assert shown_by(kept.shown, link) == before
