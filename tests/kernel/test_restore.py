"""What the host gets back after a tenant had the link, with ip, tc, ethtool and /proc/sys as the judges."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.attachment.detach import DetachReport
from dranet.kernel.attachment.links import open_host_side, read_link
from dranet.kernel.attachment.restore import read_link_state, restore_link
from dranet.kernel.netlink.rtnl import set_link_request
from dranet.kernel.netlink.socket import attribute_u32
from dranet.kernel.sysfs.files import read_sysctl, write_sysctl
from dranet.model.facts import Address, Neighbour, Route
from dranet.model.plan import EthtoolState, LinkState, SetUp, TrafficControl
from tests.kernel.plans import attach_from, detach_to, move_plan
from tests.kernel.settings_of_links import (
    EXCLUSIVE,
    HOST_SETTINGS,
    VANDALISM,
    WITHOUT_IPV6,
    conflicts,
    set_up,
    vandalise,
)
from tests.support.namespaces import Namespace, add_nic, wait_settled, wait_unchanged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

GIVEN_BACK = DetachReport(restored=("dev-eth3",))

NOT_YET_UP = {"qdisc"}
"""The kernel calls the queue of a link "noop" until it is first up."""

LISTENERS = {"promiscuity", "allmulti"}
"""The kernel's counts, in which links that the tenant put on top stay until the pod's namespace is gone and
the link is up. What an administrator asked for is among the flags."""

UNDOES_OTHER_DEEDS = {"name", "not promiscuous", "more offloads", "fewer channels"}


# --- each property, each deed --------------------------------------------------------------------------


@pytest.mark.parametrize("setting", HOST_SETTINGS)
def test_whatever_the_host_had_set_comes_back_from_a_tenant_who_changes_everything(
    node: Namespace, pod: Namespace, setting: str
) -> None:
    set_up(node, "eth3", setting)
    before = wait_settled(node)
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    vandalise(pod, "net1", VANDALISM)
    assert detach_to(node, pod, plan) == GIVEN_BACK
    wait_unchanged(before, node, but=NOT_YET_UP)


@pytest.mark.parametrize("deed", VANDALISM)
def test_each_deed_of_a_tenant_does_something_and_does_not_last(
    node: Namespace, pod: Namespace, deed: str
) -> None:
    if deed == "no names":
        set_up(node, "eth3", "alternative names")
    before = wait_settled(node)
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    inside = pod.picture()
    vandalise(pod, "net1", [deed])
    if deed not in UNDOES_OTHER_DEEDS:
        assert pod.picture() != inside, "the tenant could do it"
    assert detach_to(node, pod, plan) == GIVEN_BACK
    wait_unchanged(before, node)


def test_all_that_goes_together_comes_back_from_a_quiet_tenant(node: Namespace, pod: Namespace) -> None:
    together: list[str] = []
    for name in reversed(HOST_SETTINGS):
        if name not in WITHOUT_IPV6 and not conflicts(name, together):
            together.append(name)
    assert len(together) > 20
    set_up(node, "eth3", *sorted(together, key=list(HOST_SETTINGS).index))
    before = wait_settled(node)
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    assert detach_to(node, pod, plan) == GIVEN_BACK
    wait_unchanged(before, node)


def queue_cpus(namespace: Namespace, link: str, *lines: str) -> dict[str, str]:
    """What the files of a link's queues say in a sysfs of the shell's own, after it has run these lines."""
    script = ["mount -t sysfs s /sys", f"cd /sys/class/net/{link}/queues", *lines, "grep . *x-*/[rx]ps_cpus"]
    command = ["unshare", "-m", "sh", "-ec", "\n".join(script)]
    done = namespace.run(lambda: subprocess.run(command, capture_output=True, text=True))
    assert done.returncode == 0, done.stderr
    return {name: value for name, _, value in (line.partition(":") for line in done.stdout.splitlines())}


def test_the_cpus_of_queues_are_those_that_the_host_had_set(node: Namespace, pod: Namespace) -> None:
    set_up(node, "eth3", "channels")
    before = queue_cpus(node, "eth3", "echo 1 > tx-1/xps_cpus", "echo 1 > rx-0/rps_cpus")
    assert [name for name, value in before.items() if value.strip("0,")] == ["rx-0/rps_cpus", "tx-1/xps_cpus"]
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    inside = queue_cpus(pod, "net1", "echo 0 > tx-1/xps_cpus", "echo 0 > rx-0/rps_cpus")
    assert inside != before
    assert detach_to(node, pod, plan) == GIVEN_BACK
    assert queue_cpus(node, "eth3") == before


def test_a_link_that_is_as_it_was_is_left_alone(node: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(node, "eth3", "routes", "htb", "alternative names", "offloads")
    plan = move_plan(node, "eth3", "net1")
    before = wait_settled(node)

    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be done")

    monkeypatch.setattr("dranet.kernel.attachment.restore._Restoring._apply", refuse)
    assert detach_to(node, None, plan) == GIVEN_BACK
    wait_unchanged(before, node)


def test_the_sizes_of_ipv4_come_back_after_those_that_change_them(node: Namespace, pod: Namespace) -> None:
    """``ip`` is too old to show them, so they are taken out of the kernel's message here."""
    name_of = {"gso_ipv4_max_size": 63, "gro_ipv4_max_size": 64}

    def shown() -> dict[str, int]:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            request = (
                struct.pack("=IHHII", 44, 18, 1, 1, 0) + bytes(16) + struct.pack("=HH8s", 12, 3, b"eth3")
            )
            sock.send(request)
            message = sock.recv(65536)
        found: dict[int, bytes] = {}
        offset = 32
        while offset + 4 <= len(message):
            size, kind = struct.unpack_from("=HH", message, offset)
            found[kind] = message[offset + 4 : offset + size]
            offset += (size + 3) & ~3
        known = {name: kind for name, kind in name_of.items() if kind in found}
        return {name: int.from_bytes(found[kind], sys.byteorder) for name, kind in known.items()}

    if node.run(shown).keys() != name_of.keys():
        pytest.skip("this kernel has no sizes of IPv4 (before Linux 6.3)")
    index = node.read_raw("link", "show", "dev", "eth3")[0]["ifindex"]
    with node.netns.open_netlink() as rtnl:
        for kind, size in ((63, 30000), (64, 31000)):
            attribute = attribute_u32(kind, size)
            rtnl.request(set_link_request(index, attribute, operation="set size", link="eth3"))
    assert node.run(shown) == {"gso_ipv4_max_size": 30000, "gro_ipv4_max_size": 31000}
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    vandalise(pod, "net1", ["small sizes"])
    assert detach_to(node, pod, plan) == GIVEN_BACK
    assert node.run(shown) == {"gso_ipv4_max_size": 30000, "gro_ipv4_max_size": 31000}


