"""The driver in its container with one right less: what is told of it, and where.

A case takes one thing out of the pod spec or the seccomp profile. What an operator reads is looked for where
he would look first: what the driver says when it does not start, ``/readyz``, why the kubelet cannot start
the pod, and ``dranet doctor`` in the driver's container. ``dranet/security/context.py`` says what each
right is for.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from dranet.cluster import paths
from dranet.errors import ClusterError
from dranet.security import seccomp
from dranet.security.seccomp import RULES, SyscallRule
from testbed.driver.pod import DriverPod, DriverRuntime
from testbed.driver.pod_spec import PodSpec, build_pod_spec
from testbed.driver.process import DriverFailed
from testbed.runtime.contract import RuntimeFailure
from tests.runtime.fail_closed import MANIFESTS, SECONDS, Pod

CPUS = {"cpuLocality": {"irq": True, "rps": True, "xps": True}}
SYSCTLS = {"sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2}}
DHCP = {"interface": {"name": "net1", "dhcp": True}}
NO_PROGRAMS = {"interface": {"name": "net1", "disableEbpfPrograms": True}}
_LOOK_SECONDS = 0.05

Change = Callable[[dict[str, Any]], None]
"""Takes something out of the driver's container."""


class Told(Enum):
    """Where a failure is read."""

    LOG = auto()
    """The driver ends, and says why last."""
    READY = auto()
    POD = auto()
    """The kubelet cannot start a pod with a claim."""
    DOCTOR = auto()


@dataclass(frozen=True)
class Case:
    """One right less, and what is told of it: patterns, by where."""

    change: Change | None
    told: Mapping[Told, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[SyscallRule, ...] = RULES


def without_capability(name: str) -> Change:
    def change(container: dict[str, Any]) -> None:
        container["securityContext"]["capabilities"]["add"].remove(name)

    return change


def without_mount(name: str) -> Change:
    def change(container: dict[str, Any]) -> None:
        container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] != name]

    return change


def with_mount(name: str, **changed: Any) -> Change:
    def change(container: dict[str, Any]) -> None:
        (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == name)
        mount.update(changed)

    return change


def without_rule(name: str) -> tuple[SyscallRule, ...]:
    return tuple(rule for rule in RULES if rule.name != name)


