"""Eight slow NICs of the machine, the parts of the driver that move them, and a kubelet with a containerd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dranet.driver.attachments import Attachments
from dranet.driver.containers import ContainerFiles
from dranet.driver.hooks import ContainerServices, HookListeners, PodHooks
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam
from dranet.driver.leases import Leases
from dranet.driver.prepare import ClaimState, Preparer, PrepareSources
from dranet.driver.start_gate import StartGate, StartWindows
from dranet.errors import DranetError
from dranet.inventory.build import build_devices
from dranet.kernel.discovery.scan import NodeScanner
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, Consumer, OpaqueConfig
from dranet.model.device import Device
from dranet.model.plan import PreparedClaim
from dranet.runtime.containers import CdiSpecs
from dranet.runtime.nri import NriListeners, NriPlugin
from dranet.settings import Settings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from testbed.containerd.runtime import ContainerdRuntime
from testbed.runtime.contract import (
    ContainerSpec,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from tests.driver.bench import Told
from tests.machine import kernel_view

NICS = 8
NAMES = tuple(f"slow{number}" for number in range(NICS))
POD = SandboxSpec("default", "trainer", "uid-of-trainer")
DRIVER = "dra.net"

_MODULE = Path("/sys/module/vnode_slow/parameters")
_CLAIM = ClaimRef("default", "nics", "uid-of-nics")
_POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was made from a pod's template."""
_MTU = 4000
_PAUSES = (1.0, 10.0)
"""Between attempts of the kubelet: it looks again a second after the sandbox is there, then every 10 s."""
_UNPREPARE_SECONDS = 60.0
_SEEN = "/seen"


# --- the NICs -------------------------------------------------------------------------------------------


@contextmanager
def loaded() -> Iterator[None]:
    """The module with eight NICs, each up with an address."""
    kernel_view.run("modprobe", "vnode_slow", f"nics={NICS}")
    try:
        kernel_view.ip_lines(
            "".join(
                f"addr add 172.30.{number}.5/24 dev {name}\nlink set {name} up\n"
                for number, name in enumerate(NAMES)
            )
        )
        yield
    finally:
        kernel_view.run("rmmod", "vnode_slow")


def set_times(*, open_ms: int, stop_ms: int) -> None:
    """How long each NIC takes to open and to close from now on."""
    (_MODULE / "open_ms").write_text(str(open_ms))
    (_MODULE / "stop_ms").write_text(str(stop_ms))


@dataclass(frozen=True)
class Counts:
    """How often each NIC was opened and closed."""

    opens: tuple[int, ...]
    stops: tuple[int, ...]

    def since(self, before: Counts) -> Counts:
        def less(now: Sequence[int], then: Sequence[int]) -> tuple[int, ...]:
            return tuple(a - b for a, b in zip(now, then, strict=True))

        return Counts(less(self.opens, before.opens), less(self.stops, before.stops))


def read_counts() -> Counts:
    def read(name: str) -> tuple[int, ...]:
        return tuple(int(word) for word in (_MODULE / name).read_text().split(","))[:NICS]

    return Counts(read("opens"), read("stops"))


def host_picture() -> dict[str, dict[str, Any]]:
    """What ``ip`` says of the NICs that are on the host, by name."""
    kept = ("ifindex", "address", "mtu", "txqlen", "group", "altnames")
    return {
        entry["ifname"]: {
            **{key: entry.get(key) for key in kept},
            "up": "UP" in entry["flags"],
            "addresses": [info["local"] for info in entry["addr_info"] if info["family"] == "inet"],
        }
        for entry in kernel_view.ip("addr", "show")
        if str(entry.get("parentdev", "")).startswith("0001:")
    }


def read_devices() -> dict[str, Device]:
    """The driver's own view of the NICs, by the name of the interface."""
    devices = build_devices(NodeScanner(Path("/sys"), Path("/proc")).read(), {})
    return {device.ifname: device for device in devices if device.ifname in NAMES}


# --- the driver -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HookCall:
    """One hook as the plugin ran it."""

    method: str
    outcome: str
    seconds: float


class _Listener(Told):
    """Also hears of Prepare."""

    def prepared(self, record: PreparedClaim) -> None:
        del record

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        raise AssertionError(f"{ref}, {claim}: {error}")

    def unprepare_failed(self, ref: ClaimRef, error: DranetError) -> None:
        self.stuck.append((ref.uid, error))


