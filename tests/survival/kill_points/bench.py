"""What all walks need: pods that come and go, a DHCP server, a driver that dies, a row for each walk."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from dranet.cluster import paths
from dranet.errors import ClusterError, DranetError, Reason
from dranet.failpoints import Failpoint
from dranet.kernel.dhcp.message import Message
from dranet.kernel.namespaces.netns import NetworkNamespace
from testbed.cluster import NAMESPACE
from testbed.driver.process import DriverProcess
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.iproute import NETNS_FOLDER
from testbed.provider import Provider, ProviderServer
from tests.support.cni_plugins import read_host_local
from tests.support.dhcp_servers import ScriptedServer, good_answers
from tests.support.namespaces import Namespace
from tests.survival.builds.rdma_of_files import RdmaFiles, identify_path
from tests.survival.environment import READY_SECONDS, STAND_IN, Stage
from tests.survival.kill_points.armed import Armed
from tests.survival.kill_points.pods import (
    CLAIMS,
    CLASSES,
    HAS_IPAM,
    IPAM_DATA,
    IPAM_NETWORK,
    PROFILE,
    PROVIDER_SOCKET,
    RDMA,
    STORAGE_ADDRESS,
    STORAGE_MAC,
    UPLINK,
    build_pod,
    write_ipam_file,
)
from tests.survival.statuses import list_addresses
from tests.survival.table import Row
from tests.survival.verification import PATIENCE_SECONDS, Verdict, read_links

_NUMBERS = count(1)
"""Of pods, in one process: no two have one name."""
_RETRY_SECONDS, _RETRY_CAP_SECONDS = 0.1, 0.3
"""Of a kubelet in a hurry."""
RESCAN_SECONDS = 70.0
"""A full scan comes every minute."""


class Bench:
    """A stage for kill points; ``claims`` of each pod, see :mod:`tests.survival.kill_points.pods`."""

    def __init__(self, stage: Stage, claims: int, driver: DriverProcess, *, is_slow: bool = False) -> None:
        self.stage = stage
        self._is_slow = is_slow
        self.claims = claims
        is_real = (
            stage.runtime.name != STAND_IN
        )  # its containers open device nodes, so nothing is played there
        self._rdma = None if is_real else stage.testbed.places.work_dir / "rdma"
        if self._rdma is not None:
            self._rdma.mkdir(exist_ok=True)
        self.provider = Provider(profiles={PROFILE: {"interface": {"txQueueLength": 900}}})
        self._offer: dict[str, str] = {}
        """As it was before the first pod."""
        self.armed = self.arm_later(driver)
        """The driver that has the node."""

    def arm_later(self, driver: DriverProcess) -> Armed:
        """As a driver of the test build; not started."""
        folder = self.stage.testbed.places.work_dir / f"armed{next(_NUMBERS)}"
        return Armed(self.stage, driver, folder, self._rdma, slow=self._is_slow)

    async def start_driver(self) -> None:
        """The one that may be armed, and is not; until it is ready."""
        await self.armed.start()
        await self.armed.driver.wait_ready(READY_SECONDS)

    # --- pods -------------------------------------------------------------------------------------------

    async def add_pod(self) -> str:
        """A pod with its claims; does not wait for it.

        Before, every NIC is on offer under its own name. The testbed's tree of sysfs follows the kernel a
        moment late, and of that no event tells: a driver that looked too early sees it at its next full scan.
        """
        name = f"pod{next(_NUMBERS)}"
        offered = await self._fetch_offer()
        self._offer = self._offer or offered
        async with asyncio.timeout(RESCAN_SECONDS):
            while offered != self._offer:
                await asyncio.sleep(0.05)
                offered = await self._fetch_offer()
        await self.stage.testbed.apply(build_pod(name, self.claims))
        return name

    async def _fetch_offer(self) -> dict[str, str]:
        """Interface names by device, as the slices have them."""
        slices = await self.stage.testbed.fetch_slices()
        return {
            device["name"]: device["attributes"].get("dra.net/ifName", {}).get("string", "gone")
            for found in slices
            for device in found["spec"].get("devices", ())
        }

    async def describe(self, name: str) -> str:
        """Where a pod is stuck, in the words of scheduler and kubelet, and what there is to be had."""
        testbed, uid = self.stage.testbed, self.stage.testbed.pod_uid(name)
        pod, slices = await testbed.fetch_pod(name), await testbed.fetch_slices()
        pools = [(found["metadata"]["name"], found["spec"]["pool"]) for found in slices]
        kubelet = f"{testbed.kubelet.stage(uid).name}: {testbed.kubelet.failure(uid)}"
        drivers = testbed.kubelet.registered_drivers
        return f"{name}: {kubelet}; {pod['status']}; slices {pools}; drivers {drivers}"

    async def add_running_pod(self) -> str:
        name = await self.add_pod()
        await self.stage.wait_running(name)
        await self.stage.assert_well()
        return name

    async def delete_pod(self, name: str) -> None:
        """Until it is gone, with its claims; it may be gone already."""
        await self._end_pod(name)
        await self._delete_claims(name)

    async def _end_pod(self, name: str) -> None:
        testbed, uid = self.stage.testbed, self.stage.testbed.pod_uid(name)
        with _unless_gone():
            await testbed.delete_pod(name)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await testbed.kubelet.wait_gone(uid)
        except TimeoutError:
            raise AssertionError(f"{name} does not go: {testbed.kubelet.failure(uid)}") from None

    async def _delete_claims(self, name: str) -> None:
        for kind in CLAIMS[self.claims]:
            with _unless_gone():
                await self.stage.testbed.api.delete(paths.resource_claim(NAMESPACE, f"{name}-{kind}"))

    async def delete_while_dead(self, name: str) -> None:
        """Ask for the pod's end, and wait until the runtime has done its part."""
        sandbox = self.stage.testbed.sandbox(name)
        await self.stage.testbed.delete_pod(name)
        if sandbox is not None:
            path = Path(sandbox.netns_path)
            await self.stage.until(lambda: not path.exists(), f"the sandbox of {name} is gone")

    async def rehearse(self) -> tuple[Counter[str], Counter[str]]:
        """As :meth:`rehearse_steps`: how often each step came by."""
        come, go = await self.rehearse_steps()
        return Counter(come), Counter(go)

    async def rehearse_steps(self) -> tuple[Sequence[str], Sequence[str]]:
        """A pod that comes and goes, and no driver dies: the steps of both ways."""
        begin = len(self.armed.read_journal())
        name = await self.add_running_pod()
        await self.wait_reached(Failpoint.ATTACH_STATUS_WRITTEN, begin)
        middle = len(self.armed.read_journal())
        await self._end_pod(name)
        await self.wait_reached(Failpoint.ATTACH_STATUS_WRITTEN, middle)
        await self._delete_claims(name)
        await self.stage.assert_well()
        steps = self.armed.read_journal()
        return steps[begin:middle], steps[middle:]

    async def wait_reached(self, step: Failpoint, since: int) -> None:
        """What others see of a step, they may see before the driver comes to its mark."""
        await self.stage.until(lambda: step in self.armed.read_journal(since), f"the driver comes by {step}")

    # --- tries ------------------------------------------------------------------------------------------

    async def attempt(
        self, point: str, what: str, deed: Callable[[], Awaitable[Verdict]], fault: str = ""
    ) -> None:
        """One try, which enters the row of its walk, or of another ``fault``.

        Raises:
            AssertionError: something is amiss. The next try would begin with it, so the story ends.
        """
        row = Row(fault or f"killed in {point.partition(':')[0]}", self.stage.runtime.name)
        try:
            verdict = await deed()
        except (AssertionError, TimeoutError, DranetError) as error:
            self.stage.rows.append(replace(row, lost=1))
            raise AssertionError(f"{point}, {self.claims} claims, {what}: {error}") from error
        self.stage.rows.append(verdict.row(row.fault, row.runtime))
        assert verdict.is_clean, f"{point}, {self.claims} claims, {what}: {verdict}"

    async def judge(self, name: str = "") -> Verdict:
        """As the stage's judge; and a pod has its RDMA device, and no one else an address."""
        verdict = await self.stage.judge.settle()
        if self.claims > 1 and HAS_IPAM:
            await self.stage.until(lambda: self._are_addresses_right(name), "host-local has what pods have")
        if self.claims > 1:
            await self.stage.until(
                lambda: self._is_profile_right(name), "the provider has what pods have not"
            )
        sandbox = self.stage.testbed.sandbox(name) if name else None
        if sandbox is not None and self._rdma is not None:
            holder = RdmaFiles(self._rdma).find(RDMA)
            if holder != await asyncio.to_thread(identify_path, sandbox.netns_path):
                verdict = replace(verdict, lost=(*verdict.lost, f"{RDMA} is not in {name} but in {holder!r}"))
        return verdict

    def _is_profile_right(self, name: str) -> bool:
        """Whether the provider has given one profile, to the pod, or none; and got back each of them once."""
        with self.provider.lock:
            has_pod = bool(name) and self.stage.testbed.sandbox(name) is not None
            return len(self.provider.grants) == has_pod and not any(
                count > 1 for count in Counter(self.provider.releases).values()
            )

    def _are_addresses_right(self, name: str) -> bool:
        """Whether host-local has given one address to the pod, which is that of its link, or none at all."""
        given = read_host_local(IPAM_DATA, IPAM_NETWORK)
        sandbox = self.stage.testbed.sandbox(name) if name else None
        if sandbox is None:
            return not given
        link = read_links(sandbox.netns_path).get(UPLINK, {})
        return [f"{address}/24" for address in given] == list_addresses(link)


