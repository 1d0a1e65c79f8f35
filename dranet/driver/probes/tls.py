"""The certificate of the probe port, read at the start and whenever its files change.

A Secret is renewed while the driver runs, and may be half written or wrong. The last working pair then stays
in use, and a finding reports it.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dranet.errors import SettingsError
from dranet.model.findings import Finding, Severity, ok
from dranet.settings import Authentication, Settings

log = logging.getLogger(__name__)

OLD_SHARE = 0.1
OLD_SECONDS = 7 * 86_400
"""A certificate with less than a tenth of its lifetime and less than a week left should have been renewed:
automatic renewal happens at a third. The alert ``DranetCertificateEnds`` uses the same limits."""

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18
_BEFORE_VALIDITY = 3
"""Serial number, algorithm, issuer."""


class Validity(Struct, frozen=True):
    """The period of a certificate, in Unix seconds."""

    not_before: float
    not_after: float

    def is_old(self, now: float) -> bool:
        """Whether it is over, or soon will be."""
        return self.not_after - now < min(OLD_SHARE * (self.not_after - self.not_before), OLD_SECONDS)


def read_validity(file: Path) -> Validity | None:
    """Return the period of the first certificate in a PEM file, which is the one in use; ``None`` if it
    cannot be read.

    This parses as much of X.509 as needed (RFC 5280, 4.1). Python's ``ssl`` reports it only for the peer's
    certificate, and libraries for it are larger than the driver.
    """
    try:
        text = file.read_text(errors="replace").partition(_BEGIN)[2].partition(_END)[0]
        return parse_validity(binascii.a2b_base64(text))
    except (OSError, ValueError):  # binascii.Error is one
        return None


def parse_validity(der: bytes) -> Validity:
    """Raises ValueError: not a certificate."""
    _, certificate, _ = _read_value(der)
    _, rest, _ = _read_value(certificate)
    tag, _, behind = _read_value(rest)
    if tag == _VERSION:
        rest = behind
    for _ in range(_BEFORE_VALIDITY):
        _, _, rest = _read_value(rest)
    _, times, _ = _read_value(rest)
    tag, begin, times = _read_value(times)
    end_tag, end, _ = _read_value(times)
    return Validity(_parse_time(tag, begin), _parse_time(end_tag, end))


def _read_value(der: bytes) -> tuple[int, bytes, bytes]:
    """Return the first value's tag, its content, and what follows it."""
    if len(der) < 2:
        raise ValueError("it ends too early")
    tag, size, start = der[0], der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start])
    if start + size > len(der):
        raise ValueError("it ends too early")
    return tag, der[start : start + size], der[start + size :]


def _parse_time(tag: int, content: bytes) -> float:
    """``YYMMDDhhmmssZ`` until 2049, ``YYYYMMDDhhmmssZ`` from then on."""
    if tag not in (_UTC_TIME, _GENERALIZED_TIME) or not content.endswith(b"Z"):
        raise ValueError("that is no time")
    text = content[:-1].decode("ascii")
    if tag == _UTC_TIME:
        text = f"{'19' if text >= '50' else '20'}{text}"
    if len(text) != len("YYYYMMDDhhmmss") or not text.isdecimal():
        raise ValueError("that is no time")
    day = (int(text[:4]), int(text[4:6]), int(text[6:8]))
    return datetime(*day, int(text[8:10]), int(text[10:12]), int(text[12:14]), tzinfo=UTC).timestamp()


PORT, CERTIFICATE = "port", "port-certificate"

MOST_SESSIONS = 256
"""OpenSSL keeps a session of 1 kB for each caller of TLS 1.2 without tickets, up to 20,480 of them."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Identifies the state of the files."""


