"""``dranet claim new``: writes the manifests that get NICs next to GPUs on the hardware at hand."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dranet.desk.cli.object_files import name_of
from dranet.desk.cli.objects import (
    ClusterObjects,
    add_cluster_flags,
    add_facts_settings,
    add_source_flags,
    asks_cluster,
    capture_slices,
    fetch_live,
    load_files,
)
from dranet.desk.explain.subject import near_names
from dranet.desk.hardware.nodes import Hardware, read_hardware
from dranet.desk.templates.chart_classes import build_chart_classes
from dranet.desk.templates.choose import choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.request import PLACEHOLDER_IMAGE, ClaimRequest
from dranet.errors import SettingsError
from dranet.model.device import DeviceKind
from dranet.setting_values import bit_rate
from dranet.terminal import PROSE, print_document
from dranet.view.node_view import NodeView, to_json, to_yaml
from dranet.view.options import read_settings

_KINDS = ("ResourceSlice", "DeviceClass", "Node")
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_RESOURCE = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LABEL_RULE = "lower-case letters, digits and -; it begins and ends with a letter or digit"
_SUBDOMAIN_RULE = "lower-case letters, digits, - and .; each part begins and ends with a letter or digit"
_NAMES = {
    "name": (_SUBDOMAIN, 58, _SUBDOMAIN_RULE),
    "namespace": (_LABEL, 63, _LABEL_RULE),
    "class": (_SUBDOMAIN, 253, _SUBDOMAIN_RULE),
    "gpu-class": (_SUBDOMAIN, 253, _SUBDOMAIN_RULE),
    "gpu-resource": (rf"{_SUBDOMAIN}/{_RESOURCE}", 316, "a domain, a slash and a name: nvidia.com/gpu"),
}
"""Flag -> what Kubernetes takes, how long it may be, and the rule in words. The template of the GPUs has five
letters more than ``--name``, and a pod is best no longer than its host name can be."""

_DESCRIPTION = """\
Write a ResourceClaimTemplate and a pod with which the scheduler gives each pod
the NICs nearest to its GPUs on this hardware, and the DeviceClasses that are
not there. Comments explain the choice and the distance to expect. Changes
nothing.

  dranet claim new --gpus 2 --nics 2 | kubectl apply -f -
  dranet claim new --per-node --capture node.json
  kubectl get resourceslices,deviceclasses,nodes -o yaml > cluster.yaml
  dranet claim new --gpus 8 --nics 8 --rails -f cluster.yaml
"""

_EPILOG = """\
What no node can give is refused, with the reason and the closest request that
works.

Exit code: 0 when the claim is written, 1 when no node can give it or the
cluster does not answer, 2 when arguments or files are wrong.
"""

_ABOUT = """\
Write claims that align NICs and GPUs on this hardware.

  dranet claim new --gpus 2 --nics 2