@contextlib.asynccontextmanager
async def a_bench(
    stage: Stage, claims: int, *, is_shared: bool = False, is_slow: bool = False
) -> AsyncIterator[Bench]:
    """With a driver of the test build that is ready; it is killed at the end. ``is_shared``: it has a pod
    UID, so that there may be others. ``is_slow``: its links take longer to move than a hook has time."""
    _hurry(stage)
    await asyncio.to_thread(write_ipam_file)
    await stage.testbed.apply(CLASSES)
    if is_shared:
        stage.testbed.driver = stage.testbed.add_instance()
    bench = Bench(stage, claims, stage.driver, is_slow=is_slow)
    with (
        NetworkNamespace.open(NETNS_FOLDER / FABRIC_NETNS) as netns,
        ScriptedServer(Namespace(FABRIC_NETNS, netns), "br-storage", _answer),
        ProviderServer(bench.provider, socket_path=PROVIDER_SOCKET),
    ):
        await bench.start_driver()
        try:
            yield bench
        finally:
            if stage.driver.is_running:
                await stage.driver.kill()


def _hurry(stage: Stage) -> None:
    """A kubelet that tries again soon."""
    room = stage.testbed.kubelet._room
    options = replace(
        room.options, pod_retry_seconds=_RETRY_SECONDS, pod_retry_cap_seconds=_RETRY_CAP_SECONDS
    )
    stage.testbed.kubelet._room = replace(room, options=options)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        if error.reason is not Reason.API_NOT_FOUND:
            raise


def _answer(said: Message) -> list[Message]:
    """The address that the NIC has on the node, for the NIC alone."""
    is_ours = said.client_mac == STORAGE_MAC
    return good_answers(said, address=STORAGE_ADDRESS, server="10.65.0.254") if is_ours else []


def steps_of(*walks: str, without: frozenset[Failpoint] = frozenset()) -> frozenset[Failpoint]:
    """All steps of these walks but some."""
    return frozenset(step for step in Failpoint if step.walk in walks) - without
