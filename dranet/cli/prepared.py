"""``dranet prepared``: what is prepared and attached on this node, and whether the kernel agrees."""

from __future__ import annotations

import argparse
import json

from dranet.cli.linux import require_linux
from dranet.errors import StoreError
from dranet.terminal import find_screen, never_fail_to_print, print_document
from dranet.view.options import add_node_config_flag, add_settings_group, read_settings

_DESCRIPTION = """\
List the claims that are prepared on this node, where their devices are, and
whether the kernel agrees, also while no driver runs. Changes nothing. Needs
root, to look into the network namespaces of pods.

  kubectl -n dranet-system exec POD -- dranet prepared
  dranet prepared pod/trainer-0
"""

_EPILOG = """\
States:
  attached      every link is in its pod
  waiting       prepared; the sandbox of its pod does not run
  prepared      no device of it moves into the pod (GPUs, admin access)
  incomplete    a link is missing in its pod's namespace
  orphaned      its pod's namespace is gone; the driver restores the devices
  placed        the namespace could not be looked into
  earlier boot  from before the last reboot; the driver removes it

Exit code: 0 when it could be read, 1 when the store cannot be read or has no
such claim, 2 when arguments or settings are wrong.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "prepared",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [CLAIM | pod/POD] [-o FORM] [settings]",
    )
    parser.add_argument(
        "claim",
        nargs="?",
        metavar="CLAIM",
        help="all about one: the name or UID of a claim or of its pod, pod/NAME, NAMESPACE/NAME, or a "
        "beginning that only one has",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json"),
        metavar="FORM",
        default="table",
        help="table (default); wide: with UIDs, sandboxes, start gates, leases and addresses; "
        "json: everything known",
    )
    add_node_config_flag(parser)
    add_settings_group(parser, ("state_dir", "procfs_root"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    require_linux("dranet prepared", "run it on the node, or in the driver's pod")
    from dranet.cli.prepared_claims import build_document, draw_claims, draw_details, find_claims, look
    from dranet.kernel.sysfs.files import read_boot_id

    settings = read_settings(options)
    node = look(settings.state_dir, read_boot_id(settings.procfs_root))
    claims = list(node.claims)
    if options.claim:
        if any(options.claim == row.claim_uid for row in node.quarantine):
            hint = f"dranet prepared lists why; dranet forget {options.claim} removes it"
            raise StoreError(f"the record of claim {options.claim} cannot be read", hint=hint)
        claims = find_claims(claims, options.claim)
    if options.output == "json":
        print_document(json.dumps(build_document(node, claims), indent=2))
        return 0
    never_fail_to_print()
    is_wide = options.output == "wide"
    lines = draw_details(claims) if options.claim else draw_claims(node, find_screen(), is_wide=is_wide)
    print("\n".join(lines))
    return 0
