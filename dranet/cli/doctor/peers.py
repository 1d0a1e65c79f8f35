"""Asks a running driver at its port (the state of its parts, what it has seen of kubelet and runtime), and
the API server: the Node, the rights of the caller, optional fields, slices of other drivers."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from dranet.cluster import paths, permissions
from dranet.cluster.capabilities import ask_capabilities
from dranet.cluster.client import ApiClient, JsonObject, Snapshot, fetch_snapshot
from dranet.cluster.nodes import NodeDevices, parse_resources
from dranet.cluster.permissions import Denied, fetch_denied
from dranet.cluster.transport import SERVICE_ACCOUNT_DIR
from dranet.desk.doctor.checks import ClusterFacts
from dranet.driver.executor import DriverExecutor
from dranet.driver.features import judge_api
from dranet.errors import DranetError, Reason
from dranet.model.findings import API, API_FIELD, Finding, Severity, ok, parse_finding
from dranet.settings import Authentication, Settings

DRIVER = "driver"
SILENT, NOT_READY, PORT_CERTIFICATE = "driver-silent", "part-not-ready", "port-certificate"

PROBE_SECONDS = 5.0
"""For the whole answer, which a driver has in memory."""
MAX_ANSWER_BYTES = 64 << 20
"""/metrics of a node with 10,000 links has some megabytes."""
FEATURES_PATH = "/readyz?verbose=json"

_TOKEN = SERVICE_ACCOUNT_DIR / "token"
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Where a driver that listens on all addresses is reached."""

_MEANS = {
    "driver": "the driver is leaving this node",
    "runtime": "no NIC can be attached, so no claim with a NIC is prepared",
    "kubelet": "no pod with a claim of ours starts on this node",
    "slices": "the scheduler does not see the node's devices as they are",
}


class NotListening(Exception):
    """No program listens on the port."""


class Page(NamedTuple):
    status: int
    body: bytes
    is_certified: bool
    """Whether the port showed the certificate of our own settings, if it has to show one."""


def ask_running_driver(settings: Settings) -> list[Finding] | None:
    """Its findings; ``None`` where no driver listens."""
    try:
        page = fetch_page(settings, FEATURES_PATH)
    except NotListening:
        return None
    except (OSError, ValueError, http.client.HTTPException):
        return [_no_driver(settings.bind_address)]
    doubts = [] if page.is_certified else [_other_certificate(settings)]
    if page.status in (401, 403):
        seen = f"the driver on {settings.bind_address} does not let us read its page (HTTP {page.status})"
        fix = "run it in the driver's pod (kubectl exec), or on the node with --bind-address localhost:PORT"
        return [*doubts, _silent(seen, _NOT_SHOWN, fix)]
    try:
        findings = parse_running(page.body)
    except (ValueError, RecursionError):
        return [*doubts, _no_driver(settings.bind_address)]
    knows = any(f.id == PORT_CERTIFICATE and f.severity is not Severity.OK for f in findings)
    return findings if knows else [*doubts, *findings]


def fetch_page(settings: Settings, path: str) -> Page:
    """Raises NotListening, OSError without an answer in time, and HTTPException for one that is no HTTP."""
    host, _, port = settings.bind_address.rpartition(":")
    host = _LOOPBACK.get(host.strip("[]"), host.strip("[]"))
    connection = http.client.HTTPConnection(host, int(port), timeout=PROBE_SECONDS)
    with closing(connection):
        try:
            connection.connect()
        except OSError as error:
            raise NotListening from error
        with _ended_after(connection, PROBE_SECONDS):
            is_certified, headers = True, dict[str, str]()
            if settings.metrics_tls_cert is not None:
                connection.sock, is_certified = _speak_tls(connection.sock, settings.metrics_tls_cert)
                headers = _read_authorization() if is_certified else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return Page(response.status, response.read(MAX_ANSWER_BYTES), is_certified)


