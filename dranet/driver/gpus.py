"""The node's GPUs: which driver gives them to pods, and how one gets into containers.

The rule is pure (``inventory.offer``); this module applies it over time. When a vendor's driver appears, our
GPUs are withdrawn, except those that pods have. When it disappears, its GPUs become ours after a delay: its
slices also vanish during its update. GPUs that just became usable wait as well, unless they were ours before
(:class:`OwnGpus`). Until the first answer none is offered, and the first publication waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct

from dranet import files
from dranet.cluster.nodes import NodeDevices, NodeView
from dranet.decoding import decode
from dranet.errors import ClusterError, DranetError
from dranet.inventory.offer import NO_OTHER_SERVER, UNKNOWN, ServedGpus, find_servers
from dranet.model.attributes import GPU_UUID, GPU_VENDOR
from dranet.model.device import SHARED_GPU_NODES, Device
from dranet.model.facts import CharDevice, Gpu
from dranet.runtime.vendor_cdi import VENDOR_KINDS, VendorSpecs, choose_device
from dranet.settings import PublishGpus
from dranet.telemetry import InventoryMetrics

log = logging.getLogger(__name__)


class GpuContainers:
    """Finds the vendor's CDI device of a GPU. Callable from any thread. ``get_gpus`` returns all GPUs of the
    node, as of the last scan."""

    def __init__(self, folders: Sequence[Path], get_gpus: Callable[[], Sequence[Gpu]]) -> None:
        self._specs = VendorSpecs(folders)
        self._get_gpus = get_gpus
        self._lock = Lock()

    def find_vendor_device(self, device: Device) -> str:
        """Return the qualified name of the vendor's CDI device for this GPU; empty if it has no CDI device.

        Blocking: reads the vendor's files if they have changed.
        """
        kind = VENDOR_KINDS.get(str(device.attributes.get(GPU_VENDOR.qualified, "")))
        if kind is None:
            return ""
        others = [gpu for gpu in self._get_gpus() if gpu.pci_address != device.pci_address]
        nodes_of_others = own_nodes([node for gpu in others for node in gpu.char_devices])
        with self._lock:
            devices = self._specs.list_devices(kind)
        uuid = str(device.attributes.get(GPU_UUID.qualified, ""))
        found = choose_device(devices, own_nodes(device.char_devices), nodes_of_others, uuid)
        if found is None and devices:
            log.info(
                "none of the %d CDI devices of kind %s is %s alone: its device nodes are given",
                len(devices),
                kind,
                device.name,
            )
        return found.id if found else ""


def own_nodes(nodes: Sequence[CharDevice]) -> tuple[CharDevice, ...]:
    return tuple(node for node in nodes if node.path not in SHARED_GPU_NODES)


def find_environment(device: Device) -> tuple[tuple[str, str], ...]:
    """Return the variables that a container with this GPU needs. Many images set NVIDIA's to ``all``;
    ``void`` keeps its runtime from adding GPUs to those of the claim, as in NVIDIA's own specs."""
    is_nvidia = device.attributes.get(GPU_VENDOR.qualified) == "nvidia"
    return (("NVIDIA_VISIBLE_DEVICES", "void"),) if is_nvidia else ()


_MOST_BYTES = 64 << 10


class _OwnGpus(msgspec.Struct):
    offered: frozenset[str]


class OwnGpus:
    """Vendors whose GPUs this driver offered last, in ``<state_dir>/gpus.json``. Blocking. Best effort: if
    the file cannot be read, GPUs are offered later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: frozenset[str] | None = None

    def read(self) -> frozenset[str] | None:
        """Return vendors as in ``model.facts.Gpu``; none if the file is damaged, ``None`` if there is no file
        because this driver has never looked at the GPUs of this node."""
        try:
            return decode(files.read_file(self._path, _MOST_BYTES), _OwnGpus).offered
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, GPUs wait for their vendors' drivers: %s", self._path, error)
            return frozenset()

    def write(self, vendors: Iterable[str]) -> None:
        offered = frozenset(vendors)
        if offered == self._written:
            return
        self._written = offered
        content = msgspec.json.encode(_OwnGpus(offered), order="deterministic")
        files.save(self._path, content)


PATIENCE_SECONDS = 45.0
"""How long the first publication waits for the answer while the API server answers other requests. Longer
than the retry of other drivers' slices."""

