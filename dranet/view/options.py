"""The input of a command: settings by flags, environment and file, and the capture of a node."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dranet.errors import SettingsError
from dranet.settings import DECLARATIONS, Declaration, Settings, load_settings
from dranet.view.bundle import CAPTURE_FILE, find_pods, is_bundle, read_at_most, unpack_bundle

if TYPE_CHECKING:
    from dranet.model.capture import Capture
    from dranet.model.facts import NodeFacts

_FILES = ("pci_ids", "facts_file", "attributes_file", "ipam_file", "virtual_functions_file")
"""Settings that name a file."""
NODE_CONFIG = Path("/etc/dranet/settings.yaml")
"""Where the chart puts the settings; commands that look at a node find them there by themselves."""

SETTINGS_GROUP = "settings"
"""Title of the options that only ``--help-all`` lists."""


class _ShowAll(argparse.Action):
    """Print the help with the settings, as ``--help`` does without."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        vars(parser)["shows_settings"] = True
        parser.print_help()
        parser.exit()


def add_settings_group(
    parser: argparse.ArgumentParser, fields: tuple[str, ...], about: str = "as for dranet run"
) -> None:
    """Add the flags of these settings, which ``--help-all`` lists."""
    parser.add_argument("--help-all", action=_ShowAll, nargs=0, help=f"also list the settings ({about})")
    add_settings_flags(parser.add_argument_group(SETTINGS_GROUP, about), fields)


def add_node_config_flag(parser: argparse.ArgumentParser) -> None:
    """``--config``, by default the file that the chart has put on the node."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=str(NODE_CONFIG) if os.path.isfile(NODE_CONFIG) else None,  # noqa: PTH113 - never raises
        help=f"settings file, YAML or JSON (default: {NODE_CONFIG}, if it exists)",
    )


def add_capture_flag(parser: argparse.ArgumentParser, *, takes_several: bool = True) -> None:
    """``--capture``, which may be repeated: nodes from captures, next to the objects of files."""
    several: dict[str, Any] = {"nargs": "+", "action": "extend"} if takes_several else {"action": "append"}
    parser.add_argument(
        "--capture",
        "--facts",
        dest="facts",
        **several,
        default=[],
        metavar="CAPTURE",
        help="nodes from captures (dranet capture) or support bundles: their slices as the driver would "
        "publish them",
    )


def add_settings_flags(parser: argparse._ActionsContainer, fields: tuple[str, ...]) -> None:
    """One flag for each named setting, with help, default and environment name."""
    for name in fields:
        setting = DECLARATIONS[name]
        default = f"default {default_text(setting.default)}; " if default_text(setting.default) else ""
        parser.add_argument(
            setting.flag,
            dest=name,
            metavar=_metavar(setting),
            default=argparse.SUPPRESS,
            help=f"{setting.description} ({default}{setting.environment})".replace("%", "%%"),
        )


def default_text(default: object) -> str:
    """A setting's default as one would type it; empty if it has none."""
    if default in ("", None, ()):
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def _metavar(setting: Declaration) -> str:
    if isinstance(setting.default, bool):
        return "true|false"
    return "FILE" if setting.name in _FILES else setting.name.rpartition("_")[2].upper()


def settings_from(options: argparse.Namespace) -> Settings:
    """As :func:`read_settings`; the node's name defaults to the host's."""
    settings = read_settings(options)
    return settings if settings.node_name else replace(settings, node_name=socket.gethostname())


def read_settings(options: argparse.Namespace) -> Settings:
    """Merge file, environment and flags. A file named by a flag is looked for where the user is."""
    values = {name: value for name, value in vars(options).items() if name in DECLARATIONS}
    values |= {name: str(Path(values[name]).absolute()) for name in _FILES if values.get(name)}
    file = Path(options.config) if getattr(options, "config", None) else None
    return load_settings(values, os.environ, file)


class CapturedFacts:
    """The facts of a capture, read once. No kernel is asked, and no pod can have the devices: this
    node may have others of their names. Arguments: see :func:`read_capture`."""

    is_live = False

    def __init__(self, file: str, named_by: str = "facts_file") -> None:
        self._file, self._named_by = file, named_by
        self._facts: NodeFacts | None = None
        self.pods: Mapping[str, str] = {}
        """From the claims in a support bundle: the pod that has a device, by the device's name."""

    def set_protected_addresses(self, targets: object) -> None:
        """A capture has its own."""

    def read(self, _: object = None, /) -> NodeFacts:
        """Read the file at the first call.

        Raises:
            SettingsError: it cannot be read, or is no capture.
        """
        if self._facts is None:
            capture, self.pods = read_capture_and_pods(self._file, self._named_by)
            self._facts = capture.facts
        return self._facts


def read_capture(file: str, named_by: str) -> Capture:
    """As :func:`read_capture_and_pods`, without the pods."""
    return read_capture_and_pods(file, named_by)[0]


def read_capture_and_pods(file: str, named_by: str) -> tuple[Capture, Mapping[str, str]]:
    """A capture of at most 64 MiB, or the one in a support bundle; ``-`` is standard input. With it, from a
    bundle, the pod that has a device, by the device's name.

    Raises:
        SettingsError: it cannot be read, is too long, or does not fit; names the flag ``named_by``.
    """
    from dranet.model.capture import MAX_CAPTURE_BYTES, decode_capture  # the daemon rarely needs it

    try:
        data = read_at_most(file, MAX_CAPTURE_BYTES)
        files = unpack_bundle(data) if is_bundle(data) else {CAPTURE_FILE: data}
        return decode_capture(files[CAPTURE_FILE].decode()), find_pods(files)
    except OSError as error:
        raise SettingsError(f"{named_by} {file}: {os.strerror(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{named_by} {file}: not UTF-8 text") from error
    except SettingsError as error:
        raise SettingsError(f"{named_by} {file}: {error.message}", hint=error.hint) from error
