"""Asks the API server: the Node, the rights of the caller, optional fields, and slices of other drivers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from dranet.cluster import paths, permissions
from dranet.cluster.capabilities import ask_capabilities
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.nodes import NodeDevices, parse_resources
from dranet.cluster.reviews import Denied, fetch_denied
from dranet.cluster.watch import fetch_snapshot
from dranet.desk.doctor.checks import ClusterFacts
from dranet.driver.executor import DriverExecutor
from dranet.driver.features import judge_api
from dranet.errors import DranetError, Reason
from dranet.model.findings import API, API_FIELD, Finding, Severity, ok
from dranet.settings import Authentication, Settings

PERMISSIONS = "permissions"
API_SERVER, PERMISSION_MISSING = "api-server", "permission-missing"

CLUSTER_SECONDS = 60.0
"""For all that the API server is asked, some dozens of questions."""

_ESSENTIAL = ("resourceslices", "resourceclaims", "nodes")
"""Resources without which no device is published or no claim prepared."""
_MOST_VERSION = 64

Answers = tuple[list[Finding], ClusterFacts]


async def ask_cluster_with_deadline(settings: Settings, *, ask_for_features: bool) -> Answers:
    """As :func:`ask_cluster`, but not for longer than :data:`CLUSTER_SECONDS`, name servers included."""
    asyncio.get_running_loop().set_default_executor(DriverExecutor(1))
    try:
        async with asyncio.timeout(CLUSTER_SECONDS):
            return await ask_cluster(settings, ask_for_features=ask_for_features)
    except TimeoutError:
        slow = Finding(
            API,
            Severity.PROBLEM,
            f"the API server has not answered everything within {CLUSTER_SECONDS:g} s",
            "devices are published late and claims prepared late, if at all",
            "is it overloaded, or the way to it or to the name server broken?",
            API_SERVER,
        )
        return [slow], ClusterFacts()


async def ask_cluster(settings: Settings, *, ask_for_features: bool) -> Answers:
    """The Node object, the rights of the caller, what other drivers offer here, and, where no driver has done
    so, the optional fields."""
    if not settings.kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return [not_asked("this is no pod, and no --kubeconfig is given")], ClusterFacts()
    try:
        client = _open_client(settings)
    except DranetError as error:
        return [_no_api_server(error)], ClusterFacts()
    async with client:
        try:
            finding, facts = await _look_at_node(client, settings.node_name)
            findings = [finding, *judge_denied(await _fetch_denied(client, settings))]
        except DranetError as error:
            return [_no_api_server(error)], ClusterFacts()
        if ask_for_features:
            findings += await _judge_features(client, settings)
        return findings, await _add_slices(client, settings, facts)


def _open_client(settings: Settings) -> ApiClient:
    if settings.kubeconfig:
        return ApiClient.from_kubeconfig(settings.kubeconfig)
    return ApiClient.from_in_cluster()


async def _fetch_denied(client: ApiClient, settings: Settings) -> list[Denied]:
    """Ask which of the rights that the driver needs with these settings are denied."""
    asks = settings.metrics_authentication is Authentication.KUBERNETES
    needed = (*permissions.PERMISSIONS, *(permissions.AUTHENTICATION_PERMISSIONS if asks else ()))
    return await fetch_denied(client, settings.driver_name, needed)


async def _look_at_node(client: ApiClient, node_name: str) -> tuple[Finding, ClusterFacts]:
    try:
        node = await client.get(paths.node(node_name))
    except DranetError as error:
        if error.reason is Reason.API_FORBIDDEN:
            seen = f"node {node_name} may not be read; see the rights"
            return Finding(API, Severity.NOTE, seen, id=API_SERVER), ClusterFacts()
        if error.reason is not Reason.API_NOT_FOUND:
            raise
        finding = Finding(
            API,
            Severity.PROBLEM,
            f"there is no Node called {node_name}",
            "slices belong to the Node object, and are not published without it",
            "set --node-name by the downward API (spec.nodeName)",
            API_SERVER,
        )
        return finding, ClusterFacts()
    facts = replace(parse_node(node), server_version=await _ask_version(client))
    return ok(API, f"{client.url} answers and knows node {node_name}", API_SERVER), facts


async def _ask_version(client: ApiClient) -> str:
    """Ask for the version, which every user may by default; empty where that right was removed."""
    try:
        return _text(await client.get("/version"), "gitVersion")
    except DranetError:
        return ""


def parse_node(node: JsonObject) -> ClusterFacts:
    """Read the kubelet's facts from a Node, which may have any shape."""
    status = node.get("status")
    info = status.get("nodeInfo") if isinstance(status, dict) else None
    return ClusterFacts(
        kubelet_version=_text(info, "kubeletVersion"),
        runtime_version=_text(info, "containerRuntimeVersion"),
        resources=parse_resources(node),
    )


