"""The protocol of CNI's IPAM plugins: ADD, CHECK and DEL (CNI specification 0.3 to 1.1).

A plugin is a program in one of ``cni_bin_dirs``. It reads the network configuration and prints a result or an
error object. The pod's network namespace does not exist yet when a claim is prepared. The specification wants
a path for it all the same, so plugins get ``/dev/null``: those that only keep books do not open it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dranet.errors import IpamError
from dranet.ipam.program import MAX_OUTPUT_BYTES, Outcome, run_program
from dranet.ipam.result import ResultError, build_result, parse_result
from dranet.model.ipam import CniNetwork, IpamAnswer, IpamRequest

ADD_SECONDS = 20.0
"""Less than the kubelet waits, so that the pod's Events name the plugin."""
CHECK_SECONDS = DEL_SECONDS = 10.0
_NETNS = "/dev/null"
_MOST_TEXT = 400

_INCOMPATIBLE_VERSION, _TRY_AGAIN = 1, 11
_HINTS = {
    _INCOMPATIBLE_VERSION: "set cniVersion in the entry of ipam_file to one that the plugin knows",
    2: "the plugin does not know a field of the configuration; correct the entry of ipam_file",
    5: "see the plugin's data folder: is it mounted into the driver's container, and writable?",
    6: "the plugin cannot read the configuration; correct the entry of ipam_file",
    7: "correct the entry of ipam_file",
    _TRY_AGAIN: "the plugin asks to try again later; this is retried",
}
"""By the specification's code. Plugins choose others as they like."""
_NOT_IMPLEMENTED = re.compile(r"not (yet )?(implemented|supported)|does not allow CHECK", re.IGNORECASE)


class CheckUnsupported(IpamError):
    """The plugin has no CHECK."""


class CniPlugins:
    """Calls block the thread, and raise IpamError. ``inherited``: a descriptor that the plugin keeps open."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def add(self, request: IpamRequest, inherited: int) -> IpamAnswer:
        """Ask for addresses."""
        outcome = self._call("ADD", request, request.source.config, ADD_SECONDS, inherited)
        try:
            answer = parse_result(request, outcome.output)
        except ResultError as error:
            raise _error("ADD", request, f"its result is wrong: {error}") from error
        return answer

    def check(self, request: IpamRequest, answer: IpamAnswer, inherited: int) -> None:
        """Ask whether the addresses are still ours. Raises CheckUnsupported without such a command."""
        if not request.source.has_check:
            raise CheckUnsupported(f"{request.source.plugin}: CHECK is not used for {request.name}")
        previous = build_result(answer, request.source.config["cniVersion"])
        config = {**request.source.config, "prevResult": previous}
        self._call("CHECK", request, config, CHECK_SECONDS, inherited)

    def delete(self, request: IpamRequest, inherited: int) -> None:
        """Give the addresses back; without any it succeeds."""
        self._call("DEL", request, request.source.config, DEL_SECONDS, inherited)

    def find(self, source: CniNetwork) -> Path:
        """The plugin's program."""
        for folder in self._folders:
            path = folder / source.plugin
            if path.is_file() and os.access(path, os.X_OK):
                return path
        raise IpamError(
            f"CNI IPAM plugin {source.plugin} is not in {', '.join(map(str, self._folders)) or 'any folder'}",
            hint="install it there on the node, or name its folder in cni_bin_dirs (and mount it)",
        )

    def _call(
        self, command: str, request: IpamRequest, config: Mapping[str, Any], seconds: float, inherited: int
    ) -> Outcome:
        path = self.find(request.source)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": request.container_id,
            "CNI_NETNS": _NETNS,
            "CNI_IFNAME": request.ifname,
            "CNI_ARGS": _arguments(request),
            "CNI_PATH": os.pathsep.join(map(str, self._folders)),
        }
        text = json.dumps(config).encode()
        try:
            outcome = run_program(path, environment, text, seconds=seconds, inherited=inherited)
        except OSError as error:
            raise _error(command, request, f"{path} cannot be started: {error.strerror}") from error
        if outcome.is_late:
            raise _error(
                command, request, f"no answer within {seconds:g} s, so it was killed", hint="does it hang?"
            )
        if outcome.is_too_long:
            raise _error(command, request, f"it printed more than {MAX_OUTPUT_BYTES} bytes, so it was killed")
        if outcome.status:
            raise _explain(command, request, outcome)
        return outcome


def _arguments(request: IpamRequest) -> str:
    """As the kubelet's runtimes have them: whereabouts records the pod, and its clean-up looks for it."""
    pairs = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": request.pod_namespace,
        "K8S_POD_NAME": request.pod_name,
        "K8S_POD_INFRA_CONTAINER_ID": request.container_id,
        "K8S_POD_UID": request.pod_uid,
    }
    return ";".join(f"{name}={value}" for name, value in pairs.items())


def _error(command: str, request: IpamRequest, why: str, *, hint: str = "") -> IpamError:
    return IpamError(f"interface.ipam {request.name}: {request.source.plugin} {command}: {why}", hint=hint)


def _explain(command: str, request: IpamRequest, outcome: Outcome) -> IpamError:
    """The error object of a plugin that failed, or what it printed otherwise."""
    code, message = _read_error(outcome)
    why = message or f"it ended with {_describe_end(outcome.status)} and no message"
    error = _error(command, request, why, hint=_HINTS.get(code, ""))
    if command == "CHECK" and (code == _INCOMPATIBLE_VERSION or _NOT_IMPLEMENTED.search(message)):
        return CheckUnsupported(error.message)
    return error


def _read_error(outcome: Outcome) -> tuple[int, str]:
    """Code (0 without one) and text."""
    try:
        found = json.loads(outcome.output)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return 0, _printable(outcome.output) or _printable(outcome.errors)
    code = found.get("code")
    parts = [text for name in ("msg", "details") if isinstance(text := found.get(name), str) and text]
    text = _printable(": ".join(parts).encode(errors="replace")) or _printable(outcome.errors)
    return code if isinstance(code, int) else 0, text


def _printable(text: bytes) -> str:
    """One line of printable characters, which goes into logs and Events."""
    line = " ".join(text.decode(errors="replace").split())
    clean = "".join(character if character.isprintable() else "?" for character in line)
    return clean if len(clean) <= _MOST_TEXT else f"{clean[:_MOST_TEXT]}..."


def _describe_end(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
