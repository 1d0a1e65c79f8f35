"""The kubelet's plugin manager: finds sockets, registers plugins, and wipes the slices of the absent.

Source of the behaviour: ``pkg/kubelet/pluginmanager`` and ``pkg/kubelet/cm/dra/plugin`` of Kubernetes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import stat
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dranet.cluster.client import Backoff
from dranet.kubelet.sockets import FolderWatch
from testbed.kubelet.client import PluginClient, PluginInfo, RegistrationClient, judge_info
from testbed.kubelet.nouns import KubeletOptions, PluginFailure

log = logging.getLogger(__name__)

_FOLDER_MODE = 0o750


@dataclass(slots=True)
class _Candidate:
    """One socket of the registry folder, as created once: the same path created again is another plugin."""

    identity: Identity
    task: asyncio.Task[None] = field(init=False)
    plugin: PluginClient | None = None


class PluginManager:
    """Follows ``<root>/plugins_registry``. ``on_change`` is called when a plugin comes, goes, connects or
    loses its connection; ``wipe_slices`` deletes the slices of one driver on this node."""

    def __init__(
        self,
        root: Path,
        options: KubeletOptions,
        *,
        wipe_slices: Callable[[str], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._root = root
        self._registry = root / "plugins_registry"
        self._options = options
        self._on_change = on_change
        self._wiper = _SliceWiper(options.wipe_slices_after_seconds, wipe_slices)
        self._candidates: dict[Path, _Candidate] = {}
        self._plugins: list[PluginClient] = []
        self._watcher: asyncio.Task[None] | None = None

    @property
    def plugins(self) -> tuple[PluginClient, ...]:
        """Registered plugins, oldest first."""
        return tuple(self._plugins)

    def find(self, driver: str) -> PluginClient:
        """The newest connected plugin of a driver, else the newest.

        Raises:
            PluginFailure: none is registered.
        """
        found = [plugin for plugin in self._plugins if plugin.info.driver == driver]
        if not found:
            raise PluginFailure(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(found) if plugin.connected), found[-1])

    async def start(self) -> None:
        """Make the folders; sockets that are there already are registered like new ones."""
        _make_folders(self._root, self._registry, self._root / "plugins")
        self._watcher = asyncio.create_task(self._follow(), name="plugin watcher")

    async def stop(self) -> None:
        """Hang up on every plugin; nothing is wiped any more. Repeatable."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})
            self._watcher = None
        for path in list(self._candidates):
            await self._deregister(path)
        await self._wiper.stop()

    async def _follow(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            watch = RegistryWatch(self._registry)
            stack.push_async_callback(watch.stop)
            while True:
                await self._reconcile(watch.scan())
                await watch.wait_changed()

    async def _reconcile(self, present: dict[Path, Identity]) -> None:
        for path, candidate in list(self._candidates.items()):
            if present.get(path) != candidate.identity:
                await self._deregister(path)
        for path, identity in present.items():
            if path not in self._candidates:
                candidate = _Candidate(identity)
                candidate.task = asyncio.create_task(
                    self._register(path, candidate), name=f"register {path.name}"
                )
                self._candidates[path] = candidate

    async def _deregister(self, path: Path) -> None:
        """Repeatable: a stop cancels a deregistration that may be just here."""
        candidate = self._candidates[path]
        candidate.task.cancel()
        await asyncio.wait({candidate.task})
        await self._drop(candidate)
        del self._candidates[path]

    async def _register(self, path: Path, candidate: _Candidate) -> None:
        """The whole sequence, again and again until it succeeds."""
        backoff = Backoff(
            self._options.registration_retry_seconds, self._options.registration_retry_cap_seconds
        )
        while True:
            try:
                async with RegistrationClient(path, self._options) as client:
                    await self._admit(path, candidate, client)
            except PluginFailure as failure:
                await self._drop(candidate)
                log.info("registration of %s failed: %s", path, failure)
            else:
                return
            await asyncio.sleep(backoff.next_seconds())

    async def _admit(self, path: Path, candidate: _Candidate, client: RegistrationClient) -> None:
        info = await client.fetch_info()
        try:
            judged = judge_info(info, path, self._options)
            self._check_new(judged)
        except PluginFailure as failure:
            await client.notify(registered=False, error=str(failure))
            raise
        candidate.plugin = PluginClient(judged, self._options, self._note_connection)
        self._plugins.append(candidate.plugin)
        candidate.plugin.start()
        await client.notify(registered=True)
        log.info("registered %s at %s", judged.driver, judged.endpoint)
        self._on_change()

    def _check_new(self, info: PluginInfo) -> None:
        if any((p.info.driver, p.info.endpoint) == (info.driver, info.endpoint) for p in self._plugins):
            raise PluginFailure(f"endpoint {info.endpoint} already registered for DRA driver {info.driver}")

    async def _drop(self, candidate: _Candidate) -> None:
        """Forget its plugin. Repeatable: a deregistration cancels a registration that may be just here."""
        plugin = candidate.plugin
        if plugin is None:
            return
        if plugin in self._plugins:
            self._plugins.remove(plugin)
            self._note_connection(plugin)
        await plugin.close()
        candidate.plugin = None

    def _note_connection(self, plugin: PluginClient) -> None:
        driver = plugin.info.driver
        self._wiper.note(driver, connected=any(p.connected for p in self._plugins if p.info.driver == driver))
        self._on_change()


class _SliceWiper:
    """Deletes a driver's slices when it had no connected plugin for a while."""

    def __init__(self, after_seconds: float, wipe: Callable[[str], Awaitable[None]]) -> None:
        self._after_seconds = after_seconds
        self._wipe = wipe
        self._pending: dict[str, asyncio.Task[None]] = {}

    def note(self, driver: str, *, connected: bool) -> None:
        if connected:
            pending = self._pending.pop(driver, None)
            if pending is not None:
                pending.cancel()
        elif driver not in self._pending:
            self._pending[driver] = asyncio.create_task(
                self._wipe_later(driver), name=f"wipe slices of {driver}"
            )

    async def stop(self) -> None:
        tasks = set(self._pending.values())
        self._pending.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self._after_seconds)
        log.info("no plugin of %s for %g s: deleting its slices", driver, self._after_seconds)
        await self._wipe(driver)


