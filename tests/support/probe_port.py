"""What a driver on the testbed says on its probe port."""

from __future__ import annotations

import asyncio
import urllib.request

_PORT = 9177


def fetch(path: str) -> str:
    """A page, as ``/metrics``. Raises OSError where none is given."""
    body: bytes = urllib.request.urlopen(f"http://127.0.0.1:{_PORT}{path}", timeout=5).read()
    return body.decode()


async def scrape(path: str) -> str:
    """As :func:`fetch`, beside a testbed that runs on this event loop."""
    return await asyncio.to_thread(fetch, path)
