"""A provider behind HTTP, asked in DraNet's webhook protocol (v1.4): one request for each connection.

``GET /health`` returns what the provider offers. ``POST /GetDeviceAttributes`` and ``/GetDeviceConfig`` ask
about one device, ``/GetProfileConfig`` and ``/ReleaseProfileConfig`` about a profile for one device of one
claim. Paths and fields are DraNet's, so that a provider written for it works unchanged.

The answers are hostile until they are checked: a whole exchange has one time limit, an answer a size limit,
and a redirect is not followed. The content of an answer is checked where it is used.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

import dranet
from dranet.decoding import decode
from dranet.errors import ProtocolError, ProviderError, Reason, SettingsError
from dranet.http1 import (
    MAX_HEAD_BYTES,
    Pem,
    ResponseHead,
    Tls,
    check_resolvable,
    encode_request,
    exchange_once,
)
from dranet.model.provider import DeviceIdentity
from dranet.settings import Settings

MAX_BODY_BYTES = 64 << 10
"""Limit of one answer, of which memory keeps up to twenty times as much for each device. The attributes and
the config of one device are some hundred bytes; Kubernetes takes 10 KiB as the parameters of a claim."""

FIRST_RETRY_SECONDS = 0.25
"""Each further pause is twice as long."""
RELEASE_SECONDS = 5.0
"""An Unprepare, which may also wait for devices, does not wait longer for a release; it is repeated later."""

_SHOWN_MAX = 200
_TRANSIENT = frozenset({408, 425, 429})
"""Statuses below 500 after which the same request may succeed (RFC 9110, RFC 6585)."""


class WebhookAccess(Struct, frozen=True):
    """Where the provider is. Make it with :func:`parse_url`."""

    url: str
    """As the operator wrote it, for messages."""
    host: str = "localhost"
    port: int = 0
    base_path: str = ""
    """Without a trailing slash."""
    socket: Path | None = None
    """The UNIX socket; without it the provider is at ``host`` and ``port``."""
    tls: Tls | None = None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


def parse_url(url: str, tls: Tls) -> WebhookAccess:
    """
    Args:
        url: ``http://HOST[:PORT][/PATH]``, ``https://...`` or ``unix:///PATH``.
        tls: the files of the settings; only ``https`` can use them.

    Raises:
        SettingsError: it has another form, or a file of ``tls`` cannot be used.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if host:
            check_resolvable(host)
    except ValueError as error:
        raise _refuse(url, str(error)) from error
    if parts.query or parts.fragment or parts.username is not None:
        raise _refuse(url, "must have no user, query or fragment")
    has_files = bool(tls.authority or tls.client_certificate)
    if has_files and parts.scheme != "https":
        raise _refuse(url, "must be https://HOST with --webhook-ca and --webhook-client-cert")
    if parts.scheme == "unix":
        if host or not parts.path.startswith("/") or parts.path == "/":
            raise _refuse(url, "must be unix:///PATH, with an absolute path")
        return WebhookAccess(url, socket=Path(unquote(parts.path)))
    if parts.scheme not in ("http", "https") or not host:
        raise _refuse(url, "must be http://HOST[:PORT], https://HOST[:PORT] or unix:///PATH")
    is_secure = parts.scheme == "https"
    if is_secure:
        tls.build_context(f"the webhook provider {url}")
    return WebhookAccess(
        url=url,
        host=host,
        port=port or (443 if is_secure else 80),
        base_path=parts.path.rstrip("/"),
        tls=tls if is_secure else None,
    )


def _refuse(url: str, rule: str, hint: str = "") -> SettingsError:
    return SettingsError(f"--webhook-url {url!r}: {rule}", hint=hint)


def open_client(settings: Settings, observe: Callable[[str, bool], None]) -> WebhookClient:
    """Raises SettingsError as :func:`parse_url`. ``observe`` hears of each request by name, and whether it
    was answered."""
    tls = Tls(Pem(settings.webhook_ca), Pem(settings.webhook_client_cert), Pem(settings.webhook_client_key))
    access = parse_url(settings.webhook_url, tls)
    return WebhookClient(access, settings.webhook_timeout_seconds, observe)


class WebhookCapabilities(Struct, frozen=True):
    """What the provider offers, by its own word."""

    cloud_provider: bool = False
    """Attributes and configs of devices."""
    profile_provider: bool = False


