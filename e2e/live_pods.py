"""Pods as the API server shows them, and what the node shows inside them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError, Reason
from e2e.access import Access, E2eFailed
from e2e.objects import NAMESPACE, collection
from testbed.node.iproute import in_namespace
from testbed.runtime.contract import RunningContainer
from testbed.scenario.counterpart import JsonObject, NotThere
from testbed.scenario.on_testbed import find_endpoint
from testbed.traffic import Endpoint

_POLL_SECONDS = 0.1
_PODS = collection("v1", "Pod", NAMESPACE)
_CLAIMS = collection("resource.k8s.io/v1", "ResourceClaim", NAMESPACE)
_EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"


class LivePods:
    """Implements :class:`~testbed.scenario.counterpart.Pods` as far as a cluster lets it."""

    def __init__(self, api: ApiClient, access: Access) -> None:
        self._api = api
        self._access = access
        self.uids: dict[str, str] = {}
        """Every pod that was applied, also after its end."""

    async def wait_prepared(self, pod: str) -> None:
        assert self._access.control is not None
        claims = await self._fetch_claims(pod)
        while not claims or not all(map(self._access.control.is_prepared, claims)):
            await asyncio.sleep(_POLL_SECONDS)
            claims = await self._fetch_claims(pod)

    async def wait_running(self, pod: str) -> None:
        while True:
            found = await self._api.get(f"{_PODS}/{pod}")
            status = found.get("status", {})
            if status.get("phase") == "Failed":
                raise E2eFailed(f"pod {pod} has failed: {status}")
            if status.get("phase") == "Running" and all(
                "running" in container.get("state", {}) for container in status.get("containerStatuses", ())
            ):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def wait_gone(self, pod: str) -> None:
        while True:
            try:
                found = await self._api.get(f"{_PODS}/{pod}")
            except ClusterError as error:
                if error.reason is Reason.API_NOT_FOUND:
                    return
                raise
            if found["metadata"]["uid"] != self.uids.get(pod):
                return
            await asyncio.sleep(_POLL_SECONDS)

    def describe_start(self, pod: str) -> str:
        return f"{pod}: runs"

    async def explain(self, pod: str) -> str:
        try:
            status = (await self._api.get(f"{_PODS}/{pod}")).get("status", {})
        except ClusterError as error:
            return f"pod {pod}: {error}"
        events = await self.fetch_events(pod)
        reported = "; ".join(f"{event['reason']}: {event.get('message', '')}" for event in events[-3:])
        return f"pod {pod} is {status.get('phase', 'unknown').lower()}: {reported or 'no Event about it'}"

    async def fetch_events(self, name: str) -> list[JsonObject]:
        answer = await self._api.list(_EVENTS, field_selector=f"involvedObject.name={name}" if name else "")
        return list(answer.get("items", ()))

    def hold_sandboxes(self, hold: bool) -> None:
        assert self._access.control is not None
        self._access.control.hold_sandboxes(hold)

    async def find_nics(self, pod: str) -> list[JsonObject]:
        assert self._access.layout is not None
        found = await asyncio.to_thread(self._access.layout.nics_in, await self.find_netns(pod))
        return [dict(link) for link, _ in found]

    async def run_inside(self, pod: str, command: Sequence[str]) -> str:
        assert self._access.hands is not None
        return await self._access.hands.run(*in_namespace(await self.find_netns(pod), *command))

    async def inspect_container(self, pod: str) -> RunningContainer:
        assert self._access.hands is not None
        found = await self._access.hands.inspect_container(self._uid(pod))
        if found is None:
            raise NotThere(f"pod {pod} has no running container")
        return found

    async def find_endpoint(self, pod: str) -> Endpoint:
        return find_endpoint(pod, await self.find_netns(pod), await self.find_nics(pod))

    async def find_netns(self, pod: str) -> str:
        """A path on the node; :class:`NotThere`."""
        assert self._access.hands is not None
        path = await self._access.hands.find_netns(self._uid(pod))
        if not path:
            raise NotThere(f"pod {pod} has no network namespace")
        return path

    async def _fetch_claims(self, pod: str) -> list[str]:
        """UIDs of the claims that were made for the pod and allocated."""
        status = (await self._api.get(f"{_PODS}/{pod}")).get("status", {})
        names = [entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses", ())]
        claims = [await self._api.get(f"{_CLAIMS}/{name}") for name in names if name]
        return [claim["metadata"]["uid"] for claim in claims if claim.get("status", {}).get("allocation")]

    def _uid(self, pod: str) -> str:
        if pod not in self.uids:
            raise NotThere(f"pod {pod} was not applied here")
        return self.uids[pod]
