"""A webhook provider, made from DraNet's documentation: attributes, configs and profiles behind HTTP.

It is also a program: ``python -m testbed.provider --config FILE --listen HOST:PORT`` (or ``unix:/PATH``).

A profile with a ``pool`` gives each device of a claim an address and remembers it by device name and claim
UID, as the documentation asks of a provider. ``trouble`` makes one path misbehave.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_network
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self

HEALTH, ATTRIBUTES, CONFIG = "/health", "/GetDeviceAttributes", "/GetDeviceConfig"
PROFILE, RELEASE = "/GetProfileConfig", "/ReleaseProfileConfig"

Document = Mapping[str, Any]
Grant = tuple[str, str]
"""Device name and claim UID."""


@dataclass(frozen=True, slots=True)
class Call:
    path: str
    body: Any = None


@dataclass(slots=True)
class Trouble:
    """What a path does in place of its answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: threading.Event | None = None
    """The answer waits for it."""
    does_work: bool = False
    """The request takes effect, and only its answer is lost."""


@dataclass
class Provider:
    """The provider's state. Fields may change while it serves."""

    attributes: dict[str, Any] = field(default_factory=dict)
    """By name of the interface; ``*`` for any."""
    configs: dict[str, Any] = field(default_factory=dict)
    """By device name; ``*`` for any."""
    profiles: dict[str, Any] = field(default_factory=dict)
    """By name: a config, with ``pool`` (a CIDR) in place of addresses that are to be chosen."""
    capabilities: Any = field(default_factory=lambda: {"cloudProvider": True, "profileProvider": True})
    calls: list[Call] = field(default_factory=list)
    grants: dict[Grant, Any] = field(default_factory=dict)
    """What is not released, with the config that was given."""
    releases: list[Grant] = field(default_factory=list)
    """Grants that were released, once each; a release of what is not granted is in ``calls`` alone."""
    trouble: dict[str, Trouble] = field(default_factory=dict)
    """By path."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def asked(self, path: str) -> list[Any]:
        with self.lock:
            return [call.body for call in self.calls if call.path == path]

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and document."""
        with self.lock:
            self.calls.append(Call(path, body))
            match path:
                case "/health":
                    return 200, self.capabilities
                case "/GetDeviceAttributes":
                    return 200, _choose(self.attributes, body["name"])
                case "/GetDeviceConfig":
                    return 200, _choose(self.configs, body["name"])
                case "/GetProfileConfig":
                    return self._grant(body)
                case "/ReleaseProfileConfig":
                    return self._release(body)
                case _:
                    return 404, {}

    def _grant(self, body: Document) -> tuple[int, Any]:
        name = body["config"].get("profile", "")
        if name not in self.profiles:
            return 404, f"profile {name!r} not found"
        key = body["device"]["name"], body["claim_uid"]
        if key not in self.grants:
            config = json.loads(json.dumps(self.profiles[name]))
            pool = config.pop("pool", None)
            if pool:
                config.setdefault("interface", {})["addresses"] = [self._choose_address(pool)]
            self.grants[key] = config
        return 200, self.grants[key]

    def _choose_address(self, pool: str) -> str:
        network = ip_network(pool)
        taken = {address for grant in self.grants.values() for address in _addresses(grant)}
        candidates = (f"{host}/{network.prefixlen}" for host in network.hosts())
        return next(address for address in candidates if address not in taken)

    def _release(self, body: Document) -> tuple[int, Any]:
        key = body["device"]["name"], body["claim_uid"]
        if self.grants.pop(key, None) is not None:
            self.releases.append(key)
        return 200, {}


def _choose(answers: Mapping[str, Any], name: str) -> Any:
    return answers.get(name, answers.get("*", {}))


def _addresses(config: Document) -> list[str]:
    return list(config.get("interface", {}).get("addresses", []))


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _serve(self, body: Any) -> None:
        provider = self.server.provider
        trouble = provider.trouble.get(self.path)
        if trouble is None:
            status, document = provider.answer(self.path, body)
            self._send(status, json.dumps(document).encode(), {})
            return
        if trouble.does_work:
            provider.answer(self.path, body)
        else:
            provider.calls.append(Call(self.path, body))
        if trouble.hang is not None:
            trouble.hang.wait()
        self._send(trouble.status, trouble.body, trouble.headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "client"  # a UNIX socket has no address

    def log_request(self, *_: object) -> None:
        pass

    def log_error(self, *_: object) -> None:
        pass


class _Server(ThreadingMixIn, TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: Any, provider: Provider) -> None:
        self.provider = provider
        if isinstance(address, str):
            self.address_family = socket.AF_UNIX
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gives up is part of the play."""


class ProviderServer:
    """Serves a :class:`Provider` until it is closed. ``start`` after ``stop`` listens at the same place."""

    def __init__(
        self,
        provider: Provider,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        socket_path: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.provider = provider
        self._host, self._port, self._socket_path, self._tls = host, port, socket_path, tls
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        if self._socket_path is not None:
            return f"unix://{self._socket_path}"
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    def start(self) -> None:
        address: Any = (self._host, self._port)
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
            address = str(self._socket_path)
        server = self._server = _Server(address, self.provider)
        if self._tls is not None:
            server.socket = self._tls.wrap_socket(server.socket, server_side=True)
        if self._socket_path is None:
            self._port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for trouble in self.provider.trouble.values():
            if trouble.hang is not None:
                trouble.hang.set()
        self.stop()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.provider", description="a provider to try out")
    parser.add_argument("--listen", default="127.0.0.1:8081", metavar="HOST:PORT|unix:PATH")
    parser.add_argument("--config", type=Path, help="JSON: attributes, configs, profiles, capabilities")
    options = parser.parse_args(arguments)
    provider = Provider(**json.loads(options.config.read_text()) if options.config else {})
    kind, _, place = options.listen.rpartition(":")
    if kind == "unix":
        server = ProviderServer(provider, socket_path=Path(place))
    else:
        server = ProviderServer(provider, host=kind, port=int(place))
    with server:
        sys.stdout.write(f"ready: {server.url}\n")
        sys.stdout.flush()
        threading.Event().wait()  # until a signal


if __name__ == "__main__":
    main()
