"""What a cluster does with the driver's DaemonSet, on the stand-in's one node.

The controller makes pods and rolls them with surge; the kubelet's part is to start the ordinary driver as a
process for each of them, with the settings file of the ConfigMap and the variables of the pod spec, to probe
it, to start it again when it ends, and to end it with SIGTERM. Knows the API server and processes, and
nothing of the suite. Not covered: images, mounts, rights; those are proven with a real runtime elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError, DranetError, Reason
from e2e.objects import JsonObject, collection
from testbed.driver.process import COMMAND, DriverProcess

_POLL_SECONDS = 0.1
_SETTINGS = "settings.yaml"
_VARIABLE = "DRANET_"
_FIELDS = {"spec.nodeName": "node", "metadata.uid": "uid"}
"""The part of the downward API that is supported."""


@dataclass(slots=True)
class _Instance:
    """One pod of the DaemonSet with its process."""

    pod: JsonObject
    template: str
    """Hash of what it was made from."""
    process: DriverProcess
    ready_file: Path
    restarts: int = 0
    ending: asyncio.Task[None] | None = None
    written: JsonObject = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """What its probe finds."""
        return self.ending is None and self.process.is_running and self.ready_file.exists()

    @property
    def is_known_ready(self) -> bool:
        """Whether its written status is ready, which is all that a controller knows. One that acted on
        the probe could end an old pod before a reader sees that the new one is ready."""
        written = self.written.get("containerStatuses", ())
        return self.ending is None and any(status["ready"] for status in written)


class StandInDaemonSets:
    """One per cluster; ``async with`` runs it. ``of_node`` are settings: where things are which a real node
    has at the places of the manifests."""

    def __init__(
        self, client: ApiClient, node: str, folder: Path, log_file: Path, of_node: Mapping[str, str]
    ) -> None:
        self._client = client
        self._node = node
        self._folder = folder
        self._log_file = log_file
        self._of_node = of_node
        self.instances: dict[str, _Instance] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="daemon sets")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        for instance in self.instances.values():
            if instance.ending is not None:
                instance.ending.cancel()
            with suppress(DranetError):
                await instance.process.kill()

    async def kill(self, pod_uid: str) -> None:
        """SIGKILL for one of them, from outside."""
        await self.instances[pod_uid].process.kill()

    async def _run(self) -> None:
        while True:
            with suppress(ClusterError):  # the next look repeats it
                await self._look()
            await asyncio.sleep(_POLL_SECONDS)

    async def _look(self) -> None:
        found = (await self._client.list(collection("apps/v1", "DaemonSet"))).get("items", ())
        if not found:
            self._end(self.instances.values())
        for instance in list(self.instances.values()):
            await self._revive(instance)
            await self._write_status(instance)
        for daemon_set in found:
            await self._tend(daemon_set)

    async def _tend(self, daemon_set: JsonObject) -> None:
        """A pod of the newest template; an older one ends when that is ready, or when it is not ready itself
        (``podsShouldBeOnNode`` of Kubernetes' DaemonSet controller)."""
        template = _hash(daemon_set["spec"]["template"])
        newest = [i for i in self.instances.values() if i.template == template and i.ending is None]
        older = [i for i in self.instances.values() if i.template != template]
        if not newest:
            newest = [await self._start(daemon_set, template)]
        replaced = all(instance.is_known_ready for instance in newest)
        self._end(instance for instance in older if replaced or not instance.is_known_ready)
        await self._write_counts(daemon_set, newest)

    async def _start(self, daemon_set: JsonObject, template: str) -> _Instance:
        metadata, spec = daemon_set["metadata"], daemon_set["spec"]["template"]
        owner = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{metadata['name']}-{secrets.token_hex(3)}",
                "labels": spec["metadata"]["labels"],
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {**spec["spec"], "nodeName": self._node},
        }
        pod = await self._client.create(paths.pods(metadata["namespace"]), body)
        instance = await self._build_instance(pod, template)
        self.instances[pod["metadata"]["uid"]] = instance
        await instance.process.start()
        return instance

    async def _build_instance(self, pod: JsonObject, template: str) -> _Instance:
        uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
        folder = self._folder / uid
        folder.mkdir(parents=True)
        volumes = pod["spec"]["volumes"]
        (name,) = (volume["configMap"]["name"] for volume in volumes if "configMap" in volume)
        config = await self._client.get(paths.config_map(namespace, name))
        (folder / _SETTINGS).write_text(config["data"][_SETTINGS])
        settings = {
            **self._of_node,
            **dict(self._read_environment(pod, uid)),
            "ready_file": str(folder / "ready"),  # of an emptyDir, which each pod has for itself
        }
        command = (*COMMAND, "--config", str(folder / _SETTINGS))
        process = DriverProcess(settings, self._log_file, command)
        return _Instance(pod, template, process, folder / "ready")

    def _read_environment(self, pod: JsonObject, uid: str) -> Iterator[tuple[str, str]]:
        """Variables that are settings; what the downward API does not support here is left out."""
        known = {"node": self._node, "uid": uid}
        for variable in pod["spec"]["containers"][0].get("env", ()):
            name = variable["name"].removeprefix(_VARIABLE).lower()
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            if variable["name"].startswith(_VARIABLE) and (path in _FIELDS or "value" in variable):
                yield name, known[_FIELDS[path]] if path else variable["value"]

    def _end(self, instances: Iterable[_Instance]) -> None:
        for instance in list(instances):
            if instance.ending is None:
                instance.ending = asyncio.create_task(self._end_one(instance))

    async def _end_one(self, instance: _Instance) -> None:
        """SIGTERM, its last status, and its object goes."""
        metadata = instance.pod["metadata"]
        path = paths.pod(metadata["namespace"], metadata["name"])
        await _ignore_gone(self._client.delete(path, uid=metadata["uid"]))
        if instance.process.is_running:
            grace = float(instance.pod["spec"].get("terminationGracePeriodSeconds", 30))
            with suppress(DranetError):
                await instance.process.stop(grace)
        await self._write_status(instance)
        await _ignore_gone(self._client.delete(path, uid=metadata["uid"], grace_period_seconds=0))
        self.instances.pop(metadata["uid"], None)

    async def _revive(self, instance: _Instance) -> None:
        if instance.ending is None and not instance.process.is_running:
            instance.ready_file.unlink(missing_ok=True)
            instance.restarts += 1
            await instance.process.start()

    async def _write_status(self, instance: _Instance) -> None:
        ready, code = instance.is_ready, instance.process.exit_code
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        container = {
            "name": instance.pod["spec"]["containers"][0]["name"],
            "ready": ready,
            "restartCount": instance.restarts,
            "state": state,
        }
        status: JsonObject = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [container],
        }
        if status != instance.written:
            metadata = instance.pod["metadata"]
            path = paths.pod_status(metadata["namespace"], metadata["name"])
            await _ignore_gone(
                self._client.patch(path, {"metadata": {"uid": metadata["uid"]}, "status": status})
            )
            instance.written = status

    async def _write_counts(self, daemon_set: JsonObject, newest: list[_Instance]) -> None:
        metadata = daemon_set["metadata"]
        ready = any(instance.is_known_ready for instance in self.instances.values())
        status = {
            "observedGeneration": metadata.get("generation", 1),
            "desiredNumberScheduled": 1,
            "currentNumberScheduled": 1,
            "numberMisscheduled": 0,
            "updatedNumberScheduled": min(len(newest), 1),
            "numberReady": int(ready),
        }
        if status != daemon_set.get("status"):
            path = collection("apps/v1", "DaemonSet", metadata["namespace"])
            await self._client.patch(f"{path}/{metadata['name']}/status", {"status": status})


def _hash(template: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()


async def _ignore_gone(request: Awaitable[JsonObject]) -> None:
    try:
        await request
    except ClusterError as error:
        if error.reason not in (Reason.API_NOT_FOUND, Reason.API_CONFLICT, Reason.API_INVALID):
            raise
