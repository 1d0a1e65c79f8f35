"""``dranet label``, which the chart's Deployment runs: labels of nodes about their place in the fabric."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping

from dranet.cluster import paths
from dranet.cluster.client import (
    ApiClient,
    Backoff,
    EventType,
    JsonObject,
    Snapshot,
    WatchEvent,
    fetch_snapshot,
    list_and_watch,
)
from dranet.desk.fabric.fabric import read_fabric
from dranet.desk.fabric.labels import build_labels, label_prefix, plan_patch
from dranet.desk.fabric.read import keep_what_is_read
from dranet.errors import ClusterError, DranetError, Reason
from dranet.model.attributes import DOMAIN
from dranet.terminal import count_of

SETTLE_SECONDS = 5.0
"""After a change: the slices of a cluster change together when a switch or the drivers restart."""
COMPARE_SECONDS = 300.0
"""At least this often the labels are compared with those of the nodes."""
RETRY_SECONDS = (5.0, 300.0)
"""Between two tries, first and at most: each try lists all nodes."""
HOLD_SECONDS = 300.0
"""A node whose place is no longer known keeps its labels meanwhile: a driver that restarts has heard no
neighbour yet."""
_MOST_NAMES = 10
"""The log names so many nodes in one line."""

_log = logging.getLogger(__name__)

_DESCRIPTION = """\
Write the place of each node in the fabric as labels (fabric.dra.net/unit), from
the ResourceSlices of the driver, and keep them up to date. Labels outside this
prefix are left alone, and those below it belong to this program: one that no
longer applies is removed. Ends at SIGTERM and leaves the labels.
"""

_EPILOG = """\
The chart runs it with topologyLabels.enabled. It needs the rights to list and
watch ResourceSlices, and to list and patch nodes.
dranet fabric -o labels prints the same as commands of kubectl, and the one that
removes the labels.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "label",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--driver-name", default=DOMAIN, metavar="NAME", help="default: %(default)s")
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="the cluster (default: the pod's service account)"
    )
    parser.add_argument(
        "--hold-seconds",
        type=float,
        default=HOLD_SECONDS,
        metavar="SECONDS",
        help="how long a node whose place is unknown keeps its labels (%(default)g)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    from dranet.telemetry import set_up_logging  # with what only a driver's installation has

    set_up_logging("info", as_json=False)
    file = options.kubeconfig
    client = ApiClient.from_kubeconfig(file) if file else ApiClient.from_in_cluster()
    asyncio.run(_run(client, options.driver_name, options.hold_seconds))
    return 0


async def _run(opened: ApiClient, driver: str, hold_seconds: float) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):  # as process 1 of a container it ends by no other means
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with opened as client:
            await NodeLabeller(client, driver, hold_seconds=hold_seconds).run()


class NodeLabeller:
    """Follows the slices of one driver and patches the nodes.

    One instance is enough, and two do no harm: both compute the same labels from the same slices.
    """

    def __init__(
        self,
        client: ApiClient,
        driver: str,
        *,
        settle_seconds: float = SETTLE_SECONDS,
        retries: Backoff | None = None,
        hold_seconds: float = HOLD_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client, self._driver, self._prefix = client, driver, label_prefix(driver)
        self._settle_seconds, self._hold_seconds = settle_seconds, hold_seconds
        self._retries = retries or Backoff(*RETRY_SECONDS)
        self._clock = clock or asyncio.get_running_loop().time
        self._slices: dict[str, JsonObject] = {}
        """By uid, with what is read of them."""
        self._unknown_since: dict[str, float] = {}
        """Nodes that have labels and no place."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._keep())

    async def _follow(self) -> None:
        selector = f"spec.driver={self._driver}"
        news = list_and_watch(self._client, paths.RESOURCE_SLICES, field_selector=selector)
        async with contextlib.aclosing(news):
            async for item in news:
                self.take(item)

    def take(self, news: Snapshot | WatchEvent) -> None:
        """Remember what changed."""
        if isinstance(news, Snapshot):
            self._slices = {_uid(body): keep_what_is_read(body) for body in news.items}
        elif news.type is EventType.DELETED:
            self._slices.pop(_uid(news.object), None)
        else:
            self._slices[_uid(news.object)] = keep_what_is_read(news.object)
        self._changed.set()

    async def _keep(self) -> None:
        await self._changed.wait()
        while True:
            await asyncio.sleep(self._settle_seconds)
            self._changed.clear()
            pause = COMPARE_SECONDS
            if await self._try_to_write():
                self._retries.reset()
            else:
                pause = self._retries.next_seconds()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()  # a node that is refused holds up no change of another

    async def _try_to_write(self) -> bool:
        try:
            await self.write_labels()
        except DranetError as error:
            _log.warning("labels were not written, trying again: %s", error)
            return False
        return True

    async def write_labels(self) -> int:
        """Compare the nodes with the fabric, and patch those that differ. Returns how many. A node that
        refuses keeps no other from its labels.

        Raises:
            ClusterError: no answer to the list, or a refusal; nodes that were not patched, by name.
        """
        wanted = build_labels(read_fabric(tuple(self._slices.values()), self._driver), self._driver)
        nodes = (await fetch_snapshot(self._client, paths.NODES)).items
        current = {str(body["metadata"]["name"]): _own_labels(body, self._prefix) for body in nodes}
        self._note_unknown(current, wanted)
        patched, refused = 0, dict[str, ClusterError]()
        for name, labels in current.items():
            if self._is_held(name):
                continue
            if patch := plan_patch(labels, wanted.get(name, {}), self._prefix):
                try:
                    patched += await self._patch(name, patch)
                except ClusterError as error:
                    refused[name] = error
        if refused:
            raise _summarize(refused)
        return patched

    def _note_unknown(
        self, current: Mapping[str, Mapping[str, str]], wanted: Mapping[str, Mapping[str, str]]
    ) -> None:
        now = self._clock()
        without_place = {name for name, labels in current.items() if labels and not wanted.get(name)}
        self._unknown_since = {name: self._unknown_since.get(name, now) for name in without_place}

    def _is_held(self, name: str) -> bool:
        since = self._unknown_since.get(name)
        return since is not None and self._clock() - since < self._hold_seconds

    async def _patch(self, name: str, patch: Mapping[str, str | None]) -> bool:
        """Whether it was written; a node that is gone needs no label."""
        try:
            await self._client.patch(paths.node(name), {"metadata": {"labels": dict(patch)}})
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise
            return False
        _log.info("labelled node %s: %s", name, _describe(patch))
        return True


def _summarize(refused: Mapping[str, ClusterError]) -> ClusterError:
    """One error for all, which quotes the first: a webhook mostly has the same reason for each node."""
    (name, first), *others = refused.items()
    names = [other for other, _ in others[:_MOST_NAMES]] + ["..."] * (len(others) > _MOST_NAMES)
    more = f"; also refused: {', '.join(names)} ({count_of(len(others), 'node')})" if others else ""
    return ClusterError(f"node {name}: {first}{more}", reason=first.reason)


def _uid(body: JsonObject) -> str:
    return str(body["metadata"]["uid"])  # the client lets nothing through that has none


def _own_labels(body: JsonObject, prefix: str) -> Mapping[str, str]:
    labels = body["metadata"].get("labels") or {}
    return {key: value for key, value in labels.items() if key.startswith(prefix)}


def _describe(patch: Mapping[str, str | None]) -> str:
    return ", ".join(f"{key} removed" if value is None else f"{key}={value}" for key, value in patch.items())
