"""What became of pods, NICs, host and statuses, seen from outside: API server, iproute2 and runtime.

It never asks the driver, nor anything that decides for it. What a pod should have is read from its claims'
allocations and configs (``wanted``); where a NIC is, from the kernel.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dranet.errors import KernelError
from testbed.cluster import JsonObject, Places, RuntimeFactory, Testbed
from testbed.kubelet.nouns import PodStage
from testbed.node.hoststate import HostState
from testbed.node.iproute import in_namespace, read_json
from testbed.node.node import Node
from testbed.runtime.contract import (
    ContainerSpec,
    ExecResult,
    PodRuntime,
    RunningContainer,
    RunningSandbox,
    SandboxSpec,
)
from tests.survival.expected_devices import Wanted, find_wanted, name_device
from tests.survival.statuses import find_wrong, list_addresses
from tests.survival.table import Row

PATIENCE_SECONDS = 30.0
"""That pods, NICs and statuses have to become what they should be."""
_POLL_SECONDS = 0.05
_HOST = "/proc/self/ns/net"
_SUBJECT = re.compile(r"^(?:link|.* of) (\S+?):")
"""Whom a fact of the host state is about."""
_OF_CNI = re.compile(r"veth[0-9a-f]{8}$")
"""The node's end of a pod's own network, as the plugin ``ptp`` names it; gone when no pod is left."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything found, each in a sentence. Empty means that nothing is amiss."""

    bare: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    not_restored: tuple[str, ...] = ()
    wrong_statuses: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not (self.bare or self.lost or self.not_restored or self.wrong_statuses)

    def row(self, fault: str, runtime: str, tries: int = 1) -> Row:
        counts = map(len, (self.bare, self.lost, self.not_restored, self.wrong_statuses))
        return Row(fault, runtime, tries, *counts)

    def __str__(self) -> str:
        found = {
            "bare": self.bare,
            "lost": self.lost,
            "not restored": self.not_restored,
            "status wrong": self.wrong_statuses,
        }
        return "\n".join(f"{kind}: {text}" for kind, texts in found.items() for text in texts) or "all well"


@dataclass(frozen=True, slots=True)
class _Case:
    """What the API server and the runtime say at one moment, and the links of each pod, read once."""

    pods: Sequence[JsonObject]
    claims: Sequence[JsonObject]
    living: Mapping[str, str]
    """Pods that run on and shall: UID -> path of the namespace."""
    links: dict[str, dict[str, JsonObject]] = field(default_factory=dict)

    def read_links(self, netns_path: str) -> dict[str, JsonObject]:
        """See :func:`read_links`."""
        if netns_path not in self.links:
            self.links[netns_path] = read_links(netns_path)
        return self.links[netns_path]

    def find_netns(self, claim: JsonObject) -> str:
        """That of the running pod which has the claim; empty where none has."""
        users = claim.get("status", {}).get("reservedFor", ())
        return next((self.living[user["uid"]] for user in users if user["uid"] in self.living), "")


