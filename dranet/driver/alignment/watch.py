"""Keeps the alignment verdicts up to date, outside the hooks.

Two tasks wait for news and do nothing at idle. One judges, in memory, and has statuses written again if they
contain something else. The other asks: the API server for the pod's other claims, if another driver serves
the node's GPUs; the kubelet, if containers do not show clearly what they have. A missing answer delays no
verdict. It is asked for again, ever more rarely, while the pod lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from dranet.cluster.nodes import NodeDevices
from dranet.driver.alignment.observations import GpuName, observe_container
from dranet.driver.alignment.verdicts import Verdicts
from dranet.errors import DranetError, Reason
from dranet.kubelet.pod_resources import PodDevices
from dranet.model.claim import AllocationResult, Container, PodRef, PodSandbox
from dranet.model.device import GpuSource, find_resource_vendor
from dranet.model.facts import Gpu
from dranet.store.claim_store import ClaimStore

log = logging.getLogger(__name__)

ASK_TIMEOUT_SECONDS = 15.0
RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
"""The last one repeats: a pod lives for weeks, and an API server may be away for an hour."""
REFUSED_SECONDS = 3600.0
"""While a permission is missing."""
MAX_WAITING = 1000
"""Pods. A node has a few hundred at most."""


ReadClaims = Callable[[PodRef, frozenset[str]], Awaitable[tuple[AllocationResult, ...]]]
"""Returns the results of the pod's claims, except those with these names. Raises DranetError."""
AskKubelet = Callable[[PodRef], Awaitable[PodDevices]]
"""Raises DranetError."""
CallLater = Callable[[float, Callable[[str], None], str], object]
"""Calls back after so many seconds, with this pod."""


