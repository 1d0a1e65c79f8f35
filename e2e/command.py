"""The command line: which lane, which parts, and the exit code.

0: something was run, and nothing failed. 1: a part failed. 3: this machine cannot run the lane, or nothing
of what was asked for can be run on it; what is missing is named.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dranet.errors import DranetError
from dranet.terminal import never_fail_to_print
from e2e import basics, kind, kubeconfig, standin
from e2e.access import LaneUnavailable
from e2e.cluster import build, local
from e2e.cluster import lane as cluster
from e2e.cluster.testing import run_tests, run_upgrade
from e2e.run import Became, Book, OpenLane, Outcome, choose, note_skipped, sum_up, walk_on
from e2e.table import Reach
from testbed.cli.shutdown import BY_SIGNAL, end_in_order, run_in_order
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated
from testbed.node.iproute import ProgramsMissing, check_programs
from testbed.scenario.scenario import Scenario

FAILED, CANNOT_RUN_HERE = 1, 3
SCENARIOS = "scenarios"
"""The part of the lane ``cluster`` that is every scenario and the basics."""
TESTS = "tests"
"""The part of the lane ``cluster`` that is pytest's: ``e2e/tests``."""
UPGRADE = "upgrade"
"""Another one: ``e2e/tests/upgrade``, from the oldest version to the newest."""
STAND_IN_REACH = Reach(has_hands=True, has_layout=True)
CLUSTER_REACH = Reach(has_hands=True, has_layout=True, has_control=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e", description=__doc__)
    parser.add_argument(
        "scenario",
        nargs="*",
        help=f"{basics.NAME}, scenarios by name, {SCENARIOS} (all), {TESTS}, {UPGRADE}; default: everything",
    )
    parser.add_argument(
        "--lane", choices=LANES, help="by default: kubeconfig, kind or cluster, from the environment"
    )
    options = parser.parse_args(arguments)
    never_fail_to_print()
    lane = options.lane or _choose_lane()
    with tempfile.TemporaryDirectory(prefix="dranet-e2e-") as folder:
        book = Book(Path(folder) / "outcomes")
        try:
            code = LANES[lane](options.scenario, book)
        except (IsolationRefused, ProgramsMissing, LaneUnavailable, Unavailable) as refused:
            _complain(lane, refused)
            return CANNOT_RUN_HERE
        except DranetError as error:
            _complain(lane, error)
            code = FAILED
        except KeyboardInterrupt:
            code = BY_SIGNAL + signal.SIGINT
        outcomes = book.read()
    sys.stdout.write(sum_up(lane, outcomes) + "\n")
    return code or judge(outcomes)


def judge(outcomes: Sequence[Outcome]) -> int:
    """The exit code of a suite that came to its end."""
    became = {outcome.became for outcome in outcomes}
    if Became.FAILED in became:
        return FAILED
    return 0 if Became.PASSED in became else CANNOT_RUN_HERE


def _complain(lane: str, error: Exception) -> None:
    hint = getattr(error, "hint", "")
    sys.stderr.write(f"e2e: {lane}: {error}{f' ({hint})' if hint and hint not in str(error) else ''}\n")


def _choose_lane() -> str:
    """Programs that are named before a cluster that is there, before one that is made here."""
    if os.environ.get("KUBE_BIN_DIR") or os.environ.get("KUBE_VERSION"):
        return cluster.LANE
    return kubeconfig.LANE if os.environ.get("KUBECONFIG") else cluster.LANE


def _walk_in_trees(open_lane: OpenLane, reach: Reach, names: Sequence[str], book: Book) -> int:
    """Each part in a private tree of its own, which the kernel removes whole."""
    check_programs()
    scenarios = note_skipped(choose(names), reach, book)
    parts: list[Scenario | None] = [None] if not names or basics.NAME in names else []
    for part in [*parts, *scenarios]:
        code = run_isolated(partial(_walk_part, open_lane, part, book))
        if code >= BY_SIGNAL:
            return code
        if code:  # our own mistake; its message is above
            name = part.name if part else basics.NAME
            book.note(Outcome(name, Became.FAILED, f"the suite itself ended with exit code {code}"))
    return 0


def _walk_part(open_lane: OpenLane, part: Scenario | None, book: Book) -> int:
    return run_in_order(walk_on(open_lane, WORK_DIR, part, book))


def _run_standin(names: Sequence[str], book: Book) -> int:
    return _walk_in_trees(standin.open_standin, STAND_IN_REACH, names, book)


def _run_cluster(names: Sequence[str], book: Book) -> int:
    kit = cluster.prepare()
    code = 0
    scenarios = [name for name in names if name not in (SCENARIOS, TESTS, UPGRADE)]
    if scenarios or not names or SCENARIOS in names:
        chosen = [] if SCENARIOS in names else scenarios
        code = _walk_in_trees(cluster.build_opener(kit), CLUSTER_REACH, chosen, book)
    if code < BY_SIGNAL and (not names or TESTS in names):
        code = _run_pytest(TESTS, lambda: run_tests(kit, ["-q"]), book) or code
    if code < BY_SIGNAL and (not names or UPGRADE in names):
        code = _run_upgrade(book) or code
    return code


def _run_upgrade(book: Book) -> int:
    """The upgrade, or a note of what it needs."""
    try:
        kit, newer = local.prepare_upgrade(build.print_progress)
    except LaneUnavailable as missing:
        book.note(
            Outcome(UPGRADE, Became.SKIPPED, f"{missing} ({missing.hint})" if missing.hint else str(missing))
        )
        return 0
    return _run_pytest(UPGRADE, lambda: run_upgrade(kit, newer, ["-q"]), book)


def _run_pytest(name: str, run: Callable[[], int], book: Book) -> int:
    """What only real programs can answer, on a cluster for all tests of the run."""
    begin = time.monotonic()
    code = run()
    became = Became.FAILED if code else Became.PASSED
    book.note(Outcome(name, became, f"pytest: exit code {code}" if code else "", time.monotonic() - begin))
    return code if code >= BY_SIGNAL else 0


def _run_kubeconfig(names: Sequence[str], book: Book) -> int:
    return run_in_order(kubeconfig.run(names, book))


def _run_kind(names: Sequence[str], book: Book) -> int:
    end_in_order()
    return kind.run(names, book)


LANES = {
    standin.LANE: _run_standin,
    kubeconfig.LANE: _run_kubeconfig,
    kind.LANE: _run_kind,
    cluster.LANE: _run_cluster,
}
