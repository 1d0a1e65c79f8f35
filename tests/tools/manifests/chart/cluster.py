"""The API server stand-in with the kinds that an installation is made of, for Helm to install into: of
itself it has those that the driver deals with."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from dranet.desk.kubeapi import kinds
from dranet.desk.kubeapi.kinds import Kind
from testbed.apiserver import handler
from testbed.apiserver.server import ApiServer

JsonObject = dict[str, Any]

_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
INSTALLED = (
    Kind("", "serviceaccounts", "ServiceAccount"),
    Kind("", "resourcequotas", "ResourceQuota"),
    Kind("", "services", "Service"),
    Kind(_RBAC, "roles", "Role"),
    Kind(_RBAC, "rolebindings", "RoleBinding"),
    Kind(_RBAC, "clusterroles", "ClusterRole", namespaced=False),
    Kind(_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind(_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False),
    Kind(
        _ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
    ),
    Kind("apps", "daemonsets", "DaemonSet", has_status=True, counts_generation=True),
    Kind("networking.k8s.io", "networkpolicies", "NetworkPolicy"),
    Kind("monitoring.coreos.com", "podmonitors", "PodMonitor"),
    Kind("monitoring.coreos.com", "servicemonitors", "ServiceMonitor"),
    Kind("monitoring.coreos.com", "prometheusrules", "PrometheusRule"),
)


def extend_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve these kinds, and say by OpenAPI that fields are validated by the server, as Helm asks first."""
    served = {(kind.group, kind.plural) for kind in kinds.KINDS}
    every = (*kinds.KINDS, *(kind for kind in INSTALLED if (kind.group, kind.plural) not in served))
    table = {(kind.group, kind.version, kind.plural): kind for kind in every}
    discover = kinds.build_discovery

    def build_discovery(path: str) -> JsonObject | None:
        return _build_openapi(path, every) if path.startswith("/openapi/v3") else discover(path)

    monkeypatch.setattr(kinds, "KINDS", every)
    monkeypatch.setattr(kinds, "_BY_RESOURCE", table)
    monkeypatch.setattr(handler, "build_discovery", build_discovery)


def _root(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _build_openapi(path: str, served: tuple[Kind, ...]) -> JsonObject:
    group = path.removeprefix("/openapi/v3").strip("/")
    if not group:
        return {
            "paths": {_root(kind): {"serverRelativeURL": f"/openapi/v3/{_root(kind)}"} for kind in served}
        }
    paths = {}
    for kind in served:
        if _root(kind) == group:
            place = "namespaces/{namespace}/" if kind.namespaced else ""
            of_type = {"group": kind.group, "kind": kind.kind, "version": kind.version}
            paths[f"/{group}/{place}{kind.plural}/{{name}}"] = {
                "patch": {
                    "parameters": [{"in": "query", "name": "fieldValidation"}],
                    "x-kubernetes-group-version-kind": of_type,
                }
            }
    return {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1"}, "paths": paths}


async def list_objects(server: ApiServer) -> dict[tuple[str, str], JsonObject]:
    """Everything of the kinds of an installation, by kind and name."""
    wanted = [*INSTALLED, kinds.DEVICE_CLASSES, kinds.CONFIG_MAPS, kinds.NAMESPACES]
    found: dict[tuple[str, str], JsonObject] = {}
    for kind in wanted:
        items = await asyncio.to_thread(_fetch, f"{server.url}/{_root(kind)}/{kind.plural}")
        found.update({(kind.kind, item["metadata"]["name"]): item for item in items})
    return found


def _fetch(url: str) -> list[JsonObject]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        items: list[JsonObject] = json.load(answer)["items"]
    return items