def _make_folders(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)


Identity = tuple[int, int]
"""Identity of one socket as it was created: inode number, and the time that distinguishes it from a later
one."""


class RegistryWatch:
    """Follows ``folder`` and what is below it, folders that come later included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = asyncio.Event()
        self._followers: dict[Path, _Follower] = {}

    async def wait_changed(self) -> None:
        """Return when something may have changed since the last :meth:`scan`."""
        await self._changed.wait()

    def scan(self) -> dict[Path, Identity]:
        """The sockets that are there now; new folders are followed from here on."""
        self._changed.clear()
        # Until there is no new one: what is made in a folder before it is followed causes no event.
        while (folders := {self._folder, *_iter_folders(self._folder)}) != self._followers.keys():
            self._follow(folders)
        return {path: identity for folder in self._followers for path, identity in _iter_sockets(folder)}

    async def stop(self) -> None:
        """Follow nothing any more. Repeatable."""
        tasks = {follower.task for follower in self._followers.values()}
        self._follow(set())
        if tasks:
            await asyncio.wait(tasks)

    def _follow(self, folders: set[Path]) -> None:
        for gone in self._followers.keys() - folders:
            self._followers.pop(gone).close()
        for folder in folders - self._followers.keys():
            self._followers[folder] = _Follower(folder, self._changed)


class _Follower:
    """Sets ``changed`` whenever one folder's list of names changes. Made before the folder is read, so that
    no change falls between."""

    def __init__(self, folder: Path, changed: asyncio.Event) -> None:
        self._watch = FolderWatch(folder)
        self._watch.__enter__()
        self._changed = changed
        self.task = asyncio.create_task(self._follow(), name=f"watch {folder}")

    def close(self) -> None:
        self.task.cancel()
        self._watch.__exit__()

    async def _follow(self) -> None:
        while True:
            await self._watch.wait_changed()
            self._changed.set()


def _iter_folders(folder: Path) -> Iterator[Path]:
    for path in _list(folder):
        if path.is_dir() and not path.is_symlink():
            yield path
            yield from _iter_folders(path)


def _iter_sockets(folder: Path) -> Iterator[tuple[Path, Identity]]:
    for path in _list(folder):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield path, (status.st_ino, status.st_ctime_ns)


def _list(folder: Path) -> list[Path]:
    """Visible entries; empty for a folder that went away meanwhile."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
