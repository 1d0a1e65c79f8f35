"""gRPC servers on UNIX sockets that stay reachable, and the owner of the sockets' folder.

A gRPC server that binds over a live socket unlinks it without an error, and at its end unlinks whatever
is at the path by then, perhaps its successor's. Three rules prevent both here: instances that
overlap have names of their own (``dranet.socket_names``), every process holds a lock for its whole life, and
gRPC never learns the public path (see :class:`PublishedSocket`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Self

import grpc
import grpc.aio

from dranet import files
from dranet.errors import DranetError, SettingsError, StoreError
from dranet.files import FileLock
from dranet.socket_names import UNIX_PATH_MAX_BYTES

log = logging.getLogger(__name__)

SOCKET_MODE = 0o600
"""Mode of both sockets: the kubelet is root."""


def make_plugin_dir(folder: Path) -> None:
    """The driver's own folder in the kubelet's ``plugins``: only root uses it.

    Raises:
        OSError: the disk refuses, or something other than a folder is there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    files.make_folder(folder)


def check_socket_path(path: Path) -> None:
    """Refuse a path that ``sockaddr_un`` cannot hold (``unix(7)``).

    Raises:
        SettingsError: the path has more than 107 bytes.
    """
    size = len(os.fsencode(path))
    if size > UNIX_PATH_MAX_BYTES:
        raise SettingsError(
            f"socket path {path} has {size} bytes, a UNIX socket takes {UNIX_PATH_MAX_BYTES}",
            hint="use a shorter kubelet root or driver name",
        )


class OwnerLock:
    """Decides which process is the driver of a folder: one alone, or several that know of each other.

    Held for the life of the process, and dropped by the kernel however that ends. ``shared`` instances have
    sockets of their own and share all else; one that is not shared keeps every other away. Where they have a
    ``identity``, such as "the name dra.net", one with another is kept away as well: they are no instances of
    one driver, and would neither know of each other's claims nor hand anything over.
    """

    def __init__(self, path: Path, *, shared: bool = False, identity: str = "") -> None:
        self.path = path
        self._shared = shared
        self._identity = identity
        self._lock = FileLock(path)

    def acquire(self) -> None:
        """Take the lock; an instance that is alone writes its process id into it. Repeatable.

        Raises:
            SettingsError: another process keeps us away, or the file cannot be opened.
        """
        if self._lock.held:
            return
        try:
            taken = self._share() if self._shared else self._lock.try_acquire()
            theirs = files.read_file(self.path, _IDENTITY_BYTES).decode(errors="replace") if taken else ""
        except (StoreError, OSError) as error:
            raise SettingsError(f"cannot use lock file {self.path}: {error}") from error
        if not taken:
            raise self._refusal()
        if self._shared and self._identity and theirs not in ("", self._identity):
            self._lock.close()
            why = f"a driver with {theirs} holds {self.path}, and this one has {self._identity}"
            raise SettingsError(why, hint=_NOT_ALIKE)

    def _share(self) -> bool:
        """The first instance writes what later ones must also have. The others wait for the moment that this
        takes; a disk that refuses costs them only the look."""
        with contextlib.closing(FileLock(self.path)) as alone:
            if alone.try_acquire():
                try:
                    os.truncate(self.path, 0)  # the earlier holder is gone
                    self.path.write_text(self._identity)
                except OSError:
                    self._identity = ""
        return self._lock.acquire(time.monotonic() + _SHARE_SECONDS, shared=True)

    def _refusal(self) -> SettingsError:
        pid = self._lock.read_holder()
        self._lock.close()
        hint = _WAIT_FOR_THE_LONE_ONE if self._shared else _ONE_OR_WITH_UID
        return SettingsError(f"another driver{f' (pid {pid})' if pid else ''} holds {self.path}", hint=hint)

    def release(self) -> None:
        self._lock.close()


_SHARE_SECONDS = 0.5
_IDENTITY_BYTES = 4096
_WAIT_FOR_THE_LONE_ONE = (
    "it was started without pod_uid and so is alone on the node: wait until it has ended, and update to this "
    "version without surge"
)
_ONE_OR_WITH_UID = (
    "run one instance of a driver name per node or give each its pod_uid, or wait until the other has ended"
)
_NOT_ALIKE = (
    "two installations: give each a driver_name and a state_dir of its own; one, where this was changed: set "
    "it back, because the NICs of claims in use are restored by their records alone"
)


