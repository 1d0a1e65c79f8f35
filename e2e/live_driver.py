"""The driver as the DaemonSet that users install: applied, rolled, taken away, over the API alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from dranet.cluster.client import ApiClient
from e2e.access import Access, E2eFailed
from e2e.installation import NAME, POD_LABELS, SYSTEM_NAMESPACE, build_installation
from e2e.objects import JsonObject, collection, path_of
from e2e.ownership import check_ours, suppress_not_found

MANAGER = "dranet-e2e"
_POLL_SECONDS = 0.1
_LOG_TAIL_LINES = 30
_BY_DOWNWARD_API = ("pod_uid", "node_name")
"""Settings that the DaemonSet's pods get from the kubelet."""

_DAEMON_SET = path_of(
    {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": SYSTEM_NAMESPACE},
    }
)
_PODS = collection("v1", "Pod", SYSTEM_NAMESPACE)


class LiveDriver:
    """Implements :class:`~testbed.scenario.counterpart.TheDriver`."""

    def __init__(self, api: ApiClient, access: Access, *, with_classes: bool) -> None:
        self._api = api
        self._access = access
        self._with_classes = with_classes
        self._installed: list[JsonObject] = []
        self.judges_parameters = True
        """Install the admission policy that refuses a claim's mistakes before the driver sees them."""

    async def start(self, settings: Mapping[str, str]) -> None:
        """Apply everything; what is there already is left as it is. A driver that was killed is started again
        by its kubelet, and nothing is changed then."""
        own = {key: value for key, value in settings.items() if key not in _BY_DOWNWARD_API}
        items = build_installation(
            self._access,
            own,
            with_classes=self._with_classes,
            with_parameters_policy=self.judges_parameters,
        )
        installed = {path_of(item) for item in self._installed}
        new = [item for item in items if path_of(item) not in installed]
        for item in new:
            await check_ours(self._api, item, may_replace=self._access.may_replace)
        self._installed += new
        for item in items:
            await self._api.apply(path_of(item), item, field_manager=MANAGER)

    async def check_ready(self) -> str:
        found = await self._api.get(_DAEMON_SET)
        status, wanted = found.get("status", {}), status_wanted(found)
        if status.get("observedGeneration", 0) < found["metadata"].get("generation", 1):
            return "the DaemonSet controller has not seen the DaemonSet yet"
        if not wanted:
            return "the DaemonSet wants no pod: no node fits its selector"
        counts = {key: status.get(key, 0) for key in ("updatedNumberScheduled", "numberReady")}
        if any(count != wanted for count in counts.values()):
            return f"of {wanted} driver pods: {counts}; {await self._explain()}"
        # The counts come later than the pods' own statuses: of a pod that was just killed they know nothing.
        if unready := [pod["metadata"]["name"] for pod in await self.fetch_pods() if not is_ready(pod)]:
            return f"not ready: {', '.join(unready)}; {await self._explain()}"
        return ""

    async def wait_ready(self, within: float) -> None:
        """Wait until every driver pod is ready.

        Raises:
            E2eFailed: not within that many seconds; with what is missing.
        """
        complaint = "not asked yet"
        try:
            async with asyncio.timeout(within):
                while complaint := await self.check_ready():
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise E2eFailed(f"the driver is not ready after {within:g} s: {complaint}") from error

    def describe(self) -> str:
        return f"DaemonSet {SYSTEM_NAMESPACE}/{NAME}"

    async def stop(self, within: float) -> int | None:
        """Take the DaemonSet away, and wait for the end of its pods; the exit code of the one on our node."""
        await self._delete(_DAEMON_SET)
        exit_code: int | None = None
        async with asyncio.timeout(within):
            while pods := await self.fetch_pods():
                for pod in pods:
                    exit_code = read_exit_code(pod) if self._is_here(pod) else exit_code
                await asyncio.sleep(_POLL_SECONDS)
        self._installed = [item for item in self._installed if item["kind"] != "DaemonSet"]
        return exit_code

    async def kill(self, *, stays_away: bool) -> None:
        assert self._access.hands is not None
        if stays_away:
            await self._orphan_pods()
        for pod in filter(self._is_here, await self.fetch_pods()):
            await self._access.hands.kill_driver(pod["metadata"]["uid"])
            if stays_away:
                await self._remove_pod(pod)
            else:
                await self._wait_restarted(pod)

    async def _orphan_pods(self) -> None:
        """Take the DaemonSet away, and leave its pods."""
        self._installed = [item for item in self._installed if item["kind"] != "DaemonSet"]
        await self._api.delete(_DAEMON_SET, propagation_policy="Orphan")
        with suppress_not_found():
            while await self._api.get(_DAEMON_SET):
                await asyncio.sleep(_POLL_SECONDS)

    async def _remove_pod(self, pod: JsonObject) -> None:
        """Before the kubelet looks at its containers again, which it does once a second."""
        assert self._access.hands is not None
        await self._api.delete(_path_of_pod(pod), grace_period_seconds=0)
        while await self._access.hands.find_netns(pod["metadata"]["uid"]):
            await asyncio.sleep(_POLL_SECONDS)

    async def roll(self, within: float) -> str:
        before = {pod["metadata"]["uid"] for pod in await self.fetch_pods()}
        begin = time.monotonic()
        stamp = {"e2e/restartedAt": datetime.now(UTC).isoformat()}
        await self._api.patch(_DAEMON_SET, {"spec": {"template": {"metadata": {"annotations": stamp}}}})
        ready = 0.0
        async with asyncio.timeout(within):
            while True:
                pods = {pod["metadata"]["uid"]: pod for pod in await self.fetch_pods()}
                left = before & pods.keys()
                if not ready and any(is_ready(pod) for uid, pod in pods.items() if uid not in before):
                    ready = time.monotonic()
                if not left and not await self.check_ready():
                    break
                if left and not ready and not any(is_ready(pods[uid]) for uid in left):
                    raise E2eFailed("the old driver pod is not ready, and no new one is: a gap in the update")
                await asyncio.sleep(_POLL_SECONDS)
        took = time.monotonic() - begin
        return f"a new pod was ready after {ready - begin:.1f} s, the old ones gone after {took:.1f} s"

    def log_tail(self) -> str:
        file = find_log(self._access.log_file)
        lines = file.read_text(errors="replace").splitlines() if file else []
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    async def remove(self) -> None:
        """Whatever was installed, in reverse. The namespace goes last, with what is left in it."""
        for item in reversed(self._installed):
            await self._delete(path_of(item))
            if item["kind"] == "DaemonSet":
                while await self.fetch_pods():
                    await asyncio.sleep(_POLL_SECONDS)
        self._installed = []

    async def fetch_pods(self) -> list[JsonObject]:
        """The driver's pods on every node."""
        return list((await self._api.list(_PODS, label_selector=POD_LABELS)).get("items", ()))

    async def _wait_restarted(self, pod: JsonObject) -> None:
        """Until the kubelet has seen the end of this container."""
        path, count = _path_of_pod(pod), read_restarts(pod)
        while read_restarts(await self._api.get(path)) == count:
            await asyncio.sleep(_POLL_SECONDS)

    async def _explain(self) -> str:
        texts = [str(pod.get("status", {}).get("containerStatuses", "")) for pod in await self.fetch_pods()]
        return " ".join(texts)[:600]

    async def _delete(self, path: str) -> None:
        with suppress_not_found():
            await self._api.delete(path)

    def _is_here(self, pod: JsonObject) -> bool:
        return bool(pod["spec"].get("nodeName") == self._access.node_name)


def _path_of_pod(pod: JsonObject) -> str:
    """Items of a list have no kind."""
    return path_of({**pod, "apiVersion": "v1", "kind": "Pod"})


def find_log(place: Path | None) -> Path | None:
    """The file, or the newest of the driver's below a kubelet's folder of pods' logs."""
    if place is None or not place.is_dir():
        return place if place and place.exists() else None
    found = place.glob(f"{SYSTEM_NAMESPACE}_*/{NAME}/*.log")
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def status_wanted(daemon_set: JsonObject) -> int:
    return int(daemon_set.get("status", {}).get("desiredNumberScheduled", 0))


def is_ready(pod: JsonObject) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def read_restarts(pod: JsonObject) -> int:
    return sum(status.get("restartCount", 0) for status in pod.get("status", {}).get("containerStatuses", ()))


def read_exit_code(pod: JsonObject) -> int | None:
    """The first container's exit code, once it has ended."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        ended = status.get("state", {}).get("terminated")
        return int(ended["exitCode"]) if ended else None
    return None