def _speak_tls(sock: socket.socket, certificate: Path) -> tuple[ssl.SSLSocket, bool]:
    """Wrap the socket in TLS; return it, and whether it shows the certificate of our own settings: then it is
    the driver, whatever its name. One whose files have been damaged since shows the previous certificate; it
    gets no secret of ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    spoken = context.wrap_socket(sock)
    return spoken, spoken.getpeercert(binary_form=True) == _read_certificate(certificate)


def _read_certificate(file: Path) -> bytes:
    """The first one: that of the port itself, those of its authorities follow. Empty if the file has none."""
    try:
        _, begin, rest = file.read_text("ascii").partition("-----BEGIN CERTIFICATE-----")
        body, end, _ = rest.partition("-----END CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(begin + body + end)
    except (OSError, ValueError):
        return b""


def _read_authorization() -> dict[str, str]:
    """The token of the pod that we are in; sent only to the driver (:func:`_speak_tls`)."""
    try:
        return {"Authorization": f"Bearer {_TOKEN.read_text('ascii').strip()}"}
    except (OSError, UnicodeDecodeError):
        return {}


@contextmanager
def _ended_after(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Limit the whole exchange: a socket's own timeout restarts with every byte."""

    def end() -> None:
        with suppress(OSError):
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def parse_running(page: bytes) -> list[Finding]:
    """A part that is not ready is reported once. Raises ValueError for what is no such page."""
    document = json.loads(page)
    try:
        features = [parse_finding(data) for data in document["features"]]
        parts = [(str(p["name"]), p["ready"] is True, str(p["detail"])) for p in document["parts"]]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("not the page of a driver") from error
    reported = {finding.part for finding in features if finding.severity is Severity.PROBLEM}
    shown = [_judge_part(*part) for part in parts if part[1] or part[0] not in reported]
    return [*shown, *features]


def _judge_part(name: str, ready: bool, detail: str) -> Finding:
    if ready:
        return ok(name, f"ready{f': {detail}' if detail else ''}", NOT_READY)
    seen, fix = detail or "not ready", "see the driver's log"
    return Finding(name, Severity.PROBLEM, seen, _MEANS.get(name, ""), fix, NOT_READY)


_NOT_SHOWN = "what it knows of the kubelet and the runtime cannot be shown"


def no_answer(bind_address: str) -> Finding:
    return _silent(
        f"no driver answers on {bind_address}",
        "only a running driver sees what the kubelet and the runtime can do",
        "start it and look again; --bind-address is where it answers",
    )


def _no_driver(bind_address: str) -> Finding:
    fix = "run the doctor of the driver's own image, or correct --bind-address"
    return _silent(f"what answers on {bind_address} is no driver of this version", _NOT_SHOWN, fix)


def _silent(seen: str, matters: str, fix: str) -> Finding:
    return Finding(DRIVER, Severity.WARNING, seen, matters, fix, SILENT)


def _other_certificate(settings: Settings) -> Finding:
    return Finding(
        "port",
        Severity.WARNING,
        f"what answers on {settings.bind_address} shows another certificate than that in "
        f"{settings.metrics_tls_cert}",
        "no token was sent to it; if it is the driver, scrapers will refuse the old one once it expires",
        "fix the Secret: certificate and key must belong together; is --metrics-tls-cert the driver's?",
        PORT_CERTIFICATE,
    )


# --- the API server -------------------------------------------------------------------------------------

PERMISSIONS = "permissions"
API_SERVER, PERMISSION_MISSING = "api-server", "permission-missing"

CLUSTER_SECONDS = 60.0
"""For all that the API server is asked, some dozens of questions."""

_ESSENTIAL = ("resourceslices", "resourceclaims", "nodes")
"""Resources without which no device is published or no claim prepared."""
_MOST_VERSION = 64

Answers = tuple[list[Finding], ClusterFacts]


async def ask_cluster_with_deadline(settings: Settings, *, ask_for_features: bool) -> Answers:
    """:data:`CLUSTER_SECONDS` include the time that name servers take."""
    asyncio.get_running_loop().set_default_executor(DriverExecutor(1))
    try:
        async with asyncio.timeout(CLUSTER_SECONDS):
            return await ask_cluster(settings, ask_for_features=ask_for_features)
    except TimeoutError:
        slow = _problem(
            f"the API server has not answered everything within {CLUSTER_SECONDS:g} s",
            "devices are published late and claims prepared late, if at all",
            "is it overloaded, or the way to it or to the name server broken?",
        )
        return [slow], ClusterFacts()


