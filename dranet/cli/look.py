"""One look at a node, or at the capture of one, where every command that lists devices begins; and ``dranet
capture``: all facts of this node in one file, for a bug report, a test or a look elsewhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dranet import __version__
from dranet.cli.linux import require_linux
from dranet.errors import DranetError, SettingsError
from dranet.inventory.held import doubt, find_held, find_pods, find_set_down, keep_link_names, name_pods
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Decision
from dranet.model.capture import Capture, encode_capture
from dranet.model.facts import NodeFacts
from dranet.model.plan import PreparedClaim, sum_bandwidth
from dranet.settings import Lldp, Settings
from dranet.terminal import count_of
from dranet.view.node_view import SHAPING_SETTINGS, NodeView
from dranet.view.options import (
    CapturedFacts,
    add_node_config_flag,
    add_settings_group,
    read_settings,
)
from dranet.view.output import PRIVATE, SHARED, add_output_flags, check_output, write_output
from dranet.view.policy import load_policy

if TYPE_CHECKING:
    from dranet.driver.publish import FactsReader
    from dranet.kernel.discovery.watch import Changes


def add_look_flags(parser: argparse.ArgumentParser, also: tuple[str, ...] = ()) -> None:
    """``--capture``, the settings that shape what a look shows, and ``also`` these."""
    parser.add_argument(
        "-f",
        "--file",
        "--capture",
        "--facts",
        dest="facts",
        metavar="FILE",
        help="look at a capture (dranet capture) or at a support bundle (dranet doctor --bundle) instead of "
        "this node; - reads standard input",
    )
    add_node_config_flag(parser)
    about = "as for dranet run, which would offer what is shown"
    add_settings_group(parser, (*SHAPING_SETTINGS, *also), about)


class Eye:
    """Looks once or again and again by the same settings. Raises SettingsError for a wrong one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings = read_settings(options)
        self._policy = load_policy(self.settings)
        self._reader = _make_reader(options, self.settings)

    @property
    def reads_capture(self) -> bool:
        return isinstance(self._reader, CapturedFacts)

    def look(self, *changes: Changes) -> NodeView:
        """Scan what may have changed (default: everything), or read the capture. Blocking. Raises
        SettingsError where the capture cannot be read, and KernelError where netlink failed."""
        facts = self._reader.read(*changes)
        records = None if self.reads_capture else self._read_records()
        inventory = self._take_inventory(facts, records)
        allocated = None if records is None else sum_bandwidth(records)
        return NodeView(facts, inventory, self._policy, is_capture=self.reads_capture, allocated=allocated)

    def _take_inventory(
        self, facts: NodeFacts, records: Sequence[PreparedClaim] | None
    ) -> tuple[Decision, ...]:
        """As the driver does, if the records of what pods have can be read."""
        if records is not None:
            held = {**find_held(records), **find_set_down(records, facts)}
            inventory = take_inventory(facts, held, self._policy)
            return name_pods(keep_link_names(inventory, records, facts), find_pods(records))
        inventory = take_inventory(facts, {}, self._policy)
        if isinstance(self._reader, CapturedFacts):
            return doubt(name_pods(inventory, self._reader.pods), "")
        return doubt(inventory, ": dranet prepared")

    def _read_records(self) -> Sequence[PreparedClaim] | None:
        """From the driver's store, which only root may read, and which this neither locks nor changes."""
        from dranet.cli.prepared_claims import read_records
        from dranet.kernel.sysfs.files import read_boot_id

        try:
            return list(read_records(self.settings.state_dir, read_boot_id(self.settings.procfs_root)))
        except (DranetError, OSError):
            return None


def _make_reader(options: argparse.Namespace, settings: Settings) -> FactsReader:
    if options.facts is not None:  # an empty name is a mistake, not this node
        return CapturedFacts(options.facts, "capture")
    if settings.facts_file:
        return CapturedFacts(str(settings.facts_file))
    require_linux(f"dranet {options.command}", "with -f FILE it reads the capture of one anywhere")
    return make_scanner(settings)


