"""Who may read what of the probe port.

``/healthz`` and the plain ``/readyz`` are everybody's: the kubelet shows no credentials. ``/metrics`` is for
those who show who they are, where the settings ask for that. So are the page of the node and
``/readyz?verbose``, but not for who comes from the node itself (``dranet doctor``, ``kubectl port-forward``).
Who shows the driver's own token is in the driver's pod, and may do what the driver may: nobody is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dranet.driver.probes.http import Request, Response
from dranet.settings import Authentication, NodePage

PAGE_PATHS = ("/", "/node")
METRICS, READY = "/metrics", "/readyz"

_FROM_ELSEWHERE = b"""The page of this node is shown on the node itself alone (node_page: localhost).

    kubectl -n dranet-system port-forward pod/THE-PODS-NAME 9177
    then open http://localhost:9177/

With the port and scheme that the driver is set to. node_page: all shows it to everybody who reaches this
port and may read it.
"""
_OFF = b"the page of this node is off (node_page); try /healthz, /readyz, /readyz?verbose or /metrics\n"


class Reviewer(Protocol):
    """Who knows bearer tokens (``driver.probes.reviews.TokenReviews``)."""

    async def review(self, token: str, path: str) -> Response | None: ...


class Access:
    """Answers instead of a route where somebody may not read it."""

    def __init__(
        self,
        node_page: NodePage = NodePage.LOCALHOST,
        way: Authentication = Authentication.NONE,
        reviewer: Reviewer | None = None,
        is_own_token: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._node_page = node_page
        self._way = way
        self._reviewer = reviewer
        self._is_own_token = is_own_token

    async def refuse(self, request: Request) -> Response | None:
        """Why not, as an answer; ``None``: go ahead."""
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
