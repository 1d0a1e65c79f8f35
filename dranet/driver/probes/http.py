"""Requests and answers of the probe port: as much of HTTP/1.1 as it needs, and the check of credentials.

``/healthz`` and the plain ``/readyz`` are public: the kubelet shows no credentials. ``/metrics`` needs them
if the settings require it. The status page and ``/readyz?verbose`` do as well, except for callers on the node
itself (``dranet doctor``, ``kubectl port-forward``). A caller with the driver's own token is in the driver's
pod and is let in without a review.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any

from msgspec import Struct

from dranet.cluster.client import ApiClient
from dranet.cluster.permissions import fetch_may_get, fetch_user
from dranet.errors import DranetError
from dranet.settings import Authentication, NodePage

log = logging.getLogger(__name__)

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Caller(Struct, frozen=True):
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
    scheme, _, token = (credentials[0] if len(credentials) == 1 else "").partition(" ")
    return Request(
        method,
        path,
        query,
        host=hosts[0] if len(hosts) == 1 else "",
        token=token.strip() if scheme.lower() == "bearer" else "",
        caller=caller,
    )


def identify(address: Any, tls: ssl.SSLObject | None) -> Caller:
    known = str(address[0]) if isinstance(address, tuple) and address else ""
    return Caller(known, has_certificate=tls is not None and bool(tls.getpeercert()))


PAGE_PATHS = ("/", "/node")
METRICS, READY = "/metrics", "/readyz"

_FROM_ELSEWHERE = b"""The page of this node is shown on the node itself alone (node_page: localhost).

    kubectl -n dranet-system port-forward pod/THE-PODS-NAME 9177
    then open http://localhost:9177/

With the port and scheme that the driver is set to. node_page: all shows it to everybody who reaches this
port and may read it.
"""
_OFF = b"the page of this node is off (node_page); try /healthz, /readyz, /readyz?verbose or /metrics\n"


class Access:
    def __init__(
        self,
        node_page: NodePage = NodePage.LOCALHOST,
        way: Authentication = Authentication.NONE,
        reviewer: TokenReviews | None = None,
        is_own_token: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._node_page = node_page
        self._way = way
        self._reviewer = reviewer
        self._is_own_token = is_own_token

    async def refuse(self, request: Request) -> Response | None:
        """Return the refusal as an answer; ``None``: go ahead."""
        if request.path in PAGE_PATHS:
            return await self._refuse_page(request)
        if request.path == READY and request.query.partition("=")[0] == "verbose":
            return None if request.is_local else await self._authenticate(request, READY)
        return await self._authenticate(request, METRICS) if request.path == METRICS else None

    async def _refuse_page(self, request: Request) -> Response | None:
        if self._node_page is NodePage.OFF:
            return Response("404 Not Found", _OFF)
        if request.is_local:
            return None
        if self._node_page is NodePage.LOCALHOST:
            return Response("403 Forbidden", _FROM_ELSEWHERE)
        return await self._authenticate(request, "/node")

    async def _authenticate(self, request: Request, path: str) -> Response | None:
        if self._way is Authentication.NONE or self._is_own_token(request.token):
            return None
        if self._way is Authentication.CLIENT_CERTIFICATE:
            if request.caller.has_certificate:
                return None
            return Response("401 Unauthorized", b"show a client certificate (metrics_authentication)\n")
        if not request.token or self._reviewer is None:
            return unauthorized()
        return await self._reviewer.review(request.token, path)


def unauthorized() -> Response:
    return Response(
        "401 Unauthorized",
        b"send a bearer token that the API server knows (metrics_authentication)\n",
        headers=(("WWW-Authenticate", "Bearer"),),
    )


ALLOWED_SECONDS, REFUSED_SECONDS = 60.0, 10.0
"""How long a review is cached. A revoked caller keeps access, and a newly allowed one waits, for at most this
long."""
MOST_REMEMBERED = 256
"""More than can be reviewed while an answer is cached, so that no caller can evict a token in use."""
MOST_AT_ONCE = 4
BURST, PER_SECOND = 20, 2.0
"""Reviews of tokens that were not let in before."""
LONGEST_TOKEN = 12 * 1024
ANSWER_SECONDS = 3.0
"""Less than a request may take."""


class _Known(Struct, frozen=True):
    refusal: Response | None
    until: float


class TokenReviews:
    """Asks the API server whose a bearer token is and whether that user may get a path. For the
    event loop.

    Answers are cached for a short while, so that a scrape costs no request. Callers with invented tokens
    cannot make the driver flood the API server: the number of concurrent reviews and their rate are limited.
    Without an answer the caller is refused.
    """

    def __init__(self, client: ApiClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[tuple[bytes, str], _Known] = OrderedDict()
        """By a hash of the token: the tokens themselves are not kept."""
        self._turn = asyncio.Semaphore(MOST_AT_ONCE)
        self._left, self._counted_at = float(BURST), clock()
        self._problem = ""

    async def review(self, token: str, path: str) -> Response | None:
        """Return the refusal; ``None``: go ahead."""
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return unauthorized()
        key = (hashlib.sha256(token.encode()).digest(), path)
        known = self._known.get(key)
        if known is not None and self._clock() < known.until:
            return known.refusal
        was_allowed = known is not None and known.refusal is None
        if not was_allowed and not self._take_share():
            return Response("503 Service Unavailable", b"too many tokens to ask about\n", headers=_LATER)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._turn:
                refusal = await self._ask(token, path)
        except (TimeoutError, DranetError) as error:
            problem = str(error) or "no answer in time"
            if problem != self._problem:  # logged once; callers do not see it
                log.warning("whose the tokens at the probe port are cannot be found out: %s", problem)
            self._problem = problem
            return Response("503 Service Unavailable", _UNANSWERED, headers=_LATER)
        self._problem = ""
        self._remember(key, refusal)
        return refusal

    async def _ask(self, token: str, path: str) -> Response | None:
        user = await fetch_user(self._client, token)
        if user is None:
            return unauthorized()
        if await fetch_may_get(self._client, user, path):
            return None
        words = f"user {user.name} may not get {path}: a ClusterRole with nonResourceURLs gives the right\n"
        return Response("403 Forbidden", words.encode())

    def _remember(self, key: tuple[bytes, str], refusal: Response | None) -> None:
        seconds = ALLOWED_SECONDS if refusal is None else REFUSED_SECONDS
        self._known[key] = _Known(refusal, self._clock() + seconds)
        self._known.move_to_end(key)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def _take_share(self) -> bool:
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


_LATER = (("Retry-After", "5"),)
_UNANSWERED = b"the API server did not say whose this token is; the log of the driver has more\n"
