"""The driver as the kubelet meets it: one owner lock and two sockets, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dranet import files
from dranet.errors import SettingsError
from dranet.failpoints import Failpoint, reached
from dranet.kubelet.plugin import (
    ClaimHandler,
    DraPluginServer,
    HealthService,
    HealthSource,
    KubeletCapabilities,
    KubeletObserver,
)
from dranet.kubelet.sockets import OwnerLock, UnixServer, check_socket_path, make_plugin_dir
from dranet.pb import registration_pb2 as pb

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"
REGISTRATION_SERVICE = "pluginregistration.Registration"
_GRACE_SECONDS = 1.0

StatusCallback = Callable[[bool, str], None]
"""Called with (registered, error text) for every answer of the kubelet."""


class RegistrationServer(UnixServer):
    """Serves ``socket`` in the kubelet's registry folder.

    ``endpoint`` is the DRA socket as the kubelet sees it, ``supported_versions`` the service names behind
    it, newest first: the kubelet takes the first one that it knows.
    """

    def __init__(
        self,
        socket: Path,
        driver_name: str,
        endpoint: Path,
        supported_versions: Sequence[str],
        on_status: StatusCallback | None = None,
        observer: KubeletObserver | None = None,
    ) -> None:
        self.observer = observer or KubeletObserver()
        self._driver_name = driver_name
        self._info = pb.PluginInfo(
            type=PLUGIN_TYPE,
            name=driver_name,
            endpoint=str(endpoint),
            supported_versions=list(supported_versions),
        )
        self._on_status = on_status
        super().__init__(
            socket, [self._build_handler()], grace_seconds=_GRACE_SECONDS, on_served_again=self.observer.reset
        )

    async def stop(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """Leave the registry folder, so that the kubelet deregisters us. Repeatable."""
        await super().stop(grace_seconds)

    def _build_handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            REGISTRATION_SERVICE,
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    self._get_info, pb.InfoRequest.FromString, pb.PluginInfo.SerializeToString
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify_status,
                    pb.RegistrationStatus.FromString,
                    pb.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )

    async def _get_info(self, _request: pb.InfoRequest, _context: object) -> pb.PluginInfo:
        self.observer.asked()
        return self._info

    async def _notify_status(
        self, request: pb.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RegistrationStatusResponse:
        self.observer.notified(registered=request.plugin_registered, error=request.error)
        if request.plugin_registered:
            log.info("registered with the kubelet as %s", self._driver_name)
        else:
            log.error("the kubelet refused to register %s: %s", self._driver_name, request.error)
        if self._on_status is not None:
            self._on_status(request.plugin_registered, request.error)
        if not request.plugin_registered:
            # As the helper of the Kubernetes project answers: the kubelet writes it to its log.
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"registration failed: {request.error}")
        return pb.RegistrationStatusResponse()


REGISTRATION_PATIENCE_SECONDS = 30.0
"""The kubelet finds a socket within a second; when it retries, its pauses grow from half a second."""


class KubeletPlugin:
    """Registration, Prepare and Unprepare, and the health stream.

    The DRA socket answers before the registration socket appears, and the registration socket goes first:
    the kubelet never sees a driver that cannot work. ``dra_socket`` and ``registration_socket`` are paths
    that mean the same to the kubelet; the folder of the first is the driver's own and is created.
    """

    def __init__(
        self,
        driver_name: str,
        dra_socket: Path,
        registration_socket: Path,
        handler: ClaimHandler,
        *,
        health: HealthSource | None = None,
        on_registration: StatusCallback | None = None,
        shared_identity: str | None = None,
    ) -> None:
        """``shared_identity``: other instances of the driver may be on the node, with sockets of their own
        and this identity, see :class:`OwnerLock`; ``None``: no other may be there."""
        self._observer = KubeletObserver()
        self._serving_since = time.monotonic()
        self._plugin_dir = dra_socket.parent
        self._paths = (dra_socket, registration_socket)
        path, is_shared = self._plugin_dir / f"{driver_name}.lock", shared_identity is not None
        self._lock = OwnerLock(path, shared=is_shared, identity=shared_identity or "")
        self._health = HealthService(health, observer=self._observer) if health is not None else None
        self._dra = DraPluginServer(dra_socket, handler, self._health, observer=self._observer)
        self._registration = RegistrationServer(
            registration_socket,
            driver_name,
            dra_socket,
            self._dra.supported_versions,
            on_registration,
            self._observer,
        )

    @property
    def capabilities(self) -> KubeletCapabilities:
        return self._observer.capabilities

    def list_calls(self) -> list[tuple[str, float]]:
        """Prepare and Unprepare calls being worked on, each with its claims, and for how many seconds."""
        return self._dra.list_calls()

    def take_ownership(self) -> None:
        """Become a driver of this name on the node, before anything shared is touched; repeatable.

        Raises:
            SettingsError: another instance keeps us away, a path is too long, or a folder cannot be used.
        """
        for path in self._paths:
            check_socket_path(path)
        registry = self._paths[1].parent  # the kubelet makes it
        if not registry.is_dir():
            raise SettingsError(
                f"the registration folder {registry} does not exist",
                hint="is --kubelet-root the kubelet's root folder, mounted at the same path?",
            )
        try:
            make_plugin_dir(self._plugin_dir)
        except OSError as error:
            raise SettingsError(
                f"cannot use the plugin folder {self._plugin_dir}: {error.strerror}",
                hint=files.hint_for(error, "check --kubelet-root"),
            ) from error
        self._lock.acquire()

    async def start(self) -> None:
        """Serve, then register. On failure nothing stays behind.

        Raises:
            SettingsError: as :meth:`take_ownership`, or a socket cannot be made.
        """
        self.take_ownership()
        try:
            await self._dra.start()
            await self._registration.start()
        except Exception:
            await self.stop()
            raise
        self._serving_since = time.monotonic()

    async def watch(self) -> None:
        """Run until stopped; log once when the kubelet has not called for long.

        Raises:
            RuntimeError: a server has ended by itself.
        """
        async with asyncio.TaskGroup() as tasks:
            patience = tasks.create_task(self._complain_unless_registered())
            servers = [tasks.create_task(served.wait_ended()) for served in (self._dra, self._registration)]
            await asyncio.wait(servers)
            patience.cancel()

    async def _complain_unless_registered(self) -> None:
        await asyncio.sleep(REGISTRATION_PATIENCE_SECONDS)
        if not self.capabilities.registered:
            log.warning("%s", self.describe_registration())

    def describe_registration(self) -> str:
        """Why the kubelet has not registered us; empty if it has."""
        capabilities, waited = self._observer.capabilities, time.monotonic() - self._serving_since
        if capabilities.registered:
            return ""
        if capabilities.registered is False:
            return f"the kubelet refuses to register the driver: {capabilities.registration_error}"
        if waited < REGISTRATION_PATIENCE_SECONDS:
            return "the kubelet has not registered the driver yet"
        report = f"the kubelet has not registered the driver for {waited:.0f} s"
        if capabilities.asked_at is None:
            return f"{report} and never asked: does it watch {self._paths[1].parent}?"
        return f"{report}, though it asked for our name: its log has the reason"

    async def deregister(self) -> None:
        """Leave the registry: the kubelet's next calls go to another instance. Those that come are served."""
        await self._registration.stop()

    def health_changed(self) -> None:
        """Report to the kubelet now instead of at the next beat."""
        if self._health is not None:
            self._health.notify()

    def refuse(self, reason: str) -> None:
        """Fail every later Prepare with ``reason``; Unprepare still works."""
        self._dra.refuse(reason)

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait for the calls in flight; false if some are left after ``timeout_seconds``."""
        return await self._dra.drain(timeout_seconds)

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Deregister, let calls finish for ``drain_seconds``, end the rest, remove our files. Repeatable."""
        await self._registration.stop()
        self._dra.refuse("the driver is stopping")
        await self._dra.drain(drain_seconds)
        await self._dra.stop()
        reached(Failpoint.HANDOVER_SOCKETS_REMOVED)
        self._lock.release()
