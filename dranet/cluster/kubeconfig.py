"""Read the part of a kubeconfig file that can be honoured, and refuse the rest by name.

Format: ``client-go`` ``tools/clientcmd/api/v1``. A credential program (``exec``: EKS, GKE, AKS, login
helpers) is run for a person's command alone, with that person's rights and once: a node daemon refuses it.
Its protocol is ``client.authentication.k8s.io``: an ``ExecCredential`` in ``KUBERNETES_EXEC_INFO``, and one
on its standard output (KEP-541).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dranet.cluster.transport import ClusterAccess, FixedToken, TokenFile, TokenSource, access_from_url
from dranet.errors import SettingsError
from dranet.http1 import Pem, Tls

_Entry = Mapping[str, Any]

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


def read_kubeconfig(path: Path, context_name: str = "", *, may_run_program: bool = False) -> ClusterAccess:
    """The access that ``context_name`` (default: ``current-context``) describes.

    Relative file names in it are relative to its folder, as kubectl has it. A credential program may talk to
    the user, and take the time that the user takes.

    Raises:
        SettingsError: the file is unreadable or incomplete, asks for what is refused here, or has a
            credential program that may not be run, fails, or writes no credential.
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
    return access if not reader.has_program else reader.ask_program(access, may_run=may_run_program)


def read_context_namespace(path: Path, context_name: str = "") -> str:
    """The namespace that the context names, or empty text. Raises as :func:`read_kubeconfig`."""
    document = _load(path)
    context_name = context_name or _text(document, "current-context", f"kubeconfig {path}")
    if not context_name:
        return ""
    context = _named(document, "contexts", "context", context_name, path)
    return _text(context, "namespace", f"kubeconfig {path}: context {context_name!r}")


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

    def ask_program(self, access: ClusterAccess, *, may_run: bool) -> ClusterAccess:
        if not may_run:
            why = f"{self._in_user}: exec is not supported by a node daemon, it runs a credential program"
            raise SettingsError(why, hint=_REMEDY)
        entry = self._user["exec"]
        if not isinstance(entry, dict):
            raise SettingsError(f"{self._in_user}: exec must be a mapping, not {type(entry).__name__}")
        tls = access.tls or Tls()
        program = _Program(entry, self._cluster, self._folder, access.url, tls, self._in_user)
        token, certificate, key = program.run()
        if certificate and access.tls is not None:
            tls = replace(tls, client_certificate=Pem(text=certificate), client_key=Pem(text=key))
        return replace(access, tls=access.tls and tls, token=FixedToken(token))

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