class Driver:
    """The parts that prepare, move and restore, over a folder; another one is the driver restarted."""

    def __init__(self, folder: Path, devices: Mapping[str, Device]) -> None:
        self._devices = {device.name: device for device in devices.values()}
        self.calls: list[HookCall] = []
        self.told, metrics = _Listener(), Metrics()
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.gate = StartGate(folder)
        self.attachments = Attachments(self.store, self.gate, on_released=self.told.released)
        hooks = PodHooks(
            self.store,
            self.attachments,
            self.told,
            HookListeners(lambda _: None),
            Settings(node_name="node").hook_budget_seconds,
            containers=ContainerServices(StartWindows(self.gate)),
        )
        self.plugin = NriPlugin(folder / "nri.sock", DRIVER, "10", hooks, listeners=NriListeners(self._note))
        self._preparer = Preparer(
            driver_name=DRIVER,
            boot_id="boot",
            sources=PrepareSources(
                fetch=self._fetch,
                get_offered=self.get_offered,
                is_runtime_ready=lambda: self.plugin.is_ready,
            ),
            state=ClaimState(
                self.store,
                self.attachments,
                Leases(self.store, self.attachments, self.told, metrics),
                ContainerFiles(self.gate, CdiSpecs(folder / "cdi", DRIVER)),
                WorkLocks(self.store.folder),
                Ipam(self.store, "boot", self.told, metrics),
            ),
            announcer=self.told,
            metrics=metrics,
        )

    def _note(self, method: str, outcome: str, seconds: float) -> None:
        self.calls.append(HookCall(method, str(outcome), seconds))

    def get_offered(self, name: str) -> Device:
        """As the inventory."""
        return self._devices[name]

    async def _fetch(self, ref: ClaimRef) -> Claim:
        results = tuple(
            AllocationResult(f"nic{number}", DRIVER, "node", name)
            for number, name in enumerate(self._devices)
        )
        config = OpaqueConfig(ConfigSource.CLAIM, DRIVER, {"interface": {"mtu": _MTU}})
        pod = Consumer("pods", POD.name, POD.uid)
        return Claim(ref, True, results, (config,), (pod,), {_POD_CLAIM_NAME: "nics"})

    def start(self) -> None:
        self.plugin.start()
        assert self.plugin.wait_ready(30), self.plugin.last_failure

    def end(self) -> None:
        """As by SIGKILL: attached devices stay where they are, and no namespace is held."""
        self.plugin.stop()
        self.attachments.close()
        self.store.close()

    async def prepare(self) -> tuple[str, ...]:
        """The kubelet's call. Returns the CDI devices of the claim."""
        outcome = (await self._preparer.prepare([_CLAIM]))[_CLAIM.uid]
        assert not outcome.error, outcome.error
        return tuple(name for device in outcome.devices for name in device.cdi_ids)

    async def unprepare(self) -> float:
        """The kubelet's call, until it is done. Returns the longest one's seconds."""
        longest, begin = 0.0, time.monotonic()
        while True:
            call = time.monotonic()
            error = (await self._preparer.unprepare([_CLAIM]))[_CLAIM.uid]
            longest = max(longest, time.monotonic() - call)
            if not error:
                return longest
            assert time.monotonic() - begin < _UNPREPARE_SECONDS, error
            await asyncio.sleep(1)


# --- the kubelet ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """A pod's container, and what it took."""

    sandbox: RunningSandbox
    container: RunningContainer
    refusals: Sequence[str]
    """Of the attempts before."""
    seconds: float
    seen: frozenset[str]
    """The NICs that its first process found up and with their address."""

    @property
    def attempts(self) -> int:
        return len(self.refusals) + 1


async def measure_plain_pod(runtime: ContainerdRuntime) -> float:
    """The seconds that a pod without devices takes here: the machine emulates its CPUs, beside other work."""
    begin = time.monotonic()
    sandbox = await runtime.run_sandbox(SandboxSpec("default", "plain", "uid-of-plain"))
    await runtime.create_container(sandbox, ContainerSpec("main"))
    seconds = time.monotonic() - begin
    await runtime.remove_sandbox(sandbox.id)
    return seconds


async def start_pod(runtime: ContainerdRuntime, cdi_devices: Sequence[str]) -> Started:
    """Try again as the kubelet does.

    Raises:
        AssertionError: no container after three attempts.
    """
    spec = ContainerSpec(
        "main",
        cdi_devices=tuple(cdi_devices),
        command=("sh", "-c", f"ip addr > {_SEEN}.new; mv {_SEEN}.new {_SEEN}; exec sleep infinity"),
    )
    begin, sandbox, refusals = time.monotonic(), None, []
    for attempt in range(len(_PAUSES) + 1):
        try:
            sandbox = sandbox or await runtime.run_sandbox(replace(POD, attempt=attempt))
            container = await runtime.create_container(sandbox, spec)
        except RuntimeFailure as refusal:
            refusals.append(str(refusal))
            if attempt < len(_PAUSES):
                await asyncio.sleep(_PAUSES[attempt])
            continue
        seconds = time.monotonic() - begin
        return Started(sandbox, container, refusals, seconds, await _read_seen(runtime, container))
    raise AssertionError(f"no container after {len(refusals)} attempts: {refusals}; {read_counts()}")


async def _read_seen(runtime: ContainerdRuntime, container: RunningContainer) -> frozenset[str]:
    shown = await runtime.exec_in_container(container, ("cat", _SEEN))
    assert shown.exit_code == 0, shown.stderr
    blocks = _split_links(shown.stdout)
    return frozenset(
        name
        for number, name in enumerate(NAMES)
        if any(
            f"{name}:" in block and ",UP" in block and f"inet 172.30.{number}.5/24" in block
            for block in blocks
        )
    )


def _split_links(text: str) -> list[str]:
    """The lines of each link of ``ip addr``: all but its first begin with blanks."""
    blocks: list[str] = []
    for line in text.splitlines():
        if line[:1].isdigit() or not blocks:
            blocks.append(line)
        else:
            blocks[-1] += f"\n{line}"
    return blocks
