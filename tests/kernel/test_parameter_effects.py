"""Every parameter of a claim by its effect, as ``ip``, ``tc``, ``ethtool`` and /proc tell it in the pod.

The walk is the driver's: decode, read the node, plan, attach, give back. Each effect is looked for twice,
first without the parameter: what the kernel has anyway shows nothing. A parameter without an entry fails.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dranet.driver.ipam import Obtained
from dranet.driver.node_reader import NodeReader
from dranet.driver.planner import Lookups, Planner
from dranet.errors import ClaimError
from dranet.kernel.dhcp.client import acquire_lease
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, Consumer, OpaqueConfig
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import Part, walk_fields
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore
from testbed.machine.guest import IN_MACHINE
from testbed.machine.hardware import MACHINE
from testbed.machine.lane import TESTS
from tests.kernel.loaded import XDP, ifindex_of, loader
from tests.kernel.plans import attach_from, detach_to, shell, sysctl
from tests.kernel.test_programs import XDP_GENERIC, set_xdp
from tests.machine import kernel_view
from tests.support.dhcp_servers import ScriptedServer, good_answers
from tests.support.namespaces import Namespace, add_nic, wait_settled, wait_unchanged
from tests.support.waiting import wait_until

Json = dict[str, Any]
REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).relative_to(REPOSITORY)

NIC = "eth1"
USUAL: Json = {"interface": {"name": "net1", "addresses": ["172.16.1.5/24", "2001:db8:100::5/64"]}}
"""What every claim here says, unless its own parameters say otherwise."""


# --- the walk -------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """A node, what its NICs are connected to, and a pod; ``cleanup`` runs at the end of the test."""

    node: Namespace
    fabric: Namespace
    pod: Namespace
    folder: Path
    cleanup: ExitStack

    def prepare(self, device: Device, *configs: Json) -> PreparedClaim:
        """As Prepare does; each config but the last is of the DeviceClass."""
        with ExitStack() as stack:
            store = ClaimStore(self.folder / "claims")
            store.open()
            stack.callback(store.close)
            node = NodeReader(Path("/sys"))
            planner = Planner(
                "dra.net", "boot", Lookups(Offer(device).get_offered), store, lambda *_: "dra.net/nic=a", node
            )
            decoded = self.node.run(lambda: planner.decode(a_claim(device, *configs)))
            leases = {
                asked.device: self.node.run(partial(acquire_lease, asked.ifname, asked.mac))
                for asked in decoded.dhcp
            }
            return self.node.run(lambda: planner.plan(decoded, Obtained(leases)))

    @contextmanager
    def attached(self, ifname: str, *configs: Json, lost: str = "") -> Iterator[None]:
        """A device with these parameters is in the pod inside the block; then the node has it back, but for
        what the report says is ``lost``."""
        device = Device(f"dev-{ifname}", DeviceKind.NIC, ifname=ifname)
        plans = self.prepare(device, *configs).plans
        attach_from(self.node, self.pod, *plans)
        yield
        report = detach_to(self.node, self.pod, *plans)
        assert report.restored == (device.name,)
        assert [problem for problem in report.problems if not (lost and lost in problem)] == []

    # --- what the kernel tells of the pod ---------------------------------------------------------------

    def link(self, name: str = "net1") -> Json:
        (link,) = self.pod.read("link", "show", "dev", name)
        return link

    def info(self, key: str) -> object:
        """Of what is told of the kind of link alone."""
        return self.link().get("linkinfo", {}).get("info_data", {}).get(key)

    def addresses(self) -> dict[str, Json]:
        """By address with prefix, without those that the kernel makes itself."""
        (link,) = self.pod.read_raw("addr", "show", "dev", "net1")
        return {f"{i['local']}/{i['prefixlen']}": i for i in link["addr_info"] if i["scope"] == "global"}

    def routes(self) -> dict[str, Json]:
        """Those that somebody configured, through the link, in any table; by destination."""
        found: dict[str, Json] = {}
        for family in ("-4", "-6"):
            for route in self.pod.read(family, "route", "show", "table", "all"):
                ways = [route.get("dev"), *(hop.get("dev") for hop in route.get("nexthops", []))]
                if route.get("protocol") in ("static", "dhcp") and "net1" in ways:
                    found[route["dst"]] = route
        return found

    def route(self, key: str, otherwise: object = None) -> object:
        """A field of the one route of the claim."""
        (route,) = self.routes().values() or [{}]
        return route.get(key, otherwise)

    def hops(self) -> set[tuple[object, ...]]:
        (route,) = self.routes().values() or [{}]
        hops = route.get("nexthops", [])
        return {(h["gateway"], h["dev"], h["weight"], "onlink" in h.get("flags", [])) for h in hops}

    def rules(self, *keys: str) -> list[tuple[object, ...]]:
        """These fields of each rule of a claim, IPv4 first."""
        found = [*self.pod.read("-4", "rule"), *self.pod.read("-6", "rule")]
        return [tuple(rule.get(k) for k in keys) for rule in found if rule.get("protocol") == "static"]

    def neighbours(self) -> dict[str, str]:
        found = self.pod.read("neigh", "show", "dev", "net1", "nud", "permanent")
        return {entry["dst"]: entry["lladdr"] for entry in found}

    def bucket(self, link: str) -> Json:
        """The token bucket of a link."""
        qdiscs = self.pod.tc("qdisc", "show")
        return next((q["options"] for q in qdiscs if (q["dev"], q["kind"]) == (link, "tbf")), {})

    def sysctls(self, *paths: str) -> list[str]:
        return [sysctl(self.pod, path) for path in paths]

    def feature(self, name: str) -> bool:
        (shown,) = json.loads(shell(self.pod, "ethtool", "--json", "-k", "net1"))
        return bool(shown[name]["active"])

    def number(self, option: str, name: str) -> str:
        """On the last line of this name: of rings and channels ``ethtool`` shows the maximum first."""
        shown = shell(self.pod, "ethtool", option, "net1")
        found: list[str] = re.findall(rf"^{re.escape(name)} *: *\t*(\S+)", shown, re.MULTILINE)
        return found[-1]

    def adaptive(self, direction: str) -> bool:
        """``Adaptive RX: on  TX: off``"""
        return f"{direction}: on" in shell(self.pod, "ethtool", "-c", "net1").partition("\nstats")[0]


@dataclass(frozen=True)
class Offer:
    """The node has one device to offer."""

    device: Device

    def get_offered(self, name: str) -> Device:
        assert name == self.device.name
        return self.device


def a_claim(device: Device, *configs: Json) -> Claim:
    sources = [ConfigSource.CLASS] * (len(configs) - 1) + [ConfigSource.CLAIM]
    return Claim(
        ref=ClaimRef("default", "claim", "claim-uid"),
        allocated=True,
        results=(AllocationResult("nic", "dra.net", "node", device.name),),
        configs=tuple(OpaqueConfig(s, "dra.net", c) for s, c in zip(sources, configs, strict=True)),
        reserved_for=(Consumer("pods", "pod", "pod-uid"),),
    )


@pytest.fixture
def scene(
    make_namespace: Callable[..., Namespace], fabric: Namespace, pod: Namespace, tmp_path: Path
) -> Iterator[Scene]:
    """With one NIC: what each picture of a node costs in the virtual machine grows with its links."""
    node = make_namespace()
    add_nic(node, fabric, NIC, "02:00:00:00:00:01")
    with ExitStack() as cleanup:
        yield Scene(node, fabric, pod, tmp_path, cleanup)


# --- entries of the table -------------------------------------------------------------------------------


def nothing(_: Scene) -> None:
    """All is as the fixtures have it."""


@dataclass(frozen=True)
class Effect:
    """What ``read`` must find once a claim has ``asked``; without, by the class's parameters ``otherwise``
    alone, it must find something else.

    ``given`` makes the node and the pod what they are to be, ``each`` before either attachment.
    """

    asked: Json
    read: Callable[[Scene], object]
    wanted: object
    otherwise: Json = field(default_factory=dict)
    given: Callable[[Scene], None] = nothing
    each: Callable[[Scene], None] = nothing
    nic: str = NIC
    lost: str = ""
    """A word of the report, and a key of what ``ip`` shows: what the node does not get back."""
    needs: str = ""
    """What a stock kernel has and this machine's may not: see the machine lane."""


