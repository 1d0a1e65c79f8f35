"""``dranet testbed``: run scenarios on a one-node cluster that lives in one process tree on this machine."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dranet.terminal import drop_output, never_fail_to_print
from testbed.cli.narration import choose_storyteller
from testbed.cli.shutdown import BY_SIGNAL, run_in_order

if TYPE_CHECKING:
    from testbed.cluster import RuntimeFactory
    from testbed.scenario.scenario import Scenario

EXIT_FAILED = 1
EXIT_CANNOT_RUN_HERE = 3
"""This machine lacks a right or a program; nothing was tried."""
EXIT_INTERRUPTED = BY_SIGNAL + signal.SIGINT

RUNTIMES = ("stand-in", "containerd")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "testbed",
        description="A one-node cluster on this machine: described hardware, an API server, a scheduler, a "
        "kubelet, a container runtime, and the real driver. Everything lives in private namespaces and "
        "leaves nothing behind. Needs root or unprivileged user namespaces.",
    )
    actions = parser.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the scenarios and the hardware that come with dranet")
    listing.set_defaults(run=run_list)
    running = actions.add_parser("run", help="run scenarios, by name or file")
    running.add_argument("scenarios", nargs="+", metavar="SCENARIO", help="name of a shipped one, or a file")
    add_runtime_flags(running)
    running.set_defaults(run=run)


def add_runtime_flags(parser: argparse.ArgumentParser) -> None:
    """``--runtime`` and what belongs to it."""
    parser.add_argument(
        "--runtime",
        choices=RUNTIMES,
        default="stand-in",
        help="container runtime: the stand-in (default), or a real containerd and runc, fetched once from "
        "the distribution's packages without being installed; needs root",
    )


def run_list(_: argparse.Namespace) -> int:
    """Print what is there."""
    from testbed.node.hardware import known_hardware, load_hardware
    from testbed.scenario.scenario import known_scenarios, load_scenario

    never_fail_to_print()
    print("scenarios:")
    for path in known_scenarios():
        print(f"  {path.stem:36}{load_scenario(path.stem).description}")
    print("hardware:")
    for path in known_hardware():
        print(f"  {path.stem:36}{load_hardware(path.stem).description}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run each scenario in a private tree of its own; 0 if all were as expected."""
    scenarios = [load_sound_scenario(name) for name in options.scenarios]
    return with_runtime(options.runtime, partial(_run_all, scenarios, options.runtime))


def load_sound_scenario(name: str) -> Scenario:
    """The scenario, whose hardware is sound too: what is wrong shows here, and not in the private tree.

    Raises:
        InvalidFile: every fault of the scenario, or of its hardware.
    """
    from testbed.scenario.scenario import load_scenario, load_scenario_hardware

    scenario = load_scenario(name)
    load_scenario_hardware(scenario)
    return scenario


def with_runtime(name: str, work: Callable[[RuntimeFactory], int]) -> int:
    """Call ``work`` with the runtime; where this machine cannot run it, print what is missing and return
    3."""
    from testbed.containerd.fetch import ContainerdUnavailable
    from testbed.isolation import IsolationRefused
    from testbed.node.iproute import ProgramsMissing, check_programs

    never_fail_to_print()
    try:
        check_programs()
        return work(_get_runtime(name))
    except (IsolationRefused, ProgramsMissing, ContainerdUnavailable) as refused:
        print(f"dranet: {refused}", file=sys.stderr)
        return EXIT_CANNOT_RUN_HERE


def run_isolated_scenario(scenario: Scenario, make_runtime: RuntimeFactory) -> int:
    """One scenario in one private tree, shown as it happens; 0 if every step was as expected.

    Raises:
        IsolationRefused: this machine does not give the rights.
    """
    from testbed.isolation import run_isolated

    code = run_isolated(partial(_show_scenario, scenario, make_runtime))
    if code == EXIT_INTERRUPTED:
        print("interrupted; the testbed is gone", file=sys.stderr)
    return code


def _run_all(scenarios: list[Scenario], runtime: str, make_runtime: RuntimeFactory) -> int:
    worst = 0
    for scenario in scenarios:
        if runtime not in scenario.runtimes:
            print(f"{scenario.name}: skipped on {runtime}: {scenario.why_not_everywhere}")
            continue
        worst = max(worst, run_isolated_scenario(scenario, make_runtime))
        if worst > BY_SIGNAL:
            break  # a signal ends the command, not only this scenario
    return worst


def _show_scenario(scenario: Scenario, make_runtime: RuntimeFactory) -> int:
    from testbed.isolation import WORK_DIR
    from testbed.scenario.run import run_scenario

    story = choose_storyteller()

    async def show() -> int:
        story.introduce(scenario.name, scenario.description)
        report = await run_scenario(scenario, make_runtime, WORK_DIR, story)
        story.sum_up(report)
        return 0 if report.passed else EXIT_FAILED

    with contextlib.closing(story):
        try:
            return run_in_order(show())
        except BrokenPipeError:  # `dranet demo | head`
            drop_output()
            return BY_SIGNAL + signal.SIGPIPE


def _get_runtime(name: str) -> RuntimeFactory:
    """A real runtime is fetched here, before the private tree, which has no way to the outside."""
    from testbed import runtimes
    from testbed.containerd.fetch import default_cache_dir, fetch_toolchain
    from testbed.containerd.node import check_root

    if name == "stand-in":
        return runtimes.stand_in
    check_root()  # before a download that would be in vain
    return runtimes.containerd(fetch_toolchain(default_cache_dir(), _report))


def _report(text: str) -> None:
    print(f"containerd: {text}", file=sys.stderr)