To list what is prepared on a node: dranet prepared.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "claim", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    new = actions.add_parser(
        "new",
        help="write a ResourceClaimTemplate and a pod",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="%(prog)s [--gpus N] [--nics M | --bandwidth RATE]\n"
        "         [[--per-node] [--rails] | --each-numa]\n"
        "         [-f FILE ...] [--capture CAPTURE ...] [--node NODE ...] [--explain]\n"
        "         [-o yaml|json] [--kubeconfig FILE] [--context NAME] [settings]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(new)
    _add_names(new)
    _add_where(new)
    new.set_defaults(run=run)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=_whole_number, metavar="N", help="GPUs for each pod (default: 1)")
    parser.add_argument("--nics", type=_whole_number, metavar="M", help="NICs for each pod (default: 1)")
    parser.add_argument("--per-node", action="store_true", help="all GPUs and NICs of a node for each pod")
    parser.add_argument(
        "--rails",
        action="store_true",
        help="a request for each NIC, by its rail (attribute rail) or PCI address: net0 is on one rail in "
        "every pod",
    )
    parser.add_argument(
        "--each-numa",
        action="store_true",
        help="M NICs of each NUMA node, for GPUs by a device plugin: they may be on any",
    )
    parser.add_argument(
        "--bandwidth",
        default="",
        metavar="RATE",
        help="a share of a shared NIC with so many bits per second (25G), where the scheduler counts them",
    )
    parser.add_argument(
        "--rdma",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="NICs with RDMA, or with a network interface, RDMA or not (default: RDMA where there is)",
    )


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, such as 2, not {text!r}") from None


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="", help="name of template and pod (default: by what they request)")
    parser.add_argument("-n", "--namespace", default="", help="of template and pod; left out by default")
    parser.add_argument(
        "--gpu-class",
        default="",
        metavar="CLASS",
        help="DeviceClass of the GPUs (default: the vendor's driver's name, gpu.nvidia.com; dranet-gpu for "
        "GPUs that this driver publishes)",
    )
    parser.add_argument(
        "--class",
        dest="nic_class",
        default="",
        metavar="NAME",
        help="DeviceClass of the NICs (default: dranet-rdma or dranet-nic)",
    )
    parser.add_argument(
        "--gpu-part",
        default="",
        metavar="PROFILE",
        help="parts of GPUs with this profile in place of whole GPUs: 1g.10gb (MIG), cpx_nps1 (AMD)",
    )
    parser.add_argument(
        "--gpu-resource",
        default="",
        metavar="RESOURCE",
        help="GPUs by a device plugin: its extended resource, nvidia.com/gpu (default: what the Nodes have, "
        "where no DRA driver publishes GPUs)",
    )
    parser.add_argument(
        "--image",
        default=PLACEHOLDER_IMAGE,
        help=f"image of the pod's container (default: {PLACEHOLDER_IMAGE}, which sleeps)",
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser, "ResourceSlices, and DeviceClasses and Nodes where there are,")
    parser.add_argument(
        "--node",
        nargs="+",
        action="extend",
        default=[],
        metavar="NODE",
        help="write for these nodes, and those like them, alone; in a cluster of unlike nodes",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("yaml", "json"),
        metavar="FORM",
        default="yaml",
        help="yaml (default); json: a List, without the reasons",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also what else was tried, and the results; with json on standard error",
    )
    add_cluster_flags(parser)
    add_facts_settings(parser)


def run(options: argparse.Namespace) -> int:
    """Read the hardware, choose, print."""
    request = _read_request(options)
    objects = _read_objects(options)
    hardware = _read_hardware(objects, options.node, request)
    own = {body["metadata"]["name"] for body in objects.classes}
    of_chart = () if asks_cluster(options) else build_chart_classes(hardware.nic_driver)
    assumed = {body["metadata"]["name"]: body for body in of_chart if body["metadata"]["name"] not in own}
    choice = choose_claim(
        request,
        hardware,
        {body["metadata"]["name"]: body for body in objects.classes} | assumed,
        _list_not_offered(objects.looks),
        assumed=frozenset(assumed),
    )
    notes = describe(choice, with_tried=options.explain)
    if options.output == "json":
        print_document(as_json(choice.manifests))
        if options.explain:
            print("\n".join(comment(notes)), file=sys.stderr)
    else:
        print_document(as_yaml(choice.manifests, notes))
    return 0