@dataclass(frozen=True)
class Refused:
    """A parameter that no claim may have yet."""

    asked: Json
    message: str


@dataclass(frozen=True)
class Elsewhere:
    """Shown by other tests, together; ``why`` not here."""

    why: str
    tests: tuple[str, ...]


def interface(**parameters: Any) -> Json:
    return {"interface": parameters}


def ipv6(**parameters: Any) -> Json:
    return interface(ipv6=parameters)


def one_route(**parameters: Any) -> Json:
    """Lists replace, so each says the whole route."""
    return {"routes": [{"destination": "10.1.0.0/16", **parameters}]}


def one_rule(**parameters: Any) -> Json:
    return {"rules": [{"priority": 50, "table": 100, **parameters}]}


def ways(*hops: Json) -> Json:
    return one_route(nextHops=list(hops))


def ethtool(**parameters: Any) -> Json:
    return {"ethtool": parameters}


# --- what is so before ----------------------------------------------------------------------------------


def pod_has(*lines: str) -> Callable[[Scene], None]:
    """``path value`` below /proc/sys/net of the pod: what a new link there starts with."""

    def write() -> None:
        for line in lines:
            path, value = line.split()
            Path("/proc/sys/net", path).write_text(value)

    return lambda scene: scene.pod.run(write)


def node_has_addresses(scene: Scene) -> None:
    scene.node.ip_lines(f"addr add 10.1.0.2/24 dev {NIC}\naddr add 2001:db8:1::2/64 dev {NIC} nodad\n")


def node_has_policy_routing(scene: Scene) -> None:
    scene.node.ip_lines(
        f"route add default via 172.16.1.1 dev {NIC} onlink table 100\n"
        f"neigh add 172.16.1.7 lladdr 02:00:00:00:99:07 dev {NIC} nud permanent\n"
        f"rule add iif {NIC} lookup 100 priority 500\n"
    )


def policy_routing(scene: Scene) -> tuple[int, int, int]:
    """How many routes of the table, rules that look it up, and neighbours the pod has."""
    return (
        len([r for r in scene.pod.read("route", "show", "table", "all") if r.get("table") == "100"]),
        len([rule for rule in scene.pod.read("rule") if rule["table"] == "100"]),
        len(scene.pod.read("neigh", "show", "nud", "permanent", "dev", "net1")),
    )


def dhcp_server(scene: Scene) -> None:
    """It gives 10.77.0.50/24, and itself as the router."""
    answer = partial(good_answers, ROUTER=socket.inet_aton("10.77.0.1"))
    scene.cleanup.enter_context(ScriptedServer(scene.fabric, f"p-{NIC}", answer))


def xdp_program(scene: Scene) -> None:
    """The node's own, which a moved link takes along."""
    programs = scene.cleanup.enter_context(loader())
    set_xdp(scene.node, ifindex_of(scene.node, NIC), programs.load("nothing", XDP), XDP_GENERIC)


def wide_link(scene: Scene) -> None:
    scene.node.ip_lines(
        "link add dev wide numrxqueues 4 numtxqueues 4 type veth peer name narrow\n"
        "link set dev wide up\nlink set dev narrow up\n"
    )


def tap(scene: Scene) -> None:
    scene.node.ip("tuntap", "add", "dev", "tap0", "mode", "tap")


def stand_in(scene: Scene) -> None:
    """A link of the virtual machine's own module, for what no driver of its cards has."""
    if not os.environ.get(IN_MACHINE):
        pytest.skip("needs the module vnode_nic of the virtual machine (make test-machine)")
    kernel_view.run("modprobe", "vnode_nic")
    scene.node.ip_lines("link add nic0 type vnode_nic\nlink set nic0 up\n")


