"""Throw-away network namespaces: a node with links, and pods.

Nothing here touches the machine's own interfaces: a test works in namespaces that it made, and enters them
in threads that end. The independent readers are iproute2 and pyroute2.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dranet.errors import KernelError
from dranet.kernel.namespaces.netns import NetworkNamespace
from tests.support.waiting import wait_until

T = TypeVar("T")

VOLATILE = frozenset({"valid_life_time", "preferred_life_time", "operstate"})
"""What changes by itself between two readings; the kernel tells a carrier up to a second late."""


@dataclass
class Namespace:
    """A named namespace of a test, and the handle that the code under test gets."""

    name: str
    netns: NetworkNamespace
    lively: bool = False
    """IPv6 as by default: link-local addresses and their check take a second or two to come."""
    gone: bool = field(default=False)

    @property
    def path(self) -> Path:
        return Path("/run/netns", self.name)

    def ip(self, *arguments: str) -> None:
        """Run one ``ip`` command here."""
        _run("ip", "-n", self.name, *arguments)

    def ip_lines(self, text: str) -> None:
        """Run an ``ip -batch`` here."""
        _run("ip", "-n", self.name, "-batch", "-", text=text)

    def read(self, *arguments: str) -> list[dict[str, Any]]:
        """What ``ip -json -details`` says, without what changes by itself."""
        return [_steady(entry) for entry in self.read_raw(*arguments)]

    def read_raw(self, *arguments: str) -> list[dict[str, Any]]:
        """What ``ip -json -details`` says, all of it."""
        output = _run("ip", "-n", self.name, "-json", "-details", *arguments)
        entries: list[dict[str, Any]] = json.loads(output or "[]")
        return [entry for entry in entries if entry]

    def read_together(self, *commands: str) -> list[list[dict[str, Any]]]:
        """As ``read_raw``, for several commands: to start ``ip`` takes longer than all that it reads."""
        text = "".join(f"{command}\n" for command in commands)
        lines = _run("ip", "-n", self.name, "-json", "-details", "-batch", "-", text=text).splitlines()
        assert len(lines) == len(commands), f"ip answers each with a line: {lines}"
        return [[entry for entry in json.loads(line) if entry] for line in lines]

    def picture(self) -> dict[str, list[dict[str, Any]]]:
        """Everything that ``ip``, ``tc``, ``ethtool`` and ``/proc/sys`` tell of the links here.

        Routes are sorted: the kernel lists equal ones (fe80::/64 of each link) by who came up first. The
        multicast route of each link is left out: the kernel adds it with the carrier, up to a second late.
        Qdiscs without a handle are the kernel's own, and it makes them when a link is first up.
        """
        links, addresses, routes, neighbours, proxies, tokens, rules = self.read_together(
            "link",
            "addr",
            "route show table all",
            "neigh show nud permanent",
            "neigh show proxy",
            "token",
            "rule",
        )
        names = [link["ifname"] for link in links]
        qdiscs = [entry for entry in self.tc("qdisc", "show") if entry["handle"] != "0:"]
        return {
            "links": [_steady(link) for link in links],
            "addresses": [_steady(link) for link in addresses],
            "routes": sorted((_steady(r) for r in routes if r["dst"] != "ff00::/8"), key=str),
            "neighbours": [_steady(entry) for entry in neighbours],
            "proxies": [_steady(entry) for entry in proxies],
            "tokens": tokens,
            "rules": [_steady(rule) for rule in rules] + self.read("-6", "rule"),
            "qdiscs": sorted(qdiscs, key=str),
            "classes": self._classes({entry["dev"] for entry in qdiscs}),
            "ethtool": self.run(lambda: read_ethtool(names)),
            "sysctls": self.run(lambda: read_sysctls(names)),
        }

    def tc(self, *arguments: str) -> list[dict[str, Any]]:
        """What ``tc -json -details`` says, without counters."""
        output = _run("tc", "-n", self.name, "-json", "-details", *arguments)
        entries: list[dict[str, Any]] = json.loads(output or "[]")
        for entry in entries:
            entry.pop("refcnt", None)
            entry.get("options", {}).pop("direct_packets_stat", None)
        return entries

    def _classes(self, devices: Collection[str]) -> list[dict[str, Any]]:
        """As text: ``tc`` writes classes of few kinds as JSON. Those of fq_codel come and go with flows."""
        entries = []
        for dev in sorted(devices):
            lines = _run("tc", "-n", self.name, "-d", "class", "show", "dev", dev).splitlines()
            entries += [{"dev": dev, "class": line} for line in sorted(lines) if "codel" not in line]
        return entries

    def run(self, function: Callable[[], T]) -> T:
        """Call a function of ours in this namespace, as the driver does on its node."""
        return self.netns.run(function)

    def delete(self) -> None:
        """Delete the namespace. Its links go with it once our own handle is closed."""
        if not self.gone:
            self.gone = True
            self.netns.close()
            _run("ip", "netns", "del", self.name)


def _run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def _steady(entry: dict[str, Any]) -> dict[str, Any]:
    steady = {key: value for key, value in entry.items() if key not in VOLATILE}
    if "ifname" in steady and "flags" in steady:
        steady["flags"] = [flag for flag in steady["flags"] if flag != "NO-CARRIER"]
    if "altnames" in steady:
        steady["altnames"] = sorted(steady["altnames"])  # in the order in which they were added
    if "addr_info" in steady:
        steady["addr_info"] = [_steady(info) for info in steady["addr_info"] if info]
    return steady


ETHTOOL_OPTIONS = ("-k", "-g", "-l", "-c", "--show-priv-flags")


def read_ethtool(names: Sequence[str]) -> list[dict[str, Any]]:
    """What ``ethtool`` shows of each link of the calling thread's namespace; nothing where it is missing."""
    if shutil.which("ethtool") is None:
        return []
    script = 'for o in $1; do echo "@$o"; ethtool $o "$0" 2>/dev/null; done'
    asked = names[0] if len(names) == 1 else "*"  # one process for all links
    shown = subprocess.run(
        ["sh", "-c", script, asked, " ".join(ETHTOOL_OPTIONS)], capture_output=True, text=True
    ).stdout
    parts = {option: text for option, _, text in (part.partition("\n") for part in shown.split("@")[1:])}
    told = {option: _by_link(text) for option, text in parts.items()}
    assert told["-k"], f"every link has features: {shown}"
    return [
        {"ifname": name, **{option: told[option].get(name, "") for option in ETHTOOL_OPTIONS}}
        for name in names
    ]