class AlignmentWatch:
    """Everything but :meth:`run` may be called on any thread."""

    def __init__(
        self,
        verdicts: Verdicts,
        store: ClaimStore,
        others: NodeDevices,
        report_again: Callable[[str], None],
        read_claims: ReadClaims,
        ask_kubelet: AskKubelet,
        call_later: CallLater | None = None,
    ) -> None:
        """
        Args:
            report_again: has the statuses of a pod's claims written again, by the pod's UID.
            call_later: by default that of the event loop.
        """
        self._gpus = verdicts.gpus
        self._verdicts = verdicts
        self._store = store
        self._others = others
        self._report_again = report_again
        self._read_claims = read_claims
        self._ask_kubelet = ask_kubelet
        self._loop = asyncio.get_running_loop()
        self._call_later = call_later or self._loop.call_later
        self._to_judge = _Waiting()
        self._to_ask = _Waiting()
        self._tries: dict[str, int] = {}
        """Pods that were asked about without success; they are asked about again later."""
        self._complaint = ""
        self._seen_gpus: tuple[Gpu, ...] = ()
        self._gpus.listeners.append(self.look)
        others.listeners.append(self._slices_changed)

    def look(self, pod_uid: str) -> None:
        """Judge the pod soon."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._to_judge.add, pod_uid)

    def container_seen(self, pod: PodSandbox, container: Container) -> None:
        """Observe a container of a pod that has claims. Called in a hook: asks nothing and never fails."""
        try:
            self._gpus.note_container(pod.uid, observe_container(container))
        except Exception:
            log.exception("bug in reading the GPUs of a container", extra={"context": {"pod": pod.uid}})

    def _slices_changed(self) -> None:
        for pod_uid in self._pods():
            self._gpus.changed(pod_uid)
            self.look(pod_uid)

    def scanned(self, gpus: tuple[Gpu, ...]) -> None:
        """Note a scan of the node: its GPUs may have names now."""
        if gpus != self._seen_gpus:
            self._seen_gpus = gpus
            for pod_uid in self._pods():
                self._gpus.changed(pod_uid)

    def _pods(self) -> Iterable[str]:
        return dict.fromkeys(record.pod.uid for record in self._store.get_all())

    async def run(self) -> None:
        """Judge and ask, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work(self._to_judge, self._judge), name="alignment: judge")
            tasks.create_task(self._work(self._to_ask, self._ask), name="alignment: ask")

    async def _work(self, waiting: _Waiting, work: Callable[[str], Awaitable[None]]) -> None:
        while True:
            pod_uid = await waiting.take()
            try:
                await work(pod_uid)
            except Exception:  # a verdict must not end the driver
                log.exception("bug in a pod's verdict", extra={"context": {"pod": pod_uid}})

    async def _judge(self, pod_uid: str) -> None:
        self._forget_ended()
        records = self._store.get_by_pod(pod_uid)
        if not any(record.plans and record.netns_path for record in records):
            return
        if self._gpus.has_others(pod_uid):
            self._others.want()
        if self._verdicts.is_outdated(pod_uid, self._verdicts.judge(pod_uid)):
            self._report_again(pod_uid)
        is_unclear = self._gpus.is_missing_claims(pod_uid) or self._gpus.may_kubelet_know(pod_uid)
        if is_unclear and pod_uid not in self._tries:
            self._to_ask.add(pod_uid)

    def _forget_ended(self) -> None:
        living = set(self._pods())
        self._gpus.keep_only(living)
        self._verdicts.keep_only(living)
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in living}

    async def _ask(self, pod_uid: str) -> None:
        records = self._store.get_by_pod(pod_uid)
        if not records:
            return
        pod, names = records[0].pod, frozenset(record.claim.name for record in records)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
                if self._gpus.is_missing_claims(pod_uid):
                    await self._ask_server(pod, names)
                if self._gpus.may_kubelet_know(pod_uid):
                    await self._hear_kubelet(pod)
        except (DranetError, TimeoutError) as error:
            self._try_again(pod_uid, error)
        else:
            self._tries.pop(pod_uid, None)
        self.look(pod_uid)  # what waited for the answer may go on

    async def _ask_server(self, pod: PodRef, names: frozenset[str]) -> None:
        try:
            results = await self._read_claims(pod, names)
        except DranetError as error:
            self._gpus.note_claims(pod.uid, (), f"the pod's other claims cannot be read ({error.reason})")
            if self._gpus.may_kubelet_know(pod.uid):
                await self._hear_kubelet(pod)
            if self._gpus.is_missing_claims(pod.uid):
                raise
        else:
            self._gpus.note_claims(pod.uid, results)

    async def _hear_kubelet(self, pod: PodRef) -> None:
        try:
            found = await self._ask_kubelet(pod)
        except (DranetError, TimeoutError, asyncio.CancelledError):
            self._gpus.note_mute_kubelet(pod.uid)
            raise
        named = ((find_resource_vendor(resource), device) for resource, device in found.ids)
        ids = [GpuName(GpuSource.POD_RESOURCES, vendor, device) for vendor, device in named if vendor]
        self._gpus.note_kubelet(pod.uid, ids, found.results)

    def _try_again(self, pod_uid: str, error: Exception) -> None:
        complaint = str(error) or "no answer in time"
        if complaint != self._complaint:
            log.warning("the GPUs of a pod are not all known: %s", complaint)
        self._complaint = complaint
        tries = self._tries.get(pod_uid, 0)
        self._tries[pod_uid] = tries + 1
        is_refused = isinstance(error, DranetError) and error.reason is Reason.API_FORBIDDEN
        seconds = REFUSED_SECONDS if is_refused else RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
        self._call_later(seconds, self._to_ask.add, pod_uid)


class _Waiting:
    """Pods to look at, each once, the oldest first. For the event loop."""

    def __init__(self) -> None:
        self._pods: dict[str, None] = {}
        self._filled = asyncio.Event()

    def add(self, pod_uid: str) -> None:
        if len(self._pods) < MAX_WAITING:
            self._pods[pod_uid] = None
            self._filled.set()

    async def take(self) -> str:
        while not self._pods:
            self._filled.clear()
            await self._filled.wait()
        pod_uid = next(iter(self._pods))
        del self._pods[pod_uid]
        return pod_uid
