"""One look at a node, or at the capture of one: where every command that lists devices begins."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from dranet.driver.protected_addresses import OWN_ADDRESS
from dranet.driver.publish import CapturedFacts, FactsReader
from dranet.inventory.offer import take_inventory
from dranet.kernel.discovery.scan import NodeScanner, ProtectedAddress
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.settings import Settings
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
    """Looks once or again and again, always by the same settings.

    Raises:
        SettingsError: a setting is wrong.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings = read_settings(options)
        self._policy = load_policy(self.settings)
        self._reader = _make_reader(options, self.settings)

    @property
    def reads_capture(self) -> bool:
        return isinstance(self._reader, CapturedFacts)

    def look(self, changes: Changes = EVERYTHING) -> NodeView:
        """Scan what may have changed, or read the capture, and take the inventory. Blocking.

        Raises:
            SettingsError: the capture cannot be read.
            KernelError: netlink failed.
        """
        facts = self._reader.read(changes)
        inventory = take_inventory(facts, {}, self._policy)
        return NodeView(facts, inventory, self._policy, is_capture=self.reads_capture)


def _make_reader(options: argparse.Namespace, settings: Settings) -> FactsReader:
    if options.facts is not None:  # an empty name is a mistake, not this node
        return CapturedFacts(options.facts, "--facts")
    return CapturedFacts(str(settings.facts_file)) if settings.facts_file else make_scanner(settings)


def make_scanner(settings: Settings) -> NodeScanner:
    """A scanner of this node that knows the addresses the settings name."""
    scanner = NodeScanner(settings.sysfs_root, settings.procfs_root, pci_ids=settings.pci_ids)
    scanner.set_protected_addresses(
        [ProtectedAddress(OWN_ADDRESS, address, is_own=True) for address in settings.node_addresses]
    )
    return scanner


def warn(warnings: Iterable[str], already: frozenset[str] = frozenset()) -> None:
    """Print what could not be read to standard error, each thing once."""
    sys.stdout.flush()
    for warning in dict.fromkeys(warnings):
        if warning not in already:
            print(f"warning: {warning}", file=sys.stderr)