def _text(document: Any, key: str) -> str:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, str) and len(value) <= _MOST_VERSION and value.isprintable() else ""


async def _add_slices(client: ApiClient, settings: Settings, facts: ClusterFacts) -> ClusterFacts:
    """Add the devices of other drivers; a missing right has been reported already."""
    devices = NodeDevices(client, settings.driver_name, settings.node_name)
    selector = f"spec.nodeName={settings.node_name},spec.driver!={settings.driver_name}"
    try:
        devices.take(await fetch_snapshot(client, paths.RESOURCE_SLICES, field_selector=selector))
    except DranetError:
        return facts
    return replace(facts, others=devices.get_all())


def judge_denied(denied: Iterable[Denied]) -> list[Finding]:
    """One finding for each missing right, or a single one if none is missing."""
    findings = [
        Finding(
            PERMISSIONS,
            Severity.PROBLEM if refusal.permission.resource in _ESSENTIAL else Severity.WARNING,
            f"may not {refusal}" + (f" ({refusal.reason})" if refusal.reason else ""),
            f"it is for this: {refusal.permission.why}",
            "apply the role of this version (deploy/rbac.yaml), or ask as the driver's service account",
            PERMISSION_MISSING,
        )
        for refusal in denied
    ]
    return findings or [ok(PERMISSIONS, "all that the driver's role allows", PERMISSION_MISSING)]


async def _judge_features(client: ApiClient, settings: Settings) -> list[Finding]:
    try:
        features = await ask_capabilities(client, settings.driver_name, settings.node_name)
    except DranetError as error:
        seen = f"the optional fields of slices cannot be asked for: {error.message}"
        return [Finding(API, Severity.NOTE, seen, id=API_FIELD)]
    return judge_api(features, settings)


def not_asked(why: str) -> Finding:
    """A finding for an API server whose address is unknown, which need not be unreachable."""
    return Finding(
        API,
        Severity.NOTE,
        f"not asked: {why}",
        "node, rights and features are not judged",
        "name a kubeconfig file with --kubeconfig, or run the doctor in the driver's pod",
        API_SERVER,
    )


def _no_api_server(error: DranetError) -> Finding:
    return Finding(
        API,
        Severity.PROBLEM,
        error.message,
        "devices are not published and claims not prepared",
        error.hint or "is --kubeconfig right, or is this the driver's pod?",
        API_SERVER,
    )


EVENTS_SECONDS = 10.0
MOST_EVENTS = 500


def fetch_events(settings: Settings) -> list[JsonObject]:
    """The Events that drivers of this name have written, as far as the caller may list them.

    Raises:
        DranetError: no API server, or no right; the driver's own role has none.
    """
    return asyncio.run(_fetch_events(settings))


async def _fetch_events(settings: Settings) -> list[JsonObject]:
    async with asyncio.timeout(EVENTS_SECONDS), _open_client(settings) as client:
        found = await fetch_snapshot(client, paths.events())
    ours = [event for event in found.items if is_event_of(event, settings.driver_name)]
    return [trim_event(event) for event in ours[-MOST_EVENTS:]]


_EVENT_FIELDS = (
    "type", "reason", "message", "count", "series", "action", "firstTimestamp", "lastTimestamp", "eventTime",
    "involvedObject", "source", "reportingComponent", "reportingInstance",
)  # fmt: skip


def trim_event(event: JsonObject) -> JsonObject:
    """Keep what the driver wrote and about which object; drop what others have added (labels,
    annotations)."""
    metadata = event.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    kept = {name: named[name] for name in ("name", "namespace") if name in named}
    return {"metadata": kept, **{name: event[name] for name in _EVENT_FIELDS if name in event}}


def is_event_of(event: JsonObject, driver: str) -> bool:
    source = event.get("source")
    names = (event.get("reportingComponent"), source.get("component") if isinstance(source, dict) else None)
    return driver in names
