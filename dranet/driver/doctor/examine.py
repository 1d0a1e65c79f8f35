"""What ``dranet doctor`` looks at: the running driver through its probe port, else the API server itself.

Some things only a running driver knows, because the kubelet and the runtime show what they can do by what
they call. The rest is asked here and now: rights, the Node object, folders and sockets.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress

from dranet.cluster import paths
from dranet.cluster.access import Denied, fetch_denied
from dranet.cluster.client import ApiClient
from dranet.cluster.features import ask_features
from dranet.driver.doctor.features import API, judge_api
from dranet.driver.doctor.findings import Finding, Severity, ok, parse_finding
from dranet.driver.doctor.places import judge_places
from dranet.driver.workers import Workers
from dranet.errors import DranetError, Reason
from dranet.settings import Settings

DRIVER, PERMISSIONS, SETTINGS = "driver", "permissions", "settings"

PROBE_SECONDS = 5.0
"""For the whole answer of a running driver, which has it in memory."""
CLUSTER_SECONDS = 60.0
"""For all that the API server is asked, some dozens of questions."""
MAX_ANSWER_BYTES = 1 << 20

_ESSENTIAL = ("resourceslices", "resourceclaims", "nodes")
"""Resources without which no device is published or no claim prepared."""

_NOT_READY = {
    "driver": "the driver is leaving this node",
    "runtime": "no NIC can be attached, so no claim with a NIC is prepared",
    "kubelet": "no pod with a claim of ours starts on this node",
    "slices": "the scheduler does not see the node's devices as they are",
}


def examine(settings: Settings) -> list[Finding]:
    """Everything that can be found out now, in the order in which it was asked."""
    running = ask_running_driver(settings.bind_address)
    named = f"driver {settings.driver_name} on node {settings.node_name}"
    return [
        ok(SETTINGS, named),
        *(running if running is not None else [_nobody_answers(settings.bind_address)]),
        *asyncio.run(ask_cluster_in_time(settings, ask_for_features=running is None)),
        *judge_places(settings),
    ]


def ask_running_driver(bind_address: str) -> list[Finding] | None:
    """What a driver says at its probe port; ``None`` where nobody is."""
    host, _, port = bind_address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]") or "127.0.0.1", int(port), timeout=PROBE_SECONDS)
    with closing(connection):
        try:
            connection.connect()
        except OSError:
            return None
        try:
            return parse_running(_fetch_page(connection))
        except (OSError, ValueError, RecursionError, http.client.HTTPException):
            return [
                Finding(
                    DRIVER,
                    Severity.WARNING,
                    f"what answers on {bind_address} is no driver of this version",
                    "what it knows of the kubelet and the runtime cannot be shown",
                    "run the doctor of the driver's own image, or correct --bind-address",
                )
            ]


def _fetch_page(connection: http.client.HTTPConnection) -> bytes:
    with _ended_after(connection.sock, PROBE_SECONDS):
        connection.request("GET", "/readyz?verbose=json")
        return connection.getresponse().read(MAX_ANSWER_BYTES)


@contextmanager
def _ended_after(sock: socket.socket, seconds: float) -> Iterator[None]:
    """A socket's own timeout begins anew with every byte."""

    def end() -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def parse_running(page: bytes) -> list[Finding]:
    """What ``/readyz?verbose=json`` says; a part that is not ready is told once.

    Raises:
        ValueError: it is not such a page.
    """
    document = json.loads(page)
    try:
        features = [parse_finding(data) for data in document["features"]]
        parts = [
            (str(part["name"]), part["ready"] is True, str(part["detail"])) for part in document["parts"]
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("not the page of a driver") from error
    told = {finding.part for finding in features if finding.severity is Severity.PROBLEM}
    shown = [_judge_part(name, ready, detail) for name, ready, detail in parts if ready or name not in told]
    return [*shown, *features]


def _judge_part(name: str, ready: bool, detail: str) -> Finding:
    if ready:
        return ok(name, f"ready{f': {detail}' if detail else ''}")
    return Finding(
        name, Severity.PROBLEM, detail or "not ready", _NOT_READY.get(name, ""), "see the driver's log"
    )


def _nobody_answers(bind_address: str) -> Finding:
    return Finding(
        DRIVER,
        Severity.WARNING,
        f"no driver answers on {bind_address}",
        "what the kubelet and the runtime can do is seen by a running driver alone",
        "start it and look again; --bind-address says where it answers",
    )


async def ask_cluster_in_time(settings: Settings, *, ask_for_features: bool) -> list[Finding]:
    """As :func:`ask_cluster`, but not for longer than :data:`CLUSTER_SECONDS`, name servers included."""
    asyncio.get_running_loop().set_default_executor(Workers(1))
    try:
        async with asyncio.timeout(CLUSTER_SECONDS):
            return await ask_cluster(settings, ask_for_features=ask_for_features)
    except TimeoutError:
        return [
            Finding(
                API,
                Severity.PROBLEM,
                f"the API server has not answered everything within {CLUSTER_SECONDS:g} s",
                "devices are published late and claims prepared late, if at all",
                "is it overloaded, or the way to it or to the name server broken?",
            )
        ]


async def ask_cluster(settings: Settings, *, ask_for_features: bool) -> list[Finding]:
    """The Node object, the rights of the caller and, where no driver has done so, the optional fields."""
    try:
        client = _open_client(settings)
    except DranetError as error:
        return [_no_api_server(error)]
    async with client:
        try:
            findings = [await _judge_node(client, settings.node_name)]
            findings += judge_denied(await fetch_denied(client, settings.driver_name))
        except DranetError as error:
            return [_no_api_server(error)]
        if ask_for_features:
            findings += await _judge_features(client, settings)
    return findings


def _open_client(settings: Settings) -> ApiClient:
    if settings.kubeconfig:
        return ApiClient.from_kubeconfig(settings.kubeconfig)
    return ApiClient.from_in_cluster()


async def _judge_node(client: ApiClient, node_name: str) -> Finding:
    try:
        await client.get(paths.node(node_name))
    except DranetError as error:
        if error.reason is Reason.API_FORBIDDEN:
            return Finding(API, Severity.NOTE, f"node {node_name} may not be read; see the rights")
        if error.reason is not Reason.API_NOT_FOUND:
            raise
        return Finding(
            API,
            Severity.PROBLEM,
            f"there is no Node called {node_name}",
            "slices belong to the Node object, and are not published without it",
            "set --node-name by the downward API (spec.nodeName)",
        )
    return ok(API, f"{client.url} answers and knows node {node_name}")


def judge_denied(denied: Iterable[Denied]) -> list[Finding]:
    """One finding for each right that lacks, or one that says that none does."""
    findings = [
        Finding(
            PERMISSIONS,
            Severity.PROBLEM if refusal.permission.resource in _ESSENTIAL else Severity.WARNING,
            f"may not {refusal}" + (f" ({refusal.reason})" if refusal.reason else ""),
            f"it is for this: {refusal.permission.why}",
            "apply the role of this version (deploy/rbac.yaml), or ask as the driver's service account",
        )
        for refusal in denied
    ]
    return findings or [ok(PERMISSIONS, "all that the driver's role allows")]


async def _judge_features(client: ApiClient, settings: Settings) -> list[Finding]:
    try:
        features = await ask_features(client, settings.driver_name, settings.node_name)
    except DranetError as error:
        return [
            Finding(API, Severity.NOTE, f"the optional fields of slices cannot be asked for: {error.message}")
        ]
    return judge_api(features, settings)


def _no_api_server(error: DranetError) -> Finding:
    return Finding(
        API,
        Severity.PROBLEM,
        error.message,
        "devices are not published and claims not prepared",
        error.hint or "is --kubeconfig right, or is this the driver's pod?",
    )
