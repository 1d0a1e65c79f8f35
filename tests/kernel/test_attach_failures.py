"""A failure injected at every single request of an attach leaves node and pod as they were."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from dranet.errors import DranetError, KernelError
from dranet.kernel.attachment.checks import verify
from dranet.kernel.netlink.socket import NetlinkSocket, Outcome, Request, kernel_error
from dranet.kernel.sysfs.files import write_sysctl
from dranet.model.facts import Address, Neighbour, Route
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    AttachPlan,
    EthtoolState,
    LimitRate,
    NextHop,
    RemovePrograms,
    SetEthtool,
    SetLink,
    SetSysctl,
    SetToken,
    SetUp,
)
from tests.kernel.plans import attach_from, detach_to, macvlan_on, make_plan, move_plan, sublink_plan
from tests.support.namespaces import Namespace, Picture, wait_settled, wait_unchanged

pytestmark = pytest.mark.kernel

NODE_STATE = """
link set eth1 alias rack-7-port-3
link set eth1 mtu 1400
link set eth1 txqueuelen 333
addr add 10.1.0.2/24 brd + dev eth1
route add 10.50.0.0/16 via 10.1.0.1 metric 50 mtu 1300
neigh add 10.1.0.9 lladdr 02:00:00:00:99:99 dev eth1 nud permanent
addr add 2001:db8:1::2/64 dev eth1 nodad
"""


@dataclass
class Fault:
    """Makes the request of one number fail; the ones after it, which undo, pass."""

    at: int
    seen: int = 0
    what: str = ""

    def strikes(self, operation: str) -> bool:
        self.seen += 1
        if self.seen == self.at + 1:
            self.what = f"request {self.at} ({operation})"
        return self.seen == self.at + 1


@contextmanager
def injected(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> Iterator[None]:
    """Netlink requests, dumps and sysctls count, in the order in which they happen."""
    send, dump = NetlinkSocket._batch_of_one_send, NetlinkSocket.dump

    def batch(self: NetlinkSocket, requests: Sequence[Request]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for request in requests:
            struck = fault.strikes(request.operation)
            outcomes += [refusal(request.operation)] if struck else send(self, [request])
        return outcomes

    def failing_dump(self: NetlinkSocket, request: Request) -> list[bytes]:
        if fault.strikes(request.operation):
            raise refusal(request.operation)
        return dump(self, request)

    def failing_write(path: str, value: str) -> str:
        if fault.strikes(path):
            raise refusal(f"set-sysctl {path}")
        return write_sysctl(path, value)

    with monkeypatch.context() as patch:
        patch.setattr(NetlinkSocket, "_batch_of_one_send", batch)
        patch.setattr(NetlinkSocket, "dump", failing_dump)
        patch.setattr("dranet.kernel.attachment.links.write_sysctl", failing_write)
        yield


def refusal(operation: str) -> KernelError:
    return kernel_error(errno.ENOBUFS, "injected", operation)


def full_plans(node: Namespace) -> tuple[AttachPlan, ...]:
    """Every step that this kernel has, a moved link, one on top of a parent, and a route through both."""
    moved = move_plan(
        node, "eth1", "net1",
        RemovePrograms(),
        SetLink(tx_queue_length=77, offload_sizes={"gso_max_size": 40000}),
        SetEthtool(EthtoolState(features={"tx-scatter-gather": False})),
        SetSysctl("ipv4/conf/net1/arp_ignore", "1"),
        SetSysctl("ipv4/ip_local_port_range", "2000 3000"),
        AddAddress(Address("172.16.1.5/24")),
        AddAddress(Address("2001:db8:100::5/64", flags=0x02)),
        SetUp(),
        SetToken("::5"),
        SetSysctl("ipv4/conf/net1/forwarding", "1", early=False),
        AddNeighbour(Neighbour("172.16.1.9", "02:00:00:00:99:01")),
        AddRoute(Route("172.30.1.0/24", gateway="172.16.1.1")),
        AddRoute(
            Route("10.9.0.0/16"),
            (NextHop("172.16.1.1"), NextHop("172.20.0.1", "net2"), NextHop("10.244.0.9", "eth0")),
        ),
        AddRule(4, 100, 50, source="172.16.1.5/32"),
        AddRule(6, 100, source="2001:db8:100::5/128"),
        LimitRate(egress_bits_per_second=10**9, ingress_bits_per_second=10**9),
    )  # fmt: skip
    return (
        moved,
        sublink_plan(macvlan_on(node, "eth2", "net2"), AddRule(4, 200, 60)),
        make_plan(node, "eth3", "net3"),
    )


@pytest.fixture
def plans(node: Namespace) -> tuple[AttachPlan, ...]:
    node.ip_lines(NODE_STATE)
    return full_plans(node)


SHARDS = 4
"""Each takes every fourth request, for the time that a test may take."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_failure_at_any_request_leaves_node_and_pod_as_they_were(
    node: Namespace,
    pod: Namespace,
    plans: tuple[AttachPlan, ...],
    shard: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [(namespace, wait_settled(namespace)) for namespace in (node, pod)]
    counter = Fault(at=-1)
    with injected(monkeypatch, counter):
        attach_from(node, pod, *plans)
    assert detach_to(node, pod, *plans).problems == ()
    check_unchanged(before)
    assert counter.seen > 50
    for number in range(shard, counter.seen, SHARDS):
        fault = Fault(number)
        assert attempt(node, pod, monkeypatch, fault, *plans) == [], f"after {fault.what}"
        check_unchanged(before)


def attempt(
    node: Namespace, pod: Namespace, monkeypatch: pytest.MonkeyPatch, fault: Fault, *plans: AttachPlan
) -> list[str]:
    """Attach, which may fail; returns what could not be undone. What attaches all the same is whole."""
    try:
        with injected(monkeypatch, fault):
            attach_from(node, pod, *plans)
    except DranetError as error:
        return [part for part in error.hint.split("; ") if part.startswith(("dev-", "sub-"))]
    assert node.run(lambda: verify(plans, pod.netns)) == ()
    return list(detach_to(node, pod, *plans).problems)


def check_unchanged(before: list[tuple[Namespace, Picture]]) -> None:
    for namespace, picture in before:
        wait_unchanged(picture, namespace)