def lend(card: str) -> Callable[[Scene], None]:
    """A real NIC of the machine, as ``real0``."""

    def move(scene: Scene) -> None:
        if not os.environ.get(IN_MACHINE):
            pytest.skip(f"needs the NIC {card} of the virtual machine (make test-machine)")
        kernel_view.raise_links()
        ifname = kernel_view.ifname(MACHINE.function(card).address)
        kernel_view.run("ip", "link", "set", ifname, "down")
        kernel_view.run("ip", "link", "set", ifname, "netns", scene.node.name, "name", "real0")
        scene.cleanup.callback(give_home, scene.node, ifname)
        scene.node.ip("link", "set", "real0", "up")
        wait_until(lambda: carrier(scene.node, "real0"), f"{card} has a carrier", 60)

    return move


def carrier(namespace: Namespace, ifname: str) -> bool:
    return "LOWER_UP" in namespace.read("link", "show", "dev", ifname)[0]["flags"]


def give_home(node: Namespace, ifname: str) -> None:
    node.ip("link", "set", "real0", "down")
    node.ip("link", "set", "real0", "netns", "1", "name", ifname)
    kernel_view.raise_links()


def offload_size(kind: int) -> Callable[[Scene], object]:
    """Out of the kernel's message: ``ip`` is too old to show those of IPv4."""

    def ask() -> int | None:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            name = struct.pack("=HH8s", 12, 3, b"net1")
            sock.send(struct.pack("=IHHII", 44, 18, 1, 1, 0) + bytes(16) + name)
            message = sock.recv(65536)
        offset = 32
        while offset + 4 <= len(message):
            size, found = struct.unpack_from("=HH", message, offset)
            if found == kind:
                return int.from_bytes(message[offset + 4 : offset + size], sys.byteorder)
            offset += (size + 3) & ~3
        return None

    return lambda scene: scene.pod.run(ask)


# --- interface ------------------------------------------------------------------------------------------

_SENT, _RECEIVED = "net1", "ifb~net1"
V4, V6 = "ipv4/conf/net1", "ipv6/conf/net1"
_FORWARDING = f"{V4}/forwarding", f"{V6}/forwarding"
MACVLAN, IPVLAN = interface(type="macvlan"), interface(type="ipvlan")
VLAN = interface(type="vlan", vlan={"id": 100})


def new_names(scene: Scene) -> set[str]:
    return {link["ifname"] for link in scene.pod.read("link")} - {"lo", "eth0", "cni0"}


def kind_and_place(scene: Scene) -> tuple[object, bool]:
    """Kind of link in the pod, and whether the device is on the node."""
    on_node = NIC in {link["ifname"] for link in scene.node.read("link")}
    return scene.link()["linkinfo"]["info_kind"], on_node


def burst(link: str) -> Callable[[Scene], object]:
    """``tc`` says 700000b or 1024K, worked out from microseconds: a few bytes less, perhaps."""

    def read(scene: Scene) -> int:
        shown = re.match(r"([0-9]+)(K?)b?(/|$)", scene.bucket(link).get("burst", "0"))
        assert shown, "no such text"
        return int(shown[1]) * (1024 if shown[2] else 1)

    return read


