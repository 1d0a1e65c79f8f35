"""Which vendors' GPUs this driver offered last, on disk: nobody else had them then.

At a start the GPUs of a vendor are offered only when its own driver or device plugin has had time to come, or
to come back. Where they were ours before, there is none to wait for: a restart takes nothing back, and after
a boot pods of ours start again at once.

Who else gives this node's GPUs to pods, as slices of other drivers and the Node object tell it.

The rule is pure (``inventory.served_gpus``); here is what it takes to follow it in time. A vendor's driver
that comes counts at once: our GPUs are withdrawn at the next scan, but for those that pods have. One that
goes counts after a while: its slices vanish during its own update, too, and its pods still hold their GPUs.
Before the first look no GPU is offered, and so that none is withdrawn for a moment at a restart, the first
publication waits for the look as well.

A node that has just booted, and GPUs whose driver has just been loaded, are nobody's for a while: whoever
serves them starts at the same time as this driver, and may be later. So are GPUs that were somebody else's
when this driver ended: who served them may be in the middle of an update as well.

Asks those of whom no watch tells: the Node, for what device plugins announce, and the kubelet, for what
pods have of devices that nobody may serve any more.

One look at the Node serves the node's protected addresses, too (``driver.protected_addresses``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from dranet import files
from dranet.cluster.node_slices import NodeDevices
from dranet.cluster.nodes import NodeView
from dranet.errors import ClusterError, DranetError
from dranet.inventory.served_gpus import NOBODY, UNKNOWN, ServedGpus, find_servers
from dranet.model.facts import Gpu
from dranet.settings import PublishGpus
from dranet.telemetry import InventoryMetrics

log = logging.getLogger(__name__)
_MOST_BYTES = 64 << 10


class _OwnGpus(msgspec.Struct):
    offered: frozenset[str]


class OwnGpus:
    """``<state_dir>/gpus.json``. Best effort: where it cannot be read, there is only a wait. Blocking."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: frozenset[str] | None = None

    def read(self) -> frozenset[str] | None:
        """Return vendors as in ``model.facts.Gpu``; none if the file is damaged, ``None`` if there is no file
        because this driver has never looked at the GPUs of this node."""
        try:
            return msgspec.json.decode(files.read_file(self._path, _MOST_BYTES), type=_OwnGpus).offered
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, GPUs wait for their vendors' drivers: %s", self._path, error)
            return frozenset()

    def write(self, vendors: Iterable[str]) -> None:
        """Replace the file, where it would say something else."""
        offered = frozenset(vendors)
        if offered == self._written:
            return
        self._written = offered
        content = msgspec.json.encode(_OwnGpus(offered), order="deterministic")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=files.FOLDER_MODE)
            files.replace_file(self._path, self._path.with_suffix(".new"), content)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)


PATIENCE_SECONDS = 45.0
"""So long the first publication waits for the look, where the API server answers other questions. Longer than
the slices of others take to be asked for again."""

YET_TO_COME = "whoever may yet come to serve it: the node, its kernel driver or we have just started"
TOO_MANY = "other drivers, which offer more devices here than are looked at"

Clock = Callable[[], float]