# --- any host, any tenant ------------------------------------------------------------------------------


@st.composite
def hosts(draw: st.DrawFn) -> tuple[str, ...]:
    """Settings that one link can have together, in the order of the table."""
    chosen: list[str] = []
    for name in draw(st.lists(st.sampled_from(list(HOST_SETTINGS)), max_size=10, unique=True)):
        if not conflicts(name, chosen):
            chosen.append(name)
    return tuple(sorted(chosen, key=list(HOST_SETTINGS).index))


@given(host=hosts(), deeds=st.lists(st.sampled_from(list(VANDALISM)), max_size=12))
@settings(
    max_examples=10,
    deadline=None,
    phases=(Phase.generate,),  # an example takes a second: as found is good enough
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_host_gets_back_what_it_had_from_any_tenant(
    make_namespace: Callable[..., Namespace], host: tuple[str, ...], deeds: list[str]
) -> None:
    node, fabric, pod = make_namespace(), make_namespace(), make_namespace()
    try:
        add_nic(node, fabric, "eth3", "02:00:00:00:00:03")
        set_up(node, "eth3", *host)
        before = wait_settled(node)
        plan = move_plan(node, "eth3", "net1", SetUp())
        attach_from(node, pod, plan)
        vandalise(pod, "net1", deeds)
        assert detach_to(node, pod, plan) == GIVEN_BACK
        wait_unchanged(before, node, but={*NOT_YET_UP, *LISTENERS})
    finally:
        for namespace in (pod, node, fabric):
            namespace.delete()


def test_every_setting_has_a_place_in_what_is_drawn() -> None:
    named = set().union(*EXCLUSIVE) | WITHOUT_IPV6
    assert named <= set(HOST_SETTINGS), "no group names a setting that does not exist"


# --- what cannot be given back -------------------------------------------------------------------------

IMPOSSIBLE: Mapping[str, tuple[dict[str, Any], str]] = {
    "mtu": ({"mtu": 70000}, "mtu greater than device maximum (EINVAL); wanted 70000, found 1500"),
    "mac": (
        {"mac": "01:00:5e:00:00:01"},
        "(EADDRNOTAVAIL); wanted 01:00:5e:00:00:01, found 02:00:00:00:00:03",
    ),
    "alternative names": (
        {"altnames": ("eth2",)},
        "add alternative name eth2 of eth3: File exists (EEXIST); wanted eth2, found nothing",
    ),
    "offload size": (
        {"offload_sizes": {"gso_max_size": 600_000}},
        "set gso_max_size eth3: too big gso_max_size (EINVAL); wanted 600000, found 65536",
    ),
    "address": (
        {"addresses": (Address("ff02::5/64"),)},
        "(EADDRNOTAVAIL); wanted scope 0 flags 0x0 without a lifetime, found nothing",
    ),
    "route": (
        {"routes": (Route("10.7.0.0/16", gateway="198.51.100.1", table=77, metric=5),)},
        "(ENETUNREACH); wanted via 198.51.100.1 scope 0 protocol 0 type 1 flags 0x0, found nothing",
    ),
    "neighbour": (
        {"neighbours": (Neighbour("10.0.0.9", "02:00:00:00"),)},
        "add neighbor 10.0.0.9 eth3: Invalid link address (EINVAL); wanted 02:00:00:00, found nothing",
    ),
    "qdisc": (
        {"traffic_control": (TrafficControl("qdisc", "nonesuch", 0x10000, 0xFFFFFFFF),)},
        "Specified qdisc kind is unknown (ENOENT); wanted parent root, found nothing",
    ),
    "ethtool": ({"ethtool": EthtoolState(rings={"rx": 512})}, "rings rx: wanted 512, found nothing"),
    "feature": (
        {"ethtool": EthtoolState(features={"tx-warp": True})}, "feature tx-warp: wanted on, found nothing"
    ),
    "sysctl": (
        {"sysctls": {"ipv4/conf/rp_filter": "many"}},
        "set-sysctl ipv4/conf/eth3/rp_filter to 'many': Invalid argument (EINVAL); wanted many, found 0",
    ),
    "sysctl of another kernel": (
        {"sysctls": {"ipv6/conf/of_tomorrow": "1"}},
        "/of_tomorrow to '1': No such file or directory (ENOENT); wanted 1, found nothing",
    ),
    "token": (
        {"token": "::5", "arp": False},
        "set token eth3: ipv6: Device does not do neighbour discovery (EINVAL); wanted ::5, found nothing",
    ),
}  # fmt: skip
"""What no kernel gives, and what the report says of it."""


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_given_back_is_one_line_with_the_reason(node: Namespace, case: str) -> None:
    changes, line = IMPOSSIBLE[case]
    plan = move_plan(node, "eth3", "net1")
    assert plan.host is not None
    (problem,) = restore(node, replace(plan.host, **changes))
    assert problem.endswith(line)


def restore(node: Namespace, state: LinkState) -> list[str]:
    def restore_here() -> list[str]:
        with open_host_side() as side:
            link = read_link(side.rtnl, ifname="eth3")
            assert link is not None
            return restore_link(side, link, state)

    return node.run(restore_here)


def test_the_rest_is_given_back_where_something_cannot_be(node: Namespace, pod: Namespace) -> None:
    set_up(node, "eth3", "routes", "mtu", "htb", "offloads", "rp_filter", "alternative names")
    before = wait_settled(node)
    plan = move_plan(node, "eth3", "net1", SetUp())
    assert plan.host is not None
    host = plan.host
    bad = replace(
        host,
        altnames=("eth2", *host.altnames),
        neighbours=(Neighbour("10.1.0.77", "02:00"), *host.neighbours),
        sysctls={"ipv4/conf/nonesuch": "1", **host.sysctls},
    )
    attach_from(node, pod, plan)
    vandalise(pod, "net1", VANDALISM)
    report = detach_to(node, pod, replace(plan, host=bad))
    assert len(report.problems) == 3, report.problems
    wait_unchanged(before, node)


def test_an_ipv6_mtu_that_the_carrier_will_reset_is_reported(
    node: Namespace, fabric: Namespace, pod: Namespace
) -> None:
    fabric.ip("link", "set", "p-eth3", "down")
    wait_until(lambda: node.read_raw("link", "show", "dev", "eth3")[0]["operstate"] != "UP", "no carrier")
    assert node.run(lambda: write_sysctl("ipv6/conf/eth3/mtu", "1280")) == "1500"
    plan = move_plan(node, "eth3", "net1", SetUp())
    attach_from(node, pod, plan)
    (problem,) = detach_to(node, pod, plan).problems
    assert problem == "dev-eth3: sysctl ipv6/conf/mtu: wanted 1280, and the kernel sets 1500 with the carrier"
    fabric.ip("link", "set", "p-eth3", "up")
    wait_until(lambda: node.run(lambda: read_sysctl("ipv6/conf/eth3/mtu")) == "1500", "so it does")


def test_a_link_that_is_gone_is_an_error_of_the_kernel(node: Namespace) -> None:
    state = node.run(lambda: read_link_state("eth3"))

    def restore_gone() -> None:
        with open_host_side() as side:
            link = read_link(side.rtnl, ifname="eth3")
            assert link is not None
            restore_link(side, replace(link, ifindex=4711), state)

    with pytest.raises(KernelError, match="gone"):
        node.run(restore_gone)
