"""A gRPC server on a UNIX socket that stays reachable: it is served again when its file vanishes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import grpc
import grpc.aio

from dranet.errors import DranetError, SettingsError
from dranet.kubelet.sockets import FolderWatch, PublishedSocket, check_socket_path, make_plugin_dir

log = logging.getLogger(__name__)

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
                log.error("%s", self._describe_owner(foreign=foreign))
            await watch.wait_changed()

    def _describe_owner(self, *, foreign: bool) -> str:
        if foreign:
            return f"{self.path} was replaced by another program: the kubelet cannot reach this driver"
        return f"{self.path} is ours again"

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
        return SettingsError(
            f"cannot listen on {path}: folder {path.parent} does not exist", hint="check --kubelet-root"
        )
    why = str(cause) if cause is not None else "is its folder writable? gRPC wrote the kernel's answer before"
    return SettingsError(f"cannot listen on {path}: {why}")
