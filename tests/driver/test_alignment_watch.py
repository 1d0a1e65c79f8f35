"""When a pod's verdict is made, who is asked for it, and when users are told again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from dranet.cluster.claims import build_entries
from dranet.cluster.client import JsonObject
from dranet.cluster.nodes import NodeDevice, NodeDevices
from dranet.driver.alignment import watch as module
from dranet.driver.alignment.pod_gpus import PodGpus
from dranet.driver.alignment.watch import LEVELS, AlignmentWatch, Verdicts
from dranet.driver.publish import View
from dranet.errors import ClusterError, ProtocolError, Reason
from dranet.inventory.policy import Decision
from dranet.kubelet.pod_resources import PodDevices
from dranet.model.claim import AllocationResult, Claim, ClaimRef, Container, PodRef, PodSandbox
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice, Gpu, Link, NodeFacts, PciFunction
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.model.status import Condition, ConditionType, DeviceStatus
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.support.waiting import until

POD = PodRef("team", "p", "pod-uid")
SANDBOX = PodSandbox("s", "p", "team", "pod-uid", "/run/netns/p", 1)


def place(name: str, socket: int, *, gpu: bool = False) -> Device:
    root = f"pci0000:{socket}0"
    return Device(
        name,
        DeviceKind.GPU if gpu else DeviceKind.NIC,
        ifname="" if gpu else name,
        pci_address=name,
        pci_path=(f"{socket}-port", f"{socket}-up", f"{name}-down", name),
        pcie_root=root,
        numa_node=socket,
    )


NICS = [place("nic-0", 0), place("nic-1", 1)]
GPUS = [place("gpu-0", 0, gpu=True), place("gpu-1", 1, gpu=True)]
FACTS = NodeFacts(
    gpus=tuple(
        Gpu(gpu.name, "nvidia", uuid=f"GPU-a{n}", char_devices=(CharDevice(f"/dev/nvidia{n}", 195, n),))
        for n, gpu in enumerate(GPUS)
    ),
    pci_functions=tuple(PciFunction(gpu.name, 0x030200, 0x10DE, 0x2330) for gpu in GPUS),
    links=(Link(1, "nic-1", flags=Link.IFF_UP, carrier=True),),
)


def view_of(facts: NodeFacts = FACTS) -> View:
    return View.of(
        facts, [*(Decision(nic, True, "") for nic in NICS), *(Decision(g, False, "") for g in GPUS)]
    )


def prepared(device: Device) -> PreparedDevice:
    return PreparedDevice("r", "node", device, plan=AttachPlan(device.name))


def claim(name: str, *devices: PreparedDevice, pod: PodRef = POD) -> PreparedClaim:
    return PreparedClaim(
        ClaimRef("team", name, f"uid-{name}"), pod, devices, "boot", sandbox_id="s", netns_path="/run/netns/p"
    )


NIC_0 = claim("nic", prepared(NICS[0]))
OTHERS = AllocationResult("gpu", "gpu.example", "pool", "gpu")


class Node:
    """Store, slices, API server, kubelet and reporter, as far as the watch meets them."""

    def __init__(self, *records: PreparedClaim) -> None:
        self.records = records
        self.view = view_of()
        self.unhealthy: set[str] = set()
        self.is_known = True
        self.devices: dict[tuple[str, str, str], NodeDevice] = {}
        self.claims: tuple[AllocationResult, ...] | Exception = ()
        self.given: PodDevices | Exception = ProtocolError("no socket", retryable=True)
        self.asked: list[str] = []
        self.told: list[str] = []
        self.entries: list[JsonObject] = []
        """What the claim says; of one claim alone."""
        self.is_awaited = False
        self.wanted = 0
        self.scheduled: list[tuple[float, Callable[[], None]]] = []
        self.metrics = Metrics()
        store, slices = Store(self), Slices(self)
        self.slices = slices
        self.gpus = PodGpus(lambda: self.view, store.get_by_pod, slices)
        self.verdicts = Verdicts(
            self.gpus, lambda: self.view, store, lambda: self.unhealthy, self.metrics.alignment
        )
        self.watch = AlignmentWatch(
            self.verdicts,
            store,
            slices,
            self.report_again,
            self.read_claims,
            self.ask_kubelet,
            self.call_later,
        )

    # --- slices of others

    def find(self, driver: str, pool: str, device: str) -> NodeDevice | None:
        return self.devices.get((driver, pool, device))

    def find_all(self) -> tuple[NodeDevice, ...]:
        return tuple(self.devices.values())

    def call_later(self, seconds: float, call: Callable[[str], None], pod_uid: str) -> None:
        self.scheduled.append((seconds, lambda: call(pod_uid)))

    async def pass_time(self) -> list[float]:
        """Until all that is scheduled has come, and its consequences; how long that took."""
        due, self.scheduled = self.scheduled, []
        for _, call in due:
            call()
        await settled()
        return [seconds for seconds, _ in due]

    def offer(self, name: str, address: str) -> None:
        self.devices["gpu.example", "pool", name] = NodeDevice("gpu.example", "pool", name, address)

    # --- who is asked, and told

    async def read_claims(self, pod: PodRef, known: frozenset[str]) -> tuple[AllocationResult, ...]:
        assert (pod, known) == (POD, frozenset(record.claim.name for record in self.records))
        self.asked.append("server")
        if isinstance(self.claims, Exception):
            raise self.claims
        return self.claims

    async def ask_kubelet(self, pod: PodRef) -> PodDevices:
        assert pod == POD
        self.asked.append("kubelet")
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    def report_again(self, pod_uid: str) -> None:
        self.told.append(pod_uid)
        self.write()

    # --- the reporter's part

    def write(self) -> dict[str, tuple[str, str]]:
        """Write the statuses of all claims; status and reason of the condition by device."""
        found = {}
        for record in self.records:
            attached = Condition(ConditionType.ATTACHED, True, "DeviceAttached")
            statuses = [
                DeviceStatus("dra.net", device.pool, device.device.name, (attached,))
                for device in record.devices
            ]
            completed = self.verdicts.complete(Claim(record.claim, True), statuses, self.entries)
            self.entries = build_entries(completed, self.entries, datetime.now(UTC))
            for status in completed:
                for condition in status.conditions:
                    if condition.type is ConditionType.ALIGNED:
                        found[status.device] = (str(condition.status), condition.reason)
        return found

    def show(self, **env: str) -> None:
        self.watch.container_seen(SANDBOX, Container("c", "main", "s", env=env))

    def count(self, level: str) -> int:
        return self.verdicts.count_level(level)


class Store(ClaimStore):
    """The records of a :class:`Node`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def get(self, claim_uid: str) -> PreparedClaim | None:
        return next((record for record in self._node.records if record.claim.uid == claim_uid), None)

    def get_all(self) -> tuple[PreparedClaim, ...]:
        return self._node.records

    def get_by_pod(self, pod_uid: str) -> tuple[PreparedClaim, ...]:
        return tuple(record for record in self._node.records if record.pod.uid == pod_uid)