INTERFACE: Mapping[str, Sequence[Effect] | Refused | Elsewhere] = {
    "profile": Refused({"profile": "rail-optimised"}, "profile: must not be set: no profile provider"),
    "interface.name": [Effect(interface(name="rail-7"), new_names, {"rail-7"})],
    "interface.type": [
        Effect(interface(type="passthrough"), kind_and_place, ("veth", False), MACVLAN),
        Effect(MACVLAN, kind_and_place, ("macvlan", True)),
        Effect(IPVLAN, kind_and_place, ("ipvlan", True), needs="ipvlan"),
        Effect(VLAN, kind_and_place, ("vlan", True), needs="vlan"),
    ],
    "interface.macvlan.mode": [
        Effect(interface(macvlan={"mode": mode}), lambda s: s.info("mode"), mode, MACVLAN)
        for mode in ("private", "vepa")
    ],
    "interface.ipvlan.mode": [
        Effect(interface(ipvlan={"mode": mode}), lambda s: s.info("mode"), mode, IPVLAN, needs="ipvlan")
        for mode in ("l3", "l3s")
    ],
    "interface.ipvlan.flag": [
        Effect(
            interface(ipvlan={"flag": flag}),
            lambda s: shell(s.pod, "ip", "-d", "link", "show", "net1").partition("mode l2 ")[2].split()[0],
            flag, IPVLAN, needs="ipvlan",
        )
        for flag in ("private", "vepa")
    ],
    "interface.vlan.id": [
        Effect(interface(vlan={"id": 4094}), lambda s: s.info("id"), 4094, VLAN, needs="vlan")
    ],
    "interface.vlan.protocol": [
        Effect(
            interface(vlan={"protocol": "802.1ad"}), lambda s: s.info("protocol"), "802.1ad", VLAN,
            needs="vlan",
        )
    ],
    "interface.addresses": [
        Effect(
            interface(addresses=["192.168.10.5/24", "192.168.11.6/32", "fd00::5/64"]),
            lambda s: set(s.addresses()),
            {"192.168.10.5/24", "192.168.11.6/32", "fd00::5/64"},
        ),
        Effect(interface(addresses=[]), lambda s: set(s.addresses()), set(), given=node_has_addresses),
    ],
    "interface.dhcp": [
        Effect(
            interface(dhcp=True),
            lambda s: (set(s.addresses()), {to: r["gateway"] for to, r in s.routes().items()}),
            ({"10.77.0.50/24"}, {"default": "10.77.0.1"}),
            interface(addresses=[]), dhcp_server,
        ),
        Effect(
            interface(dhcp=True),
            lambda s: [500 < a["valid_life_time"] <= 600 for a in s.addresses().values()],
            [True],
            interface(type="macvlan", addresses=[]), dhcp_server,
        ),
        Effect(
            interface(dhcp=False), lambda s: set(s.addresses()), set(), interface(addresses=[], dhcp=True),
            dhcp_server,
        ),
    ],
    "interface.mtu": [
        Effect(interface(mtu=1400), lambda s: s.link()["mtu"], 1400),
        Effect(interface(mtu=9000), lambda s: s.link()["mtu"], 9000),
        Effect(interface(mtu=1300), lambda s: s.link()["mtu"], 1300, MACVLAN),
    ],
    "interface.hardwareAddr": [
        Effect(
            interface(hardwareAddr="06-DD-00-00-00-07"), lambda s: s.link()["address"], "06:dd:00:00:00:07"
        ),
        Effect(
            interface(hardwareAddr="06:dd:00:00:00:08"), lambda s: s.link()["address"], "06:dd:00:00:00:08",
            MACVLAN,
        ),
    ],
    "interface.txQueueLength": [
        Effect(interface(txQueueLength=length), lambda s: s.link().get("txqlen", 0), length)
        for length in (4321, 0)
    ],
    "interface.gsoMaxSize": [
        Effect(interface(gsoMaxSize=size), lambda s: s.link()["gso_max_size"], size)
        for size in (40000, 185000)
    ],
    "interface.groMaxSize": [
        Effect(interface(groMaxSize=size), lambda s: s.link()["gro_max_size"], size)
        for size in (50000, 185000)
    ],
    "interface.gsoIPv4MaxSize": [Effect(interface(gsoIPv4MaxSize=41000), offload_size(63), 41000)],
    "interface.groIPv4MaxSize": [Effect(interface(groIPv4MaxSize=51000), offload_size(64), 51000)],
    "interface.disableEbpfPrograms": [
        Effect(
            interface(disableEbpfPrograms=asked), lambda s: "xdp" in s.link(), not asked,
            interface(disableEbpfPrograms=not asked), each=xdp_program, lost="xdp",
        )
        for asked in (True, False)
    ],
    "interface.forwarding": [
        Effect(interface(forwarding=True), lambda s: s.sysctls(*_FORWARDING), ["1", "1"]),
        Effect(
            interface(forwarding=False), lambda s: s.sysctls(*_FORWARDING), ["0", "0"],
            given=pod_has("ipv4/conf/default/forwarding 1", "ipv6/conf/default/forwarding 1"),
        ),
    ],
    "interface.inheritRouting": [
        Effect(
            interface(inheritRouting=False), policy_routing, (0, 0, 0), given=node_has_policy_routing,
        ),
        Effect(
            interface(inheritRouting=True), policy_routing, (1, 1, 1), interface(inheritRouting=False),
            given=node_has_policy_routing,
        ),
    ],
    "interface.arpIgnore": [
        Effect(interface(arpIgnore=8), lambda s: s.sysctls(f"{V4}/arp_ignore"), ["8"]),
        Effect(
            interface(arpIgnore=0), lambda s: s.sysctls(f"{V4}/arp_ignore"), ["0"],
            given=pod_has("ipv4/conf/default/arp_ignore 2"),
        ),
    ],
    "interface.arpAnnounce": [
        Effect(interface(arpAnnounce=2), lambda s: s.sysctls(f"{V4}/arp_announce"), ["2"]),
        Effect(
            interface(arpAnnounce=0), lambda s: s.sysctls(f"{V4}/arp_announce"), ["0"],
            given=pod_has("ipv4/conf/default/arp_announce 1"),
        ),
    ],
    "interface.vrf.name": [
        Effect(interface(vrf={"name": "blue"}), lambda s: s.link().get("master"), "blue", needs="vrf")
    ],
    "interface.vrf.table": [
        Effect(
            interface(vrf={"table": 1100}), lambda s: s.link("blue")["linkinfo"]["info_data"]["table"], 1100,
            interface(vrf={"name": "blue"}), needs="vrf",
        ),
        Effect(
            one_route(gateway="172.16.1.1"), lambda s: s.route("table"), "1100",
            interface(vrf={"name": "blue", "table": 1100}), needs="vrf",
        ),
    ],
    "interface.ipv6.enabled": [
        Effect(
            ipv6(enabled=False), lambda s: s.sysctls(f"{V6}/disable_ipv6"), ["1"],
            interface(addresses=["172.16.1.5/24"]),
        ),
        Effect(
            ipv6(enabled=True), lambda s: s.sysctls(f"{V6}/disable_ipv6"), ["0"],
            interface(addresses=["172.16.1.5/24"]), pod_has("ipv6/conf/default/disable_ipv6 1"),
        ),
    ],
    "interface.ipv6.acceptRA": [
        Effect(ipv6(acceptRA=2), lambda s: s.sysctls(f"{V6}/accept_ra"), ["2"]),
        Effect(ipv6(acceptRA=0), lambda s: s.sysctls(f"{V6}/accept_ra"), ["0"]),
        Effect(
            ipv6(acceptRA=1), lambda s: s.sysctls(f"{V6}/accept_ra"), ["1"],
            given=pod_has("ipv6/conf/default/accept_ra 0"),
        ),
    ],
    "interface.ipv6.duplicateAddressDetection": [
        Effect(
            ipv6(duplicateAddressDetection=True),
            lambda s: (s.sysctls(f"{V6}/accept_dad"), "nodad" in s.addresses()["2001:db8:100::5/64"]),
            (["1"], False),
        ),
        Effect(
            ipv6(duplicateAddressDetection=False),
            lambda s: s.sysctls(f"{V6}/accept_dad", f"{V6}/dad_transmits"),
            ["0", "0"],
            given=pod_has("ipv6/conf/default/accept_dad 1", "ipv6/conf/default/dad_transmits 3"),
        ),
    ],
    "interface.ipv6.token": [
        Effect(
            ipv6(token="::5"),
            lambda s: [t["token"] for t in s.pod.read_raw("token") if t.get("ifname") == "net1"],
            ["::5"],
        )
    ],
    "interface.rateLimit.egress.rate": [
        Effect(
            interface(rateLimit={"egress": {"rate": "80M"}}), lambda s: s.bucket(_SENT).get("rate"),
            10_000_000,
        )
    ],
    "interface.rateLimit.egress.burst": [
        Effect(
            interface(rateLimit={"egress": {"burst": "1Mi"}}), burst(_SENT),
            pytest.approx(1 << 20, rel=0.001), interface(rateLimit={"egress": {"rate": "80M"}}),
        )
    ],
    "interface.rateLimit.ingress.rate": [
        Effect(
            interface(rateLimit={"ingress": {"rate": "1G"}}),
            lambda s: (s.bucket(_RECEIVED).get("rate"), s.bucket(_SENT)),
            (125_000_000, {}),
        )
    ],
    "interface.rateLimit.ingress.burst": [
        Effect(
            interface(rateLimit={"ingress": {"burst": 700_000}}),
            burst(_RECEIVED), pytest.approx(700_000, rel=0.001),
            interface(rateLimit={"ingress": {"rate": "1G"}}),
        )
    ],
}  # fmt: skip