@dataclass(slots=True)
class _Watched:
    """A runtime that has each container looked at when it has just started; implements ``PodRuntime``."""

    inner: PodRuntime
    judge: Judge
    sandboxes: dict[str, SandboxSpec] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.inner.name

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    async def run_sandbox(self, spec: SandboxSpec) -> RunningSandbox:
        sandbox = await self.inner.run_sandbox(spec)
        self.sandboxes[sandbox.id] = spec
        return sandbox

    async def create_container(self, sandbox: RunningSandbox, spec: ContainerSpec) -> RunningContainer:
        container = await self.inner.create_container(sandbox, spec)
        await self.judge.look_at_container(self.sandboxes[sandbox.id], sandbox, spec.name)
        return container

    async def exec_in_container(self, container: RunningContainer, command: Sequence[str]) -> ExecResult:
        return await self.inner.exec_in_container(container, command)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        await self.inner.stop_sandbox(sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        await self.inner.remove_sandbox(sandbox_id)


class Judge:
    """Of one testbed. Have its runtime made by :meth:`watch`, then :meth:`take_case` before pods come."""

    def __init__(self) -> None:
        self.bare: list[str] = []
        self.containers_seen = 0
        self.inner_runtime: PodRuntime | None = None
        """The watched runtime itself."""
        self._testbed: Testbed | None = None
        self._before = HostState(frozenset())
        self._cdi_before: frozenset[str] = frozenset()

    def watch(self, make_runtime: RuntimeFactory) -> RuntimeFactory:
        """The same runtime, each new container of which is looked at."""

        def make(places: Places, node: Node) -> PodRuntime:
            self.inner_runtime = make_runtime(places, node)
            return _Watched(self.inner_runtime, self)

        return make

    async def take_case(self, testbed: Testbed) -> None:
        """The host's state from now on is what must be there at the end."""
        self._testbed = testbed
        self._before = await asyncio.to_thread(testbed.node.snapshot)
        self._cdi_before = _list_cdi(testbed)

    @property
    def testbed(self) -> Testbed:
        assert self._testbed is not None, "take_case first"
        return self._testbed

    async def look_at_container(self, spec: SandboxSpec, sandbox: RunningSandbox, container: str) -> None:
        """It has just started: is every NIC that its pod claims there, up and addressed?"""
        self.containers_seen += 1
        case = _Case((), self.testbed.server.objects("resourceclaims"), {})
        missing = await asyncio.to_thread(lambda: [*self._find_missing(case, spec.uid, sandbox.netns_path)])
        self.bare += [f"container {container} of {spec.name}: {text}" for text in missing]

    async def settle(self, patience_seconds: float = PATIENCE_SECONDS) -> Verdict:
        """The verdict, once nothing is amiss any more or the time is over."""
        deadline = asyncio.get_running_loop().time() + patience_seconds
        while True:
            verdict = await self.examine()
            if verdict.is_clean or verdict.bare or asyncio.get_running_loop().time() > deadline:
                return verdict
            await asyncio.sleep(_POLL_SECONDS)

    async def examine(self) -> Verdict:
        """What is amiss at this moment. Pods that the API server has must run with what they claim, the
        others be gone, and the host be as it was but for NICs that are in pods and the pods' own network."""
        case = self._open_case()
        pods = [*self._find_lost_pods(case)]
        return await asyncio.to_thread(lambda: self._examine(case, pods))

    def _examine(self, case: _Case, lost_pods: Sequence[str]) -> Verdict:
        return Verdict(
            tuple(self.bare),
            (*lost_pods, *self._find_lost_nics(case)),
            tuple(self._find_host_differences(case)),
            tuple(self._find_wrong_statuses(case)),
        )

    def _open_case(self) -> _Case:
        """On the event loop, where the API server's objects hold still."""
        testbed = self.testbed
        pods, claims = (testbed.server.objects(kind) for kind in ("pods", "resourceclaims"))
        uids = [p["metadata"]["uid"] for p in pods if not p["metadata"].get("deletionTimestamp")]
        running = [uid for uid in uids if testbed.kubelet.stage(uid) is PodStage.RUNNING]
        sandboxes = {uid: testbed.kubelet.sandbox(uid) for uid in running}
        return _Case(pods, claims, {uid: s.netns_path for uid, s in sandboxes.items() if s})

    # --- pods -------------------------------------------------------------------------------------------

    def _find_lost_pods(self, case: _Case) -> Iterator[str]:
        kubelet = self.testbed.kubelet
        there = {pod["metadata"]["uid"] for pod in case.pods}
        for pod in case.pods:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if pod["metadata"].get("deletionTimestamp"):
                yield f"pod {name} does not go: {kubelet.failure(uid)}"
            elif kubelet.stage(uid) < PodStage.RUNNING:
                yield f"pod {name} does not run: {kubelet.stage(uid).name}: {kubelet.failure(uid)}"
        for name, uid in self.testbed.applied_pods.items():
            if uid not in there and kubelet.stage(uid) not in (PodStage.PENDING, PodStage.GONE):
                yield f"pod {name} is deleted and still {kubelet.stage(uid).name}: {kubelet.failure(uid)}"

    # --- NICs -------------------------------------------------------------------------------------------

    def _find_lost_nics(self, case: _Case) -> Iterator[str]:
        node = self.testbed.node
        left = {nic.nic.ifname for nic in node.hardware.nics()}
        left -= {nic.nic.ifname for _, nic in node.nics_in(_HOST)}
        names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in case.pods}
        for uid, netns_path in case.living.items():
            yield from (f"pod {names[uid]}: {text}" for text in self._find_missing(case, uid, netns_path))
            left -= {
                device.nic.nic.ifname for device in self._wanted_by(case, uid) if device.nic and device.moves
            }
        yield from (f"NIC {name} is neither on the host nor in a pod that has it" for name in sorted(left))

    def _find_missing(self, case: _Case, pod_uid: str, netns_path: str) -> Iterator[str]:
        """What a pod claims and has not, or has without carrier or address."""
        wanted = [device for device in self._wanted_by(case, pod_uid) if device.nic]
        try:
            links = case.read_links(netns_path) if wanted else {}
            inside = self._name_nics(netns_path) if any(device.moves for device in wanted) else {}
        except KernelError as error:
            yield f"its namespace cannot be entered: {error}"
            return
        for device in wanted:
            name = inside.get(device.device, "") if device.moves else device.ifname
            if lack := _find_lack(device, name, links):
                yield f"{device.claim}: {lack}"

    def _name_nics(self, netns_path: str) -> dict[str, str]:
        """Devices of the node that are in a namespace, with the names of their links there."""
        found = self.testbed.node.nics_in(netns_path)
        return {name_device(nic): str(link["ifname"]) for link, nic in found}

    def _wanted_by(self, case: _Case, pod_uid: str) -> list[Wanted]:
        return [
            device
            for claim in case.claims
            if any(user["uid"] == pod_uid for user in claim.get("status", {}).get("reservedFor", ()))
            for device in find_wanted(claim, self.testbed.node)
        ]

    # --- the host ---------------------------------------------------------------------------------------

    def _find_host_differences(self, case: _Case) -> list[str]:
        node, claims = self.testbed.node, case.claims if case.pods else ()
        wanted = [device for claim in claims for device in find_wanted(claim, node)]
        used = {device.nic.nic.ifname for device in wanted if device.nic}
        differences = self._before.differences(node.snapshot())
        if case.pods:
            others = (line for line in differences if _subject(line) not in used)
            return [line for line in others if not _OF_CNI.match(_subject(line))]
        left = _list_cdi(self.testbed) - self._cdi_before
        files = _list_workload(self.testbed)
        return [
            *differences,
            *(f"+ CDI spec {name}" for name in sorted(left)),
            *(f"+ file for a container: {path}" for path in files),
        ]

    # --- statuses ---------------------------------------------------------------------------------------

    def _find_wrong_statuses(self, case: _Case) -> Iterator[str]:
        for claim in case.claims:
            netns_path = case.find_netns(claim)
            read = partial(case.read_links, netns_path) if netns_path else None
            wrong = find_wrong(claim, find_wanted(claim, self.testbed.node), read)
            yield from (f"{claim['metadata']['name']}: {text}" for text in wrong)


