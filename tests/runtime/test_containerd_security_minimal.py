"""Each right of the driver's container taken away in turn: somebody is told, by name, and told the mend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dranet.security.context import CAPABILITIES, MOUNTS
from dranet.security.seccomp import CHOSEN
from testbed.containerd.fetch import Toolchain
from testbed.driver.pod import driver_in_a_pod
from tests.runtime import fail_closed
from tests.runtime.conftest import ALL_LANES
from tests.runtime.fail_closed import Pod
from tests.runtime.private_node import in_own_private_node
from tests.runtime.rights import (
    CPUS,
    DHCP,
    NO_PROGRAMS,
    SYSCTLS,
    Case,
    Told,
    Trial,
    with_mount,
    without_capability,
    without_mount,
    without_rule,
)

pytestmark = pytest.mark.runtime

READ_ONLY = {"readOnly": True}
OF_CAPABILITIES = {
    "NET_ADMIN": Case(
        without_capability("NET_ADMIN"),
        {
            Told.POD: r"move-link .*not permitted.*lacks CAP_NET_ADMIN: add it to the capabilities",
            Told.DOCTOR: r"CAP_NET_ADMIN lacks.*no NIC can be attached",
        },
    ),
    "SYS_ADMIN": Case(
        without_capability("SYS_ADMIN"),
        {
            Told.POD: r"enter network namespace: .*lacks CAP_SYS_ADMIN",
            Told.DOCTOR: r"CAP_SYS_ADMIN lacks",
        },
    ),
    "NET_RAW": Case(
        without_capability("NET_RAW"),
        {
            Told.POD: r"speak DHCP on enp35s0np0: .*lacks CAP_NET_RAW",
            Told.DOCTOR: r"CAP_NET_RAW lacks.*dhcp: true",
        },
        DHCP,
    ),
    "SYS_PTRACE": Case(
        without_capability("SYS_PTRACE"), {Told.DOCTOR: r"CAP_SYS_PTRACE lacks.*comes back only when"}
    ),
}
OF_MOUNTS = {
    "state": Case(
        without_mount("state"), {Told.LOG: r"cannot use folder \S+/state/\S+: Read-only .*--state-dir"}
    ),
    "state, read-only": Case(
        with_mount("state", **READ_ONLY),
        {
            Told.POD: r"/state/\S+: .*folder a writable mount with free space",
            Told.DOCTOR: r"/state is mounted read-only.*writable",
        },
    ),
    "cdi": Case(
        without_mount("cdi"),
        {
            Told.POD: r"CDI spec \S+: Read-only file system \(make \S+/cdi writable",
            Told.DOCTOR: r"/cdi is not mounted from the node",
        },
    ),
    "cdi, read-only": Case(
        with_mount("cdi", **READ_ONLY), {Told.DOCTOR: r"/cdi is mounted read-only.*at \S+/cdi, writable"}
    ),
    "cdi-static": Case(
        without_mount("cdi-static"),
        {Told.DOCTOR: r"/etc/cdi is not mounted from the node.*without the vendor's libraries"},
    ),
    "nri": Case(
        without_mount("nri"),
        {
            Told.READY: r"cannot connect to \S+/nri.sock: No such file",
            Told.DOCTOR: r"/nri is not mounted from the node",
        },
    ),
    "plugin": Case(
        without_mount("plugin"), {Told.LOG: r"plugin folder \S+/dra.net: Read-only .*--kubelet-root"}
    ),
    "plugin, read-only": Case(
        with_mount("plugin", **READ_ONLY), {Told.LOG: r"cannot listen on \S+dra.sock: is its folder writable"}
    ),
    "registry": Case(
        without_mount("registry"), {Told.LOG: r"registration folder \S+ does not exist .*--kubelet-root"}
    ),
    "registry, read-only": Case(
        with_mount("registry", **READ_ONLY), {Told.LOG: r"cannot listen on \S+reg.sock: is its folder writ"}
    ),
    "pod-resources": Case(
        without_mount("pod-resources"),
        {Told.DOCTOR: r"/pod-resources is not mounted from the node.*verdicts are Unknown"},
    ),
    "netns": Case(
        without_mount("netns"),
        {
            Told.POD: r"network namespace \S+: No such file .*mount this folder of the node",
            Told.DOCTOR: r"/netns is not mounted from the node",
        },
    ),
    "netns, not propagated": Case(
        with_mount("netns", mountPropagation="None"),
        {
            Told.POD: r"not a namespace any more \(if its pod runs, .*HostToContainer",
            Told.DOCTOR: r"/netns does not show what the node mounts there later.*HostToContainer",
        },
    ),
    "proc": Case(
        without_mount("proc"), {Told.LOG: r"boot_id: No such file .*mount the node's /proc at /host/proc"}
    ),
    "proc-sys-net": Case(
        without_mount("proc-sys-net"),
        {
            Told.POD: r"rp_filter to '2': Read-only .*mount the node's /proc/sys/net .*writable",
            Told.DOCTOR: r"/host/proc/sys/net is (not mounted|mounted read-only).*claims with sysctls",
        },
        SYSCTLS,
    ),
    "proc-irq": Case(
        without_mount("proc-irq"),
        {
            Told.POD: r"interrupt 20\d to CPU 0: Read-only .*mount the node's /proc/irq .*writable",
            Told.DOCTOR: r"/host/proc/irq is not mounted from the node.*cpuLocality.irq",
        },
        CPUS,
    ),
}
OF_RULES = {
    "socket-plain": Case(
        None,
        {Told.LOG: r"socket: Function not implemented.*cannot listen on \S+dra.sock: .*gRPC wrote"},
        rules=without_rule("socket-plain"),
    ),
    "socket-netlink": Case(
        None,
        {Told.LOG: r"open netlink socket 0: .*seccomp profile may not let socket through"},
        rules=without_rule("socket-netlink"),
    ),
    "socket-packet": Case(
        None,
        {
            Told.POD: r"speak DHCP on enp35s0np0: .*seccomp profile may not let socket through",
            Told.DOCTOR: r"refuses socket: .*dhcp: true",
        },
        DHCP,
        without_rule("socket-packet"),
    ),
    "setns": Case(
        None,
        {
            Told.POD: r"enter network namespace: .*seccomp profile may not let setns through",
            Told.DOCTOR: r"refuses setns: ",
        },
        rules=without_rule("setns"),
    ),
    "bpf": Case(
        None,
        {
            Told.POD: r"remove BPF programs from net1: .*seccomp profile may not let bpf through",
            Told.DOCTOR: r"refuses bpf: .*seccomp profile",
        },
        NO_PROGRAMS,
        without_rule("bpf"),
    ),
    "mount-sysfs": Case(
        None,
        {
            Told.POD: r"mount sysfs in a pod's namespace: .*let fsopen, fsconfig, fsmount and fspick through",
            Told.DOCTOR: r"refuses fsmount, fsopen, fspick: ",
        },
        CPUS,
        without_rule("mount-sysfs"),
    ),
    "mount-options": Case(
        None,
        {Told.POD: r"mount sysfs in a pod's namespace: .*let fsopen, fsconfig, fsmount and fspick through"},
        CPUS,
        without_rule("mount-options"),
    ),
}
CASES = {**OF_CAPABILITIES, **OF_MOUNTS, **OF_RULES}
IN_EACH_RUN = (
    tuple(OF_CAPABILITIES),
    ("nri", "netns, not propagated", "proc-sys-net", "setns", "mount-sysfs"),
)
"""Some on one testbed. All of them, each alone, with ``make test-runtime``."""


def test_no_right_is_without_a_case() -> None:
    assert set(OF_CAPABILITIES) == {capability.name for capability in CAPABILITIES}
    assert {name.partition(",")[0] for name in OF_MOUNTS} == {mount.name for mount in MOUNTS}
    assert set(OF_RULES) == {rule.name for rule in CHOSEN}
    assert {name for names in IN_EACH_RUN for name in names} <= set(CASES)


def test_every_writable_mount_is_tried_read_only() -> None:
    read_only_without = {"proc-sys-net", "proc-irq"}
    """Without the mount they are, as the rest of ``/proc`` is."""
    writable = {mount.name for mount in MOUNTS if not mount.read_only} - read_only_without
    assert {name.partition(",")[0] for name in OF_MOUNTS if name.endswith("read-only")} == writable


@pytest.fixture(
    params=[(name,) for name in CASES] if os.environ.get(ALL_LANES) else IN_EACH_RUN, ids=", ".join
)
def cases(request: pytest.FixtureRequest) -> Mapping[str, Case]:
    return {name: CASES[name] for name in request.param}


@pytest.mark.usefixtures("cases")
@in_own_private_node
def test_one_right_less_is_a_failure_with_a_name(
    toolchain: Toolchain, folder: Path, cases: Mapping[str, Case]
) -> None:
    async def take_away(pod: Pod) -> None:
        trial = Trial(pod)
        for number, (name, case) in enumerate(cases.items(), start=1):
            assert await trial.find_untold(case) == [], name
            if number < len(cases):
                await trial.tidy_up()

    fail_closed.play(driver_in_a_pod(toolchain), folder, take_away)
