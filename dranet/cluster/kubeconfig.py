"""Read the part of a kubeconfig file that can be honoured, and refuse the rest by name.

Format: ``client-go`` ``tools/clientcmd/api/v1``. Running a credential program (``exec``) is not the work of
a node daemon, which refuses it with a hint; a person's command decides how such a program is run.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dranet.cluster.credentials import (
    ClusterAccess,
    FixedToken,
    Pem,
    Tls,
    TokenFile,
    TokenSource,
    access_from_url,
)
from dranet.errors import SettingsError

if TYPE_CHECKING:
    from dranet.cluster.credential_program import Credentials, ProgramCall

_Entry = Mapping[str, Any]

RunProgram = Callable[["ProgramCall"], "Credentials"]

_REFUSED_USER_KEYS = {
    "auth-provider": "it was removed from Kubernetes for credential programs (exec)",
    "username": "basic authentication was removed from Kubernetes",
    "as": "it impersonates another user",
}
_NAMES_SHOWN = 10
_REMEDY = (
    "give that user a token, tokenFile or client certificate, for example a service account's: "
    "kubectl create token"
)


def read_kubeconfig(
    path: Path, context_name: str = "", *, run_program: RunProgram | None = None
) -> ClusterAccess:
    """The access that ``context_name`` (default: ``current-context``) describes.

    Relative file names in it are relative to its folder, as kubectl has it. Without ``run_program`` a user
    with a credential program is refused; with it, what the program answers once is the access.

    Raises:
        SettingsError: the file is unreadable or incomplete, or asks for what is refused here.
    """
    document = _load(path)
    context_name = context_name or _text(document, "current-context", f"kubeconfig {path}")
    if not context_name:
        raise SettingsError(f"kubeconfig {path}: current-context is not set")
    context = _named(document, "contexts", "context", context_name, path)
    where = f"kubeconfig {path}: context {context_name!r}"
    cluster_name, user_name = _text(context, "cluster", where), _text(context, "user", where)
    cluster = _named(document, "clusters", "cluster", cluster_name, path)
    user = _named(document, "users", "user", user_name, path) if user_name else {}
    reader = _Reader(path, cluster_name, cluster, user_name, user)
    access = reader.build_access()
    return access if not reader.has_program else reader.ask_program(access, run_program)


class _Reader:
    """One cluster entry and one user entry, with where they stand for the error texts."""

    def __init__(self, path: Path, cluster_name: str, cluster: _Entry, user_name: str, user: _Entry) -> None:
        self._folder = path.parent
        self._cluster = cluster
        self._user = user
        self._in_cluster = f"kubeconfig {path}: cluster {cluster_name!r}"
        self._in_user = f"kubeconfig {path}: user {user_name!r}"

    def build_access(self) -> ClusterAccess:
        self._refuse_unsupported()
        server = _text(self._cluster, "server", self._in_cluster)
        return access_from_url(server, tls=self._build_tls(), token=self._build_token())

    @property
    def has_program(self) -> bool:
        """A token in the file comes first, as in client-go."""
        return bool(self._user.get("exec")) and not (self._user.get("token") or self._user.get("tokenFile"))

    def ask_program(self, access: ClusterAccess, run_program: RunProgram | None) -> ClusterAccess:
        if run_program is None:
            raise SettingsError(
                f"{self._in_user}: exec is not supported by a node daemon, it runs a credential program",
                hint=_REMEDY,
            )
        from dranet.cluster.credential_program import ProgramCall

        entry = self._user["exec"]
        if not isinstance(entry, dict):
            raise SettingsError(f"{self._in_user}: exec must be a mapping, not {type(entry).__name__}")
        tls = access.tls or Tls()
        answer = run_program(ProgramCall(entry, self._cluster, self._folder, access.url, tls, self._in_user))
        if answer.certificate and access.tls is not None:
            pair = (Pem(text=answer.certificate), Pem(text=answer.key))
            tls = replace(tls, client_certificate=pair[0], client_key=pair[1])
        return replace(access, tls=access.tls and tls, token=FixedToken(answer.token))

    def _refuse_unsupported(self) -> None:
        for key, why in _REFUSED_USER_KEYS.items():
            if self._user.get(key):
                raise SettingsError(f"{self._in_user}: {key} is not supported, {why}", hint=_REMEDY)
        if self._cluster.get("proxy-url"):
            raise SettingsError(f"{self._in_cluster}: proxy-url is not supported")

    def _build_token(self) -> TokenSource:
        if file_name := _text(self._user, "tokenFile", self._in_user):
            return TokenFile(self._folder / file_name)
        return FixedToken(_text(self._user, "token", self._in_user))

    def _build_tls(self) -> Tls:
        certificate = self._pem(self._user, "client-certificate", self._in_user)
        key = self._pem(self._user, "client-key", self._in_user)
        if bool(certificate) != bool(key):
            raise SettingsError(f"{self._in_user}: client-certificate and client-key go together")
        return Tls(
            authority=self._pem(self._cluster, "certificate-authority", self._in_cluster),
            client_certificate=certificate,
            client_key=key,
            insecure=self._cluster.get("insecure-skip-tls-verify") is True,
            server_name=_text(self._cluster, "tls-server-name", self._in_cluster),
        )

    def _pem(self, entry: _Entry, key: str, where: str) -> Pem:
        """``<key>-data`` (base64 of PEM) wins over the file in ``<key>``, as in client-go."""
        if encoded := _text(entry, f"{key}-data", where):
            try:
                return Pem(text=base64.b64decode(encoded, validate=True).decode("ascii"))
            except (binascii.Error, UnicodeDecodeError) as error:
                raise SettingsError(f"{where}: {key}-data is not base64 of PEM text") from error
        file_name = _text(entry, key, where)
        return Pem(path=self._folder / file_name) if file_name else Pem()


def _load(path: Path) -> _Entry:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"kubeconfig {path}: {error.strerror}") from error
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = _parse_yaml(content, path)
    if not isinstance(document, dict):
        raise SettingsError(f"kubeconfig {path}: must be a mapping")
    return document


def _parse_yaml(content: bytes, path: Path) -> object:
    import yaml  # 26 ms and 2 MB that neither a pod with a service account nor a file in JSON pays

    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise SettingsError(f"kubeconfig {path}: not YAML: {error}") from error


def _named(document: _Entry, plural: str, singular: str, name: str, path: Path) -> _Entry:
    entries = document.get(plural)
    named = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    for entry in named:
        if entry.get("name") == name:
            body = entry.get(singular)
            return body if isinstance(body, dict) else {}
    there = ", ".join(str(entry.get("name")) for entry in named[:_NAMES_SHOWN])
    hint = f"there is {there}" if there else ""
    raise SettingsError(f"kubeconfig {path}: there is no {singular} {name!r}", hint=hint)


def _text(entry: _Entry, key: str, where: str) -> str:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise SettingsError(f"{where}: {key} must be text, not {type(value).__name__}")
    return value or ""