# --- routes, rules, neighbours --------------------------------------------------------------------------

GATEWAY = "172.16.1.1"
FAR = "198.51.100.1"
"""No address of the link says that it is near."""
FROM_EVERYWHERE = one_rule(source="0.0.0.0/0")
TWO_WAYS = ways({"gateway": GATEWAY}, {"gateway": "172.16.1.2"})
MARKED = one_rule(mark=16)

ROUTING: Mapping[str, Sequence[Effect] | Refused | Elsewhere] = {
    "routes[].destination": [
        Effect(
            {
                "routes": [
                    {"destination": "10.1.2.3/16", "gateway": GATEWAY},
                    {"destination": "0.0.0.0/0", "gateway": GATEWAY, "metric": 77},
                    {"destination": "2001:db8:7::/48", "gateway": "2001:db8:100::1"},
                ]
            },
            lambda s: set(s.routes()),
            {"10.1.0.0/16", "default", "2001:db8:7::/48"},
        )
    ],
    "routes[].gateway": [
        Effect(
            one_route(gateway="172.16.1.9"), lambda s: s.route("gateway"), "172.16.1.9",
            one_route(gateway=GATEWAY),
        )
    ],
    "routes[].source": [
        Effect(
            one_route(gateway=GATEWAY, source="172.16.1.6"),
            lambda s: s.route("prefsrc"),
            "172.16.1.6",
            {**interface(addresses=["172.16.1.5/24", "172.16.1.6/24"]), **one_route(gateway=GATEWAY)},
        )
    ],
    "routes[].scope": [
        Effect(one_route(scope=253), lambda s: s.route("scope"), "link", one_route(gateway=GATEWAY)),
        Effect(
            one_route(scope=0, gateway=GATEWAY), lambda s: s.route("scope"), "global", one_route(scope=253)
        ),
    ],
    "routes[].table": [
        Effect(
            one_route(gateway=GATEWAY, table=100), lambda s: s.route("table"), "100",
            one_route(gateway=GATEWAY),
        ),
        Effect(
            one_route(gateway=GATEWAY, table=0), lambda s: s.route("table", "main"), "main",
            one_route(gateway=GATEWAY, table=100),
        ),
    ],
    "routes[].metric": [
        Effect(
            one_route(gateway=GATEWAY, metric=metric), lambda s: s.route("metric", 0), metric,
            one_route(gateway=GATEWAY, metric=7),
        )
        for metric in (50, 0)
    ],
    "routes[].mtu": [
        Effect(
            one_route(gateway=GATEWAY, mtu=1280), lambda s: s.route("metrics"), [{"mtu": 1280}],
            one_route(gateway=GATEWAY),
        )
    ],
    "routes[].onlink": [
        Effect(
            one_route(gateway=GATEWAY, onlink=True), lambda s: s.route("flags"), ["onlink"],
            one_route(gateway=GATEWAY),
        ),
        Effect(
            one_route(gateway=FAR, onlink=True), lambda s: s.route("gateway"), FAR, one_route(gateway=GATEWAY)
        ),
        Effect(
            one_route(gateway=GATEWAY, onlink=False), lambda s: s.route("flags"), [],
            one_route(gateway=GATEWAY, onlink=True),
        ),
    ],
    "routes[].nextHops[].gateway": [
        Effect(
            TWO_WAYS, lambda s: s.hops(), {(GATEWAY, "net1", 1, False), ("172.16.1.2", "net1", 1, False)}
        )
    ],
    "routes[].nextHops[].interface": [
        Effect(
            ways({"gateway": GATEWAY}, {"gateway": "10.244.0.9", "interface": "eth0"}), lambda s: s.hops(),
            {(GATEWAY, "net1", 1, False), ("10.244.0.9", "eth0", 1, False)}, TWO_WAYS,
        )
    ],
    "routes[].nextHops[].weight": [
        Effect(
            ways({"gateway": GATEWAY, "weight": 256}, {"gateway": "172.16.1.2"}), lambda s: s.hops(),
            {(GATEWAY, "net1", 256, False), ("172.16.1.2", "net1", 1, False)}, TWO_WAYS,
        )
    ],
    "routes[].nextHops[].onlink": [
        Effect(
            ways({"gateway": FAR, "onlink": True}, {"gateway": GATEWAY, "onlink": False}), lambda s: s.hops(),
            {(FAR, "net1", 1, True), (GATEWAY, "net1", 1, False)}, TWO_WAYS,
        )
    ],
    "rules[].priority": [
        Effect(
            one_rule(priority=asked, source="0.0.0.0/0"), lambda s: s.rules("priority"), [(found,)],
            FROM_EVERYWHERE,
        )
        for asked, found in ((123, 123), (0, 32765))
    ],
    "rules[].source": [
        Effect(
            one_rule(source="172.16.1.5/32"), lambda s: s.rules("src", "srclen"), [("172.16.1.5", None)],
            FROM_EVERYWHERE,
        ),
        Effect(
            one_rule(source="2001:db8:100::/64"), lambda s: s.rules("src", "srclen"),
            [("2001:db8:100::", 64)], FROM_EVERYWHERE,
        ),
    ],
    "rules[].destination": [
        Effect(one_rule(destination="10.1.0.0/16"), lambda s: s.rules("dst", "dstlen"), [("10.1.0.0", 16)])
    ],
    "rules[].table": [
        Effect(
            one_rule(table=70000, source="0.0.0.0/0"), lambda s: s.rules("table"), [("70000",)],
            FROM_EVERYWHERE,
        ),
        Effect(
            one_rule(table=0, source="0.0.0.0/0"), lambda s: s.rules("table"), [("main",)], FROM_EVERYWHERE
        ),
    ],
    "rules[].mark": [
        Effect(one_rule(mark="0x20"), lambda s: s.rules("fwmark"), [("0x20",)] * 2, MARKED),
        Effect(one_rule(mark=0), lambda s: s.rules("fwmark", "fwmask"), [("0", None)] * 2, MARKED),
    ],
    "rules[].mask": [
        Effect(one_rule(mark=16, mask="0xf0"), lambda s: s.rules("fwmask"), [("0xf0",)] * 2, MARKED),
        Effect(one_rule(mark=0, mask=0), lambda s: s.rules("fwmark", "fwmask"), [(None, None)] * 2, MARKED),
    ],
    "rules[].inputInterface": [
        Effect(one_rule(inputInterface=name), lambda s: s.rules("iif"), [(name,)] * 2)
        for name in ("net1", "lo")
    ],
    "rules[].outputInterface": [
        Effect(one_rule(outputInterface="net1"), lambda s: s.rules("oif"), [("net1",)] * 2)
    ],
    "neighbors[].destination": [
        Effect(
            {
                "neighbors": [
                    {"destination": "172.16.1.9", "hardwareAddr": "02:00:00:00:00:09"},
                    {"destination": "2001:db8:100::9", "hardwareAddr": "02:00:00:00:00:09"},
                ]
            },
            lambda s: set(s.neighbours()),
            {"172.16.1.9", "2001:db8:100::9"},
        )
    ],
    "neighbors[].hardwareAddr": [
        Effect(
            {"neighbors": [{"destination": "172.16.1.9", "hardwareAddr": "01:00:5e:00:00:0A"}]},
            lambda s: s.neighbours().get("172.16.1.9"),
            "01:00:5e:00:00:0a",
            {"neighbors": [{"destination": "172.16.1.9", "hardwareAddr": "02:00:00:00:00:09"}]},
        )
    ],
}  # fmt: skip