class Slices(NodeDevices):
    """The slices of other drivers on a :class:`Node`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.is_known = True
        self.listeners = []

    def want(self) -> None:
        self._node.wanted += 1

    def notify(self) -> None:
        for listener in self.listeners:
            listener()

    @property
    def is_awaited(self) -> bool:
        return self._node.is_awaited

    def find(self, driver: str, pool: str, device: str) -> NodeDevice | None:
        return self._node.find(driver, pool, device)

    def get_all(self) -> tuple[NodeDevice, ...]:
        return self._node.find_all()


@asynccontextmanager
async def running(*records: PreparedClaim) -> AsyncIterator[Node]:
    node = Node(*records)
    task = asyncio.create_task(node.watch.run())
    yield node
    task.cancel()


async def settled() -> None:
    """Everything that was asked for so far has been looked at."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_container_that_shows_its_gpu_makes_the_verdict_and_has_it_told() -> None:
    async with running(NIC_0) as node:
        assert node.write() == {}, "no GPU is known yet"
        node.watch.look(POD.uid)
        await settled()
        assert node.told == []

        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a1")
        await until(lambda: node.told)
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a1")
        node.watch.look(POD.uid)
        await settled()
        assert (node.told, node.asked) == ([POD.uid], []), "once, and nobody was asked"


