"""``dranet demo``: the first five minutes. The driver's whole way once, on this machine."""

from __future__ import annotations

import argparse

from testbed.cli.testbed import (
    add_runtime_flags,
    load_sound_scenario,
    run_isolated_scenario,
    with_runtime,
)

DEMO_SCENARIO = "aligned-pods"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "demo",
        description="Boot a one-node cluster on described hardware, start the real driver, let two pods "
        "claim a GPU and the NIC next to it, send traffic over those NICs, and take everything down again. "
        "Needs root or unprivileged user namespaces; no cluster, no hardware; leaves nothing behind.",
    )
    add_runtime_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show it; 0 if every step was as expected."""
    scenario = load_sound_scenario(DEMO_SCENARIO)
    return with_runtime(options.runtime, lambda runtime: run_isolated_scenario(scenario, runtime))
