"""Kueue on the cluster, installed by its own chart with ``helm``, and namespaces with queues.

The lane has no image of Kueue, so its pod runs the program that ``make cluster`` has built. The aggregated
API for dashboards is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e.access import E2eFailed
from e2e.cluster import build
from e2e.live_driver import is_ready
from e2e.objects import JsonObject
from e2e.tests.pods import RESOURCE, WAIT_SECONDS, build_pod, wait_until
from e2e.tests.shell import REPOSITORY, Shell

NAMESPACE = "kueue-system"
KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUE = "training"
"""The LocalQueue of ``examples/kueue.yaml``."""
_DEPLOYMENT = "deployment/kueue-controller-manager"
_FOLDER = "/kueue"


@asynccontextmanager
async def open_kueue(shell: Shell, image: str, configuration: str) -> AsyncIterator[Kueue]:
    """Serve Kueue while the block runs.

    Args:
        image: an image that the node has; only its root file system is used.
        configuration: what an administrator adds to the configuration of Kueue's manager, as YAML.
    """
    folder = build.find_built(build.KUEUE)
    if folder is None:
        pytest.skip("`KUEUE=1 make cluster` has not built Kueue")
    values = json.dumps(_build_values(image, configuration))
    chart = folder / "charts/kueue"
    install = f"helm install kueue {chart} --namespace {NAMESPACE} --create-namespace --values -"
    await shell.run(install, stdin=values)
    try:
        await shell.run("kubectl delete apiservice -l app.kubernetes.io/name=kueue --ignore-not-found")
        patch = json.dumps(_build_patch(folder))
        await shell.run(f"kubectl -n {NAMESPACE} patch {_DEPLOYMENT} --patch-file /dev/stdin", stdin=patch)
        await _wait_rolled_out(shell)
        await wait_until(lambda: _answers(shell), "Kueue's webhooks answer")
        yield Kueue(shell, image)
    finally:
        await shell.run(f"helm uninstall kueue --namespace {NAMESPACE} --wait")
        await shell.run(f"kubectl delete namespace {NAMESPACE}")


def _build_values(image: str, configuration: str) -> JsonObject:
    repository, _, tag = image.rpartition(":")
    manager: JsonObject = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": None},
        "podSecurityContext": {"runAsNonRoot": None},
    }
    return {
        "controllerManager": {"replicas": 0, "manager": manager},
        "managerConfig": {"controllerManagerConfigYaml": _merge(configuration)},
    }


def _merge(configuration: str) -> str:
    own = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": "127.0.0.1:8443"},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},
    }
    return yaml.safe_dump({**own, **yaml.safe_load(configuration)})


def _build_patch(folder: Path) -> JsonObject:
    """Run the program that was built here."""
    container = {
        "name": "manager",
        "command": [f"{_FOLDER}/kueue"],
        "volumeMounts": [{"name": "programs", "mountPath": _FOLDER, "readOnly": True}],
    }
    volume = {"name": "programs", "hostPath": {"path": os.fspath(folder), "type": "Directory"}}
    return {"spec": {"replicas": 1, "template": {"spec": {"containers": [container], "volumes": [volume]}}}}


async def _wait_rolled_out(shell: Shell) -> None:
    try:
        await shell.run(f"kubectl -n {NAMESPACE} rollout status {_DEPLOYMENT} --timeout=170s")
    except E2eFailed as error:
        logs = await shell.run(f"kubectl -n {NAMESPACE} logs {_DEPLOYMENT} --tail=20 --all-containers")
        raise E2eFailed(f"{error}: {logs}") from error


async def _answers(shell: Shell) -> bool:
    """A dry run passes the webhook, once its certificate is known to the API server."""
    flavor = {
        "apiVersion": KUEUE,
        "kind": "ResourceFlavor",
        "metadata": {"name": "probe"},
    }
    command = "kubectl apply --dry-run=server -f - >/dev/null 2>&1 && echo yes || true"
    return bool((await shell.run(command, stdin=json.dumps(flavor))).strip())


# --- queues ---


@dataclass(frozen=True, slots=True)
class Kueue:
    """Kueue, while it is served."""

    shell: Shell
    image: str

    @asynccontextmanager
    async def open_team(
        self, namespace: str, quota: Mapping[str, int | str], flavor: JsonObject | None = None
    ) -> AsyncIterator[Team]:
        """Make the queues of ``examples/kueue.yaml`` for a namespace, with this quota, and in the end delete
        its jobs and them."""
        text = yaml.safe_dump_all(_build_queues(namespace, quota, flavor))
        await self.shell.run(f"kubectl -n {namespace} apply -f -", stdin=text)
        try:
            yield Team(self.shell, namespace, self.image)
        finally:
            await self.shell.run(f"kubectl -n {namespace} delete jobs --all --cascade=foreground")
            await self.shell.run(f"kubectl -n {namespace} delete -f -", stdin=text)


class Team:
    """A namespace whose jobs wait in a queue of its own."""

    def __init__(self, shell: Shell, namespace: str, image: str) -> None:
        self.namespace = namespace
        self._shell = shell
        self._image = image

    async def apply(self, *items: JsonObject) -> None:
        await self._shell.run(f"kubectl -n {self.namespace} apply -f -", stdin=yaml.safe_dump_all(items))

    async def submit(
        self, name: str, spec: JsonObject, pods: int = 1, pod: JsonObject | None = None, **more: JsonObject
    ) -> None:
        """Create a job whose pods have a claim of this spec each; ``more`` is for their template."""
        template = {"metadata": {"name": name}, "spec": {"spec": spec}}
        await self.apply({"apiVersion": RESOURCE, "kind": "ResourceClaimTemplate", **template})
        await self.apply(self.build_job(name, pod or build_pod("", [name], self._image), pods, **more))

    def build_job(self, name: str, pod: JsonObject, pods: int = 1, **more: JsonObject) -> JsonObject:
        template = {"spec": {**pod["spec"], "restartPolicy": "Never"}, **more}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}},
            "spec": {"suspend": True, "parallelism": pods, "completions": pods, "template": template},
        }

    async def wait_ready(self, job: str, count: int = 1) -> list[JsonObject]:
        """Wait until so many pods of the job are ready, and return them."""

        async def look() -> list[JsonObject]:
            ready = [pod for pod in await self.fetch_pods(job) if is_ready(pod)]
            return ready if len(ready) == count else []

        try:
            found: list[JsonObject] = await wait_until(look, f"job {job} runs", 2 * WAIT_SECONDS)
        except E2eFailed as error:
            raise E2eFailed(f"{error}: {await self.read_messages(job)}") from error
        return found

    async def wait_message(self, job: str, text: str) -> None:
        """Wait until Kueue reports this about the job, which has no pod."""

        async def look() -> str:
            found = await self.read_messages(job)
            return "" if any(text in message for message in found) else f"Kueue reports {found}"

        await wait_until(look, f"Kueue reports of job {job}: {text}")
        assert not await self.fetch_pods(job)

    async def read_messages(self, job: str) -> list[str]:
        """The messages of the conditions of the job's Workload."""
        conditions = (await self.fetch_workload(job)).get("status", {}).get("conditions", ())
        return [condition["message"] for condition in conditions]

    async def fetch_workload(self, job: str) -> JsonObject:
        """The Workload that Kueue makes of the job; empty before that."""
        for workload in await self._list("workloads"):
            if workload["metadata"]["ownerReferences"][0]["name"] == job:
                return workload
        return {}

    async def fetch_pods(self, job: str) -> list[JsonObject]:
        return await self._list(f"pods -l batch.kubernetes.io/job-name={job}")

    async def delete(self, job: str) -> None:
        """Return when its pods are gone."""
        await self._shell.run(f"kubectl -n {self.namespace} delete job {job} --cascade=foreground")

    async def _list(self, what: str) -> list[JsonObject]:
        text = await self._shell.run(f"kubectl -n {self.namespace} get {what} -o json")
        items: list[JsonObject] = json.loads(text)["items"]
        return items


def _build_queues(
    namespace: str, quota: Mapping[str, int | str], flavor: JsonObject | None
) -> list[JsonObject]:
    items = yaml.safe_load_all((REPOSITORY / "examples/kueue.yaml").read_text(encoding="utf-8"))
    own_flavor, queue, local_queue = (item for item in items if item and item["apiVersion"] == KUEUE)
    flavor = flavor or own_flavor
    queue["metadata"]["name"] = flavor["metadata"]["name"] = local_queue["spec"]["clusterQueue"] = namespace
    queue["spec"]["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    amounts = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    flavors = [{"name": namespace, "resources": amounts}]
    queue["spec"]["resourceGroups"] = [{"coveredResources": list(quota), "flavors": flavors}]
    return [flavor, queue, local_queue]