# --- ethtool, sysctls, RDMA -----------------------------------------------------------------------------

RUNTIME = "tests/runtime/test_containerd_hooks.py"
LOCALITY = "tests/kernel/test_locality.py"
PACK, NCCL, HOOK = (
    "tests/claims/test_workload.py",
    "tests/claims/test_nccl_config.py",
    "tests/driver/test_workload.py",
)
PACK_RUNTIME = "tests/runtime/test_containerd_workload.py"
PACK_TESTS: Mapping[str, Sequence[str]] = {
    "nccl.topologyFile": (f"{HOOK}::test_a_container_that_names_the_claim_gets_its_files",),
    "nccl.configFile": (f"{NCCL}::test_the_list_has_exactly_the_pods_rdma_devices",),
    "nccl.gidIndex": (
        f"{NCCL}::test_what_is_asked_for_is_written_as_it_is",
        f"{HOOK}::test_the_gid_index_is_read_from_the_table_of_the_device",
    ),
    "nccl.crossNic": (
        f"{NCCL}::test_what_is_asked_for_is_written_as_it_is",
        f"{NCCL}::test_rails_that_are_networks_of_their_own_are_not_crossed",
    ),
    "nccl.socketInterface": (
        f"{NCCL}::test_what_is_asked_for_is_written_as_it_is",
        f"{HOOK}::test_the_interface_of_nccls_sockets_is_that_of_the_pods_default_route",
    ),
    "ucx.netDevices": (f"{PACK}::test_variables_name_the_pods_devices_in_the_order_of_its_gpus",),
    "rdma.forkSafe": (f"{PACK}::test_variables_name_the_pods_devices_in_the_order_of_its_gpus",),
    "rdma.hugePagesSafe": (f"{PACK}::test_variables_name_the_pods_devices_in_the_order_of_its_gpus",),
    "memory.policy": (
        f"{HOOK}::test_memory_is_bound_to_the_nodes_of_the_devices_unless_the_kubelet_has_said_where",
        f"{HOOK}::test_a_policy_that_the_runtime_may_not_know_is_refused",
    ),
}
RP_FILTER, PROBING = "net.ipv4.conf.IFNAME.rp_filter", "net.ipv4.tcp_mtu_probing"


def numbers(part: str, name: str, value: int, option: str, shown: str, **more: Any) -> Effect:
    """One number that ``ethtool`` sets and shows."""
    return Effect(ethtool(**{part: {name: value}}), lambda s: s.number(option, shown), str(value), **more)


IGB: Json = {"nic": "real0", "given": lend("igb1"), "needs": "igb"}
VIRTIO: Json = {"nic": "real0", "given": lend("virtio1"), "needs": "virtio-net"}
STAND_IN: Json = {"nic": "nic0", "given": stand_in, "needs": "vnode_nic"}
WIDE: Json = {"nic": "wide", "given": wide_link, "otherwise": ethtool(channels={"rx": 2, "tx": 2})}

