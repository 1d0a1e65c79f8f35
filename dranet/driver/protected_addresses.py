"""What the node cannot live without: its own addresses and the way to the API server.

Some is known at once from the settings; the Node object and the host name of the API server are asked for
in the background, best effort, and change what is offered when they bring news.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from dranet.cluster.client import Backoff
from dranet.errors import ClusterError
from dranet.kernel.discovery.scan import ProtectedAddress

log = logging.getLogger(__name__)

OWN_ADDRESS = "the node's address"
API_ROUTE = "the route to the API server"

REFRESH_SECONDS = 600.0
"""Neither the node's addresses nor those of the API server move often, and a thousand nodes ask."""
RESOLVE_SECONDS = 10.0
FIRST_RETRY_SECONDS = 1.0


class ProtectedAddresses:
    """Finds the targets and hands them to ``on_change`` whenever they differ from before.

    ``own``: addresses from the settings. ``api_url``: where the API server is. ``fetch_own``: addresses of
    the Node object. ``retry_seconds``: when at the latest to try again what has failed; at first it is soon,
    because the node's first slices may wait for the answer.
    """

    def __init__(
        self,
        own: Sequence[str],
        api_url: str,
        fetch_own: Callable[[], Awaitable[Sequence[str]]],
        on_change: Callable[[Sequence[ProtectedAddress]], None],
        retry_seconds: float,
    ) -> None:
        self._own = tuple(own)
        self._api_host = urlsplit(api_url).hostname or ""
        self._fetch_own = fetch_own
        self._on_change = on_change
        self._retries = Backoff(min(FIRST_RETRY_SECONDS, retry_seconds), retry_seconds)
        self._fetched: tuple[str, ...] = ()
        self._api: tuple[str, ...] = (self._api_host,) if is_address(self._api_host) else ()
        self._complaints: dict[str, str] = {}
        self.targets = self._build()
        """As known now; replaced as a whole."""

    async def run(self) -> None:
        """Ask now and then until cancelled. What fails keeps its last answer and is logged once."""
        while True:
            complete = await self.refresh()
            if complete:
                self._retries.reset()
            await asyncio.sleep(REFRESH_SECONDS if complete else self._retries.next_seconds())

    async def refresh(self) -> bool:
        answered = await asyncio.gather(self._refresh_own(), self._refresh_api())
        targets = self._build()
        if targets != self.targets:
            self.targets = targets
            self._on_change(targets)
        return all(answered)

    async def _refresh_own(self) -> bool:
        topic = "the node's addresses cannot be read from its Node object"
        try:
            self._fetched = tuple(await self._fetch_own())
        except ClusterError as error:
            return self._note(topic, error)
        return self._note(topic, None)

    async def _refresh_api(self) -> bool:
        if not self._api_host or is_address(self._api_host):
            return True
        topic = f"the API server's host {self._api_host} does not resolve"
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                self._api = await resolve(self._api_host)
        except (OSError, UnicodeError) as error:  # a TimeoutError is an OSError
            return self._note(topic, error)
        return self._note(topic, None)

    def _note(self, topic: str, error: Exception | None) -> bool:
        """Log a problem once while it lasts; returns whether all is well."""
        problem = "" if error is None else str(error) or "no answer in time"
        if problem and self._complaints.get(topic) != problem:
            log.warning("%s: %s", topic, problem)
        self._complaints[topic] = problem
        return not problem

    def _build(self) -> tuple[ProtectedAddress, ...]:
        own = dict.fromkeys((*self._own, *self._fetched))
        return (
            *(ProtectedAddress(OWN_ADDRESS, address, is_own=True) for address in own),
            *(ProtectedAddress(API_ROUTE, address, is_own=False) for address in self._api),
        )


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(host: str) -> tuple[str, ...]:
    """The addresses of a host name, sorted, of both families.

    Raises:
        OSError: it cannot be resolved now.
    """
    answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(sorted({str(address[0]) for *_, address in answers}))
