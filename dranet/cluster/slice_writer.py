"""Carry out writes of slices, and remember what the server made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.messages import check_stored
from dranet.cluster.slice_plan import CreateSlice, DeleteSlice, UpdateSlice, Write
from dranet.cluster.slice_view import SliceView
from dranet.errors import ClusterError, Reason
from dranet.failpoints import Failpoint, reached


class SliceWriter:
    """``on_write`` hears the verb of each write that the server accepted."""

    def __init__(self, client: ApiClient, view: SliceView, on_write: Callable[[str], None]) -> None:
        self._client = client
        self._view = view
        self._on_write = on_write

    async def write(self, write: Write) -> JsonObject:
        """Write one slice; its body as stored, or nothing for a delete.

        Raises:
            ClusterError: no answer, or a refusal. A slice that is to be deleted and is not there is none.
            ProtocolError: an answer that is no slice.
        """
        match write:
            case DeleteSlice():
                await self._delete(write)
                reached(Failpoint.PUBLISH_SLICE_DELETED)
                self._on_write("delete")
                return {}
            case UpdateSlice():
                stored = await self._client.replace(paths.resource_slice(write.name), write.body)
                reached(Failpoint.PUBLISH_SLICE_UPDATED)
                return self._take(stored, "update")
            case CreateSlice():
                stored = await self._client.create(paths.RESOURCE_SLICES, write.body)
                reached(Failpoint.PUBLISH_SLICE_CREATED)
                return self._take(stored, "create")

    def _take(self, stored: JsonObject, verb: str) -> JsonObject:
        self._view.note_written(check_stored(stored, f"the {verb} of a slice"), _now())
        self._on_write(verb)
        return stored

    async def _delete(self, write: DeleteSlice) -> None:
        path = paths.resource_slice(write.name)
        try:
            await self._client.delete(path, uid=write.uid, resource_version=write.resource_version)
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise
        self._view.note_deleted(write.uid, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
