"""The operator's policy: the settings, and the file of the operator's own attributes, which may change while
we run. The file is read whole: its rules, or every problem with file and line."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dranet.errors import DranetError, SettingsError
from dranet.inventory.policy import DeviceFilter, Policy, qualified_name
from dranet.model.attributes import CATALOGUE, DOMAIN, STANDARD_DOMAIN
from dranet.model.parameters.part import join_path
from dranet.settings import HealthTaints, Settings
from dranet.view.settings_file import Stamp, read_document, read_stamp

if TYPE_CHECKING:
    from dranet.inventory.rules import OwnAttributes
    from dranet.inventory.virtual_functions import VfRules

log = logging.getLogger(__name__)

_FILTER_HINT = 'e.g. device.attributes["dra.net"].?type.orValue("") != "vlan"; see docs/guides/devices.md'


def load_policy(settings: Settings) -> Policy:
    """
    Raises:
        SettingsError: an expression does not compile, the file of attributes or a name to prefer is wrong, or
            an expression is given and the CEL engine is not installed.
    """
    return PolicySource(settings).get()


class PolicySource:
    """Keeps the policy fresh. Make it at start; ask it before each scan, from one thread at a time. Raises as
    :func:`load_policy`.

    The file of attributes is read again when it has changed on disk. A mounted ConfigMap changes by a link
    that points to another folder, so what counts is the file behind all links.
    """

    def __init__(self, settings: Settings) -> None:
        self._driver = settings.driver_name
        self._file = settings.attributes_file
        self._stamp: Stamp = ()
        self._vf_file = settings.virtual_functions_file
        self._vf_stamp: Stamp = ()
        policy = _policy(settings, self._read(self._file) if self._file else None)
        functions = self._read_vf_rules(self._vf_file) if self._vf_file else None
        self._policy = replace(policy, virtual_functions=functions)
        self.vf_problem = ""
        """Why the file of virtual functions, as it is now, is not in force; empty while it is."""
        self.problem = ""
        """Why the file of attributes, as it is now, is not in force; empty while it is."""
        self.failed_reads = 0
        """How many times a changed file was not taken."""

    def get(self) -> Policy:
        """The policy with the last good file. Blocking: looks at the file, and reads it if it has changed."""
        if self._file is not None:
            self._follow(self._file)
        if self._vf_file is not None:
            self._follow_vf_file(self._vf_file)
        return self._policy

    def _follow(self, file: Path) -> None:
        stamp = read_stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._replace(rules=self._read(file))
        except SettingsError as error:
            self.failed_reads += 1
            if str(error) != self.problem:
                log.error("the last good attributes stay in force: %s", error)
            self.problem = str(error)
        else:
            log.info("the attributes file %s has changed and is in force", file)
            self.problem = ""

    def _follow_vf_file(self, file: Path) -> None:
        stamp = read_stamp(file)
        if stamp == self._vf_stamp:
            return
        self._vf_stamp = stamp
        try:
            self._replace(virtual_functions=self._read_vf_rules(file))
        except SettingsError as error:
            if str(error) != self.vf_problem:
                log.error("the last good rules for virtual functions stay in force: %s", error)
            self.vf_problem = str(error)
        else:
            log.info("the file of virtual functions %s has changed and is in force", file)
            self.vf_problem = ""

    def _replace(self, **changes: Any) -> None:
        """With the speeds that are known: a port whose cable is pulled keeps its capacity."""
        policy = replace(self._policy, **changes)
        policy.speeds.update(self._policy.speeds)
        self._policy = policy

    def _read_vf_rules(self, file: Path) -> VfRules:
        rules, self._vf_stamp = read_vf_rules(file, self._driver)
        return rules

    def _read(self, file: Path) -> OwnAttributes:
        rules, self._stamp = read_rules(file, self._driver)
        return rules


def _policy(settings: Settings, rules: OwnAttributes | None) -> Policy:
    return Policy(
        publish_gpus=settings.publish_gpus,
        move_ib_interfaces=settings.move_ib_interfaces,
        offer_link_kinds=frozenset(settings.offer_link_kinds),
        list_attributes=settings.list_attributes,
        taints=settings.health_taints is not HealthTaints.OFF,
        prefer_attributes=_preferred(settings.prefer_attributes, rules.names if rules else frozenset()),
        filter=_compile("--filter", settings.filter, settings.driver_name),
        shared=_compile("--shared-devices", settings.shared_devices, settings.driver_name),
        default_bandwidth=settings.default_bandwidth,
        assumed_bandwidth=settings.assumed_bandwidth,
        rules=rules,
        rail_pattern=re.compile(settings.rail_pattern) if settings.rail_pattern else None,
        expected_rails=_expected_rails(settings.expected_rails),
    )


def _expected_rails(words: Iterable[str]) -> dict[str, int]:
    parts = (word.rpartition("=") for word in words)
    return {name: int(rail) for name, _, rail in parts}


def _compile(flag: str, expression: str, driver: str) -> DeviceFilter | None:
    if not expression.strip():
        return None
    from dranet.cel import CelError, DeviceExpression  # with it comes the engine, which most nodes never need

    try:
        return DeviceExpression(expression, driver)
    except CelError as error:
        raise SettingsError(f"{flag}: {error.message}", hint=error.hint or _FILTER_HINT) from error


def _preferred(names: Iterable[str], own: frozenset[str]) -> tuple[str, ...]:
    """Qualified names. One of our own domains must be known, because a typing error would go unseen."""
    known = {attribute.qualified for attribute in CATALOGUE} | own
    found, problems = [], []
    for name in names:
        try:
            found.append(_known_name(name, known))
        except ValueError as error:
            problems.append(f"{name} {error}")
    if problems:
        raise SettingsError(
            f"--prefer-attributes: {'; '.join(problems)}",
            hint="docs/reference/attributes.md lists the attributes",
        )
    return tuple(found)


def _known_name(name: str, known: set[str]) -> str:
    qualified = qualified_name(name)
    standard = f"{STANDARD_DOMAIN}/{name}"
    if qualified in known or not qualified.startswith((f"{DOMAIN}/", f"{STANDARD_DOMAIN}/")):
        return qualified
    if standard in known:
        return standard
    raise ValueError("is not an attribute that we know")


# --- the file of attributes -----------------------------------------------------------------------------


def read_rules(file: Path, driver: str) -> tuple[OwnAttributes, Stamp]:
    """The rules of the file as it is now; ``driver`` is what expressions know as ``device.driver``. Raises
    SettingsError with every problem of the file and its place, or where the CEL engine is not installed."""
    from dranet.inventory.rules import parse_rules  # with it comes CEL; most nodes have no such file

    document = read_document("--attributes-file", file)
    try:
        own, problems = parse_rules(document.data, driver)
    except DranetError as error:
        raise SettingsError(f"--attributes-file {file}: {error.message}", hint=error.hint) from error
    if problems:
        raise SettingsError(
            "; ".join(document.describe(problem.path, problem.place, problem.text) for problem in problems)
        )
    return own, document.stamp


def read_vf_rules(file: Path, driver: str) -> tuple[VfRules, Stamp]:
    """The rules for virtual functions. Raises SettingsError with every problem of the file and its place, or
    where the CEL engine is not installed."""
    from dranet.inventory.virtual_functions import VfRules, parse_vf_rules  # CEL, which most nodes never need

    document = read_document("--virtual-functions-file", file)
    if document.data is None:
        return VfRules(), document.stamp
    try:
        rules, problems = parse_vf_rules(document.data, driver)
    except DranetError as error:
        raise SettingsError(f"--virtual-functions-file {file}: {error.message}", hint=error.hint) from error
    if problems:
        described = (document.describe(p.path, join_path(p.path) or "the file", p.text) for p in problems)
        raise SettingsError("; ".join(described), hint="see docs/networking/virtual-functions.md")
    return rules, document.stamp