def _by_link(text: str) -> dict[str, str]:
    """The parts below ``Features for eth1:``, ``Channel parameters for eth1:``."""
    _, *rest = re.split(r"^[\w ]+ for (\S+):$", text, flags=re.MULTILINE)
    return {name: part.strip("\n") for name, part in zip(rest[::2], rest[1::2], strict=True)}


def read_sysctls(names: Sequence[str]) -> list[dict[str, Any]]:
    """What the files of each link say, in the calling thread's namespace; not a secret that nobody set."""
    folders = ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh")
    places = [f"{folder}/{name}" for name in names for folder in folders]
    shown = subprocess.run(  # two thousand files: by far the quickest way
        ["grep", "-rs", "", *places], cwd="/proc/sys/net", capture_output=True, text=True
    ).stdout
    values: dict[str, dict[str, Any]] = {name: {"ifname": name} for name in names}
    for line in shown.splitlines():
        path, _, value = line.partition(":")
        version, kind, name, file = path.split("/")
        values[name][f"{version}/{kind}/{file}"] = value.strip()
    return list(values.values())


@pytest.fixture
def make_namespace() -> Iterator[Callable[..., Namespace]]:
    made: list[Namespace] = []

    def make(lively: bool = False) -> Namespace:
        name = f"dranet-test-{uuid.uuid4().hex[:8]}"
        command = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        if command.returncode:
            pytest.skip(f"no right to make network namespaces: {command.stderr.strip()}")
        namespace = Namespace(name, NetworkNamespace.open(f"/run/netns/{name}"), lively)
        made.append(namespace)
        if not lively:
            namespace.run(_quieten_ipv6)
        namespace.ip("link", "set", "lo", "up")
        return namespace

    yield make
    for namespace in made:
        with suppress(KernelError, AssertionError):
            namespace.delete()


def _quieten_ipv6() -> None:
    """No link-local addresses and no duplicate check, so that a test need not wait for them."""
    conf = Path("/proc/sys/net/ipv6/conf/default")  # of the namespace of the thread that opens it
    (conf / "addr_gen_mode").write_text("1")
    (conf / "accept_dad").write_text("0")


@pytest.fixture
def fabric(make_namespace: Callable[..., Namespace]) -> Namespace:
    """Where the far ends of the node's links are: the switch side."""
    return make_namespace()


@pytest.fixture
def node(make_namespace: Callable[..., Namespace], fabric: Namespace) -> Namespace:
    """A node with an uplink and three NICs; their far ends are in the fabric."""
    return _make_node(make_namespace(), fabric)


@pytest.fixture
def lively_node(make_namespace: Callable[..., Namespace], fabric: Namespace) -> Namespace:
    """As ``node``, with everything that IPv6 does by itself."""
    return _make_node(make_namespace(lively=True), fabric)