SETTINGS: Mapping[str, Sequence[Effect] | Refused | Elsewhere] = {
    "ethtool.features": [
        Effect(
            ethtool(features={"tx-scatter-gather": False, "gro": True}),
            lambda s: (s.feature("tx-scatter-gather"), s.feature("generic-receive-offload")),
            (False, True),
        ),
        Effect(
            ethtool(features={"tso": True}),
            lambda s: s.feature("tx-tcp-segmentation"),
            True,
            ethtool(features={"tso": False}),
        ),
    ],
    "ethtool.privateFlags": [
        Effect(
            ethtool(privateFlags={"legacy-rx": asked}),
            lambda s: s.number("--show-priv-flags", "legacy-rx"), "on" if asked else "off",
            ethtool(privateFlags={"legacy-rx": not asked}), **IGB,
        )
        for asked in (True, False)
    ],
    "ethtool.rings.rx": [numbers("rings", "rx", 512, "-g", "RX", **IGB)],
    "ethtool.rings.tx": [numbers("rings", "tx", 1024, "-g", "TX", **IGB)],
    "ethtool.rings.rxMini": [numbers("rings", "rxMini", 512, "-g", "RX Mini", **STAND_IN)],
    "ethtool.rings.rxJumbo": [numbers("rings", "rxJumbo", 1024, "-g", "RX Jumbo", **STAND_IN)],
    "ethtool.channels.rx": [numbers("channels", "rx", 3, "-l", "RX", **WIDE)],
    "ethtool.channels.tx": [numbers("channels", "tx", 4, "-l", "TX", **WIDE)],
    "ethtool.channels.combined": [numbers("channels", "combined", 1, "-l", "Combined", **IGB)],
    "ethtool.channels.other": [numbers("channels", "other", 0, "-l", "Other", **STAND_IN)],
    "ethtool.coalesce.rxUsecs": [numbers("coalesce", "rxUsecs", 80, "-c", "rx-usecs", **IGB)],
    "ethtool.coalesce.rxMaxFrames": [
        numbers("coalesce", "rxMaxFrames", 32, "-c", "rx-frames", nic="tap0", given=tap),
        numbers(
            "coalesce", "rxMaxFrames", 0, "-c", "rx-frames", nic="tap0", given=tap,
            otherwise=ethtool(coalesce={"rxMaxFrames": 16}),
        ),
    ],
    "ethtool.coalesce.txUsecs": [numbers("coalesce", "txUsecs", 0, "-c", "tx-usecs", **STAND_IN)],
    "ethtool.coalesce.txMaxFrames": [numbers("coalesce", "txMaxFrames", 0, "-c", "tx-frames", **VIRTIO)],
    "ethtool.coalesce.adaptiveRx": [
        Effect(
            ethtool(coalesce={"adaptiveRx": asked}), lambda s: s.adaptive("RX"), asked,
            ethtool(coalesce={"adaptiveRx": not asked}), **STAND_IN,
        )
        for asked in (True, False)
    ],
    "ethtool.coalesce.adaptiveTx": [
        Effect(
            ethtool(coalesce={"adaptiveTx": asked}), lambda s: s.adaptive("TX"), asked,
            ethtool(coalesce={"adaptiveTx": not asked}), **STAND_IN,
        )
        for asked in (True, False)
    ],
    "sysctls": [
        Effect(
            {"sysctls": {RP_FILTER: 2, PROBING: "1"}},
            lambda s: s.sysctls(f"{V4}/rp_filter", "ipv4/tcp_mtu_probing", "ipv4/conf/eth0/rp_filter"),
            ["2", "1", "0"],
        ),
        Effect(
            {"sysctls": {RP_FILTER: 0, PROBING: 0}},
            lambda s: s.sysctls(f"{V4}/rp_filter", "ipv4/tcp_mtu_probing"),
            ["0", "0"],
            {"sysctls": {PROBING: 2}},
            pod_has("ipv4/conf/default/rp_filter 1"),
        ),
    ],
    "rdma.managementDevices": Elsewhere(
        "a file in a container: which ones the kernel has, and that a container opens what it is given",
        (
            f"{HERE}::test_management_devices_are_the_files_that_the_kernel_has",
            "tests/driver/test_rdma_nodes.py::test_each_container_gets_the_nodes_of_all_devices_each_once",
            f"{RUNTIME}::test_a_container_has_its_nic_and_opens_its_rdma_node",
        ),
    ),
    "interface.ipam": Elsewhere(
        "addresses of a plugin or a pool, which are set as those of the claim are",
        (
            "tests/driver/test_prepare_ipam.py::test_the_pod_gets_addresses_routes_and_gateway_of_the_plugin",
            "tests/driver/test_prepare_ipam.py::test_whatever_happens_the_plugin_has_what_prepared_claims_have",
        ),
    ),
    **{
        f"interface.vf.{name}": Elsewhere(
            "administered through a physical function, which only the virtual machine has",
            ("tests/machine/test_virtual_functions.py::test_a_function_is_administered_for_its_pod_and_restored",),
        )
        for name in ("trust", "spoofCheck", "vlan", "qos", "minTxRate", "maxTxRate", "linkState")
    },
    "rdma.memlock": Elsewhere(
        "a limit of the container's processes",
        (
            "tests/claims/test_plan_fields.py::test_rdma_access",
            "tests/driver/test_hooks.py::test_a_container_may_lock_the_most_that_a_claim_asks_for_or_keeps_more",
            f"{RUNTIME}::test_a_container_may_lock_as_much_memory_as_its_claim_says",
        ),
    ),
    **{
        path: Elsewhere(
            "files, variables and memory of containers",
            (
                f"{PACK}::test_every_parameter_is_a_wish",
                *tests,
                f"{PACK_RUNTIME}::test_a_training_pod_finds_what_its_libraries_need_and_keeps_what_it_set_itself",
            ),
        )
        for path, tests in PACK_TESTS.items()
    },
    "cpuLocality.irq": Elsewhere(
        "of a PCI function, which no link here has",
        (
            f"{LOCALITY}::test_interrupts_and_queues_have_near_cpus_in_the_pod_and_their_own_afterwards",
            "tests/machine/test_locality.py::test_a_real_nic_has_near_cpus_in_the_pod_and_its_own_afterwards",
        ),
    ),
    **{
        f"cpuLocality.{name}": Elsewhere(
            "of a link with several queues, and of CPUs that differ from machine to machine",
            (
                f"{LOCALITY}::test_interrupts_and_queues_have_near_cpus_in_the_pod_and_their_own_afterwards",
                f"{LOCALITY}::test_each_wish_alone_touches_nothing_else",
            ),
        )
        for name in ("xps", "rps")
    },
}  # fmt: skip