def _read_request(options: argparse.Namespace) -> ClaimRequest:
    gpus = 1 if options.gpus is None else options.gpus
    nics = 1 if options.nics is None else options.nics
    if options.per_node and (options.nics is not None or options.gpus not in (None, 0)):
        raise SettingsError("--per-node takes all there is: leave --gpus and --nics out", hint="or --gpus 0")
    if options.each_numa and (options.per_node or options.rails):
        raise SettingsError("--each-numa does not go with --per-node and --rails")
    if options.gpu_resource and (options.gpu_class or options.gpu_part):
        raise SettingsError(
            "--gpu-resource does not go with --gpu-class and --gpu-part",
            hint="no claim has the GPUs of a device plugin",
        )
    bandwidth = _read_bandwidth(options)
    if gpus < 0 or nics < 1:
        raise SettingsError(
            f"--gpus {gpus} --nics {nics}: at least one NIC, and no negative number of GPUs",
            hint="claims for GPUs alone need no alignment",
        )
    names = (options.name, options.namespace, options.nic_class, options.gpu_class, options.gpu_resource)
    for (flag, (pattern, longest, rule)), value in zip(_NAMES.items(), names, strict=True):
        if value and not re.fullmatch(pattern, value):
            raise SettingsError(f"--{flag} {value}: not a valid name", hint=rule)
        if len(value) > longest:
            raise SettingsError(f"--{flag} {value}: is longer than {longest} characters")
    if not options.image or options.image != options.image.strip():
        raise SettingsError(f"--image {options.image!r}: is empty, or begins or ends with a space")
    return ClaimRequest(
        gpus,
        nics,
        options.per_node,
        options.rails,
        bool(options.rdma) if bandwidth else options.rdma,
        options.name,
        options.namespace,
        options.gpu_class,
        options.nic_class,
        options.image,
        options.gpu_part,
        options.gpu_resource,
        options.each_numa,
        bandwidth,
    )


def _read_bandwidth(options: argparse.Namespace) -> int:
    """Bits per second; 0 for whole NICs."""
    if not options.bandwidth:
        return 0
    try:
        bandwidth = bit_rate(options.bandwidth)
    except ValueError as error:
        raise SettingsError(f"--bandwidth {options.bandwidth}: {error}") from None
    if options.nics not in (None, 1) or options.per_node or options.rails or options.each_numa:
        raise SettingsError(
            "--bandwidth is for one share of one NIC: leave --nics, --per-node, --rails and --each-numa out",
            hint="two requests of a claim could get the same NIC",
        )
    return bandwidth or 0


def _read_objects(options: argparse.Namespace) -> ClusterObjects:
    """Read files and captures where any are named; the cluster where none is, or where it is also named."""
    found = capture_slices(options.facts, read_settings(options)) if options.facts else ClusterObjects()
    if asks_cluster(options):
        found = found | fetch_live(options, _KINDS)
    found = found | load_files(options.file) if options.file else found
    if not (found.slices or asks_cluster(options)):
        files = ", ".join(map(name_of, options.file))
        raise SettingsError(
            f"{files} {'has' if len(options.file) == 1 else 'have'} no ResourceSlices",
            hint="kubectl get resourceslices,deviceclasses,nodes -o yaml writes them",
        )
    return found


def _read_hardware(objects: ClusterObjects, only: Sequence[str], request: ClaimRequest) -> Hardware:
    known = {entry["metadata"]["name"] for entry in objects.nodes}
    known |= {entry["spec"].get("nodeName") or "" for entry in objects.slices}
    for name in only:
        if name not in known:
            raise SettingsError(f"--node {name}: no such node", hint=near_names(name, known - {""}))
    return read_hardware(objects.slices, objects.nodes, only, request.gpu_part, request.bandwidth)


def _list_not_offered(looks: Mapping[str, NodeView]) -> dict[str, Sequence[str]]:
    """List the RDMA NICs that are not offered, by node: usually it is these that were requested."""
    return {
        node: tuple(
            f"{decision.device.rdma_device} {decision.reason}"
            for decision in look.decisions
            if not decision.published
            and decision.device.rdma_device
            and decision.device.kind is not DeviceKind.GPU
        )
        for node, look in looks.items()
    }


def as_yaml(manifests: Sequence[dict[str, Any]], notes: Iterable[str]) -> str:
    """A stream of documents that ``kubectl apply -f -`` takes; the notes are comments."""
    return "\n".join([*comment(notes), to_yaml(manifests).rstrip("\n")])


def as_json(manifests: Sequence[dict[str, Any]]) -> str:
    """One ``List``; JSON has no comments."""
    return to_json({"apiVersion": "v1", "kind": "List", "items": list(manifests)})


def comment(notes: Iterable[str]) -> list[str]:
    """Each note wrapped, its further lines indented."""
    return [
        line
        for note in notes
        for line in textwrap.wrap(
            note, PROSE, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
        )
    ]
