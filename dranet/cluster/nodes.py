"""The Node object, and the devices that other DRA drivers offer on the node.

Only the Node's addresses, its labels, its provider ID and what device plugins announce are read.
"""

from __future__ import annotations

import contextlib
import logging
import re
from asyncio import Event
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from itertools import islice

from msgspec import Struct, field

from dranet.cluster import paths
from dranet.cluster.client import (
    SPREAD_SECONDS,
    ApiClient,
    Backoff,
    EventType,
    JsonObject,
    Snapshot,
    WatchEvent,
    list_and_watch,
)
from dranet.model.attributes import DOMAIN

OWN_ADDRESS_TYPES = ("InternalIP", "ExternalIP")
"""``v1.NodeAddress``; host names are left out: what they resolve to need not be the node's own."""


_MAX_RESOURCES = 256
_MAX_LABELS = 512
_MAX_PROVIDER_ID = 512
_MAX_NAME = 317
"""A DNS subdomain, a slash and 63 characters."""


class NodeView(Struct, frozen=True):
    addresses: tuple[str, ...] = ()
    """IP addresses, in their order, each once."""
    resources: tuple[str, ...] = ()
    """Names of the extended resources (``nvidia.com/gpu``), sorted; there may be none of one now."""
    provider_id: str = ""
    """``spec.providerID``: the cloud and its name for the machine."""
    labels: Mapping[str, str] = field(default_factory=dict)


async def fetch_node(client: ApiClient, name: str) -> NodeView:
    """What has no known shape is left out.

    Raises:
        ClusterError: no answer, or a refusal (the role needs ``get`` on ``nodes``).
    """
    node = await client.get(paths.node(name))
    spec = node.get("spec")
    provider_id = spec.get("providerID") if isinstance(spec, dict) else None
    is_usable = isinstance(provider_id, str) and len(provider_id) <= _MAX_PROVIDER_ID
    return NodeView(
        parse_node_addresses(node),
        parse_resources(node),
        str(provider_id) if is_usable else "",
        parse_labels(node),
    )


def parse_labels(node: JsonObject) -> Mapping[str, str]:
    metadata = node.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    pairs = labels.items() if isinstance(labels, dict) else ()
    found = ((name, value) for name, value in pairs if len(name) <= _MAX_NAME and _is_text(value))
    return dict(islice(found, _MAX_LABELS))


def parse_resources(node: JsonObject) -> tuple[str, ...]:
    """Extended resources, which have a domain. None of it is left in a restart of the node, of the kubelet or
    of the plugin, and when all devices are broken: the plugin will be back, and pods may have them still."""
    status = node.get("status")
    halves = [status.get(half) for half in ("capacity", "allocatable")] if isinstance(status, dict) else []
    found = {
        name
        for half in halves
        for name in (half if isinstance(half, dict) else ())
        if "/" in name and len(name) <= _MAX_NAME
    }
    return tuple(sorted(found)[:_MAX_RESOURCES])


def parse_node_addresses(node: JsonObject) -> tuple[str, ...]:
    """Addresses of a Node that may have any shape: it is a hint, never a failure."""
    status = node.get("status")
    entries = status.get("addresses") if isinstance(status, dict) else None
    found: dict[str, None] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("type") in OWN_ADDRESS_TYPES:
            with contextlib.suppress(ValueError):
                found[str(ip_address(str(entry.get("address"))))] = None
    return tuple(found)


_log = logging.getLogger(__name__)

MAX_SLICES = 1024
MAX_DEVICES_IN_SLICE = 128
"""As many as the API takes."""
MAX_DEVICES = 8192
_MAX_TEXT = 256

_REWATCH_SECONDS = (1.0, 30.0)

_ADDRESS_NAMES = frozenset({"pcibusid", "pciebusid", "pciaddress", "pciaddr", "parentpciaddr"})
_UUID_NAMES = frozenset({"uuid", "parentuuid"})
"""Attributes that are kept: lower case, without the domain, since each vendor has a name of its own."""

_STANDARD = "resource.kubernetes.io/"
_OUR_DOMAIN = f"{DOMAIN}/"
_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)

Key = tuple[str, str, str]
"""Driver, pool, device."""


class NodeDevice(Struct, frozen=True):
    """One device of another driver, with what places it."""

    driver: str
    pool: str
    name: str
    pci_address: str = ""
    """As sysfs writes it; empty where the driver does not publish it."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """By qualified name (``gpu.nvidia.com/uuid``)."""
    is_kin: bool = False
    """Has attributes of our domain: another driver of this kind, under a name of its own, offers it."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the device, and of the device that it is a part of (MIG)."""
        return tuple(value for name, value in self.attributes.items() if _local(name) in _UUID_NAMES)


