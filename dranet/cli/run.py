"""``dranet run``: the driver itself, one per node."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

from dranet.cli.linux import require_linux
from dranet.settings import DECLARATIONS, LogFormat
from dranet.view.options import add_settings_group, settings_from


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        description="Run the driver on this node. Each setting may also come from the environment "
        "(DRANET_*) or from a file; flags win over the environment, the environment over the file.",
        usage="%(prog)s [--config FILE] [settings]",
    )
    parser.add_argument("--config", metavar="FILE", help="settings file, YAML or JSON")
    add_settings_group(parser, tuple(DECLARATIONS), "each is also a key of the file")
    parser.set_defaults(run=run)


def _end_quietly(*_: object) -> None:
    """Nothing is served yet while the driver loads; its own handlers take over with the event loop."""
    raise SystemExit(0)


def run(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. An end that has to be forced has an exit code of its own."""
    require_linux("dranet run", "install it into a cluster by its chart")
    signal.signal(signal.SIGTERM, _end_quietly)
    from dranet import files
    from dranet.driver.executor import use_one_heap
    from dranet.telemetry import set_up_logging

    os.umask(files.UMASK)
    use_one_heap()
    settings = settings_from(options)
    set_up_logging(settings.log_level, as_json=settings.log_format is LogFormat.JSON)
    from dranet.driver.app import Shutdown, run_driver

    with Shutdown(settings.drain_seconds) as ending:
        asyncio.run(run_driver(settings, ending))
    return 0