def read_links(netns_path: str) -> dict[str, JsonObject]:
    """The links of a namespace by name, with their addresses, as ``ip`` sees them."""
    found = read_json(*in_namespace(netns_path, "ip", "-json", "-details", "address"))
    return {str(link["ifname"]): link for link in found}


def _find_lack(device: Wanted, name: str, links: Mapping[str, JsonObject]) -> str:
    """What is amiss with the link ``name`` of a device; empty when nothing is."""
    link = links.get(name)
    if link is None:
        return f"{device.device} is not there, but {sorted(links)}"
    if device.ifname and name != device.ifname:
        return f"{device.device} is called {name}, not {device.ifname}"
    if "UP" not in link["flags"]:
        return f"{name} is down"
    missing = set(device.addresses) - set(list_addresses(link))
    return f"{name} lacks {sorted(missing)}" if missing else ""


def _subject(difference: str) -> str:
    found = _SUBJECT.match(difference[2:])
    return found[1] if found else ""


def _list_cdi(testbed: Testbed) -> frozenset[str]:
    folder: Path = testbed.places.cdi_dir
    return frozenset(path.name for path in folder.iterdir())


def _list_workload(testbed: Testbed) -> list[str]:
    """What the driver wrote for the programs in containers, all of it below the folder of a claim."""
    folder = testbed.places.work_dir / "state" / "workload"
    found = os.walk(folder)  # says nothing of folders that go meanwhile
    return sorted(f"{here}/{name}" for here, folders, files in found for name in (*folders, *files))