async def test_what_is_still_to_be_written_is_not_told_again() -> None:
    """The status that is under way gets the verdict when it is written."""
    async with running(NIC_0) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a0")
        await settled()
        assert node.told == []
        assert node.write() == {"nic-0": ("True", "SamePCIeSwitch")}


async def test_claims_beside_ours_are_read_once_where_another_driver_serves_the_gpus() -> None:
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.claims = (OTHERS,)
        node.write()
        node.watch.look(POD.uid)
        await until(lambda: node.told)
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        node.watch.look(POD.uid)
        await settled()
        assert node.asked == ["server"]


async def test_without_another_driver_nobody_is_asked() -> None:
    async with running(NIC_0) as node:
        node.watch.look(POD.uid)
        await settled()
        assert (node.asked, node.wanted) == ([], 0)


async def test_devices_of_others_in_our_own_claim_have_the_slices_followed() -> None:
    async with running(replace(NIC_0, others=(OTHERS,))) as node:
        assert node.write() == {"nic-0": ("None", "DevicesOfAnotherDriver")}
        node.watch.look(POD.uid)
        await until(lambda: node.wanted)
        node.offer("gpu", "gpu-0")
        node.slices.notify()
        await until(lambda: node.told)
        assert node.write() == {"nic-0": ("True", "SamePCIeSwitch")}


async def test_a_server_that_fails_is_asked_again_and_the_verdict_is_unknown_meanwhile() -> None:
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.claims = ClusterError("away", reason=Reason.API_UNAVAILABLE, retryable=True)
        node.write()
        node.watch.look(POD.uid)
        await settled()
        assert node.write() == {"nic-0": ("None", "DevicesOfAnotherDriver")}
        node.claims = (OTHERS,)
        assert await node.pass_time() == [module.RETRY_SECONDS[0]]
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}


async def test_a_server_that_is_away_for_long_is_asked_as_long_as_the_pod_lives() -> None:
    """An hour of it must not leave a pod of weeks without its verdict."""
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.claims = ClusterError("away", reason=Reason.API_UNAVAILABLE, retryable=True)
        node.write()
        node.watch.look(POD.uid)
        await settled()
        waited = [await node.pass_time() for _ in range(8)]
        assert waited == [[2.0], [5.0], [15.0], [60.0], [300.0], [300.0], [300.0], [300.0]]
        node.claims = (OTHERS,)
        await node.pass_time()
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        assert (node.scheduled, len(node.asked)) == ([], 10), "nothing is left to be asked"


async def test_nobody_is_asked_about_a_pod_that_has_ended() -> None:
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.claims = ClusterError("away", reason=Reason.API_UNAVAILABLE, retryable=True)
        node.watch.look(POD.uid)
        await settled()
        node.records = ()
        assert await node.pass_time() == [module.RETRY_SECONDS[0]]
        assert (node.asked, node.scheduled) == (["server"], [])


async def test_a_refusal_is_not_asked_again_soon_and_a_permission_that_is_granted_later_is_found() -> None:
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.claims = ClusterError("no", reason=Reason.API_FORBIDDEN)
        node.write()
        node.watch.look(POD.uid)
        await settled()
        assert node.asked == ["server"]
        assert node.write() == {"nic-0": ("None", "DevicesOfAnotherDriver")}
        node.watch.look(POD.uid)
        await settled()
        assert node.asked == ["server"], "the time has not come"
        node.claims = (OTHERS,)
        assert await node.pass_time() == [module.REFUSED_SECONDS]
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}