class NodeDevices:
    """Follows the slices of other drivers on one node. Reads may come from any thread.

    Nothing is asked before :meth:`want`: a node without GPUs does without.
    """

    def __init__(self, client: ApiClient, own_driver: str, node: str) -> None:
        self._client = client
        self._own_driver = own_driver
        self._selector = f"spec.nodeName={node},spec.driver!={own_driver}"
        self._wanted = Event()
        self._slices: dict[str, _Slice] = {}
        self._devices: Mapping[Key, NodeDevice] = {}
        """Replaced as a whole."""
        self._left_out = False
        """Some slice was, since the last complete list."""
        self._reported_full = False
        self.drivers: frozenset[str] = frozenset()
        """The drivers with slices here, also empty ones; replaced as a whole."""
        self.is_complete = True
        """Everything that was listed is remembered."""
        self.is_known = False
        """The API server has listed all slices once."""
        self.listeners: list[Callable[[], None]] = []
        """Called on the event loop when the devices differ from before, and when they are known first."""

    def want(self) -> None:
        """From now on they are asked for; on the event loop."""
        self._wanted.set()

    @property
    def is_awaited(self) -> bool:
        """They were asked for, and are not known yet."""
        return self._wanted.is_set() and not self.is_known

    def find(self, driver: str, pool: str, device: str) -> NodeDevice | None:
        """The device that an allocation names; ``None`` where no slice contains it (yet)."""
        return self._devices.get((driver, pool, device))

    def get_all(self) -> tuple[NodeDevice, ...]:
        return tuple(self._devices.values())

    @property
    def has_elder_kin(self) -> bool:
        """Another driver of our kind, whose name comes before ours, offers devices here."""
        return any(device.is_kin and device.driver < self._own_driver for device in self.get_all())

    async def run(self) -> None:
        """Follow until cancelled, once it is wanted."""
        await self._wanted.wait()
        news = list_and_watch(
            self._client,
            paths.RESOURCE_SLICES,
            field_selector=self._selector,
            backoff=Backoff(*_REWATCH_SECONDS),
            spread_seconds=SPREAD_SECONDS,
        )
        async with contextlib.aclosing(news):
            async for item in news:
                self.take(item)
                del item  # of which little is kept

    def take(self, news: Snapshot | WatchEvent) -> None:
        if isinstance(news, Snapshot):
            self._slices, self._left_out = {}, False
            for item in news.items:
                self._put(item)
        elif news.type is EventType.DELETED:
            self._slices.pop(_uid(news.object), None)
        else:
            self._put(news.object)
        was_known, self.is_known = self.is_known, True
        before = (self._devices, self.drivers, self.is_complete)
        self._devices = self._bounded(self._index())
        self.drivers = frozenset(found.pool[0] for found in self._slices.values())
        if before != (self._devices, self.drivers, self.is_complete) or not was_known:
            for listener in self.listeners:
                listener()

    def _put(self, item: JsonObject) -> None:
        uid, found = _uid(item), _read_slice(item, self._own_driver)
        if found is None:
            self._slices.pop(uid, None)
        elif uid in self._slices or len(self._slices) < MAX_SLICES:
            self._slices[uid] = found
        else:
            self._left_out = True

    def _index(self) -> dict[Key, NodeDevice]:
        """Keep only the newest generation of each pool: the rest is what a driver has not removed yet."""
        newest: dict[tuple[str, str], int] = {}
        for found in self._slices.values():
            newest[found.pool] = max(found.generation, newest.get(found.pool, found.generation))
        devices: dict[Key, NodeDevice] = {}
        for found in self._slices.values():
            if found.generation == newest[found.pool]:
                devices |= {(d.driver, d.pool, d.name): d for d in found.devices}
        return devices

    def _bounded(self, devices: dict[Key, NodeDevice]) -> Mapping[Key, NodeDevice]:
        self.is_complete = not self._left_out and len(devices) <= MAX_DEVICES
        if self.is_complete:
            self._reported_full = False
            return devices
        if not self._reported_full:
            text = "other drivers offer more here than is looked at: %d slices, %d devices"
            _log.warning(text, MAX_SLICES, MAX_DEVICES)
        self._reported_full = True
        return {key: devices[key] for key in sorted(devices)[:MAX_DEVICES]}


class _Slice(Struct, frozen=True):
    pool: tuple[str, str]
    generation: int
    devices: tuple[NodeDevice, ...]


def _uid(item: JsonObject) -> str:
    return str(item["metadata"]["uid"])  # the client lets nothing through that has none


def _read_slice(item: JsonObject, own_driver: str) -> _Slice | None:
    """``None`` for what is ours, or is no slice."""
    spec = item.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    pool = spec.get("pool")
    pool = pool if isinstance(pool, dict) else {}
    driver, name, generation = spec.get("driver"), pool.get("name"), pool.get("generation")
    if not (_is_text(driver) and _is_text(name)) or driver == own_driver:
        return None
    devices = tuple(_read_devices(spec.get("devices"), str(driver), str(name)))
    return _Slice((str(driver), str(name)), generation if isinstance(generation, int) else 0, devices)


def _read_devices(devices: object, driver: str, pool: str) -> Iterator[NodeDevice]:
    for device in devices[:MAX_DEVICES_IN_SLICE] if isinstance(devices, list) else ():
        if isinstance(device, dict) and _is_text(device.get("name")):
            published = device.get("attributes")
            attributes = dict(_read_places(published, driver))
            is_kin = isinstance(published, dict) and any(str(n).startswith(_OUR_DOMAIN) for n in published)
            yield NodeDevice(driver, pool, device["name"], _find_address(attributes), attributes, is_kin)


def _read_places(attributes: object, driver: str) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if not isinstance(name, str) or not isinstance(value, dict):
            continue
        qualified, read = name if "/" in name else f"{driver}/{name}", value.get("string")
        is_place = _local(name) in _ADDRESS_NAMES | _UUID_NAMES
        if is_place and len(qualified) <= _MAX_TEXT and _is_text(read):
            yield qualified, str(read)


def _find_address(attributes: Mapping[str, str]) -> str:
    """The standard attribute's word before a vendor's own."""
    standard = attributes.get(f"{_STANDARD}pciBusID", "")
    own = (attributes[name] for name in sorted(attributes) if _local(name) in _ADDRESS_NAMES)
    return next(filter(None, map(_canonical_bus_id, (standard, *own))), "")


def _canonical_bus_id(value: str) -> str:
    """``00000000:3A:00.0`` (as NVML has it) and ``3a:00.0`` as ``0000:3a:00.0``."""
    found = _BUS_ID.fullmatch(value)
    if found is None:
        return ""
    domain = (found[1] or "0").lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}".lower()


def _local(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_TEXT
