"""``dranet version``: the version of this program, and those of the drivers in the cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import dranet
from dranet.cluster import paths
from dranet.cluster.client import ApiClient, fetch_snapshot
from dranet.desk.cli.object_cluster import DRIVER_SELECTOR, make_client
from dranet.desk.cli.objects import add_cluster_flags
from dranet.desk.fleet.read import VERSION_LABEL
from dranet.desk.kubeapi.objects import JsonObject
from dranet.errors import ClusterError, SettingsError
from dranet.terminal import count_of, find_screen, never_fail_to_print, print_document, printable
from dranet.view.node_view import serialize

_UNKNOWN = "unknown"

_DESCRIPTION = """\
Print the version of this program, and those of the drivers that run in the
cluster, with the number of nodes of each. Warns where they differ.

  dranet version
  dranet version --client -o json
"""

_EPILOG = """\
Exit code: 0, 1 when the cluster does not answer or its pods may not be listed,
2 when arguments or the kubeconfig are wrong.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "version",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--client] [-o FORM] [--kubeconfig FILE] [--context NAME]",
    )
    parser.add_argument("--client", action="store_true", help="only this program: ask no cluster")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        metavar="FORM",
        default="text",
        help="text (default), json or yaml",
    )
    add_cluster_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what is known; what the cluster refuses comes after the client's own version."""
    document: dict[str, Any] = {"client": describe_client()}
    refused: SettingsError | ClusterError | None = None
    if not options.client:
        try:
            document["drivers"] = group_pods(asyncio.run(_fetch_pods(make_client(options))))
        except (SettingsError, ClusterError) as error:
            refused = error
    if options.output != "text":
        print_document(serialize(document, options.output))
    else:
        never_fail_to_print()
        print("\n".join(_iter_lines(document)))
    sys.stdout.flush()
    for warning in warn_of_skew(document):
        print(find_screen().yellow(f"warning: {warning}"), file=sys.stderr)
    if refused is not None:
        raise type(refused)(
            f"the versions of the drivers are not known: {refused.message}",
            hint="dranet version --client does not ask a cluster",
        ) from refused
    return 0


async def _fetch_pods(client: ApiClient) -> Sequence[JsonObject]:
    async with client:
        return (await fetch_snapshot(client, paths.pods(), label_selector=DRIVER_SELECTOR)).items


def describe_client() -> dict[str, Any]:
    """Version and commit of this program, and what it runs on."""
    return {
        "version": dranet.__version__,
        "commit": find_commit() or None,
        "python": platform.python_version(),
        "platform": f"{sys.platform}/{platform.machine()}",
    }


def find_commit() -> str:
    """The commit that it was built from: recorded in the wheel, by pip, or of the checkout; else empty."""
    folder = Path(dranet.__file__).parent
    recorded = folder / "COMMIT"
    if recorded.is_file():
        return recorded.read_text().strip()
    return _read_direct_url() or _ask_git(folder.parent)


def _read_direct_url() -> str:
    """What ``pip install git+https://...`` has recorded (PEP 610)."""
    try:
        text = metadata.distribution("dranet").read_text("direct_url.json")
        return str(json.loads(text or "{}").get("vcs_info", {}).get("commit_id", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return ""


def _ask_git(checkout: Path) -> str:
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def group_pods(pods: Sequence[JsonObject]) -> list[dict[str, Any]]:
    """Each version and image with its nodes, the most nodes first."""
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in pods:
        spec, labels = pod.get("spec") or {}, pod["metadata"].get("labels") or {}
        images = [str(container.get("image", "")) for container in spec.get("containers") or []]
        key = (str(labels.get(VERSION_LABEL) or _UNKNOWN), images[0] if images else "")
        nodes[key].append(str(spec.get("nodeName") or ""))
    ordered = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {"version": version, "image": image, "nodes": sorted(filter(None, set(names)))}
        for (version, image), names in ordered
    ]


def warn_of_skew(document: Mapping[str, Any]) -> Iterator[str]:
    """Where the drivers differ among themselves, or from this program."""
    versions = sorted({driver["version"] for driver in document.get("drivers", ())})
    if len(versions) > 1:
        yield f"the drivers have {len(versions)} versions ({', '.join(versions)}): has an update stopped?"
    client = document["client"]["version"]
    others = [version for version in versions if version not in (client, _UNKNOWN)]
    if others:
        yield (
            f"this program is {client}, drivers are {', '.join(others)}: the settings and attributes that it "
            "describes may differ from theirs"
        )


def _iter_lines(document: Mapping[str, Any]) -> Iterator[str]:
    client = document["client"]
    commit = f" ({client['commit'][:12]})" if client["commit"] else ""
    yield f"client   {client['version']}{commit}"
    if "drivers" not in document:
        return
    for driver in document["drivers"]:
        nodes = count_of(len(driver["nodes"]), "node")
        yield printable(f"drivers  {nodes}: {driver['version']}  {driver['image']}")
    if not document["drivers"]:
        yield f"drivers  no pod has the labels {DRIVER_SELECTOR}"
