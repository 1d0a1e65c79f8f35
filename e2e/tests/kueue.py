"""Kueue on the cluster, installed by its own chart with ``helm``.

The lane has no image of Kueue, no kube-proxy and no name server. So its pod runs the program that
``make cluster`` has built, in the network of the node; the API server reaches the webhooks at the address of
their Service, which is put on ``lo``; and the aggregated API for dashboards is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from e2e.access import E2eFailed
from e2e.cluster import build
from e2e.objects import JsonObject
from e2e.tests.pods import wait_until
from e2e.tests.shell import Shell
from testbed.node.iproute import run_ip

NAMESPACE = "kueue-system"
_DEPLOYMENT = "deployment/kueue-controller-manager"
_FOLDER = "/kueue"
_PORT = 443


@asynccontextmanager
async def open_kueue(shell: Shell, image: str, configuration: str) -> AsyncIterator[None]:
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
    address = ""
    try:
        await shell.run("kubectl delete apiservice -l app.kubernetes.io/name=kueue --ignore-not-found")
        address = await _read_address(shell)
        run_ip("address", "add", f"{address}/32", "dev", "lo")
        patch = json.dumps(_build_patch(folder))
        await shell.run(f"kubectl -n {NAMESPACE} patch {_DEPLOYMENT} --patch-file /dev/stdin", stdin=patch)
        await _wait_rolled_out(shell)
        await wait_until(lambda: _answers(shell), "Kueue's webhooks answer")
        yield
    finally:
        await shell.run(f"helm uninstall kueue --namespace {NAMESPACE} --wait")
        await shell.run(f"kubectl delete namespace {NAMESPACE}")
        if address:
            run_ip("address", "delete", f"{address}/32", "dev", "lo")


def _build_values(image: str, configuration: str) -> JsonObject:
    repository, _, tag = image.rpartition(":")
    manager: JsonObject = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": None},
        "podSecurityContext": {"runAsNonRoot": None},
        "containerSecurityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}},
    }
    return {
        "controllerManager": {"hostNetwork": True, "replicas": 0, "manager": manager},
        "webhookService": {"ports": [{"port": _PORT, "protocol": "TCP", "targetPort": _PORT}]},
        "managerConfig": {"controllerManagerConfigYaml": _merge(configuration)},
    }


def _merge(configuration: str) -> str:
    own = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": "127.0.0.1:8443"},
        "webhook": {"port": _PORT},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
        "integrations": {"frameworks": ["batch/job"]},
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
        await shell.run(f"kubectl -n {NAMESPACE} rollout status {_DEPLOYMENT} --timeout=90s")
    except E2eFailed as error:
        logs = await shell.run(f"kubectl -n {NAMESPACE} logs {_DEPLOYMENT} --tail=20 --all-containers")
        raise E2eFailed(f"{error}: {logs}") from error


async def _read_address(shell: Shell) -> str:
    path = "{.spec.clusterIP}"
    return await shell.run(f"kubectl -n {NAMESPACE} get service kueue-webhook-service -o jsonpath='{path}'")


async def _answers(shell: Shell) -> bool:
    """A dry run passes the webhook, once its certificate is known to the API server."""
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "probe"},
    }
    command = "kubectl apply --dry-run=server -f - >/dev/null 2>&1 && echo yes || true"
    return bool((await shell.run(command, stdin=json.dumps(flavor))).strip())
