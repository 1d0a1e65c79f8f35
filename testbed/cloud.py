"""A stand-in for the metadata service of a cloud, with the headers that each documents.

It answers with a file of ``tests/data/cloud``. A request without the cloud's header or token is refused,
as the real services refuse it, and :class:`Mischief` makes it misbehave.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JsonObject = Mapping[str, Any]

_HEADERS: Mapping[str, tuple[str, str]] = {
    "gce": ("Metadata-Flavor", "Google"),
    "azure": ("Metadata", "true"),
    "oke": ("Authorization", "Bearer Oracle"),
}
"""What each request must have."""
_TOKENS: Mapping[str, tuple[str, str]] = {
    "aws": ("X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"),
    "alibaba": ("X-aliyun-ecs-metadata-token-ttl-seconds", "X-aliyun-ecs-metadata-token"),
}
"""The header of the PUT that gets a token, and the header that shows it."""


class Mischief(StrEnum):
    NONE = "none"
    SILENT = "silent"
    """It takes the request and never answers."""
    HUGE = "huge"
    """A body that does not end within any limit."""
    REDIRECT = "redirect"
    WRONG_TYPES = "wrong types"
    """Valid JSON of another shape."""
    NOT_JSON = "not JSON"
    ERROR = "error"
    NOT_HTTP = "not HTTP"


class MetadataService:
    """One that runs; ``port`` on loopback."""

    def __init__(self, provider: str, answers: JsonObject) -> None:
        self.provider = provider
        self.answers: dict[str, Any] = dict(answers)
        self.mischief = Mischief.NONE
        self.requests: list[str] = []
        """``GET /path``, in order."""
        self.released = threading.Event()
        """Ends what :attr:`Mischief.SILENT` holds."""
        self.port = 0


@contextmanager
def serve_metadata(
    provider: str, answers: JsonObject, address: str = "127.0.0.1", port: int = 0
) -> Iterator[MetadataService]:
    service = MetadataService(provider, answers)

    class Handler(_Handler):
        pass

    Handler.service = service
    server = _Server((address, port), Handler)
    server.daemon_threads = True
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="metadata service")
    thread.start()
    try:
        yield service
    finally:
        service.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing of a client that has gone away in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    service: MetadataService
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._answer(self.path)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(f"PUT {self.path}")

    def _answer(self, key: str) -> None:
        service = self.service
        service.requests.append(key if key.startswith("PUT") else f"GET {key}")
        if service.mischief is not Mischief.NONE:
            self._misbehave(service.mischief)
        elif not self._is_allowed(key):
            self._send(403, b"")
        elif key not in service.answers:
            self._send(400 if "api-version" in key else 404, b"")
        else:
            answer = service.answers[key]
            self._send(200, (answer if isinstance(answer, str) else json.dumps(answer)).encode())

    def _is_allowed(self, key: str) -> bool:
        provider = self.service.provider
        if provider in _HEADERS:
            name, value = _HEADERS[provider]
            return self.headers.get(name) == value
        requested, shown = _TOKENS[provider]
        if key.startswith("PUT"):
            return self.headers.get(requested, "").isdecimal()
        return bool(self.headers.get(shown) == self.service.answers["PUT /latest/api/token"])

    def _misbehave(self, mischief: Mischief) -> None:
        match mischief:
            case Mischief.SILENT:
                self.service.released.wait()
                self.close_connection = True
            case Mischief.HUGE:
                self._flood()
            case Mischief.REDIRECT:
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{self.service.port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
            case Mischief.WRONG_TYPES:
                self._send(200, b'[{"compute": 1, "mac": [], "network": {"interface": {}}}, null, 7]')
            case Mischief.NOT_JSON:
                self._send(200, b"<html>\xff\xfe</html>")
            case Mischief.ERROR:
                self._send(500, b"try again")
            case _:
                self.wfile.write(b"SSH-2.0-none\r\n")
                self.close_connection = True

    def _flood(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        try:
            while not self.service.released.is_set():
                self.wfile.write(b" " * 65536)
        except OSError:
            self.close_connection = True

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