def remove_dead_socket(path: Path) -> bool:
    """Remove a socket without a listener; return whether it did. For a caller that knows that its owner is
    gone: in the moment between bind and listen a live one also refuses."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as caller:
            caller.setblocking(False)
            caller.connect(str(path))
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return True
    except OSError:  # it is gone, or a listener is so busy that it cannot answer now
        return False
    return False


class PublishedSocket:
    """A listening socket that appears under its public name only when it already answers.

    The server binds :meth:`next_bind_path`, a hidden name next to the public one, and :meth:`publish`
    renames it. So the kubelet, which dials a name the moment it appears, never meets a socket that does
    not listen yet; gRPC, which only knows the hidden name, can unlink nothing of value; and
    :meth:`withdraw` removes the public name only while it is still our own inode. The kubelet's watcher
    ignores names that start with a dot.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._generation = 0
        self._identity: tuple[int, int] | None = None

    def next_bind_path(self) -> Path:
        """A fresh hidden name for one server; a file of an earlier process is removed.

        Raises:
            SettingsError: it or the public path is too long.
        """
        self._generation += 1
        hidden = self.path.with_name(f".{self.path.stem}~{self._generation % 1000}")
        check_socket_path(self.path)
        check_socket_path(hidden)
        _unlink_socket(hidden)
        return hidden

    def publish(self, bound: Path) -> None:
        """Give the bound socket its public name, in place of a stale socket of an earlier life.

        Raises:
            SettingsError: something other than a socket is there.
            OSError: the folder went away meanwhile.
        """
        bound.chmod(SOCKET_MODE)  # whatever the umask was when it was bound
        # The removal is a step of its own: the kubelet takes remove and create for a new instance.
        _unlink_socket(self.path)
        bound.rename(self.path)
        self._identity = _read_identity(self.path)

    def is_missing(self) -> bool:
        return _read_identity(self.path) is None

    def is_ours(self) -> bool:
        return self._identity is not None and _read_identity(self.path) == self._identity

    def withdraw(self) -> None:
        """Remove the public name if it is still ours; repeatable."""
        if self.is_ours():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self._identity = None


def _read_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _unlink_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        hint = "remove it, or move the kubelet root"
        raise SettingsError(f"{path} is in the way and is not a socket", hint=hint)
    path.unlink(missing_ok=True)


_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_ONLYDIR = 0x01000000
_MASK = (
    _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
)

FALLBACK_SECONDS = 30.0
"""inotify does not see a folder whose *parent* is renamed; look again this often all the same."""

POLL_SECONDS = 2.0
"""Polling interval where the user's inotify instances are used up (``fs.inotify.max_user_instances``)."""


class FolderWatch:
    """Wakes its one waiter when the folder's list of names changes, or the folder itself goes away.

    The kernel's events are only a hint to look again: what changed is not in them. Use as a context manager
    in a running event loop; where the folder does not exist, or inotify is refused, it falls back to time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1
        self._changed = asyncio.Event()
        self._patience = POLL_SECONDS
        self._remove_reader: Callable[[int], bool] | None = None

    def __enter__(self) -> Self:
        try:
            self._fd = _open_inotify(self._folder)
        except OSError as error:
            log.debug("no inotify on %s (%s): looking every %g s", self._folder, error.strerror, POLL_SECONDS)
            return self
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._on_readable)
        self._remove_reader = loop.remove_reader
        self._patience = FALLBACK_SECONDS
        return self

    def __exit__(self, *_: object) -> None:
        if self._remove_reader is not None:
            self._remove_reader(self._fd)
            os.close(self._fd)
            self._remove_reader = None

    async def wait_changed(self) -> None:
        """Return when something may have changed since the last call (or since the start)."""
        try:
            async with asyncio.timeout(self._patience):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def _on_readable(self) -> None:
        os.read(self._fd, 65536)
        self._changed.set()


def _open_inotify(folder: Path) -> int:
    """A non-blocking inotify descriptor with one watch. The standard library has no call for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _last_error(folder)
    if libc.inotify_add_watch(fd, os.fsencode(folder), ctypes.c_uint32(_MASK)) < 0:
        error = _last_error(folder)
        os.close(fd)
        raise error
    return fd


def _last_error(folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(folder))


FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 10.0
_FOR_EVER_SECONDS = 1e9

MAX_CONNECTIONS = 256
"""At a time, on one socket. The kubelet has one or two; each takes a descriptor and some kilobytes."""
MAX_CALLS = 1024
"""At a time, on one connection: the kubelet has one for each pod that starts or ends."""
MAX_REQUEST_BYTES = 4 << 20
"""gRPC's own default, which the kubelet also has. A claim takes about 100 bytes."""
HANDSHAKE_SECONDS = 10
"""For the first words of a connection; gRPC would wait for two minutes. A client that has shaken hands may be
silent without end: the kubelet is, and takes the end of its connection for our end."""

_OPTIONS = (
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_concurrent_streams", MAX_CALLS),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.http2.settings_timeout", HANDSHAKE_SECONDS * 1000),
)

_GRPC_LOGGER = "grpc._cython.cygrpc"
"""Where gRPC's server logs calls that went wrong."""