def describe_profile(device: DeviceIdentity, claim_uid: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a request for a profile, and of its release. A provider finds what it gave by the name
    of the device and the claim's UID.

    Args:
        device: for which device of the claim.
        claim_uid: for which claim.
        config: what the claim, its class and the provider want; at a release also what the profile has given.
    """
    return {
        "device": _identify(device, device.name),
        "claim_uid": claim_uid,
        "config": {"interface": {}, **config},  # DraNet writes the object also when it is empty
    }


def _identify(device: DeviceIdentity, name: str) -> dict[str, str]:
    """DraNet leaves out what is unknown, except the name."""
    known = {"mac_address": device.mac, "pci_address": device.pci_address}
    return {key: value for key, value in known.items() if value} | {"name": name}


class WebhookClient:
    """Asks one provider. Every method raises :class:`ProviderError` and nothing else: ``retryable`` where the
    same request may succeed later."""

    def __init__(
        self,
        access: WebhookAccess,
        timeout_seconds: float,
        observe: Callable[[str, bool], None] = lambda _, __: None,
    ) -> None:
        """``timeout_seconds`` is for a whole exchange, the connection included."""
        self._access = access
        self._observe = observe
        self._timeout_seconds = timeout_seconds
        self._context: ssl.SSLContext | None = None
        self._context_signature: tuple[tuple[int, ...], ...] = ()

    @property
    def url(self) -> str:
        return self._access.url

    async def read_capabilities(self) -> WebhookCapabilities:
        answer = await self._ask("GET", "/health")
        offered = [answer.get(name, False) for name in ("cloudProvider", "profileProvider")]
        if not all(isinstance(offer, bool) for offer in offered):
            raise self._invalid("/health", "cloudProvider and profileProvider must be true or false")
        return WebhookCapabilities(*offered)

    async def read_attributes(self, device: DeviceIdentity) -> Mapping[str, Any]:
        """Attributes by qualified name, each an object as in a ResourceSlice. Here alone ``name`` is that of
        the interface, as in DraNet."""
        return await self._ask("POST", "/GetDeviceAttributes", _identify(device, device.ifname))

    async def read_config(self, device: DeviceIdentity) -> Mapping[str, Any]:
        return await self._ask("POST", "/GetDeviceConfig", _identify(device, device.name))

    async def get_profile(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config of the profile. A provider answers a repeated request with the same config, so it is
        asked again while that may help, all within the time of one exchange."""
        clock = asyncio.get_running_loop().time
        deadline, delay = clock() + self._timeout_seconds, FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._ask("POST", "/GetProfileConfig", document, deadline - clock())
            except ProviderError as error:
                if not error.retryable or clock() + delay >= deadline:
                    raise
            await asyncio.sleep(delay)
            delay *= 2

    async def release_profile(self, document: Mapping[str, Any]) -> None:
        """A provider accepts a release of what it never gave, or has released. Its answer has no meaning."""
        await self._exchange("POST", "/ReleaseProfileConfig", document, RELEASE_SECONDS)

    async def _ask(
        self, method: str, path: str, document: object = None, seconds: float = math.inf
    ) -> Mapping[str, Any]:
        body = await self._exchange(method, path, document, seconds)
        try:
            answer = decode(body, object)  # also refuses half a surrogate pair, which no file can take
        except (ValueError, RecursionError) as error:
            raise self._invalid(path, f"not JSON: {error}") from error
        if answer is None:  # how Go writes an empty map
            return {}
        if not isinstance(answer, dict):
            raise self._invalid(path, "must be a JSON object")
        return answer

    async def _exchange(self, method: str, path: str, document: object, seconds: float) -> bytes:
        """The body of an answer with status 200."""
        has_answered = False
        try:
            body = await self._try_to_exchange(method, path, document, seconds)
            has_answered = True
        finally:
            self._observe(path.removeprefix("/"), has_answered)
        return body

    async def _try_to_exchange(self, method: str, path: str, document: object, seconds: float) -> bytes:
        seconds = min(seconds, self._timeout_seconds)
        try:
            async with asyncio.timeout(seconds):
                head, body = await self._send(self._encode(method, path, document))
        except TimeoutError as error:
            raise self._unavailable(path, f"no whole answer within {seconds:.2g} s") from error
        except ProtocolError as error:
            raise self._invalid(path, error.message) from error
        except SettingsError as error:  # a certificate file was replaced by one that cannot be used
            raise self._unavailable(path, error.message) from error
        except (OSError, EOFError, UnicodeError) as error:
            raise self._unavailable(path, str(error) or type(error).__name__) from error
        if head.status != 200:
            raise self._refused(path, head, body)
        return body

    def _encode(self, method: str, path: str, document: object) -> bytes:
        headers = {
            "User-Agent": f"dranet/{dranet.__version__}",
            "Accept": "application/json",
            "Connection": "close",
        }
        body = None
        if document is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(document, separators=(",", ":")).encode()
        return encode_request(method, self._access.base_path + path, self._access.authority, headers, body)

    async def _send(self, request: bytes) -> tuple[ResponseHead, bytes]:
        return await exchange_once(*await self._open(), request, MAX_BODY_BYTES)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        access = self._access
        if access.socket is not None:
            return await asyncio.open_unix_connection(access.socket, limit=MAX_HEAD_BYTES)
        context = self._get_context(access.tls) if access.tls else None
        return await asyncio.open_connection(access.host, access.port, limit=MAX_HEAD_BYTES, ssl=context)

    def _get_context(self, tls: Tls) -> ssl.SSLContext:
        """Built at the first connection and again when a certificate file was rotated."""
        signature = tls.get_signature()
        if self._context is None or signature != self._context_signature:
            self._context = tls.build_context(f"the webhook provider {self.url}")
            self._context_signature = signature
        return self._context

    def _unavailable(self, path: str, cause: str) -> ProviderError:
        return ProviderError(f"webhook provider {self.url}: {path}: {cause}", hint="is it running?")

    def _invalid(self, path: str, fault: str) -> ProviderError:
        return ProviderError(
            f"webhook provider {self.url}: {path}: its answer cannot be used: {fault[:_SHOWN_MAX]}",
            reason=Reason.PROVIDER_ANSWER_INVALID,
            retryable=False,
        )

    def _refused(self, path: str, head: ResponseHead, body: bytes) -> ProviderError:
        if 300 <= head.status < 400:
            return self._invalid(path, f"status {head.status}, and redirects are not followed")
        text = " ".join(body[:_SHOWN_MAX].decode("utf-8", "replace").split())
        is_transient = head.status >= 500 or head.status in _TRANSIENT
        return ProviderError(
            f"webhook provider {self.url}: {path}: status {head.status}" + (f": {text}" if text else ""),
            reason=Reason.PROVIDER_UNAVAILABLE if is_transient else Reason.PROVIDER_REFUSED,
            retryable=is_transient,
        )
