"""Builds the programs of a real cluster, starts one to play with, and ends it.

Exit codes: 0 done; 1 failed; 3 this machine lacks what is needed, which is named.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dranet.errors import DranetError
from e2e.access import LaneUnavailable
from e2e.cluster import build, local, standing
from e2e.cluster.described_node import may_raise_limits
from e2e.cluster.standing import Place
from e2e.cluster.testing import run_tests, run_upgrade
from testbed.debian.packages import Unavailable
from testbed.isolation import IsolationRefused

FAILED, CANNOT_RUN_HERE = 1, 3
MOST_NODES = 8


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("build", "build etcd, Kubernetes, kubectl, helm and the driver's image"),
        ("up", "start a cluster in the background"),
        ("down", "end it"),
        ("test", "run the tests of e2e/tests on one; more arguments are pytest's"),
        ("upgrade", "run the tests of e2e/tests/upgrade from the oldest version to the newest"),
        ("serve", "run a cluster until SIGTERM (used by up)"),
        ("join", "run a further node of it until SIGTERM (used by serve)"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--version", default="", metavar="MINOR", help="1.34; default KUBE_VERSION, or the newest"
        )
        command.add_argument("--hardware", default="dgx-h100", help="a name of `dranet testbed`, or a file")
        command.add_argument("--nodes", type=_read_nodes, default=1, help=f"1 to {MOST_NODES}")
        command.add_argument("--number", type=int, default=1, help=argparse.SUPPRESS)
    options, more = parser.parse_known_args(arguments)
    if more and options.command not in ("test", "upgrade"):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    options.pytest = more
    try:
        return _COMMANDS[options.command](options)
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        _complain("skipped: ", missing)
        return CANNOT_RUN_HERE
    except DranetError as error:
        _complain("", error)
        return FAILED


def _build(options: argparse.Namespace) -> int:
    kit = local.prepare(build.print_progress, options.version)
    helm = build.build(build.HELM, build.print_progress)
    build.build(build.WHEREABOUTS, build.print_progress)
    if os.environ.get("KUEUE"):  # ten minutes of a processor, for two tests
        build.build(build.KUEUE, build.print_progress)
    build.print_progress(f"ready: {kit}, helm {build.HELM.version}")
    build.print_progress(f"programs are in {kit.control_plane.kubernetes.paths['kubelet'].parent} and {helm}")
    return 0


def _up(options: argparse.Namespace) -> int:
    place = standing.default_place()
    standing.check_down(place)
    kit = local.prepare(build.print_progress, options.version)
    programs = [
        kit.control_plane.kubernetes.paths["kubelet"].with_name("kubectl"),
        build.build(build.HELM, build.print_progress) / "helm",
        *(Path(sys.executable).with_name(name) for name in ("dranet", "kubectl-dranet")),
    ]
    build.print_progress(f"starting {kit}, {options.nodes} x {options.hardware} (15 s a node)")
    standing.start(place, kit, options.hardware, programs, options.nodes)
    build.print_progress("every node is ready. To use the cluster:")
    sys.stdout.write(
        f"\n  export KUBECONFIG={place.kubeconfig} PATH={place.bin}:$PATH\n  kubectl get nodes\n\n"
    )
    if not may_raise_limits():
        build.print_progress("this machine lacks CAP_SYS_RESOURCE: rdma.memlock is left out of DeviceClasses")
    build.print_progress(f"logs are in {place.logs}; make cluster-down ends it")
    return 0


def _down(_: argparse.Namespace) -> int:
    ended = standing.stop(standing.default_place())
    build.print_progress("ended; nothing is left but its logs" if ended else "no cluster runs")
    return 0


def _serve(options: argparse.Namespace) -> int:
    place: Place = standing.default_place()
    kit = local.prepare(lambda _: None, options.version)
    return standing.serve(place, options.hardware, kit, options.nodes)


def _join(options: argparse.Namespace) -> int:
    kit = local.prepare(lambda _: None, options.version)
    return standing.join(standing.default_place(), options.hardware, kit, options.number)


def _test(options: argparse.Namespace) -> int:
    kit = local.prepare(build.print_progress, options.version)
    build.print_progress(f"tests on {kit}")
    return run_tests(kit, options.pytest)


def _upgrade(options: argparse.Namespace) -> int:
    kit, newer = local.prepare_upgrade(build.print_progress)
    versions = ", ".join(one.kubernetes.version for one in newer)
    build.print_progress(f"an upgrade of {kit} to {versions}")
    return run_upgrade(kit, newer, options.pytest)


_COMMANDS = {
    "test": _test,
    "upgrade": _upgrade,
    "build": _build,
    "up": _up,
    "down": _down,
    "serve": _serve,
    "join": _join,
}


def _read_nodes(text: str) -> int:
    if text.isdecimal() and 1 <= (number := int(text)) <= MOST_NODES:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST_NODES}")


def _complain(kind: str, error: DranetError | Unavailable) -> None:
    hint = getattr(error, "hint", "")
    hint = f" ({hint})" if hint and hint not in str(error) else ""
    sys.stderr.write(f"cluster: {kind}{error}{hint}\n")
