"""``dranet run``: the driver itself, one per node."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

from dranet import files, malloc
from dranet.settings import DECLARATIONS, Declaration, LogFormat, Settings, load_settings
from dranet.telemetry import set_up_logging

_FILES = ("pci_ids", "facts_file", "attributes_file")
"""Settings that name a file."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command; every flag comes from ``Settings``."""
    parser = commands.add_parser(
        "run",
        help="run the driver on this node",
        description="Run the driver on this node. Each setting may also come from the environment "
        "(DRANET_*) or from a file; flags win over the environment, the environment over the file.",
    )
    parser.add_argument("--config", metavar="FILE", help="settings file, YAML or JSON")
    add_settings_flags(parser, tuple(DECLARATIONS))
    parser.set_defaults(run=run)


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
    """A setting's default as one would type it; empty where there is none."""
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
    given = {name: value for name, value in vars(options).items() if name in DECLARATIONS}
    given |= {name: str(Path(given[name]).absolute()) for name in _FILES if given.get(name)}
    file = Path(options.config) if getattr(options, "config", None) else None
    return load_settings(given, os.environ, file)


def _end_quietly(*_: object) -> None:
    """Nothing is served yet while the driver loads; its own handlers take over with the event loop."""
    raise SystemExit(0)


def run(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. An end that has to be forced has an exit code of its own."""
    signal.signal(signal.SIGTERM, _end_quietly)
    os.umask(files.UMASK)
    malloc.use_one_heap()
    settings = settings_from(options)
    set_up_logging(settings.log_level, as_json=settings.log_format is LogFormat.JSON)
    from dranet.driver.app import run_driver
    from dranet.driver.ending import Ending

    with Ending(settings.drain_seconds) as ending:
        asyncio.run(run_driver(settings, ending))
    return 0