YET_TO_COME = "a driver that may still start: the node, the kernel driver or this driver has just started"
TOO_MANY = "other drivers, which offer more devices here than are looked at"


class GpuRules(Struct, frozen=True):
    """The operator's settings, and what is known of the node's past."""

    mode: PublishGpus
    return_seconds: float
    """How long no other driver must have served a vendor's GPUs before they are ours again."""
    own: OwnGpus | None = None
    """Remembers across a boot which GPUs were ours."""
    read_uptime: Callable[[], float] = lambda: math.inf
    """Returns seconds since the node has booted."""


class GpuCallbacks(Struct, frozen=True):
    """What connects :class:`GpuServers` with the rest of the driver. All may be called on any thread."""

    is_answering: Callable[[], bool]
    """Whether the API server has answered other requests of the driver."""
    on_news: Callable[[], None]
    """Called when the next scan may decide otherwise."""
    on_gpus: Callable[[], None]
    """Called when the node has GPUs."""
    ask: Callable[[], None]
    """Has the Node and the kubelet asked again, which leads to :meth:`GpuServers.take_resources`,
    :meth:`~GpuServers.take_used` and :meth:`~GpuServers.take_asked`."""


class GpuServers:
    """Decides which GPUs are left to which driver. :meth:`judge` is called by one scan at a time, on any
    thread; the rest on the event loop."""

    def __init__(
        self,
        devices: NodeDevices,
        metrics: InventoryMetrics,
        rules: GpuRules,
        callbacks: GpuCallbacks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mode = mode = rules.mode
        self._devices = devices
        self._metrics = metrics
        self._callbacks = callbacks
        self._clock = clock
        self._return_seconds = rules.return_seconds
        self._read_uptime = rules.read_uptime
        self._own = rules.own
        self._resources: frozenset[str] | None = None
        self._used: frozenset[str] | None = None
        self._asked_at = -math.inf
        """When the Node and the kubelet were last asked, and the Node answered."""
        self._is_waiting = False
        """Whether the next answer decides, even if it equals the last one."""
        self.has_gpus = False
        """Whether a scan has found any."""
        self._answered_at: float | None = None
        self._usable: frozenset[str] | None = None
        """Vendors with a GPU that had device nodes at the last scan."""
        self._were_ours: frozenset[str] = frozenset()
        """Vendors whose GPUs were ours before this start."""
        self._free_since: dict[str, float] = {}
        """By vendor: since when no other driver serves it."""
        self.served = UNKNOWN if mode is PublishGpus.AUTO else NO_OTHER_SERVER
        """As of the last scan; replaced as a whole."""
        devices.listeners.append(self._take_slices)

    def may_publish(self, served: ServedGpus) -> bool:
        """Whether the result of a scan with ``served`` may be published: not while GPUs are missing that may
        be ours.

        If only this question is not answered (rights are missing), the node's NICs wait for at most
        :data:`PATIENCE_SECONDS`, also after an outage.
        """
        if served.is_known or not self.has_gpus:
            return True
        if not self._callbacks.is_answering():
            return False
        if self._answered_at is None:
            self._answered_at = self._clock()
        return self._clock() - self._answered_at > PATIENCE_SECONDS

    def take_resources(self, resources: Collection[str]) -> None:
        news = frozenset(resources)
        if news != self._resources:
            self._resources = news
            self._notify()

    def take_used(self, names: Collection[str] | None) -> None:
        """``names`` are of resources and drivers; ``None`` if the kubelet does not report them."""
        news = (self._used or frozenset()) if names is None else frozenset(names)
        if news != self._used:
            self._used = news
            self._notify()

    def take_asked(self) -> None:
        self._asked_at = self._clock()
        if self._is_waiting:
            self._is_waiting = False
            self._notify()

    def judge(self, gpus: Sequence[Gpu]) -> ServedGpus:
        if gpus and not self.has_gpus:
            self.has_gpus = True
            self._callbacks.on_gpus()
            if self._mode is PublishGpus.AUTO:
                self._callbacks.ask()
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
            return NO_OTHER_SERVER
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
        """Return vendors that no driver serves, but did until a moment ago, or may in a moment."""
        now = self._clock()
        started = self._find_started(gpus, now)
        gone = {vendor: server for vendor, server in self.served.by_vendor.items() if vendor not in found}
        self._free_since = {
            **dict.fromkeys(gone, now),
            **{vendor: since for vendor, since in self._free_since.items() if vendor in gone},
            **{vendor: since for vendor, since in started.items() if vendor not in found},
        }
        held = {**dict.fromkeys(self._free_since, YET_TO_COME), **gone}
        return {vendor: server for vendor, server in held.items() if not self._is_free(vendor, now)}

    def _find_started(self, gpus: Sequence[Gpu], now: float) -> Mapping[str, float]:
        """Return vendors whose GPUs became usable a moment ago, and when; without those that were ours
        before."""
        usable = frozenset(gpu.vendor for gpu in gpus if gpu.char_devices)
        if self._usable is None:
            # The first scan: GPUs that were not ours may be free since the boot, or since now if an earlier
            # instance left them to another driver.
            known = None if self._own is None else self._own.read()
            self._were_ours = known or frozenset()
            since = now - self._read_uptime() if known is None else now
            started = dict.fromkeys(usable if now - since < self._return_seconds else (), since)
        else:
            started = dict.fromkeys(usable - self._usable, now)
        self._usable = usable
        return {vendor: since for vendor, since in started.items() if vendor not in self._were_ours}

    def _is_free(self, vendor: str, now: float) -> bool:
        """Whether the delay is over and the latest answers are newer than its end.

        If two drivers of our kind left the GPUs to each other, the one whose name sorts first takes them
        first.
        """
        seconds = self._return_seconds * (2 if self._devices.has_elder_kin else 1)
        until = self._free_since[vendor] + seconds
        if now >= until > self._asked_at:
            self._is_waiting = True
            self._callbacks.ask()
        return now >= until and self._asked_at >= until

    def _notify(self) -> None:
        if self._mode is PublishGpus.AUTO and self.has_gpus:
            self._callbacks.on_news()

    def _take_slices(self) -> None:
        if self._mode is PublishGpus.AUTO and self._resources is None:
            self._callbacks.ask()  # the API server is back, and the Node may next be read in a minute
        self._notify()


def _log_changes(before: ServedGpus, after: ServedGpus, gpus: Sequence[Gpu]) -> None:
    for vendor, server in after.by_vendor.items():
        if before.by_vendor.get(vendor) != server:
            count = sum(gpu.vendor == vendor for gpu in gpus)
            log.info("%d GPUs of %s are left to %s", count, vendor, server)
    for vendor in before.by_vendor.keys() - after.by_vendor.keys():
        log.info("no other driver serves the GPUs of %s any longer: they are offered", vendor)


ANSWER_SECONDS = 2.0
"""How long a Prepare waits for both answers; without them the last ones count."""


class GpuInquiry:
    """Asks what no watch reports: the Node, for resources of device plugins, and the kubelet, for what pods
    have of devices whose driver may be gone. Everything but :meth:`ask` is for the event loop.

    One request for the Node also serves ``driver.protected_addresses``.
    """

    def __init__(
        self,
        fetch_node: Callable[[], Awaitable[NodeView]],
        read_used: Callable[[], Awaitable[Collection[str]]],
        servers: Callable[[], GpuServers],
        on_node: Callable[[NodeView], None] = lambda _: None,
    ) -> None:
        """``read_used`` returns the resources and DRA drivers of which pods have devices; ``on_node`` gets
        each answer about the Node."""
        self._on_node = on_node
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
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.look()

    async def look(self) -> None:
        """Ask both, and wait up to :data:`ANSWER_SECONDS`; never fails."""
        _, is_read = await asyncio.gather(self._look_at_pods(), self._look_at_node())
        if is_read:
            self._servers().take_asked()

    async def fetch_addresses(self) -> Sequence[str]:
        """Return the node's addresses; the Node's resources are taken along.

        Raises:
            ClusterError: no answer, or a refusal.
        """
        node = await self._fetch_node()
        self._servers().take_resources(node.resources)
        self._on_node(node)
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
