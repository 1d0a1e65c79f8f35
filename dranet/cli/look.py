"""One look at a node, or at the capture of one: where every command that lists devices begins."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Iterable

from dranet.cli.run import add_settings_flags, read_settings
from dranet.dataclass import dataclass
from dranet.driver.captured import CapturedFacts
from dranet.driver.lifelines import OWN_ADDRESS
from dranet.driver.policy import load_policy
from dranet.driver.publish import FactsReader
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.kernel.discovery.changes import EVERYTHING, Changes
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.lifelines import LifelineTarget
from dranet.model.device import Device
from dranet.pictures import node_view as pictures
from dranet.settings import Settings

SHAPING_SETTINGS = (
    "filter",
    "attributes_file",
    "prefer_attributes",
    "list_attributes",
    "offer_link_kinds",
    "move_ib_interfaces",
    "publish_gpus",
    "node_addresses",
    "pci_ids",
    "sysfs_root",
    "procfs_root",
)
"""The settings that decide which devices there are and what they say."""


@dataclass(frozen=True, slots=True)
class Look(pictures.Look):
    """What was seen, what the driver would make of it, and by which rules."""

    policy: Policy
    is_capture: bool = False

    def node_name(self, settings: Settings) -> str:
        """The setting; without it the captured host's name, or this one's."""
        captured = self.facts.host.name if self.is_capture else ""
        return settings.node_name or captured or socket.gethostname()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read, and what the operator's rules could not do."""
        rules = (warning for decision in self.inventory for warning in decision.warnings)
        return (*self.facts.warnings, *rules)

    @property
    def offered(self) -> tuple[Device, ...]:
        """In the order of publishing."""
        return tuple(decision.device for decision in self.inventory if decision.published)


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

    def look(self, changes: Changes = EVERYTHING) -> Look:
        """Scan what may have changed, or read the capture, and take the inventory. Blocking.

        Raises:
            SettingsError: the capture cannot be read.
            KernelError: netlink failed.
        """
        facts = self._reader.read(changes)
        inventory = take_inventory(facts, {}, self._policy)
        return Look(facts, inventory, self._policy, is_capture=self.reads_capture)


def _make_reader(options: argparse.Namespace, settings: Settings) -> FactsReader:
    if options.facts is not None:  # an empty name is a mistake, not this node
        return CapturedFacts(options.facts, "--facts")
    return CapturedFacts(str(settings.facts_file)) if settings.facts_file else make_scanner(settings)


def make_scanner(settings: Settings) -> NodeScanner:
    """A scanner of this node that knows the addresses the settings name."""
    scanner = NodeScanner(settings.sysfs_root, settings.procfs_root, pci_ids=settings.pci_ids)
    scanner.set_lifelines(
        [LifelineTarget(OWN_ADDRESS, address, is_own=True) for address in settings.node_addresses]
    )
    return scanner


def warn(warnings: Iterable[str], already: frozenset[str] = frozenset()) -> None:
    """What could not be read, each thing once, beside the output."""
    sys.stdout.flush()
    for warning in dict.fromkeys(warnings):
        if warning not in already:
            print(f"warning: {warning}", file=sys.stderr)
