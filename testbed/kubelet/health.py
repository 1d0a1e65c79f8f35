"""The kubelet's health cache: what each plugin's stream reported, until it is too old or the stream ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from dranet.pb import health_v1_pb2 as pb
from testbed.kubelet.client import PluginClient
from testbed.kubelet.nouns import (
    JsonObject,
    KubeletDevice,
    KubeletOptions,
    NotServed,
    PluginFailure,
)

log = logging.getLogger(__name__)

MESSAGE_MAX_CHARACTERS = 1024

_TEXT = {pb.UNKNOWN: "Unknown", pb.HEALTHY: "Healthy", pb.UNHEALTHY: "Unhealthy"}
_Key = tuple[str, str, str]


class HealthBoard:
    """One stream for each plugin that advertises one. ``on_change`` is called when a device's state moves."""

    def __init__(self, options: KubeletOptions, on_change: Callable[[], None]) -> None:
        self._options = options
        self._on_change = on_change
        self._streams: dict[PluginClient, asyncio.Task[None]] = {}
        self._known: dict[_Key, tuple[str, str]] = {}
        self._expiries: dict[_Key, asyncio.TimerHandle] = {}

    def follow(self, plugins: Sequence[PluginClient]) -> None:
        """Watch exactly these plugins from now on."""
        for plugin in set(self._streams) - set(plugins):
            self._streams.pop(plugin).cancel()
        for plugin in plugins:
            if plugin.info.health_service and plugin not in self._streams:
                task = asyncio.create_task(self._watch(plugin), name=f"health of {plugin.info.driver}")
                self._streams[plugin] = task

    async def stop(self) -> None:
        """End every stream."""
        tasks = set(self._streams.values())
        self.follow(())
        if tasks:
            await asyncio.wait(tasks)
        for expiry in self._expiries.values():
            expiry.cancel()

    def build_status(self, device: KubeletDevice) -> JsonObject:
        """One entry of ``allocatedResourcesStatus[].resources``."""
        health, message = self._known.get((device.driver, device.pool, device.device), ("Unknown", ""))
        entry = {"resourceID": device.resource_id, "health": health}
        return {**entry, "message": message} if message else entry

    async def _watch(self, plugin: PluginClient) -> None:
        while True:
            try:
                async with contextlib.aclosing(plugin.watch_health()) as stream:
                    async for devices in stream:
                        self._merge(plugin.info.driver, devices)
            except NotServed:
                if not self._options.asks_unadvertised_health:
                    return
            except PluginFailure as failure:
                log.debug("%s: %s", plugin.info.driver, failure)
            finally:
                self._clear(plugin.info.driver)
            await asyncio.sleep(self._options.health_retry_seconds)

    def _merge(self, driver: str, devices: Sequence[pb.DeviceHealth]) -> None:
        changed = False
        for entry in devices:
            key = (driver, entry.device.pool_name, entry.device.device_name)
            state = (_TEXT[entry.health], _cut(entry.message))
            changed = changed or self._known.get(key) != state
            self._known[key] = state
            timeout = entry.health_check_timeout_seconds
            self._expire_later(key, timeout if timeout > 0 else self._options.health_lease_seconds)
        if changed:
            self._on_change()

    def _expire_later(self, key: _Key, seconds: float) -> None:
        if key in self._expiries:
            self._expiries[key].cancel()
        self._expiries[key] = asyncio.get_running_loop().call_later(seconds, self._expire, key)

    def _expire(self, key: _Key) -> None:
        del self._expiries[key]
        if self._known.pop(key, None) is not None:
            self._on_change()

    def _clear(self, driver: str) -> None:
        gone = [key for key in self._known if key[0] == driver]
        for key in gone:
            del self._known[key]
            self._expiries.pop(key).cancel()
        if gone:
            self._on_change()


def _cut(message: str) -> str:
    if len(message) <= MESSAGE_MAX_CHARACTERS:
        return message
    return message[: MESSAGE_MAX_CHARACTERS - 3] + "..."
