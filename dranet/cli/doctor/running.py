"""Asks a running driver at its port: the state of its parts, and what it has seen of kubelet and runtime."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dranet.cluster.credentials import SERVICE_ACCOUNT_DIR
from dranet.model.findings import Finding, Severity, ok, parse_finding
from dranet.settings import Settings

DRIVER = "driver"
SILENT, NOT_READY, PORT_CERTIFICATE = "driver-silent", "part-not-ready", "port-certificate"

PROBE_SECONDS = 5.0
"""For the whole answer, which a driver has in memory."""
MAX_ANSWER_BYTES = 64 << 20
"""/metrics of a node with 10,000 links has some megabytes."""
FEATURES_PATH = "/readyz?verbose=json"

_TOKEN = SERVICE_ACCOUNT_DIR / "token"

_MEANS = {
    "driver": "the driver is leaving this node",
    "runtime": "no NIC can be attached, so no claim with a NIC is prepared",
    "kubelet": "no pod with a claim of ours starts on this node",
    "slices": "the scheduler does not see the node's devices as they are",
}


class NotListening(Exception):
    """No program listens on the port."""


class Page(NamedTuple):
    """What the port answers."""

    status: int
    body: bytes
    is_certified: bool
    """Whether the port showed the certificate of our own settings, if it has to show one."""


def ask_running_driver(settings: Settings) -> list[Finding] | None:
    """Return its findings; ``None`` where no driver listens."""
    try:
        page = fetch_page(settings, FEATURES_PATH)
    except NotListening:
        return None
    except (OSError, ValueError, http.client.HTTPException):
        return [_no_driver(settings.bind_address)]
    doubts = [] if page.is_certified else [_other_certificate(settings)]
    if page.status in (401, 403):
        return [*doubts, _not_let_in(settings.bind_address, page.status)]
    try:
        findings = parse_running(page.body)
    except (ValueError, RecursionError):
        return [*doubts, _no_driver(settings.bind_address)]
    knows = any(f.id == PORT_CERTIFICATE and f.severity is not Severity.OK for f in findings)
    return findings if knows else [*doubts, *findings]


def fetch_page(settings: Settings, path: str) -> Page:
    """One page of the port.

    Raises:
        NotListening: no program listens.
        OSError: no answer in time.
        HTTPException: an answer that is no HTTP.
    """
    host, _, port = settings.bind_address.rpartition(":")
    connection = http.client.HTTPConnection(_reachable(host.strip("[]")), int(port), timeout=PROBE_SECONDS)
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


def _reachable(host: str) -> str:
    """The address to connect to: the loopback for a driver that listens on all addresses."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def _speak_tls(sock: socket.socket, certificate: Path) -> tuple[ssl.SSLSocket, bool]:
    """Wrap the socket in TLS; return it, and whether it shows the certificate of our own settings.

    The program that shows this certificate is the driver, whatever its name. A driver whose files have been
    damaged since then shows the previous one; it gets no secret of ours.
    """
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
    """Parse ``/readyz?verbose=json``; a part that is not ready is reported once.

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
    reported = {finding.part for finding in features if finding.severity is Severity.PROBLEM}
    shown = [
        _judge_part(name, ready, detail) for name, ready, detail in parts if ready or name not in reported
    ]
    return [*shown, *features]


def _judge_part(name: str, ready: bool, detail: str) -> Finding:
    if ready:
        return ok(name, f"ready{f': {detail}' if detail else ''}", NOT_READY)
    seen = detail or "not ready"
    return Finding(name, Severity.PROBLEM, seen, _MEANS.get(name, ""), "see the driver's log", NOT_READY)


def no_answer(bind_address: str) -> Finding:
    return Finding(
        DRIVER,
        Severity.WARNING,
        f"no driver answers on {bind_address}",
        "what the kubelet and the runtime can do is seen by a running driver alone",
        "start it and look again; --bind-address is where it answers",
        SILENT,
    )


def _no_driver(bind_address: str) -> Finding:
    return Finding(
        DRIVER,
        Severity.WARNING,
        f"what answers on {bind_address} is no driver of this version",
        "what it knows of the kubelet and the runtime cannot be shown",
        "run the doctor of the driver's own image, or correct --bind-address",
        SILENT,
    )


def _not_let_in(bind_address: str, status: int) -> Finding:
    return Finding(
        DRIVER,
        Severity.WARNING,
        f"the driver on {bind_address} does not let us read its page (HTTP {status})",
        "what it knows of the kubelet and the runtime cannot be shown",
        "run it in the driver's pod (kubectl exec), or on the node with --bind-address localhost:PORT",
        SILENT,
    )


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