TABLE = {**INTERFACE, **ROUTING, **SETTINGS}


def list_effects(*, stock: bool) -> list[Any]:
    """Those that need a stock kernel, or the others, as pytest's parameters."""
    return [
        pytest.param(effect, id=f"{path}-{number}")
        for path, entry in TABLE.items()
        for number, effect in enumerate(() if isinstance(entry, Refused | Elsewhere) else entry)
        if bool(effect.needs) == stock
    ]


# --- the table is whole ---------------------------------------------------------------------------------


def iter_leaves(part: type[Part], root: str = "") -> Iterator[str]:
    """Every parameter: ``interface.mtu``, ``routes[].metric``."""
    for path, below in walk_fields(part):
        if below.part is None:
            yield root + path
        elif below.is_list:
            yield from iter_leaves(below.part, f"{root}{path}[].")


def test_every_parameter_is_in_the_table() -> None:
    assert len(TABLE) == len(INTERFACE) + len(ROUTING) + len(SETTINGS)
    assert set(TABLE) == set(iter_leaves(NetworkConfig))
    assert all(isinstance(entry, Refused | Elsewhere) or entry for entry in TABLE.values())


@pytest.mark.parametrize("effect", [*list_effects(stock=False), *list_effects(stock=True)])
def test_an_entry_asks_for_its_parameter(effect: Effect, request: pytest.FixtureRequest) -> None:
    """Or for one beside it, where it is the effect on another that counts."""
    path = request.node.callspec.id.rpartition("-")[0]
    assert path.partition(".")[0].removesuffix("[]") in {**effect.asked, **effect.otherwise}


@pytest.mark.parametrize("path", [path for path, entry in TABLE.items() if isinstance(entry, Elsewhere)])
def test_a_test_elsewhere_is_there(path: str) -> None:
    entry = TABLE[path]
    assert isinstance(entry, Elsewhere)
    for node_id in entry.tests:
        file, _, name = node_id.partition("::")
        assert name in names_of_tests(REPOSITORY / file), node_id


def names_of_tests(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_machine_lane_runs_what_this_kernel_may_lack() -> None:
    for test in (
        test_a_stock_kernel_has_what_the_parameter_says,
        test_management_devices_are_the_files_that_the_kernel_has,
    ):
        assert f"{HERE}::{test.__name__}" in TESTS


# --- the effects ----------------------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("effect", list_effects(stock=False))
def test_the_kernel_has_what_the_parameter_says(scene: Scene, effect: Effect) -> None:
    check(scene, effect)


@pytest.mark.kernel
@pytest.mark.parametrize("effect", list_effects(stock=True))
def test_a_stock_kernel_has_what_the_parameter_says(scene: Scene, effect: Effect) -> None:
    if effect.needs in ("ipvlan", "vlan", "vrf") and not has_kind(scene, effect.needs):
        pytest.skip(f"this kernel has no {effect.needs} links; the virtual machine's has (make test-machine)")
    check(scene, effect)


def check(scene: Scene, effect: Effect) -> None:
    effect.given(scene)
    effect.each(scene)
    before = wait_settled(scene.node)
    with scene.attached(effect.nic, USUAL, effect.otherwise, {}, lost=effect.lost):
        assert effect.read(scene) != effect.wanted, "so it is without the parameter"
    effect.each(scene)
    with scene.attached(effect.nic, USUAL, effect.otherwise, effect.asked, lost=effect.lost):
        assert effect.read(scene) == effect.wanted
    wait_unchanged(before, scene.node, but=[effect.lost, "prog"] if effect.lost else ())


def has_kind(scene: Scene, kind: str) -> bool:
    """In the virtual machine each is: what it lacks is a failure there."""
    more = {"vlan": ["id", "7"], "vrf": ["table", "7"]}.get(kind, [])
    where = [] if kind == "vrf" else ["link", NIC]
    command = ["ip", "-n", scene.node.name, "link", "add", "probe", *where, "type", kind, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        scene.node.ip("link", "del", "probe")
    assert done.returncode == 0 or not os.environ.get(IN_MACHINE), done.stderr
    return done.returncode == 0


@pytest.mark.kernel
@pytest.mark.parametrize("path", [path for path, entry in TABLE.items() if isinstance(entry, Refused)])
def test_what_no_claim_may_have_is_refused_with_the_reason(scene: Scene, path: str) -> None:
    entry = TABLE[path]
    assert isinstance(entry, Refused)
    with pytest.raises(ClaimError, match=re.escape(entry.message)):
        scene.prepare(Device("dev-eth1", DeviceKind.NIC, ifname=NIC), USUAL, entry.asked)


@pytest.mark.kernel
def test_management_devices_are_the_files_that_the_kernel_has(scene: Scene) -> None:
    """``rxe0`` of the virtual machine manages a fabric; ``ib_umad`` makes the file for that."""
    if not os.environ.get(IN_MACHINE):
        pytest.skip("needs RDMA: runs in the virtual machine (make test-machine)")
    kernel_view.run("modprobe", "ib_umad")
    device = Device("hca", DeviceKind.RDMA, rdma_device="rxe0")
    given = {
        asked: {
            node.path: node
            for node in scene.prepare(device, {"rdma": {"managementDevices": asked}}).devices[0].rdma.nodes
        }
        for asked in (False, True)
    }
    assert given[False] == {}
    folder = Path("/sys/class/infiniband_mad")
    wanted = [p.name for p in folder.glob("umad*") if (p / "ibdev").read_text().strip() == "rxe0"]
    assert wanted
    assert set(given[True]) == {f"/dev/infiniband/{name}" for name in wanted}
    for path, node in given[True].items():
        status = Path(path).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert (node.major, node.minor) == (os.major(status.st_rdev), os.minor(status.st_rdev))
        assert node.file_mode == stat.S_IMODE(status.st_mode)
