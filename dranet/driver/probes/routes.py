"""What the probe port answers, by path."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence

from dranet.dataclass import dataclass
from dranet.driver.doctor.findings import Finding
from dranet.driver.probes.access import PAGE_PATHS, Access
from dranet.driver.probes.http import Request, Response


@dataclass(frozen=True, slots=True)
class PartState:
    """One line of ``/readyz``: ready or not, and why."""

    ready: bool
    detail: str = ""


OK = Response("200 OK", b"ok\n")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Page = Callable[[], Awaitable[Response]]


async def no_page() -> Response:
    """This server has none."""
    return Response("404 Not Found", b"try /healthz, /readyz, /readyz?verbose or /metrics\n")


class Routes:
    """Reads from memory what the parts of the driver know."""

    def __init__(
        self,
        read_state: Callable[[], Mapping[str, PartState]],
        read_metrics: Callable[[], Awaitable[bytes]],
        *,
        read_features: Callable[[], Sequence[Finding]] = tuple,
        read_fault: Callable[[], str] = str,
        read_page: Page = no_page,
        access: Access | None = None,
    ) -> None:
        self._read_state = read_state
        self._read_metrics = read_metrics
        self._read_features = read_features
        self._read_fault = read_fault
        self._read_page = read_page
        self._access = access or Access()

    async def answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response("405 Method Not Allowed", b"only GET and HEAD\n")
        refusal = await self._access.refuse(request)
        if refusal is not None:
            return refusal
        if request.path in PAGE_PATHS:
            return await self._read_page()
        if request.path == "/healthz":
            fault = self._read_fault()
            return Response("500 Internal Server Error", f"{fault}\n".encode()) if fault else OK
        if request.path == "/readyz":
            return self._readiness(request.query)
        if request.path == "/metrics":
            return Response("200 OK", await self._read_metrics(), METRICS_TYPE)
        return Response("404 Not Found", b"try /, /healthz, /readyz, /readyz?verbose or /metrics\n")

    def _readiness(self, query: str) -> Response:
        parts = self._read_state()
        status = "200 OK" if all(state.ready for state in parts.values()) else "503 Service Unavailable"
        if query == "verbose=json":
            return Response(status, self._render_json(parts), "application/json")
        lines = [
            f"[{'+' if state.ready else '-'}] {name}{': ' + state.detail if state.detail else ''}"
            for name, state in parts.items()
        ]
        if query.partition("=")[0] == "verbose":
            lines += [finding.line for finding in self._read_features()]
        return Response(status, "".join(f"{line}\n" for line in lines).encode())

    def _render_json(self, parts: Mapping[str, PartState]) -> bytes:
        document = {
            "parts": [
                {"name": name, "ready": state.ready, "detail": state.detail} for name, state in parts.items()
            ],
            "features": [finding.to_json() for finding in self._read_features()],
        }
        return json.dumps(document).encode()
