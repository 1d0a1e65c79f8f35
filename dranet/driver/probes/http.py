"""Requests and answers of the probe port: as much of HTTP/1.1 as it needs."""

from __future__ import annotations

import ssl
from ipaddress import IPv6Address, ip_address
from typing import Any

from msgspec import Struct

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Caller(Struct, frozen=True):
    """The other end of a connection."""

    address: str = ""
    has_certificate: bool = False
    """Whether it showed a certificate that the TLS settings accept."""

    @property
    def is_on_node(self) -> bool:
        """Whether it is on the loopback of this network namespace."""
        try:
            address = ip_address(self.address.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


class Request(Struct, frozen=True):
    """A request line, and the two headers that matter here."""

    method: str
    path: str
    query: str = ""
    host: str = ""
    """Empty if the header is missing or repeated."""
    token: str = ""
    """From ``Authorization: Bearer``."""
    caller: Caller = Caller()

    @property
    def is_local(self) -> bool:
        """Whether a program on the node means this node. A web page elsewhere can make a browser here send us
        requests under a name of its own (DNS rebinding); ``Host`` then has that name."""
        name = self.host if self.host.endswith("]") else self.host.rpartition(":")[0] or self.host
        return self.caller.is_on_node and name.lower() in _LOCAL_NAMES


class Response(Struct, frozen=True):
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, has_body: bool) -> bytes:
        headers = (
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self.body))),
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *self.headers,
        )
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {self.status}\r\n{lines}\r\n".encode()
        return head + self.body if has_body else head


def parse_request(data: bytes, caller: Caller) -> Request:
    """Parse a request up to its empty line. Never fails: nonsense becomes an unknown method."""
    first, *lines = data.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    path, _, query = rest.partition(" ")[0].partition("?")
    fields = [
        (name.lower(), value.strip())
        for name, colon, value in (line.partition(":") for line in lines)
        if colon
    ]
    hosts = [value for name, value in fields if name == "host"]
    credentials = [value for name, value in fields if name == "authorization"]
    return Request(
        method,
        path,
        query,
        host=hosts[0] if len(hosts) == 1 else "",
        token=_read_token(credentials),
        caller=caller,
    )


def _read_token(credentials: list[str]) -> str:
    if len(credentials) != 1:
        return ""
    scheme, _, token = credentials[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def identify(address: Any, tls: ssl.SSLObject | None) -> Caller:
    """Return the caller of a connection from the properties of its transport."""
    known = str(address[0]) if isinstance(address, tuple) and address else ""
    return Caller(known, has_certificate=tls is not None and bool(tls.getpeercert()))