class UnixServer:
    """Serves ``handlers`` on ``path`` from :meth:`start` to :meth:`stop`.

    A kubelet that starts afresh may wipe its folders; the socket file is then gone while the server
    behind it lives on, unreachable. A new server is bound in its place, and ``on_served_again`` is called;
    the old one gets ``grace_seconds`` to finish what it has begun. A foreign socket at the path is
    reported and left alone.
    """

    def __init__(
        self,
        path: Path,
        handlers: Sequence[grpc.GenericRpcHandler],
        *,
        grace_seconds: float,
        on_served_again: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._handlers = handlers
        self._grace_seconds = grace_seconds
        self._on_served_again = on_served_again
        self._socket = PublishedSocket(path)
        self._server: grpc.aio.Server | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._retired: dict[asyncio.Task[None], grpc.aio.Server] = {}

    async def start(self) -> None:
        """Listen, then appear under the public path.

        Raises:
            SettingsError: the path is too long, its folder is missing or not writable, or taken.
        """
        check_socket_path(self.path)
        await self._serve()
        self._keeper = asyncio.create_task(self._keep_served(), name=f"keep {self.path.name}")

    async def wait_ended(self) -> None:
        """Return when it was stopped.

        Raises:
            RuntimeError: it has ended by itself, and no caller can reach us any longer.
        """
        keeper = self._keeper  # a stop that comes meanwhile forgets it
        if keeper is not None:
            await asyncio.wait({keeper})
            if not keeper.cancelled():
                keeper.result()

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Withdraw the path if it is still ours, then end what is still served; repeatable."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
            self._keeper = None
        # Before the listener closes: while it lives, the kernel cannot give its inode number away.
        self._socket.withdraw()
        if self._server is not None:
            await self._server.stop(grace_seconds)
            self._server = None
        for leaving, server in list(self._retired.items()):
            await server.stop(0)
            await leaving

    async def _serve(self) -> None:
        server = _new_server(self._handlers)
        bound = self._socket.next_bind_path()
        try:
            server.add_insecure_port(f"unix:{bound}")
        except RuntimeError as error:
            raise _cannot_listen(self.path) from error
        await server.start()
        try:
            self._socket.publish(bound)
        except (DranetError, OSError) as error:
            await server.stop(0)
            bound.unlink(missing_ok=True)
            raise _cannot_listen(self.path, error) from error
        self._server = server

    async def _keep_served(self) -> None:
        while True:
            with FolderWatch(self.path.parent) as watch:
                await self._while_served(self._wait_missing(watch))
            log.warning("socket %s vanished: serving it again", self.path)
            await self._serve_again()

    async def _while_served(self, waiting: Coroutine[None, None, None]) -> None:
        """Wait for something, unless the server behind the socket ends by itself."""
        assert self._server is not None
        awaited = asyncio.create_task(waiting)
        # Without a time limit, to cancel it would break the server's own stop: grpc.aio awaits a bare future.
        ended = asyncio.create_task(self._server.wait_for_termination(_FOR_EVER_SECONDS))
        try:
            await asyncio.wait({awaited, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not awaited.done():
                raise RuntimeError(f"the gRPC server of {self.path} has ended by itself")
            awaited.result()
        finally:
            awaited.cancel()
            ended.cancel()

    async def _wait_missing(self, watch: FolderWatch) -> None:
        foreign = False
        while not self._socket.is_missing():
            if self._socket.is_ours() == foreign:
                foreign = not foreign
                replaced = "was replaced by another program: the kubelet cannot reach this driver"
                log.error("%s %s", self.path, replaced if foreign else "is ours again")
            await watch.wait_changed()

    async def _serve_again(self) -> None:
        previous, delay = self._server, FIRST_RETRY_SECONDS
        while True:
            try:
                if not self.path.parent.is_dir():
                    make_plugin_dir(self.path.parent)
                await self._serve()
                break
            except (DranetError, OSError) as error:
                log.warning("cannot serve %s yet: %s", self.path, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)
        self._retire(previous)
        if self._on_served_again is not None:
            self._on_served_again()

    def _retire(self, server: grpc.aio.Server | None) -> None:
        if server is not None:
            leaving = asyncio.create_task(server.stop(self._grace_seconds), name=f"retire {self.path.name}")
            self._retired[leaving] = server
            leaving.add_done_callback(self._retired.pop)


def _new_server(handlers: Sequence[grpc.GenericRpcHandler]) -> grpc.aio.Server:
    # gRPC's own fork handlers only write a warning at each fork while a server runs. Read by its core
    # when the first server of the process is made.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    logging.getLogger(_GRPC_LOGGER).addFilter(_log_unsent)  # once, however often this runs
    return grpc.aio.server(handlers=handlers, options=_OPTIONS)


def _log_unsent(record: logging.LogRecord) -> bool:
    """An answer that gRPC's core could not send. The caller has hung up, as a kubelet does that ends or
    forgets us, and asks again for what it wants; gRPC would log it with a traceback, like a bug."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError):
        return True
    log.warning("an answer was not sent, the caller may have hung up: %s", record.getMessage())
    return False


def _cannot_listen(path: Path, cause: Exception | None = None) -> SettingsError:
    if not path.parent.is_dir():
        why = f"cannot listen on {path}: folder {path.parent} does not exist"
        return SettingsError(why, hint="check --kubelet-root")
    why = str(cause) if cause is not None else "is its folder writable? gRPC wrote the kernel's answer before"
    return SettingsError(f"cannot listen on {path}: {why}")