class TlsFiles:
    """A TLS context that follows its files."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """``client_ca`` requests a certificate from callers; those without one are anonymous.

        Raises:
            SettingsError: a file cannot be used; names it.
        """
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self.validity: Validity | None = None
        """The period of the certificate in use; ``None`` if unknown."""
        self._stamp = self._read_stamp()
        self._context = self._load()
        self.problem = ""
        """Why the current files cannot be used; empty if they are in use."""

    def get_context(self) -> ssl.SSLContext:
        """Return the context for the next connection. Checks the files, which costs microseconds."""
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            if self._reload():
                log.info("the probe port has a new certificate")
        elif self._context.session_stats()["number"] > MOST_SESSIONS:
            self._reload()  # which forgets them
        return self._context

    def read_findings(self) -> list[Finding]:
        self.get_context()
        if not self.problem and self.validity is not None and self.validity.is_old(time.time()):
            end = datetime.fromtimestamp(self.validity.not_after, UTC)
            return [
                _warn(
                    f"the certificate in its file is good until {end:%F %T} UTC",
                    "then scrapers refuse the port",
                    "see why the Secret behind --metrics-tls-cert was not renewed; "
                    "a new one needs no restart",
                )
            ]
        if not self.problem:
            return [ok(PORT, "speaks TLS with the certificate that is in its file", CERTIFICATE)]
        return [
            _warn(
                f"the certificate was not renewed: {self.problem}",
                "the previous one is used until it expires; then scrapers refuse the port",
                "fix the Secret behind --metrics-tls-cert and --metrics-tls-key",
            )
        ]

    def _reload(self) -> bool:
        try:
            self._context = self._load()
        except SettingsError as error:
            if error.message != self.problem:
                log.warning("the probe port keeps its certificate: %s", error)
            self.problem = error.message
            return False
        self.problem = ""
        return True

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
        try:
            context.load_cert_chain(self._certificate, self._key, _refuse_password)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"--metrics-tls-cert {self._certificate} with --metrics-tls-key {self._key}: "
                f"{_describe(error)}",
                hint="both must be PEM files that belong together, the certificate first in its file",
            ) from error
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL  # the kubelet shows none
            _load_authorities(context, self._client_ca)
        self.validity = read_validity(self._certificate)
        return context

    def _read_stamp(self) -> Stamp:
        files = (self._certificate, self._key, self._client_ca)
        return tuple(_stamp(file) for file in files if file is not None)


def _warn(seen: str, matters: str, fix: str) -> Finding:
    return Finding(PORT, Severity.WARNING, seen, matters, fix, CERTIFICATE)


def open_tls(settings: Settings) -> TlsFiles | None:
    """Return the files of the settings; ``None`` without TLS.

    Raises:
        SettingsError: a file cannot be used.
    """
    if settings.metrics_tls_cert is None or settings.metrics_tls_key is None:
        return None
    wants_certificates = settings.metrics_authentication is Authentication.CLIENT_CERTIFICATE
    client_ca = settings.metrics_client_ca if wants_certificates else None
    return TlsFiles(settings.metrics_tls_cert, settings.metrics_tls_key, client_ca)


class TlsReaderProtocol(asyncio.StreamReaderProtocol):
    """For a stream that becomes TLS: there the end of the input is the end of the connection."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def secure(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
) -> asyncio.StreamWriter:
    """Do the server's side of the handshake. Nothing may have been awaited on the connection before.

    The stream's own ``start_tls`` is left without a transport if the connection ends meanwhile.

    Raises:
        OSError: the handshake failed.
    """
    loop, raw = asyncio.get_running_loop(), writer.transport
    protocol = raw.get_protocol()
    secured = await loop.start_tls(raw, protocol, context, server_side=True)
    if secured is None:
        raise ConnectionAbortedError("the connection was ended during the handshake")
    return asyncio.StreamWriter(secured, protocol, reader, loop)


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--metrics-client-ca {file}: {_describe(error)}",
            hint="a PEM file with the certificate of each authority whose clients may read the port",
        ) from error


def _refuse_password() -> str:
    """Without it OpenSSL asks for a password on the terminal."""
    raise ValueError("the key is encrypted")


def _describe(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