async def test_a_kubelet_that_tells_of_no_claim_is_no_substitute_for_a_server_that_refuses() -> None:
    """Devices of claims are behind a feature gate of the kubelet."""
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.claims = ClusterError("no", reason=Reason.API_FORBIDDEN)
        node.given = PodDevices((("nvidia.com/gpu", "GPU-a0"),))
        node.show(NVIDIA_VISIBLE_DEVICES="all")
        node.watch.look(POD.uid)
        await settled()
        assert (node.asked, len(node.scheduled)) == (["server", "kubelet"], 1), "and nobody at once again"
        assert [gpu.name for gpu in node.gpus.get(POD.uid).gpus] == ["gpu-0"]
        assert node.gpus.get(POD.uid).doubts, "another claim may have more"


async def test_slices_that_go_while_their_driver_is_updated_take_nothing_back() -> None:
    """Two writes and one more Event for each pod of the node, otherwise, each time."""
    async with running(replace(NIC_0, others=(OTHERS,))) as node:
        node.offer("gpu", "gpu-1")
        node.watch.look(POD.uid)
        await settled()
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        told, said = list(node.told), node.entries
        for gone in (True, False):
            node.devices.clear() if gone else node.offer("gpu", "gpu-1")
            node.slices.notify()
            await settled()
            assert (node.told, node.write()) == (told, {"nic-0": ("False", "WorseThanPossible")})
        assert node.entries == said


async def test_after_a_restart_the_claim_says_what_it_said_until_everybody_is_heard() -> None:
    """Else each restart takes the verdict back, gives it again, and has it told by one more Event."""
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.claims = (OTHERS,)
        node.watch.look(POD.uid)
        await until(lambda: node.write() == {"nic-0": ("False", "WorseThanPossible")})
        said = node.entries

    async with running(NIC_0) as restarted:
        restarted.entries, restarted.is_awaited = said, True
        assert restarted.write() == {"nic-0": ("False", "WorseThanPossible")}
        assert restarted.entries == said, "so nothing is written"
        restarted.offer("gpu", "gpu-1")
        restarted.is_awaited = False
        assert restarted.write() == {"nic-0": ("False", "WorseThanPossible")}, "the claims are not read"
        restarted.claims = (OTHERS,)
        restarted.slices.notify()
        await until(lambda: restarted.told)
        assert restarted.write() == {"nic-0": ("False", "WorseThanPossible")}
        assert restarted.entries == said


@pytest.mark.parametrize("giver", ["claim", "plugin"])
async def test_who_fails_after_a_restart_takes_no_verdict_back(giver: str) -> None:
    """An API server under load, a kubelet that starts again: as in any update of a node."""

    def give(node: Node) -> None:
        if giver == "claim":
            node.offer("gpu", "gpu-1")
            node.claims = (OTHERS,)
        else:
            node.given = PodDevices((("nvidia.com/gpu", "GPU-a1"),))

    def show(node: Node) -> None:
        if giver == "claim":
            node.watch.look(POD.uid)
        else:
            node.show(NVIDIA_VISIBLE_DEVICES="all")

    async with running(NIC_0) as node:
        give(node)
        show(node)
        await settled()
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        said = node.entries

    async with running(NIC_0) as restarted:
        restarted.entries = said
        if giver == "claim":
            restarted.offer("gpu", "gpu-1")
            restarted.claims = ClusterError("busy", reason=Reason.API_UNAVAILABLE, retryable=True)
        show(restarted)
        await settled()
        assert len(restarted.asked) == 1
        assert restarted.write() == {"nic-0": ("False", "WorseThanPossible")}
        give(restarted)
        await restarted.pass_time()
        assert restarted.write() == {"nic-0": ("False", "WorseThanPossible")}
        assert restarted.entries == said, "so nothing was written, and no Event repeated"
        assert restarted.verdicts.count_worse() == 1