class GpuServers:
    """Knows whose GPUs are left to whom. :meth:`judge` is called by one scan at a time, on any thread; the
    rest on the event loop.

    ``is_answering``: whether the API server has answered others of us. ``on_news``: the next scan may decide
    otherwise. ``on_gpus``: the node has GPUs. ``ask``: have the Node and the kubelet asked again, which
    leads to :meth:`take_resources`, :meth:`take_used` and :meth:`take_asked`; both are called on any thread.
    ``return_seconds``: so long nobody else may have served a vendor's GPUs before they are ours again.
    ``read_uptime``: seconds since the node has booted. ``own`` remembers whose GPUs were ours over a boot.
    """

    def __init__(
        self,
        mode: PublishGpus,
        devices: NodeDevices,
        metrics: InventoryMetrics,
        *,
        is_answering: Callable[[], bool],
        on_news: Callable[[], None],
        on_gpus: Callable[[], None],
        return_seconds: float,
        ask: Callable[[], None] = lambda: None,
        read_uptime: Callable[[], float] = lambda: math.inf,
        own: OwnGpus | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._mode = mode
        self._devices = devices
        self._metrics = metrics
        self._is_answering = is_answering
        self._on_news = on_news
        self._on_gpus = on_gpus
        self._clock = clock
        self._return_seconds = return_seconds
        self._ask = ask
        self._read_uptime = read_uptime
        self._own = own
        self._resources: frozenset[str] | None = None
        self._used: frozenset[str] | None = None
        self._asked_at = -math.inf
        """When the Node and the kubelet were asked last, and the Node answered."""
        self._is_waiting = False
        """The next answer decides, also if it says what the last one said."""
        self._has_gpus = False
        self._answered_at: float | None = None
        self._usable: frozenset[str] | None = None
        """Vendors of which a GPU had device nodes at the last scan."""
        self._were_ours: frozenset[str] = frozenset()
        """In the life of this driver before this one."""
        self._free_since: dict[str, float] = {}
        """Vendor -> when it was first found that nobody serves it any more."""
        self.served = UNKNOWN if mode is PublishGpus.AUTO else NOBODY
        """As of the last scan; replaced as a whole."""
        devices.listeners.append(self._take_slices)

    @property
    def has_gpus(self) -> bool:
        """Whether a scan has found any."""
        return self._has_gpus

    def may_publish(self, served: ServedGpus) -> bool:
        """Whether what a scan has decided by ``served`` may go out: not while GPUs lack that may turn out to
        be ours.

        Where only this question gets no answer (rights are missing), the node's NICs do not wait for ever;
        after an outage it gets as long as at the start.
        """
        if served.is_known or not self._has_gpus:
            return True
        if not self._is_answering():
            return False
        if self._answered_at is None:
            self._answered_at = self._clock()
        return self._clock() - self._answered_at > PATIENCE_SECONDS

    def take_resources(self, resources: Collection[str]) -> None:
        """The extended resources of the Node, as it is now."""
        news = frozenset(resources)
        if news != self._resources:
            self._resources = news
            self._tell()

    def take_used(self, names: Collection[str] | None) -> None:
        """Resources and drivers of which pods have devices; ``None`` where the kubelet does not tell."""
        news = (self._used or frozenset()) if names is None else frozenset(names)
        if news != self._used:
            self._used = news
            self._tell()

    def take_asked(self) -> None:
        """What was told just now is what the Node and the kubelet say now."""
        self._asked_at = self._clock()
        if self._is_waiting:
            self._is_waiting = False
            self._tell()

    def judge(self, gpus: Sequence[Gpu]) -> ServedGpus:
        """Who serves these GPUs of the node, now."""
        if gpus and not self._has_gpus:
            self._has_gpus = True
            self._on_gpus()
            if self._mode is PublishGpus.AUTO:
                self._ask()
        if self._mode is PublishGpus.AUTO:
            served = self._find(gpus)
            _log_changes(self.served, served, gpus)
            self.served = served
        self._remember(gpus)
        self._count(gpus)
        return self.served

    def _count(self, gpus: Sequence[Gpu]) -> None:
        known = gpus if self.served.is_known else ()
        ours = sum(gpu.vendor not in self.served.by_vendor for gpu in known)
        ours = 0 if self._mode is PublishGpus.NEVER else ours
        counts = {"ours": ours, "left": len(known) - ours, "unknown": len(gpus) - len(known)}
        for state, count in counts.items():
            self._metrics.gpus.labels(state).set(count)

    def _find(self, gpus: Sequence[Gpu]) -> ServedGpus:
        if not gpus:
            return NOBODY
        if self._resources is None or self._used is None or not self._devices.is_known:
            return UNKNOWN
        found = find_servers(
            gpus,
            self._devices.get_all(),
            sorted(self._resources),
            sorted(self._devices.drivers),
            sorted(self._used),
        )
        if not self._devices.is_complete:
            found = {**dict.fromkeys((gpu.vendor for gpu in gpus), TOO_MANY), **found}
        return ServedGpus(by_vendor={**self._hold_off(gpus, found), **found})

    def _remember(self, gpus: Sequence[Gpu]) -> None:
        if self._own is None or not gpus or not self.served.is_known:
            return
        usable = {gpu.vendor for gpu in gpus if gpu.char_devices}
        self._own.write(() if self._mode is PublishGpus.NEVER else usable - self.served.by_vendor.keys())

    def _hold_off(self, gpus: Sequence[Gpu], found: Mapping[str, str]) -> Mapping[str, str]:
        """Vendors that nobody serves, but somebody did until a moment ago, or may in a moment."""
        now = self._clock()
        started = self._find_started(gpus, now)
        gone = {vendor: who for vendor, who in self.served.by_vendor.items() if vendor not in found}
        self._free_since = {
            **dict.fromkeys(gone, now),
            **{vendor: since for vendor, since in self._free_since.items() if vendor in gone},
            **{vendor: since for vendor, since in started.items() if vendor not in found},
        }
        held = {**dict.fromkeys(self._free_since, YET_TO_COME), **gone}
        return {vendor: who for vendor, who in held.items() if not self._is_free(vendor, now)}

    def _find_started(self, gpus: Sequence[Gpu], now: float) -> Mapping[str, float]:
        """Vendors whose GPUs have become usable a moment ago, and when; not those that were ours before."""
        usable = frozenset(gpu.vendor for gpu in gpus if gpu.char_devices)
        if self._usable is None:
            since = self._find_beginning(now)
            started = dict.fromkeys(usable if now - since < self._return_seconds else (), since)
        else:
            started = dict.fromkeys(usable - self._usable, now)
        self._usable = usable
        return {vendor: since for vendor, since in started.items() if vendor not in self._were_ours}

    def _find_beginning(self, now: float) -> float:
        """Since when GPUs that were not ours before may be nobody's, as far as a driver knows that has just
        started: since the boot, or since now where an earlier one has left them to somebody."""
        known = None if self._own is None else self._own.read()
        self._were_ours = known or frozenset()
        return now - self._read_uptime() if known is None else now

    def _is_free(self, vendor: str, now: float) -> bool:
        """Whether its time is over, and nobody has come since; what was answered before is no answer.
        Of two drivers of our kind that left the GPUs to each other, the elder takes them first."""
        seconds = self._return_seconds * (2 if self._devices.has_elder_kin else 1)
        until = self._free_since[vendor] + seconds
        if now >= until > self._asked_at:
            self._is_waiting = True
            self._ask()
        return now >= until and self._asked_at >= until

    def _tell(self) -> None:
        if self._mode is PublishGpus.AUTO and self._has_gpus:
            self._on_news()

    def _take_slices(self) -> None:
        if self._mode is PublishGpus.AUTO and self._resources is None:
            self._ask()  # the API server answers again, and the next reading of the Node may be a minute off
        self._tell()


def _log_changes(before: ServedGpus, after: ServedGpus, gpus: Sequence[Gpu]) -> None:
    for vendor, who in after.by_vendor.items():
        if before.by_vendor.get(vendor) != who:
            count = sum(gpu.vendor == vendor for gpu in gpus)
            log.info("%d GPUs of %s are left to %s", count, vendor, who)
    for vendor in before.by_vendor.keys() - after.by_vendor.keys():
        log.info("nobody else serves the GPUs of %s any more: they are offered", vendor)


ANSWER_SECONDS = 2.0
"""So long a Prepare waits for both answers; without them the last ones count."""

FetchNode = Callable[[], Awaitable[NodeView]]
"""Raises ClusterError."""
ReadUsed = Callable[[], Awaitable[Collection[str]]]
"""Names of resources and DRA drivers of which pods have devices. Raises DranetError."""


class GpuInquiry:
    """Hands the answers to the servers. Everything but :meth:`ask` is for the event loop."""

    def __init__(self, fetch_node: FetchNode, read_used: ReadUsed, servers: Callable[[], GpuServers]) -> None:
        self._fetch_node = fetch_node
        self._read_used = read_used
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()

    def ask(self) -> None:
        """Have both asked soon; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wanted.set)

    async def run(self) -> None:
        """For ever; nothing is asked before somebody wants it."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.look()

    async def look(self) -> None:
        """Ask both, and wait for the answers for a while; never fails."""
        _, is_read = await asyncio.gather(self._look_at_pods(), self._look_at_node())
        if is_read:
            self._servers().take_asked()

    async def fetch_addresses(self) -> Sequence[str]:
        """The node's addresses; what else the Node tells is taken on the way.

        Raises:
            ClusterError: no answer, or a refusal.
        """
        node = await self._fetch_node()
        self._servers().take_resources(node.resources)
        return node.addresses

    async def _look_at_node(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.fetch_addresses()
        except (ClusterError, TimeoutError):
            return False
        return True

    async def _look_at_pods(self) -> None:
        used = None
        with contextlib.suppress(DranetError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                used = await self._read_used()
        self._servers().take_used(used)
