"""A whole collection, fetched page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Struct

from dranet.cluster.client import ApiClient
from dranet.cluster.messages import JsonObject, has_identity
from dranet.errors import ClusterError, ProtocolError, Reason

PAGE_SIZE = 500
"""Objects in one answer; also what client-go asks for."""


class Snapshot(Struct, frozen=True):
    """The whole collection at ``resource_version``: what is not in it does not exist.

    ``asked_at`` is the event loop's time before the first request: whatever the server had answered by then
    is in it.
    """

    items: tuple[JsonObject, ...]
    resource_version: str
    asked_at: float = 0.0


async def fetch_snapshot(
    client: ApiClient,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    page_size: int = PAGE_SIZE,
) -> Snapshot:
    """All objects of a collection, as of one version however many pages they take.

    A page token that expires on the way (a server forgets old versions after some minutes) starts the list
    over, in one answer, which cannot expire.

    Raises:
        ClusterError: no answer, or a refusal.
        ProtocolError: an answer that is no list.
    """
    asked_at = asyncio.get_running_loop().time()
    try:
        pages = [page async for page in _iter_pages(client, path, field_selector, label_selector, page_size)]
    except ClusterError as error:
        if error.reason is not Reason.API_GONE:
            raise
        asked_at = asyncio.get_running_loop().time()
        pages = [await client.list(path, field_selector=field_selector, label_selector=label_selector)]
        _check(pages[0], path)
    items = tuple({**_type_of(page), **item} for page in pages for item in page.get("items") or ())
    return Snapshot(items, str(pages[0].get("metadata", {}).get("resourceVersion", "")), asked_at)


async def _iter_pages(
    client: ApiClient, path: str, field_selector: str, label_selector: str, page_size: int
) -> AsyncGenerator[JsonObject, None]:
    token = ""
    seen = {token}
    while True:
        page = await client.list(
            path,
            field_selector=field_selector,
            label_selector=label_selector,
            limit=page_size,
            continue_token=token,
        )
        _check(page, path)
        yield page
        token = str(page.get("metadata", {}).get("continue", ""))
        if not token:
            return
        if token in seen:
            raise ProtocolError(f"the list of {path} leads from page to page in a circle")
        seen.add(token)


def _check(page: JsonObject, path: str) -> None:
    """Any object could be taken for a list without items, and that for a cluster that has lost them.

    Raises:
        ProtocolError: it is no list.
    """
    metadata, items = page.get("metadata"), page.get("items")
    has_version = isinstance(metadata, dict) and bool(metadata.get("resourceVersion"))
    if not has_version or not (items is None or isinstance(items, list)):
        raise ProtocolError(f"the answer to a list of {path} is no list: {str(page)[:80]}")
    if not all(map(has_identity, items or ())):
        raise ProtocolError(f"the answer to a list of {path} has an entry without name or uid")


def _type_of(listed: JsonObject) -> JsonObject:
    """Items of a list come without their type; give it back, as a watch and a GET do."""
    kind = str(listed.get("kind", "")).removesuffix("List")
    return {"apiVersion": listed.get("apiVersion", ""), "kind": kind}
