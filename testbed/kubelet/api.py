"""What the stand-in kubelet reads from and writes to the API server."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable
from datetime import UTC, datetime

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, Backoff
from dranet.errors import ClusterError, Reason
from testbed.kubelet.nouns import JsonObject
from testbed.kubelet.podspec import PodView

log = logging.getLogger(__name__)


class KubeletApi:
    """One node's view of the API server."""

    def __init__(self, client: ApiClient, node_name: str) -> None:
        self.client = client
        self.node_name = node_name
        self._events: dict[tuple[str, str, str], tuple[str, int]] = {}

    async def register_node(self) -> None:
        """Make the Node object if it does not exist, and call it ready."""
        labels = {"kubernetes.io/hostname": self.node_name, "kubernetes.io/os": "linux"}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node_name, "labels": labels}}
        await _ignore(self.client.create(paths.NODES, body), Reason.API_CONFLICT)
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastTransitionTime": now_text(),
        }
        await self.client.patch(paths.node_status(self.node_name), {"status": {"conditions": [ready]}})

    async def fetch_claim(self, namespace: str, name: str) -> JsonObject | None:
        """The claim, or ``None`` if it does not exist."""
        try:
            return await self.client.get(paths.resource_claim(namespace, name))
        except ClusterError as error:
            if error.reason is Reason.API_NOT_FOUND:
                return None
            raise

    async def write_status(self, pod: PodView, status: JsonObject) -> None:
        """Merge into the pod's status, if it is still this pod; a pod that is gone needs none."""
        body = {"metadata": {"uid": pod.uid}, "status": status}
        await _ignore(
            self.client.patch(paths.pod_status(pod.namespace, pod.name), body),
            Reason.API_NOT_FOUND,
            Reason.API_INVALID,  # the name is another pod's by now: a uid cannot be patched
        )

    async def delete_for_good(self, pod: PodView) -> None:
        """The last word of a kubelet on a pod: nothing of it is left on the node."""
        path = paths.pod(pod.namespace, pod.name)
        await _ignore(
            self.client.delete(path, uid=pod.uid, grace_period_seconds=0),
            Reason.API_NOT_FOUND,
            Reason.API_CONFLICT,
        )

    async def warn(self, pod: PodView, reason: str, message: str) -> None:
        """A Warning Event; the same one again only counts up. Losing one is no failure of the pod."""
        key = (pod.uid, reason, message)
        name, count = self._events.get(key, (f"{pod.name}.{secrets.token_hex(8)}", 0))
        self._events[key] = (name, count + 1)
        try:
            if count:
                body = {"count": count + 1, "lastTimestamp": now_text()}
                await self.client.patch(paths.event(pod.namespace, name), body)
            else:
                event = _build_event(pod, name, reason, message, self.node_name)
                await self.client.create(paths.events(pod.namespace), event)
        except ClusterError as error:
            log.warning("event %s of %s/%s lost: %s", reason, pod.namespace, pod.name, error)

    async def wipe_slices(self, driver: str = "") -> None:
        """Delete this node's slices, of one driver or of all; tried until it succeeds."""
        backoff = Backoff(0.2, 5.0)
        while True:
            try:
                await self._delete_slices(driver)
            except ClusterError as error:
                log.warning("cannot wipe slices yet: %s", error)
            else:
                return
            await asyncio.sleep(backoff.next_seconds())

    async def _delete_slices(self, driver: str) -> None:
        selector = f"spec.nodeName={self.node_name}" + (f",spec.driver={driver}" if driver else "")
        listed = await self.client.list(paths.RESOURCE_SLICES, field_selector=selector)
        for found in listed.get("items", ()):
            path = paths.resource_slice(found["metadata"]["name"])
            await _ignore(self.client.delete(path), Reason.API_NOT_FOUND)


def now_text() -> str:
    """The present as ``metav1.Time``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _ignore(request: Awaitable[JsonObject], *reasons: Reason) -> None:
    try:
        await request
    except ClusterError as error:
        if error.reason not in reasons:
            raise


def _build_event(pod: PodView, name: str, reason: str, message: str, node_name: str) -> JsonObject:
    now = now_text()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": "Warning",
        "reason": reason,
        "message": message[:1024],
        "source": {"component": "kubelet", "host": node_name},
        "reportingComponent": "kubelet",
        "reportingInstance": node_name,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
