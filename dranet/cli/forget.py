"""``dranet forget``: removes the damaged record of a claim, once no driver can use it any more."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dranet.cli.linux import require_linux
from dranet.errors import NotFoundError, StoreError
from dranet.terminal import printable
from dranet.view.options import add_node_config_flag, add_settings_group, read_settings

if TYPE_CHECKING:
    from dranet.store.record_folder import UnreadableRecord

_DESCRIPTION = """\
Remove the damaged record of a claim, which dranet prepared lists as
quarantined, from this node. Use it after its pod has ended and you have set
the NIC up by hand or rebooted the node: the driver cannot restore a NIC from
such a record.

  dranet prepared
  dranet forget 5f0c --yes

Without --yes it shows what it would remove. It refuses a record that the
driver can read, or from which it can still restore the devices: delete the pod
instead. Needs root.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "forget",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s UID [--yes] [settings]",
    )
    parser.add_argument("uid", metavar="UID", help="the claim's UID, as dranet prepared shows it")
    parser.add_argument("--yes", action="store_true", help="remove it")
    add_node_config_flag(parser)
    add_settings_group(parser, ("state_dir",))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    require_linux("dranet forget", "run it on the node, or in the driver's pod")
    from dranet import files

    records = find_removable(read_settings(options).state_dir / "claims", options.uid)
    for record in records:
        print(f"{record.file}: {printable(record.why)}, since {record.at} UTC")
    if not options.yes:
        print("nothing is removed: add --yes to remove it", file=sys.stderr)
        return 1
    for record in records:
        assert record.file is not None
        files.remove_file(record.file)
    print(f"the record of claim {options.uid} is removed; restore its NIC by hand if you have not yet")
    return 0


def find_removable(store: Path, claim_uid: str) -> list[UnreadableRecord]:
    """The damaged records of a claim.

    Raises:
        NotFoundError: it has no such records.
        StoreError: the store cannot be read, or the driver still needs what is there.
    """
    from dranet import files
    from dranet.store.record_folder import RecordFolder, decode_partially

    folder = RecordFolder(store)
    try:
        files.check_folder(store)
        _, rows = folder.read({})
        records = folder.read_unreadable(claim_uid)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the store {store} does not exist", hint="--state-dir names its folder"
        ) from error
    except OSError as error:
        hint = files.hint_for(error, otherwise="run it as root, or in the driver's pod")
        raise StoreError(f"store {store}: {error.strerror}", hint=hint) from error
    if claim_uid in rows:
        hint = f"delete its pod, and the driver restores the devices; dranet prepared {claim_uid} shows them"
        raise StoreError(f"claim {claim_uid} is prepared on this node, and its record is in use", hint=hint)
    if not records:
        raise NotFoundError(f"no damaged record of a claim {claim_uid}", hint="dranet prepared lists them")
    if any(decode_partially(record.text) is not None for record in records):
        hint = "delete its pod: the driver then restores them and removes the record"
        raise StoreError(f"the driver can still restore the devices of claim {claim_uid}", hint=hint)
    return records
