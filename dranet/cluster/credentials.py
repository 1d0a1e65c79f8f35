"""Where the API server is and how to prove who we are: token and TLS, each re-read when it changes.

The kubelet rotates a service account's token and tools rotate client certificates while the process
runs, so files are read when needed and never only once. It must not know HTTP.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from dranet.errors import SettingsError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")

TOKEN_MAX_AGE_SECONDS = 60.0
"""Read the token again at least this often, even if the file looks the same."""


class TokenSource(Protocol):
    """Gives the bearer token to send now, or an empty string for none."""

    def get_token(self) -> str: ...

    def forget(self) -> None:
        """The server refused the token: do not answer from memory the next time."""


class FixedToken(Struct, frozen=True):
    """A token written into a kubeconfig; empty where a certificate identifies us."""

    token: str = ""

    def get_token(self) -> str:
        return self.token

    def forget(self) -> None:
        """There is no other place to look."""


class TokenFile:
    """A token in a file that another program rotates, as the kubelet does with projected tokens."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._signature: tuple[int, ...] = ()
        self._read_at = 0.0

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def get_token(self) -> str:
        """The token in the file; the last good one while the file is being replaced.

        Raises:
            SettingsError: the file cannot be read, or is empty or not one line of ASCII, and there is
                no earlier token that the server has not refused.
        """
        signature = file_signature(self._path)
        age = self._clock() - self._read_at
        if not self._token or age >= TOKEN_MAX_AGE_SECONDS or signature != self._signature:
            self._read(signature)
        return self._token

    def _read(self, signature: tuple[int, ...]) -> None:
        try:
            self._token = _read_token(self._path)
        except SettingsError:
            if not self._token:
                raise
            return
        self._signature = signature
        self._read_at = self._clock()

    def forget(self) -> None:
        self._token = ""


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("ascii").strip()
    except OSError as error:
        raise SettingsError(f"token file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"token file {path}: not ASCII text") from error
    if not token or any(character.isspace() for character in token):
        raise SettingsError(f"token file {path}: must hold one token")
    return token


def file_signature(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced or rewritten; empty without a file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Pem(Struct, frozen=True):
    """A certificate or key: in a file, or as PEM text from a kubeconfig; absent without both."""

    path: Path | None = None
    text: str = ""

    def __bool__(self) -> bool:
        return self.path is not None or bool(self.text)

    def read_text(self) -> str:
        return self.text if self.path is None else self.path.read_text("ascii")


class Tls(Struct, frozen=True):
    """How to verify the server and which certificate to show it.

    Without ``authority`` the system's trust store is used. ``server_name`` replaces the host name in
    the check.
    """

    authority: Pem = Pem()
    client_certificate: Pem = Pem()
    client_key: Pem = Pem()
    insecure: bool = False
    server_name: str = ""

    def get_signature(self) -> tuple[tuple[int, ...], ...]:
        """Changes when one of the files behind this does."""
        sources = (self.authority, self.client_certificate, self.client_key)
        return tuple(file_signature(pem.path) for pem in sources if pem.path is not None)

    def build_context(self) -> ssl.SSLContext:
        """Read the files and build the context.

        Raises:
            SettingsError: a file is missing, not PEM, or the key does not belong to the certificate.
        """
        try:
            authority = self.authority.read_text() if self.authority else None
            context = ssl.create_default_context(cadata=authority)
            if self.client_certificate:
                _load_client_certificate(context, self.client_certificate, self.client_key)
        except (OSError, ValueError) as error:
            raise SettingsError(f"TLS files of the API server: {error}") from error
        # Python 3.13 turns this on; cluster authorities without an Authority Key Identifier are common.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["http/1.1"])
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _load_client_certificate(context: ssl.SSLContext, certificate: Pem, key: Pem) -> None:
    """OpenSSL reads the pair from a path only: an anonymous memory file keeps the key off the disk."""
    pair = certificate.read_text().rstrip() + "\n" + key.read_text()
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w") as memory:
        memory.write(pair)
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


class ClusterAccess(Struct, frozen=True):
    """One API server and our credentials for it. ``tls`` is ``None`` for plain HTTP (the testbed)."""

    host: str
    port: int
    base_path: str = ""
    """Path prefix without a trailing slash, where the API server is behind a gateway."""
    tls: Tls | None = None
    token: TokenSource = FixedToken()

    @property
    def authority(self) -> str:
        """``host:port`` as the Host header wants it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base_path}"

    def check(self) -> None:
        """Read every file once, so that a wrong one stops the start instead of the first request.

        Raises:
            SettingsError: a token, certificate or key file is unusable.
        """
        self.token.get_token()
        if self.tls is not None:
            self.tls.build_context()


def access_from_url(url: str, *, tls: Tls | None = None, token: TokenSource | None = None) -> ClusterAccess:
    """Take a server URL apart. ``tls`` counts for ``https`` only (default: the system's trust store).

    Raises:
        SettingsError: it is not an ``http`` or ``https`` URL with a host.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        _check_resolvable(parts.hostname or "")
    except ValueError as error:
        raise SettingsError(f"API server URL {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"API server URL {url!r}: must be https://HOST[:PORT]")
    secure = parts.scheme == "https"
    return ClusterAccess(
        host=parts.hostname,
        port=port or (443 if secure else 80),
        base_path=parts.path.rstrip("/"),
        tls=(tls or Tls()) if secure else None,
        token=token or FixedToken(),
    )


def _check_resolvable(host: str) -> None:
    """Raise UnicodeError for what the resolver would choke on later.

    The codec costs a megabyte, so an ordinary name does not meet it.
    """
    if not host.isascii() or any(not 0 < len(label) < 64 for label in host.rstrip(".").split(".")):
        host.encode("idna")


def in_cluster_access(
    environment: Mapping[str, str], secrets_dir: Path = SERVICE_ACCOUNT_DIR
) -> ClusterAccess:
    """The pod's service account (``KUBERNETES_SERVICE_HOST``/``_PORT``, mounted token and CA).

    Raises:
        SettingsError: this is not a pod with a service account.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    token, authority = secrets_dir / "token", secrets_dir / "ca.crt"
    hint = "outside of a cluster name a kubeconfig file with --kubeconfig"
    if not host or not port.isdigit():
        raise SettingsError("not in a cluster: KUBERNETES_SERVICE_HOST and _PORT are not set", hint=hint)
    for path in (token, authority):
        if not path.is_file():
            raise SettingsError(f"not in a cluster: {path} is missing", hint=hint)
    return ClusterAccess(
        host=host, port=int(port), tls=Tls(authority=Pem(path=authority)), token=TokenFile(token)
    )
