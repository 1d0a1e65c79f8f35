"""One look at a node, or at the capture of one, where every command that lists devices begins; and ``dranet
capture``: all facts of this node in one file, for a bug report, a test or a look elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from dranet import __version__
from dranet.driver.protected_addresses import OWN_ADDRESS
from dranet.driver.publish import CapturedFacts, FactsReader
from dranet.errors import SettingsError
from dranet.inventory.offer import take_inventory
from dranet.kernel.discovery.scan import NodeScanner, ProtectedAddress
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.model.capture import Capture, encode_capture
from dranet.model.facts import NodeFacts
from dranet.settings import Settings
from dranet.terminal import count_of
from dranet.view.node_view import SHAPING_SETTINGS, NodeView
from dranet.view.options import add_settings_flags, read_settings
from dranet.view.policy import load_policy


def add_look_flags(parser: argparse.ArgumentParser, also: tuple[str, ...] = ()) -> None:
    """``--facts``, the settings that shape what a look shows, and ``also`` these."""
    parser.add_argument(
        "--facts",
        metavar="FILE",
        help="look at a capture (dranet capture) instead of this node; - reads standard input",
    )
    group = parser.add_argument_group(
        "settings", "as for dranet run: what is shown is what it would offer with them"
    )
    group.add_argument("--config", metavar="FILE", help="settings file, YAML or JSON")
    add_settings_flags(group, (*SHAPING_SETTINGS, *also))


class Eye:
    """Looks once or again and again by the same settings. Raises SettingsError for a wrong one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings = read_settings(options)
        self._policy = load_policy(self.settings)
        self._reader = _make_reader(options, self.settings)

    @property
    def reads_capture(self) -> bool:
        return isinstance(self._reader, CapturedFacts)

    def look(self, changes: Changes = EVERYTHING) -> NodeView:
        """Scan what may have changed, or read the capture. Blocking. Raises SettingsError where the capture
        cannot be read, and KernelError where netlink failed."""
        facts = self._reader.read(changes)
        inventory = take_inventory(facts, {}, self._policy)
        return NodeView(facts, inventory, self._policy, is_capture=self.reads_capture)


def _make_reader(options: argparse.Namespace, settings: Settings) -> FactsReader:
    if options.facts is not None:  # an empty name is a mistake, not this node
        return CapturedFacts(options.facts, "--facts")
    return CapturedFacts(str(settings.facts_file)) if settings.facts_file else make_scanner(settings)


def make_scanner(settings: Settings) -> NodeScanner:
    scanner = NodeScanner(settings.sysfs_root, settings.procfs_root, pci_ids=settings.pci_ids)
    scanner.set_protected_addresses(
        [ProtectedAddress(OWN_ADDRESS, address, is_own=True) for address in settings.node_addresses]
    )
    return scanner


def warn(warnings: Iterable[str], already: frozenset[str] = frozenset()) -> None:
    sys.stdout.flush()
    for warning in dict.fromkeys(warnings):
        if warning not in already:
            print(f"warning: {warning}", file=sys.stderr)


STANDARD_OUTPUT = "-"

_SETTINGS = ("node_addresses", "pci_ids", "sysfs_root", "procfs_root")

_DESCRIPTION = """\
Scan this node and write what was found as JSON: links with their addresses,
default routes, PCI network, display and accelerator functions with their
place in the PCIe tree, RDMA devices, GPUs, NUMA nodes, the names of the host,
its kernel and its make, and what could not be read. No traffic, no pods, no
secrets of a cluster. Reads only; needs no cluster. Links that pods have are in
other namespaces and not in it.
"""

_EPILOG = """\
Another machine reads it:
dranet devices --facts FILE, dranet topology --facts FILE.

A capture names the node and its network: host name, hardware and IP addresses,
GUIDs, the UUIDs of GPUs and aliases. --redact replaces all of these, equal
ones by equal ones, and keeps makers, subnets and the layout.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "capture",
        help="write all facts of this node to a file",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--redact", action="store_true", help="replace everything that identifies the owner of the machine"
    )
    parser.add_argument("--source", metavar="TEXT", default="", help="a note in the file about its origin")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default=STANDARD_OUTPUT,
        help="the file to write, readable by you alone unless --redact is given (default: standard output)",
    )
    add_settings_flags(parser.add_argument_group("settings", "as for dranet run"), _SETTINGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    facts = make_scanner(read_settings(options)).read()
    for warning in facts.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    shown = facts
    if options.redact:
        from dranet.desk.redact.capture import redact

        shown = redact(facts)
    text = encode_capture(Capture(shown, options.source or _describe_source(shown, options.redact)))
    if options.output == STANDARD_OUTPUT:
        sys.stdout.buffer.write(text.encode())  # UTF-8 also where the locale is another
        return 0
    _write_file(options.output, text, mode=0o666 if options.redact else 0o600)
    print(f"{options.output}: {_summarize(facts)}", file=sys.stderr)
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


def _write_file(output: str, text: str, mode: int) -> None:
    """A rename would put a file in the place of anything, ``/dev/null`` too: only files are replaced."""
    path = Path(os.path.realpath(output))
    try:
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "no regular file"
            raise SettingsError(f"-o {output}: is {kind}", hint="name a file, or leave -o out")
        replace_file(path, text.encode(), mode)
    except OSError as error:
        raise SettingsError(f"-o {output}: {os.strerror(error.errno or 0)}") from error


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """By a rename, so that half of it is never read. The umask takes its part of ``mode``, unlike in
    :mod:`dranet.files`: this file is the user's."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        neighbour.replace(path)
    finally:
        neighbour.unlink(missing_ok=True)