def make_scanner(settings: Settings) -> FactsReader:
    from dranet.driver.protected_addresses import OWN_ADDRESS
    from dranet.kernel.discovery.scan import NodeScanner, ProtectedAddress

    scanner = NodeScanner(settings.sysfs_root, settings.procfs_root, pci_ids=settings.pci_ids)
    scanner.set_protected_addresses(
        [ProtectedAddress(OWN_ADDRESS, address, is_own=True) for address in settings.node_addresses]
    )
    if settings.lldp is Lldp.OFF:
        return scanner
    from dranet.driver.lldp import read_for_command

    return read_for_command(scanner, settings)


def warn(warnings: Iterable[str], already: frozenset[str] = frozenset()) -> None:
    sys.stdout.flush()
    for warning in dict.fromkeys(warnings):
        if warning not in already:
            print(f"warning: {warning}", file=sys.stderr)


JSON = "json"

_SETTINGS = (
    "node_addresses",
    "offer_link_kinds",
    "state_dir",
    "lldp",
    "lldpd_file",
    "pci_ids",
    "sysfs_root",
    "procfs_root",
)

_DESCRIPTION = """\
Write all hardware facts of this node as one JSON document that commands on
another machine read.

  dranet capture --redact > node.json
  dranet topology -f node.json

The document has links with their addresses, default routes, PCI functions with
their place in the PCIe tree, RDMA devices, GPUs, NUMA nodes, and the names of
the host, its kernel and its hardware. It has no traffic, pods or secrets. Links
that pods have are in other namespaces and are not in it. Needs no cluster.
"""

_EPILOG = """\
A capture names the node and its network: host name, hardware and IP addresses,
GUIDs, the UUIDs of GPUs and aliases. --redact replaces all of these, equal
ones by equal ones, and keeps vendors, subnets and the layout.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "capture",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--redact] [--output-file OUT] [settings]",
    )
    parser.add_argument(
        "--redact", action="store_true", help="replace everything that identifies the owner of the machine"
    )
    parser.add_argument(
        "--source", metavar="TEXT", default="", help="a note about the origin, kept in the document"
    )
    parser.add_argument("-o", "--output", metavar="FORM", default=JSON, help="the format: json")
    add_output_flags(
        parser,
        "write to this file, readable by you alone unless --redact is given (default: standard output)",
    )
    add_node_config_flag(parser)
    add_settings_group(parser, _SETTINGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.output != JSON:
        raise SettingsError(
            f"-o {options.output}: -o is the format, and {JSON} is the only one",
            hint=f"to write a file: --output-file {options.output}",
        )
    named_by = "--output-file"
    path = check_output(options.output_file, named_by, force=options.force) if options.output_file else None
    require_linux("dranet capture", "run it on the node, or in the driver's pod")
    facts = make_scanner(read_settings(options)).read()
    for warning in facts.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    shown = facts
    if options.redact:
        from dranet.desk.redact.capture import redact

        shown = redact(facts)
    text = encode_capture(Capture(shown, options.source or _describe_source(shown, options.redact)))
    if path is None:
        sys.stdout.buffer.write(text.encode())  # UTF-8 also where the locale is another
        return 0
    write_output(path, text.encode(), SHARED if options.redact else PRIVATE, named_by)
    print(f"{options.output_file}: {_summarize(facts)}", file=sys.stderr)
    return 0


def _describe_source(facts: NodeFacts, redacted: bool) -> str:
    parts = (facts.host.product, f"Linux {facts.host.kernel}" if facts.host.kernel else "")
    machine = ", ".join(part for part in parts if part) or "a running node"
    return f"captured by dranet {__version__} from {machine}" + (", redacted" if redacted else "")


def _summarize(facts: NodeFacts) -> str:
    counts = {
        "link": facts.links,
        "PCI function": facts.pci_functions,
        "RDMA device": facts.rdma_devices,
        "GPU": facts.gpus,
        "warning": facts.warnings,
    }
    return ", ".join(count_of(len(found), word) for word, found in counts.items())