_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Program(Struct, frozen=True):
    """A user's ``exec`` entry, and the cluster that the credentials are for."""

    entry: _Entry
    cluster: _Entry
    folder: Path
    """The folder of the kubeconfig: a command with a slash in it is relative to it."""
    server: str
    tls: Tls
    where: str
    """The user in the kubeconfig, for errors."""

    def run(self) -> tuple[str, str, str]:
        """A token, and a client certificate with its key (PEM); one of the two may be empty."""
        version = self._read_version()
        command = _text(self.entry, "command", self.where)
        if not command:
            raise SettingsError(f"{self.where}: exec names no command")
        if os.sep in command:  # a mere name is looked for in PATH
            command = str(self.folder.absolute() / command)
        interactive = self._may_ask_the_user()
        environment = {
            **os.environ,
            **self._read_environment(),
            "KUBERNETES_EXEC_INFO": json.dumps(self._describe(version, interactive=interactive)),
        }
        output = self._call([command, *self._read_arguments()], environment, interactive=interactive)
        return _read_answer(output, version, f"{self.where}: the answer of its credential program")

    def _read_version(self) -> str:
        version = _text(self.entry, "apiVersion", self.where)
        if version not in _VERSIONS:
            hint = f"it must be {' or '.join(_VERSIONS)}: have your cloud's tool write the kubeconfig again"
            raise SettingsError(f"{self.where}: exec has apiVersion {version!r}", hint=hint)
        return version

    def _may_ask_the_user(self) -> bool:
        mode = _text(self.entry, "interactiveMode", self.where) or "IfAvailable"
        if mode not in ("Never", "IfAvailable", "Always"):
            hint = "Never, IfAvailable or Always"
            raise SettingsError(f"{self.where}: exec has interactiveMode {mode!r}", hint=hint)
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not is_terminal:
            raise SettingsError(
                f"{self.where}: its credential program asks questions (interactiveMode: Always), and "
                "standard input is no terminal",
                hint="run the command in a terminal",
            )
        return mode != "Never" and is_terminal

    def _read_environment(self) -> dict[str, str]:
        entries, where = self.entry.get("env") or [], f"{self.where}: exec.env"
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SettingsError(f"{where} must be a list of name and value")
        return {_text(entry, "name", where): _text(entry, "value", where) for entry in entries}

    def _read_arguments(self) -> list[str]:
        arguments = self.entry.get("args") or []
        if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
            raise SettingsError(f"{self.where}: exec.args must be a list of text")
        return arguments

    def _describe(self, version: str, *, interactive: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self.entry.get("provideClusterInfo") is True:
            cluster: dict[str, Any] = {"server": self.server, "config": self._find_config()}
            if self.tls.server_name:
                cluster["tls-server-name"] = self.tls.server_name
            if self.tls.insecure:
                cluster["insecure-skip-tls-verify"] = True
            if authority := self._read_authority():
                cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
            spec["cluster"] = cluster
        return {"apiVersion": version, "kind": "ExecCredential", "spec": spec}

    def _find_config(self) -> object:
        """What the kubeconfig has about the cluster for credential programs alone."""
        extensions = self.cluster.get("extensions")
        for extension in extensions if isinstance(extensions, list) else ():
            if isinstance(extension, dict) and extension.get("name") == "client.authentication.k8s.io/exec":
                return extension.get("extension")
        return None

    def _read_authority(self) -> str:
        try:
            return self.tls.authority.read_text() if self.tls.authority else ""
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self.where}: the cluster's certificate-authority: {error}") from error

    def _call(self, arguments: Sequence[str], environment: Mapping[str, str], *, interactive: bool) -> bytes:
        """What it writes to standard output. Its standard error is the user's to read."""
        program = f"{self.where}: its credential program {arguments[0]}"
        try:
            done = subprocess.run(
                arguments,
                env=environment,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=False,
            )
        except (OSError, ValueError) as error:
            hint = _text(self.entry, "installHint", self.where).strip()
            cause = error.strerror if isinstance(error, OSError) else str(error)
            raise SettingsError(
                f"{program} cannot be run: {cause}",
                hint=hint or "install it, or log in again with your cloud's tool; kubectl also needs it",
            ) from error
        if done.returncode:
            raise SettingsError(
                f"{program} ended with exit code {done.returncode}",
                hint="its output is above; log in again with your cloud's tool and see that kubectl works",
            )
        return done.stdout


def _read_answer(output: bytes, version: str, where: str) -> tuple[str, str, str]:
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{where} is not JSON") from error  # and is not shown: there may be a token in it
    if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
        raise SettingsError(f"{where} is no ExecCredential")
    if answer.get("apiVersion") != version:
        raise SettingsError(f"{where} has apiVersion {answer.get('apiVersion')!r}, asked was {version}")
    status = answer.get("status")
    if not isinstance(status, dict):
        raise SettingsError(f"{where} has no status")
    token = _text(status, "token", where)
    certificate = _text(status, "clientCertificateData", where)
    key = _text(status, "clientKeyData", where)
    if bool(certificate) != bool(key):
        raise SettingsError(f"{where}: clientCertificateData and clientKeyData go together")
    if not token and not certificate:
        raise SettingsError(f"{where} has neither a token nor a client certificate")
    if any(character.isspace() for character in token) or not token.isascii():
        raise SettingsError(f"{where}: token must be one word of ASCII")
    return token, certificate, key