async def test_what_was_unknown_before_a_restart_says_why_it_is_now() -> None:
    async with running(NIC_0) as node:
        node.offer("gpu", "gpu-1")
        node.show(NVIDIA_VISIBLE_DEVICES="all")
        assert node.write() == {"nic-0": ("None", "GPUsUnclear")}
        said = node.entries

    async with running(NIC_0) as restarted:
        restarted.entries = said
        restarted.offer("gpu", "gpu-1")
        restarted.claims = ClusterError("no", reason=Reason.API_FORBIDDEN)
        restarted.watch.look(POD.uid)
        await settled()
        assert restarted.write() == {"nic-0": ("None", "DevicesOfAnotherDriver")}


async def test_what_the_claim_said_before_a_restart_goes_when_it_is_not_so() -> None:
    async with running(NIC_0) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a1")
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        said = node.entries

    async with running(NIC_0) as restarted:
        restarted.entries = said
        restarted.offer("gpu", "gpu-1")
        assert restarted.write() == {"nic-0": ("False", "WorseThanPossible")}
        restarted.watch.look(POD.uid)
        await until(lambda: restarted.asked and restarted.write() == {})


async def test_what_this_driver_said_itself_does_not_stand_against_a_doubt() -> None:
    async with running(NIC_0) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a1")
        await settled()
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        node.offer("gpu", "gpu-1")
        node.claims = ClusterError("no", reason=Reason.API_FORBIDDEN)
        node.watch.look(POD.uid)
        await settled()
        assert node.write() == {"nic-0": ("None", "DevicesOfAnotherDriver")}


async def test_the_kubelet_is_asked_where_the_container_is_not_clear() -> None:
    async with running(NIC_0) as node:
        node.given = PodDevices((("nvidia.com/gpu", "GPU-a0"), ("rdma/hca", "x")))
        node.write()
        node.show(NVIDIA_VISIBLE_DEVICES="all")
        await until(lambda: node.write() == {"nic-0": ("True", "SamePCIeSwitch")})
        assert node.asked == ["kubelet"]


async def test_a_kubelet_that_gave_nothing_leaves_no_gpus_to_be_near_to() -> None:
    async with running(NIC_0) as node:
        node.given = PodDevices()
        node.show(NVIDIA_VISIBLE_DEVICES="all")
        await until(lambda: node.asked and node.write() == {})


async def test_a_kubelet_that_does_not_answer_leaves_it_unknown() -> None:
    async with running(NIC_0) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="all")
        await settled()
        assert await node.pass_time() == [module.RETRY_SECONDS[0]]
        assert node.asked == ["kubelet", "kubelet"]
        assert node.write() == {"nic-0": ("None", "GPUsUnclear")}


async def test_gpus_that_get_their_names_later_are_looked_at_again() -> None:
    async with running(NIC_0) as node:
        named = node.view
        node.view = view_of(replace(FACTS, gpus=tuple(replace(gpu, uuid="") for gpu in FACTS.gpus)))
        node.watch.scanned(node.view.facts.gpus)
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a0")
        await settled()
        assert node.write() == {"nic-0": ("None", "GPUsUnclear")}
        node.view = named
        node.watch.scanned(node.view.facts.gpus)
        await until(lambda: node.told)
        assert node.write() == {"nic-0": ("True", "SamePCIeSwitch")}


# --- the verdict ---------------------------------------------------------------------------------------