async def ask_cluster(settings: Settings, *, ask_for_features: bool) -> Answers:
    """The optional fields are for a node where no driver has asked for them."""
    if not settings.kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return [not_asked("this is no pod, and no --kubeconfig is given")], ClusterFacts()
    try:
        client = _open_client(settings)
    except DranetError as error:
        return [_no_api_server(error)], ClusterFacts()
    async with client:
        try:
            finding, facts = await _look_at_node(client, settings.node_name)
            asks = settings.metrics_authentication is Authentication.KUBERNETES
            needed = (*permissions.PERMISSIONS, *(permissions.AUTHENTICATION_PERMISSIONS if asks else ()))
            findings = [finding, *judge_denied(await fetch_denied(client, settings.driver_name, needed))]
        except DranetError as error:
            return [_no_api_server(error)], ClusterFacts()
        if ask_for_features:
            findings += await _judge_features(client, settings)
        return findings, await _add_slices(client, settings, facts)


def _open_client(settings: Settings) -> ApiClient:
    if settings.kubeconfig:
        return ApiClient.from_kubeconfig(settings.kubeconfig)
    return ApiClient.from_in_cluster()


async def _look_at_node(client: ApiClient, node_name: str) -> tuple[Finding, ClusterFacts]:
    try:
        node = await client.get(paths.node(node_name))
    except DranetError as error:
        if error.reason is Reason.API_FORBIDDEN:
            seen = f"node {node_name} may not be read; see the rights"
            return Finding(API, Severity.NOTE, seen, id=API_SERVER), ClusterFacts()
        if error.reason is not Reason.API_NOT_FOUND:
            raise
        finding = _problem(
            f"there is no Node called {node_name}",
            "slices belong to the Node object, and are not published without it",
            "set --node-name by the downward API (spec.nodeName)",
        )
        return finding, ClusterFacts()
    version = ""
    with suppress(DranetError):  # every user may ask, unless that right was removed
        version = _text(await client.get("/version"), "gitVersion")
    facts = replace(parse_node(node), server_version=version)
    return ok(API, f"{client.url} answers and knows node {node_name}", API_SERVER), facts


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
    """The devices of other drivers as well; a missing right has been reported already."""
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
    fix = error.hint or "is --kubeconfig right, or is this the driver's pod?"
    return _problem(error.message, "no devices are published and no claims are prepared", fix)


def _problem(seen: str, matters: str, fix: str) -> Finding:
    return Finding(API, Severity.PROBLEM, seen, matters, fix, API_SERVER)


EVENTS_SECONDS = 10.0
MOST_EVENTS = 500


def fetch_events(settings: Settings) -> list[JsonObject]:
    """Those that drivers of this name have written. Raises DranetError where there is no API server, or no
    right to list them: the driver's own role has none."""

    async def fetch() -> Snapshot:
        async with asyncio.timeout(EVENTS_SECONDS), _open_client(settings) as client:
            return await fetch_snapshot(client, paths.events())

    ours = [event for event in asyncio.run(fetch()).items if _is_event_of(event, settings.driver_name)]
    return [trim_event(event) for event in ours[-MOST_EVENTS:]]


_EVENT_FIELDS = (
    "type", "reason", "message", "count", "series", "action", "firstTimestamp", "lastTimestamp", "eventTime",
    "involvedObject", "source", "reportingComponent", "reportingInstance",
)  # fmt: skip


def trim_event(event: JsonObject) -> JsonObject:
    """What the driver wrote, about which object; not what others have added (labels, annotations)."""
    metadata = event.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    kept = {name: named[name] for name in ("name", "namespace") if name in named}
    return {"metadata": kept, **{name: event[name] for name in _EVENT_FIELDS if name in event}}


def _is_event_of(event: JsonObject, driver: str) -> bool:
    source = event.get("source")
    names = (event.get("reportingComponent"), source.get("component") if isinstance(source, dict) else None)
    return driver in names
