"""The RunPodSandbox hook with 1 and 8 NICs, against the same moves by ``ip -batch``.

Ours is timed from the runtime's side of the NRI socket: frame, hook, commit to the store, moves, addresses,
routes, read back, ready file, answer. The floor is iproute2 doing the same moves: one batch that moves and
renames, one batch inside the namespace for addresses, up and routes. The kernel serialises moves and waits
for a grace period in each, which is most of the time on both sides.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Result, Series, time_ms
from dranet.claims.plan.device import plan_device
from dranet.driver.attachments import Attachments
from dranet.driver.hooks import HookListeners, PodHooks
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.kernel.attachment.restore import read_link_state
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.pb import nri_pb2
from dranet.runtime.nri import NriPlugin
from dranet.store.claim_store import ClaimStore
from testbed.isolation import WORK_DIR
from testbed.runtime.nri_link import NriCapabilities
from testbed.runtime.nri_server import NriServer
from testbed.runtime.pod_netns import create_netns, remove_netns

BOUNDS = {1: 1.5, 8: 1.25}
RUNS = {1: 200, 8: 50}
LEAST_RUNS_OF_P99 = 100
"""With fewer it is the slowest run, which one hiccup of the machine decides: shown, not bounded."""
POD_UID = "pod"


def run() -> Iterator[Result]:
    """NICs are veth ends, each with an address and a route."""
    for count, bound in BOUNDS.items():
        names = [f"rail{number}" for number in range(count)]
        _make_links(names)
        title = f"RunPodSandbox hook, {count} NIC{'s' if count > 1 else ''}"
        runs = RUNS[count]
        ours, floor = _measure(names, runs)
        series = Series(title, tuple(ours)), Series("ip -batch", tuple(floor))
        yield Result(title, *series, bound)
        yield Result(f"{title}, p99", *series, bound if runs >= LEAST_RUNS_OF_P99 else None, of_p99=True)
        _ip([f"link del {name}" for name in names])


def _measure(names: Sequence[str], runs: int) -> tuple[list[float], list[float]]:
    store = ClaimStore(WORK_DIR / "bench.db")
    store.open()
    store.put(_prepared(names))
    server = NriServer(WORK_DIR / "nri.sock", NriCapabilities())
    server.start()
    hooks = PodHooks(
        store,
        Attachments(store, StartGate(WORK_DIR)),
        _SilentAnnouncer(),
        HookListeners(lambda _: None),
        budget_seconds=1.5,
    )
    plugin = NriPlugin(WORK_DIR / "nri.sock", "dra.net", "10", hooks)
    plugin.start()
    try:
        if not server.wait_plugins(1, 10):
            raise RuntimeError("the plugin did not connect")
        ours: list[float] = []
        floor: list[float] = []
        for turn in range(runs + 1):
            ours.append(_time_hook(server, turn))
            floor.append(_time_ip(names, turn))
        return ours[1:], floor[1:]
    finally:
        plugin.stop()
        server.stop()
        store.close()


class _SilentAnnouncer(Announcer):
    """Report to nothing: the API server is not part of the hook."""

    def __init__(self) -> None:
        pass

    def attached(self, *_: object) -> None:
        pass

    def attach_failed(self, *_: object) -> None:
        pass

    def released(self, *_: object) -> None:
        pass


def _time_hook(server: NriServer, turn: int) -> float:
    path = WORK_DIR / f"ours{turn}"
    create_netns(path)
    namespace = nri_pb2.LinuxNamespace(type="network", path=str(path))
    pod = nri_pb2.PodSandbox(id=f"sandbox{turn}", name="pod", namespace="default", uid=POD_UID, pid=1)
    pod.linux.namespaces.append(namespace)
    taken = time_ms(lambda: server.run_pod_sandbox(pod))
    server.stop_pod_sandbox(pod.id)
    server.remove_pod_sandbox(pod.id)
    remove_netns(path)
    return taken


def _time_ip(names: Sequence[str], turn: int) -> float:
    path = Path("/run/netns") / f"floor{turn}"
    path.parent.mkdir(parents=True, exist_ok=True)
    create_netns(path)
    taken = time_ms(lambda: _move_with_ip(names, path.name))
    _ip([f"link set net{number} netns 1 name {name}" for number, name in enumerate(names)], path.name)
    remove_netns(path)
    _configure(names)
    return taken


def _move_with_ip(names: Sequence[str], netns: str) -> None:
    _ip([f"link set {name} netns {netns} name net{number} mtu 1400" for number, name in enumerate(names)])
    _ip([line for number in range(len(names)) for line in _settings(number, f"net{number}")], netns)


def _settings(number: int, ifname: str) -> list[str]:
    return [
        f"addr add 10.{number}.0.1/24 dev {ifname}",
        f"link set {ifname} up",
        f"route add 10.{100 + number}.0.0/16 via 10.{number}.0.254 dev {ifname}",
    ]


def _prepared(names: Sequence[str]) -> PreparedClaim:
    devices = []
    for number, name in enumerate(names):
        device = Device(name=name, kind=DeviceKind.NIC, ifname=name)
        config = NetworkConfig.model_validate({"interface": {"name": f"net{number}", "mtu": 1400}})
        plan = plan_device(device, read_link_state(name), config, rdma_exclusive=False)
        devices.append(PreparedDevice(request=name, pool="node", device=device, plan=plan))
    claim = ClaimRef("default", "claim", "uid")
    return PreparedClaim(claim, PodRef("default", "pod", POD_UID), tuple(devices), boot_id="boot")


def _make_links(names: Sequence[str]) -> None:
    _ip([f"link add {name} type veth peer name peer-{name}" for name in names])
    _ip([f"link set peer-{name} up" for name in names])
    _configure(names)


def _configure(names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        _ip([f"link set {name} mtu 1500", *_settings(number, name)])


def _ip(lines: Sequence[str], netns: str = "") -> None:
    command = ("ip", *(("-n", netns) if netns else ()), "-batch", "-")
    subprocess.run(command, input="\n".join(lines), text=True, check=True)