async def test_a_nearer_device_that_does_not_work_was_not_to_be_had() -> None:
    async with running(NIC_0) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a1")
        assert node.write() == {"nic-0": ("False", "WorseThanPossible")}
        node.unhealthy = {"nic-1"}
        assert node.write() == {"nic-0": ("True", "NearestPossible")}
        node.unhealthy = set()
        down = replace(FACTS.links[0], carrier=False)
        node.view = view_of(replace(FACTS, links=(down,)))
        assert node.write() == {"nic-0": ("True", "NearestPossible")}


async def test_gpus_and_nics_of_several_claims_of_one_pod_are_judged_together() -> None:
    gpus = claim("gpus", *(PreparedDevice("g", "node", gpu) for gpu in GPUS))
    async with running(NIC_0, claim("nic-b", prepared(NICS[1])), gpus) as node:
        assert node.write() == {
            "nic-0": ("True", "SamePCIeSwitch"),
            "nic-1": ("True", "SamePCIeSwitch"),
        }


async def test_what_another_pod_has_is_named_with_its_claim() -> None:
    other = claim("first", prepared(NICS[1]), pod=PodRef("team", "q", "other"))
    async with running(NIC_0, other) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a1")
        (verdict,) = node.verdicts.judge(POD.uid).values()
        assert verdict.better is not None
        assert verdict.better.candidate.holder == "team/first"


async def test_only_devices_that_are_in_their_pod_get_a_verdict() -> None:
    async with running(NIC_0) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a0")
        waiting = DeviceStatus("dra.net", "node", "nic-0", (Condition(ConditionType.ATTACHED, None, "X"),))
        assert node.verdicts.complete(Claim(NIC_0.claim, True), [waiting]) == [waiting]
        gone = Claim(ClaimRef("team", "x", "unknown"), True)
        assert node.verdicts.complete(gone, [waiting]) == [waiting]


# --- metrics -------------------------------------------------------------------------------------------


async def test_metrics_count_devices_by_level_and_each_verdict_once() -> None:
    other = claim("plain", prepared(NICS[1]), pod=PodRef("team", "q", "other"))
    async with running(NIC_0, other) as node:
        assert {level: node.count(level) for level in LEVELS if node.count(level)} == {"none": 2}
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a1")
        await settled()
        node.write()
        assert {level: node.count(level) for level in LEVELS if node.count(level)} == {"SYS": 1, "none": 1}
        text = node.metrics.render().decode()
        assert 'dranet_alignment_verdicts_total{level="SYS"} 1.0' in text
        assert "dranet_alignment_worse_than_possible_total 1.0" in text


async def test_what_is_not_certain_is_counted_as_unknown_and_wakes_nobody() -> None:
    """Something nearer was there, for the GPUs that are known; another one may be anywhere."""
    lost = replace(NIC_0, others=(OTHERS,), devices=(*NIC_0.devices, PreparedDevice("g", "node", GPUS[1])))
    async with running(lost) as node:
        assert node.write() == {"nic-0": ("None", "DevicesOfAnotherDriver")}
        assert (node.count("unknown"), node.verdicts.count_worse()) == (1, 0)
        assert "dranet_alignment_worse_than_possible_total 0.0" in node.metrics.render().decode()
        node.offer("gpu", "gpu-1")
        node.slices.notify()
        await until(lambda: node.write() == {"nic-0": ("False", "WorseThanPossible")})
        assert (node.count("SYS"), node.verdicts.count_worse()) == (1, 1)
        assert "dranet_alignment_worse_than_possible_total 1.0" in node.metrics.render().decode()


async def test_a_pod_that_has_ended_counts_no_more() -> None:
    async with running(NIC_0) as node:
        node.show(NVIDIA_VISIBLE_DEVICES="GPU-a0")
        await settled()
        assert node.count("PIX") == 1
        node.records = (replace(NIC_0, netns_path="", sandbox_id=""),)
        assert {level: node.count(level) for level in LEVELS if node.count(level)} == {}
        node.records = ()
        node.watch.look("any")
        await settled()
        assert node.gpus.get(POD.uid).gpus == ()
