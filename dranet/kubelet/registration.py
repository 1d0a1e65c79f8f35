"""The registration socket: who we are, where we are served, and what the kubelet thinks of it.

Wire: ``pluginregistration.Registration`` (kubelet plugin registration, ``pkg/kubelet/pluginmanager``).
The kubelet may ask any number of times and drops a plugin that takes more than a second, so
:meth:`RegistrationServer._get_info` answers from memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dranet.kubelet.peer import KubeletPeer
from dranet.kubelet.server import UnixServer
from dranet.pb import registration_pb2 as pb

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"
REGISTRATION_SERVICE = "pluginregistration.Registration"
_GRACE_SECONDS = 1.0

StatusCallback = Callable[[bool, str], None]
"""Called with (registered, error text) for every answer of the kubelet."""


class RegistrationServer:
    """Serves ``socket`` in the kubelet's registry folder.

    ``endpoint`` is the DRA socket as the kubelet sees it, ``supported_versions`` the service names behind
    it, newest first: the kubelet takes the first one that it knows. ``registered`` is ``None`` until the
    kubelet has answered since the socket was last (re-)created.
    """

    def __init__(
        self,
        socket: Path,
        driver_name: str,
        endpoint: Path,
        supported_versions: Sequence[str],
        on_status: StatusCallback | None = None,
        peer: KubeletPeer | None = None,
    ) -> None:
        self._peer = peer or KubeletPeer()
        self._driver_name = driver_name
        self._info = pb.PluginInfo(
            type=PLUGIN_TYPE,
            name=driver_name,
            endpoint=str(endpoint),
            supported_versions=list(supported_versions),
        )
        self._on_status = on_status
        self._server = UnixServer(
            socket, [self._handler()], grace_seconds=_GRACE_SECONDS, on_served_again=self._peer.forgot
        )

    @property
    def registered(self) -> bool | None:
        return self._peer.traits.registered

    @property
    def error(self) -> str:
        """Why the kubelet refused us; empty if it did not."""
        return self._peer.traits.registration_error

    async def start(self) -> None:
        """Appear in the registry folder.

        Raises:
            SettingsError: as :meth:`dranet.kubelet.server.UnixServer.start`.
        """
        await self._server.start()

    async def wait_ended(self) -> None:
        """As :meth:`dranet.kubelet.server.UnixServer.wait_ended`."""
        await self._server.wait_ended()

    async def stop(self) -> None:
        """Leave the registry folder; the kubelet then deregisters us. Repeatable."""
        await self._server.stop(_GRACE_SECONDS)

    def _handler(self) -> grpc.GenericRpcHandler:
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
        self._peer.asked()
        return self._info

    async def _notify_status(
        self, request: pb.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RegistrationStatusResponse:
        self._peer.told(registered=request.plugin_registered, error=request.error)
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
