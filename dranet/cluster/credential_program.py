"""Ask a credential program (``exec`` in a kubeconfig) who the user is, as kubectl does.

Clouds hand out such kubeconfigs (EKS, GKE, AKS), and so do login helpers. Only the commands of a person
run one, with that person's rights and once: a node daemon runs no programs.

Protocol: ``client.authentication.k8s.io`` v1 and v1beta1, an ``ExecCredential`` in the program's environment
(``KUBERNETES_EXEC_INFO``) and one on its standard output (KEP-541).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet.cluster.credentials import Pem, Tls
from dranet.errors import SettingsError

_Entry = Mapping[str, Any]

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Credentials(Struct, frozen=True):
    """What a program answered: a token, a client certificate with its key (PEM), or both."""

    token: str = ""
    certificate: str = ""
    key: str = ""


class ProgramCall(Struct, frozen=True):
    """A user's ``exec`` entry, and the cluster that the credentials are for."""

    entry: _Entry
    cluster: _Entry
    folder: Path
    """The folder of the kubeconfig: a command with a slash in it is relative to it."""
    server: str
    tls: Tls
    where: str
    """The user in the kubeconfig, for errors."""


def run_credential_program(call: ProgramCall) -> Credentials:
    """Run it and read its answer. It may talk to the user, and take the time that the user takes.

    Raises:
        SettingsError: the entry is incomplete, the program is not there or fails, or what it writes is no
            credential.
    """
    version = _read_version(call)
    command = _text(call.entry, "command", call.where)
    if not command:
        raise SettingsError(f"{call.where}: exec names no command")
    interactive = _may_ask_the_user(call)
    environment = {
        **os.environ,
        **_read_environment(call),
        "KUBERNETES_EXEC_INFO": json.dumps(_describe(call, version, interactive=interactive)),
    }
    arguments = [_find(command, call.folder), *_read_arguments(call)]
    return _read_answer(_run(arguments, environment, call, interactive=interactive), version, call.where)


def _read_version(call: ProgramCall) -> str:
    version = _text(call.entry, "apiVersion", call.where)
    if version not in _VERSIONS:
        raise SettingsError(
            f"{call.where}: exec has apiVersion {version!r}",
            hint=f"it must be {' or '.join(_VERSIONS)}: have your cloud's tool write the kubeconfig again",
        )
    return version


def _may_ask_the_user(call: ProgramCall) -> bool:
    mode = _text(call.entry, "interactiveMode", call.where) or "IfAvailable"
    if mode not in ("Never", "IfAvailable", "Always"):
        raise SettingsError(
            f"{call.where}: exec has interactiveMode {mode!r}", hint="Never, IfAvailable or Always"
        )
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not is_terminal:
        raise SettingsError(
            f"{call.where}: its credential program asks questions (interactiveMode: Always), and standard "
            "input is no terminal",
            hint="run the command in a terminal",
        )
    return mode != "Never" and is_terminal


def _read_environment(call: ProgramCall) -> dict[str, str]:
    entries = call.entry.get("env") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SettingsError(f"{call.where}: exec.env must be a list of name and value")
    return {
        _text(entry, "name", f"{call.where}: exec.env"): _text(entry, "value", f"{call.where}: exec.env")
        for entry in entries
    }


def _read_arguments(call: ProgramCall) -> list[str]:
    arguments = call.entry.get("args") or []
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise SettingsError(f"{call.where}: exec.args must be a list of text")
    return arguments


def _find(command: str, folder: Path) -> str:
    """A name is looked for in ``PATH``; a path that is not absolute starts at the kubeconfig's folder."""
    return str(folder.absolute() / command) if os.sep in command else command


def _describe(call: ProgramCall, version: str, *, interactive: bool) -> dict[str, Any]:
    """The ``ExecCredential`` that the program gets."""
    spec: dict[str, Any] = {"interactive": interactive}
    if call.entry.get("provideClusterInfo") is True:
        cluster: dict[str, Any] = {"server": call.server, "config": _find_config(call.cluster)}
        if call.tls.server_name:
            cluster["tls-server-name"] = call.tls.server_name
        if call.tls.insecure:
            cluster["insecure-skip-tls-verify"] = True
        if authority := _read_pem(call.tls.authority, call.where):
            cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
        spec["cluster"] = cluster
    return {"apiVersion": version, "kind": "ExecCredential", "spec": spec}


def _find_config(cluster: _Entry) -> object:
    """What the kubeconfig has about the cluster for credential programs alone."""
    extensions = cluster.get("extensions")
    for extension in extensions if isinstance(extensions, list) else ():
        if isinstance(extension, dict) and extension.get("name") == "client.authentication.k8s.io/exec":
            return extension.get("extension")
    return None


def _read_pem(pem: Pem, where: str) -> str:
    try:
        return pem.read_text() if pem else ""
    except (OSError, ValueError) as error:
        raise SettingsError(f"{where}: the cluster's certificate-authority: {error}") from error


def _run(
    arguments: Sequence[str], environment: Mapping[str, str], call: ProgramCall, *, interactive: bool
) -> bytes:
    """What it writes to standard output. Its standard error is the user's to read."""
    try:
        done = subprocess.run(
            arguments,
            env=environment,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
    except (OSError, ValueError) as error:
        hint = _text(call.entry, "installHint", call.where).strip()
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(
            f"{call.where}: its credential program {arguments[0]} cannot be run: {cause}",
            hint=hint or "install it, or log in again with your cloud's tool; kubectl also needs it",
        ) from error
    if done.returncode:
        raise SettingsError(
            f"{call.where}: its credential program {arguments[0]} ended with exit code {done.returncode}",
            hint="its output is above; log in again with your cloud's tool and see that kubectl works",
        )
    return done.stdout


def _read_answer(output: bytes, version: str, where: str) -> Credentials:
    where = f"{where}: the answer of its credential program"
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
    found = Credentials(
        _text(status, "token", where),
        _text(status, "clientCertificateData", where),
        _text(status, "clientKeyData", where),
    )
    if bool(found.certificate) != bool(found.key):
        raise SettingsError(f"{where}: clientCertificateData and clientKeyData go together")
    if not found.token and not found.certificate:
        raise SettingsError(f"{where} has neither a token nor a client certificate")
    if any(character.isspace() for character in found.token) or not found.token.isascii():
        raise SettingsError(f"{where}: token must be one word of ASCII")
    return found


def _text(entry: _Entry, key: str, where: str) -> str:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise SettingsError(f"{where}: {key} must be text, not {type(value).__name__}")
    return value or ""
