"""Attach plans for tests on throw-away namespaces, and how a node applies them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.attachment.restore import read_link_state
from dranet.model.facts import IFA_F_NODAD, Address, Route
from dranet.model.plan import AddAddress, AddRoute, AttachPlan, CreateLink, MoveLink, SetUp, Step
from dranet.model.status import AttachedLink
from tests.support.namespaces import Namespace, Picture, wait_settled, wait_unchanged
from tests.support.waiting import wait_until


def make_plan(node: Namespace, ifname: str, pod_ifname: str, *more: Step) -> AttachPlan:
    """Address, up and a route for a link named ``eth<digit>``."""
    number = ifname[-1] if ifname[-1].isdigit() else "0"
    steps: tuple[Step, ...] = (
        AddAddress(Address(f"172.16.{number}.5/24")),
        AddAddress(Address(f"2001:db8:{number}00::5/64", flags=IFA_F_NODAD)),
        SetUp(),
        AddRoute(Route(f"172.30.{number}.0/24", gateway=f"172.16.{number}.1")),
    )
    return move_plan(node, ifname, pod_ifname, *steps, *more)


def move_plan(node: Namespace, ifname: str, pod_ifname: str, *steps: Step) -> AttachPlan:
    """Just these steps for a link that moves."""
    host = node.run(lambda: read_link_state(ifname))
    return AttachPlan(
        device=f"dev-{ifname}", steps=(MoveLink(pod_ifname), *steps), pod_ifname=pod_ifname, host=host
    )


def with_move(plan: AttachPlan, mtu: int | None = None, mac: str | None = None) -> AttachPlan:
    return replace(plan, steps=(MoveLink(plan.pod_ifname, mtu, mac), *plan.steps[1:]))


def macvlan_on(node: Namespace, parent: str, pod_ifname: str, **more: Any) -> CreateLink:
    (link,) = node.read("link", "show", "dev", parent)
    known = {"parent_ifindex": link["ifindex"], "parent_ifname": parent, "parent_mac": link["address"]}
    return CreateLink(pod_ifname, **{"kind": "macvlan", "mode": "bridge", **known, **more})


def sublink_plan(step: CreateLink, *steps: Step) -> AttachPlan:
    """The link of ``step`` with an address; the device is named after its parent."""
    common: tuple[Step, ...] = (AddAddress(Address("172.20.0.5/24")), SetUp())
    return AttachPlan(f"sub-{step.parent_ifname}", (step, *common, *steps), step.pod_ifname)


def attach_from(
    node: Namespace, pod: Namespace, *plans: AttachPlan, why_stop: Callable[[], str] = lambda: ""
) -> tuple[AttachedLink, ...]:
    return node.run(lambda: attach(plans, pod.netns, why_stop=why_stop))


def detach_to(node: Namespace, pod: Namespace | None, *plans: AttachPlan) -> DetachReport:
    return node.run(lambda: detach(plans, pod.netns if pod else None))


def shell(namespace: Namespace, *command: str) -> str:
    """The output of a command that must succeed, run in a namespace."""
    done = subprocess.run(["ip", "netns", "exec", namespace.name, *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def rules_of(namespace: Namespace) -> list[dict[str, Any]]:
    """``ip rule`` of both IP versions."""
    rules = [{**rule, "family": family} for family in ("-4", "-6") for rule in namespace.read(family, "rule")]
    return sorted(rules, key=str)


def sysctl(namespace: Namespace, path: str) -> str:
    """One file below ``/proc/sys/net``."""
    return namespace.run(lambda: Path("/proc/sys/net", path).read_text().strip())


def make_checks_last(pod: Namespace) -> None:
    """The check of an IPv6 address of a link that comes from now on asks for a minute, so that nobody is too
    late for it."""
    pod.run(lambda: Path("/proc/sys/net/ipv6/conf/default/dad_transmits").write_text("60"))


def list_descriptors() -> set[tuple[str, str]]:
    """What this process has open, by number and target. Not how much: what an earlier test left over may be
    closed at any time."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.add((entry.name, str(entry.readlink())))
    return found


def steady_picture(pod: Namespace) -> Picture:
    """A picture once carriers have come: until then the kernel marks routes ``linkdown``."""
    wait_until(lambda: "linkdown" not in str(pod.read("route", "show", "table", "all")), "carriers")
    return wait_settled(pod)


@contextmanager
def unchanged(*namespaces: Namespace) -> Iterator[None]:
    """What these look like is the same after the block."""
    before = [(namespace, wait_settled(namespace)) for namespace in namespaces]
    yield
    for namespace, picture in before:
        wait_unchanged(picture, namespace)