class Trial:
    """A testbed on which the driver is started with rights that are not its usual ones."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._testbed = pod.testbed
        assert isinstance(pod.testbed.driver, DriverPod)
        assert isinstance(pod.testbed.runtime, DriverRuntime)
        self.driver: DriverPod = pod.testbed.driver
        self._runtime: DriverRuntime = pod.testbed.runtime
        self._folder = pod.testbed.places.kubelet_root / "seccomp"
        self._number = 0
        cpus = pod.testbed.node.sysfs_root / "devices/system"
        for file in (cpus / "cpu/online", *cpus.glob("node/node*/cpulist")):
            file.write_text("0\n")  # which every machine has

    async def start(self, change: Change | None = None, rules: tuple[SyscallRule, ...] = RULES) -> None:
        """The driver in a pod of its own with these rights; it need not get ready."""
        self._runtime.spec = self._build_spec(change, rules)
        await self.driver.renew()
        await self.driver.start()

    def _build_spec(self, change: Change | None, rules: tuple[SyscallRule, ...]) -> PodSpec:
        spec = build_pod_spec()
        del spec["initContainers"]
        (container,) = spec["containers"]
        if rules is not RULES:
            profile = container["securityContext"]["seccompProfile"]
            profile["localhostProfile"] = f"case-{self._number}.json"
            self._number += 1
            text = json.dumps(seccomp.build_seccomp_profile(rules))
            (self._folder / profile["localhostProfile"]).write_text(text)
        if change is not None:
            change(container)
        return spec

    async def find_untold(self, case: Case) -> list[str]:
        """Where something else is told than the case says, and what; nothing where all is as it says."""
        told_before = len(self.driver.log_file.read_text()) if self.driver.log_file.exists() else 0
        await self.start(case.change, case.rules)
        looks: Mapping[Told, Callable[[], Any]] = {
            Told.LOG: lambda: self._read_last_words(told_before),
            Told.READY: self._ask_ready,
            Told.POD: lambda: self._read_pod_failure(case.parameters),
            Told.DOCTOR: self._ask_doctor,
        }
        found = [await self._look(looks[where], pattern, where) for where, pattern in case.told.items()]
        return [text for text in found if text]

    async def _look(self, look: Callable[[], Any], pattern: str, where: Told) -> str:
        seen = ""
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    seen = await look()
                    if re.search(pattern, seen, re.DOTALL):
                        return ""
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return f"{where.name} does not say {pattern!r}, but {seen!r}"

    async def _read_last_words(self, told_before: int) -> str:
        if self.driver.is_running:
            return "(it still runs)"
        return self.driver.log_file.read_text()[told_before:]

    async def _ask_ready(self) -> str:
        try:
            return await self.driver.check_ready()
        except DriverFailed as failed:
            return f"{failed}: {self.driver.log_tail()}"

    async def _ask_doctor(self) -> str:
        try:
            done = await self.driver.run_dranet("doctor", "-o", "json")
        except RuntimeFailure as failure:
            return str(failure)
        return " ".join(done.stdout.split()) + done.stderr

    async def _read_pod_failure(self, parameters: Mapping[str, Any]) -> str:
        """Of a pod that is made at the first look."""
        if "worker" not in self._testbed.applied_pods or not await self._has_pod():
            await self.driver.wait_ready(SECONDS)
            await self._testbed.apply(build_manifests(parameters))
        return self._pod.failure

    async def _has_pod(self) -> bool:
        try:
            await self._testbed.fetch_pod("worker")
        except ClusterError:
            return False
        return True

    async def tidy_up(self) -> None:
        """With all rights again, so that nothing of a case is left for the next."""
        await self.start()
        await self.driver.wait_ready(SECONDS)
        if "worker" in self._testbed.applied_pods and await self._has_pod():
            await self.end_pod()

    async def end_pod(self) -> None:
        await self._testbed.delete_pod("worker")
        if await self._has_pod():  # else the kubelet never saw it: a driver that offers nothing
            async with asyncio.timeout(SECONDS):
                await self._testbed.kubelet.wait_gone(self._pod.uid)
        with suppress(ClusterError):
            await self._testbed.api.delete(paths.resource_claim("default", "nic"))
        now = await asyncio.to_thread(self._testbed.node.snapshot)
        assert now == self._pod.before, self._pod.before.differences(now)

    async def tell_whole_story(self) -> list[str]:
        """A driver with these rights starts, serves, answers the doctor and ends; what was odd about it."""
        begin = len(self.driver.log_file.read_text())
        await self.driver.wait_ready(5)
        await self._testbed.apply(build_manifests({**CPUS, **SYSCTLS}))
        async with asyncio.timeout(5):
            await self._testbed.kubelet.wait_running(self._pod.uid)
        odd = [await self._run("doctor", "-o", "json"), await self._run("prepared", "-o", "json")]
        await self.end_pod()
        ended = await self.driver.stop(timeout_seconds=10)
        odd += [f"exit code {ended.exit_code}"] if ended.exit_code else []
        return [text for text in (*odd, *find_complaints(self.driver.log_file.read_text()[begin:])) if text]

    async def _run(self, *arguments: str) -> str:
        done = await self.driver.run_dranet(*arguments)
        return f"dranet {arguments[0]}: {done.stderr}" if done.exit_code or done.stderr else ""


async def find_what_is_let_through(pod: Pod, python: str, *arguments: str) -> str:
    """What ``taken_over.py`` says. An ``exec`` has the container's rights, as the driver's process has."""
    assert isinstance(pod.testbed.driver, DriverPod)
    attempts = (Path(__file__).parent / "attacker.py").read_text()
    done = await pod.testbed.driver.run_in_container(python, "-c", attempts, *arguments)
    assert (done.stderr, done.exit_code) == ("", 0)
    return done.stdout


_EXPECTED = re.compile(r" INFO | more is known of ")


def find_complaints(log: str) -> list[str]:
    """Lines that are not the driver's ordinary ones."""
    return [line for line in log.splitlines() if not _EXPECTED.search(line)]


def build_manifests(parameters: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    manifests = deepcopy(MANIFESTS)
    (config,) = manifests[1]["spec"]["devices"]["config"]
    config["opaque"]["parameters"] |= parameters
    return manifests


def run_udhcpd(busybox: Path, folder: Path, link: str) -> subprocess.Popen[bytes]:
    """A DHCP server behind the NICs, on a link of the testbed's fabric."""
    conf, leases = folder / "udhcpd.conf", folder / "udhcpd.leases"
    leases.touch()
    conf.write_text(
        f"start 10.64.0.100\nend 10.64.0.120\ninterface {link}\nlease_file {leases}\n"
        f"pidfile {folder}/udhcpd.pid\noption subnet 255.255.255.0\noption lease 600\n"
    )
    command = ["ip", "netns", "exec", "fabric", str(busybox), "udhcpd", "-f", str(conf)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)