def _make_node(namespace: Namespace, fabric: Namespace) -> Namespace:
    names = ("uplink", "eth1", "eth2", "eth3")
    add_nics(namespace, fabric, {name: f"02:00:00:00:00:{number:02x}" for number, name in enumerate(names)})
    namespace.ip_lines(
        "addr add 192.0.2.2/24 dev uplink\nroute add default via 192.0.2.1\n"
        "addr add 2001:db8:ffff::2/64 dev uplink nodad\nroute add ::/0 via 2001:db8:ffff::1\n"
    )
    return namespace


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    """A pod's namespace with a link that its CNI made, on which the default route goes."""
    namespace = make_namespace()
    namespace.ip_lines(
        "link add eth0 type veth peer name cni0\nlink set eth0 up\nlink set cni0 up\n"
        "addr add 10.244.0.5/24 dev eth0\nroute add default via 10.244.0.1\n"
    )
    return namespace


def add_nic(node: Namespace, fabric: Namespace, name: str, mac: str) -> None:
    """A link that stands for a NIC: a veth whose far end is out of the node's sight."""
    add_nics(node, fabric, {name: mac})


def add_nics(node: Namespace, fabric: Namespace, macs: Mapping[str, str]) -> None:
    """As ``add_nic``, for each name and its address; far ends first, so that carriers are there at once."""
    veth = "link add {} address {} type veth peer name p-{} netns {}\n".format
    node.ip_lines("".join(veth(name, mac, name, fabric.name) for name, mac in macs.items()))
    fabric.ip_lines("".join(f"link set p-{name} up\n" for name in macs))
    node.ip_lines("".join(f"link set {name} up\n" for name in macs))


Picture = dict[str, list[dict[str, Any]]]


def wait_settled(namespace: Namespace) -> Picture:
    """A picture of the namespace once its IPv6 addresses are there and have passed their check."""
    if namespace.lively:
        wait_until(lambda: not _unsettled(namespace.read("addr")), f"{namespace.name} settles")
    taken: list[Picture] = []

    def is_settled() -> bool:
        taken.append(namespace.picture())
        return _has_local_routes(taken[-1]) and not _is_checking(taken[-1])

    wait_until(is_settled, f"{namespace.name} answers at its addresses")
    return taken[-1]


def _is_checking(picture: Picture) -> bool:
    """Whether an address waits for its check, which some settings of a link begin anew."""
    return any(
        info.get("tentative")
        for link in picture["addresses"]
        if "LOWER_UP" in link["flags"]
        for info in link["addr_info"]
    )


def _has_local_routes(picture: Picture) -> bool:
    """The kernel makes those of IPv6 addresses in its own time, after the check."""
    routes = {
        (route.get("dev"), route["dst"]) for route in picture["routes"] if route.get("table") == "local"
    }
    return all(
        (link["ifname"], info["local"]) in routes
        for link in picture["addresses"]
        for info in link["addr_info"]
        if info["family"] == "inet6" and not info.get("tentative")
    )


def _unsettled(links: list[dict[str, Any]]) -> bool:
    tentative = any(info.get("tentative") for link in links for info in link["addr_info"])
    up = [link for link in links if "UP" in link["flags"] and link["ifname"] != "lo"]
    return tentative or any(not any(i["local"].startswith("fe80:") for i in x["addr_info"]) for x in up)


def wait_unchanged(before: Picture, namespace: Namespace, but: Collection[str] = ()) -> None:
    """The namespace looks again as it did (``but`` for some keys), once the kernel has done its own part."""
    wanted = _without(before, but)
    with suppress(pytest.fail.Exception):
        wait_until(lambda: _without(namespace.picture(), but) == wanted, "as before")
    after = _without(namespace.picture(), but)
    lines = []
    for part, entries in wanted.items():
        lost = [entry for entry in entries if entry not in after[part]]
        new = [entry for entry in after[part] if entry not in entries]
        pairs = [(x, y) for x in lost for y in new if "ifname" in x and x["ifname"] == y.get("ifname")]
        lines += [f"{part}: {x['ifname']}: {_changes(x, y)}" for x, y in pairs]
        lines += [f"{part}: lost {entry}" for entry in lost if entry not in [x for x, _ in pairs]]
        lines += [f"{part}: new {entry}" for entry in new if entry not in [y for _, y in pairs]]
        if not lines and entries != after[part]:
            moved = [
                f"{one} -> {other}" for one, other in zip(entries, after[part], strict=True) if one != other
            ]
            lines.append(f"{part}: other order: {'; '.join(moved)}")
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return ", ".join(f"{key} was {before.get(key)!r} and is {after.get(key)!r}" for key in keys)


def _without(picture: Picture, keys: Collection[str]) -> Picture:
    """The picture without some keys; by name, as the index orders links."""
    pruned = {
        part: [{key: value for key, value in entry.items() if key not in keys} for entry in entries]
        for part, entries in picture.items()
    }
    for part in ("links", "addresses", "tokens", "ethtool", "sysctls"):
        pruned[part].sort(key=lambda entry: str(entry["ifname"]))
    return pruned
