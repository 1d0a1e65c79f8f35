"""What on a cluster belongs to the suite: marked by a label, checked before anything is written."""

from __future__ import annotations

from contextlib import suppress

from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError, Reason
from e2e.access import E2eFailed
from e2e.objects import MARK, JsonObject, path_of

_NAME_LABEL = "app.kubernetes.io/name"


def is_ours(item: JsonObject) -> bool:
    return MARK in (item["metadata"].get("labels") or {})


async def check_ours(api: ApiClient, item: JsonObject, *, may_replace: bool = False) -> None:
    """That an object of this name is not there, or is the suite's. With ``may_replace`` it may also be of an
    installation of the driver.

    Raises:
        E2eFailed: it belongs to another owner.
    """
    with suppress_not_found():
        there = await api.get(path_of(item))
        of_driver = (there["metadata"].get("labels") or {}).get(_NAME_LABEL) == "dranet"
        if not is_ours(there) and not (may_replace and of_driver):
            raise E2eFailed(
                f"{item['kind']} {item['metadata']['name']} is there, and not the suite's",
                hint="it would be overwritten, and gone at the end: use another cluster",
            )


class suppress_not_found(suppress):  # noqa: N801 -- reads as the one of contextlib
    """What is gone already need not be deleted."""

    def __init__(self) -> None:
        super().__init__(ClusterError)

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, ClusterError) and error.reason is Reason.API_NOT_FOUND
