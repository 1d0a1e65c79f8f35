"""Opaque parameters, decoded as Prepare will decode them: against the schema and the policy of the class."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dranet.claims.config import SelectedResult, inspect_configs
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import rules
from dranet.desk.lint.rules import LintFinding, show, suggest
from dranet.desk.lint.scope import Alternative, Scope, claim_devices, covers, iter_alternatives
from dranet.desk.lint.selectors import class_selectors, find_passing, request_selectors
from dranet.model.attributes import RDMA
from dranet.model.claim import AllocationResult, ConfigSource, OpaqueConfig
from dranet.model.device import DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import DecodeFaultKind, Part, fields_of

_LINE = re.compile(
    r"(config\[\d+\])(?: \(from .*?\))?\.parameters(.*?): (.*?)(?:; (did you mean .*))?", re.DOTALL
)
"""A problem as :mod:`dranet.claims.config` reports it."""
_STEP = re.compile(r"\.(\w+)", re.ASCII)
"""A field of a path, not a place in a list."""
_USUALLY_TAKEN = "eth0"
_FAR = 1_000_000
"""Configs of a class are numbered from here; problems of them are reported at the class."""


class Asked(NamedTuple):
    """What a claim would get for one alternative."""

    alternative: Alternative
    kinds: frozenset[DeviceKind]
    """Our devices that pass; empty for requests of another driver's devices."""
    config: NetworkConfig
    brings_rdma: bool = False
    """Every device of ours that passes has an RDMA device."""

    @property
    def is_network(self) -> bool:
        return bool(self.kinds - {DeviceKind.GPU}) or (not self.kinds and not self.config.is_empty)


def lint_parameters(spec: JsonObject, path: str, namespace: str, scope: Scope) -> Iterator[LintFinding]:
    """Lint the configs of a claim."""
    configs = claim_devices(spec).get("config") or ()
    for number, config in enumerate(configs):
        yield from _lint_opaque(config, f"{path}.devices.config[{number}]", scope)
        yield from _find_profile(config, f"{path}.devices.config[{number}]", scope)
    asked, problems = read_claim(spec, path, namespace, scope)
    for line in problems:
        yield _to_finding(line, f"{path}.devices.")
    if not problems:
        yield from _find_without_interface(spec, path, asked, scope)
        yield from _find_equal_names(asked)


def lint_class_config(body: JsonObject, scope: Scope) -> Iterator[LintFinding]:
    """Lint the configs of a DeviceClass, each by itself and all together."""
    spec = body.get("spec") or {}
    for number, config in enumerate(spec.get("config") or ()):
        yield from _lint_opaque(config, f"spec.config[{number}]", scope)
        yield from _find_profile(config, f"spec.config[{number}]", scope)
    configs = _ours(spec.get("config") or (), ConfigSource.CLASS, scope)
    if configs:
        selection = _select("any", configs, body["metadata"].get("name", ""), "")
        for line in inspect_configs([(selection, DeviceKind.NIC)])[1]:
            yield _to_finding(line, "spec.")


def read_claim(spec: JsonObject, path: str, namespace: str, scope: Scope) -> tuple[list[Asked], list[str]]:
    """What each alternative would get, and what is wrong with the claim's own configs."""
    own = _ours(claim_devices(spec).get("config") or (), ConfigSource.CLAIM, scope)
    alternatives = list(iter_alternatives(spec, path))
    kinds = [kinds_of(alternative, scope) for alternative in alternatives]
    selections = []
    for alternative, found in zip(alternatives, kinds, strict=True):
        of_class = (scope.classes.get(alternative.class_name) or {}).get("spec") or {}
        theirs = _ours(of_class.get("config") or (), ConfigSource.CLASS, scope)
        moved = {number + len(own) + _FAR: config for number, config in theirs.items()}
        applied = {n: c for n, c in own.items() if covers(list(c.requests), alternative.name)}
        kind = DeviceKind.GPU if found == {DeviceKind.GPU} else DeviceKind.NIC
        selection = _select(alternative.name, moved | applied, alternative.class_name, namespace)
        selections.append((selection, kind))
    used = {index for selection, _ in selections for index in selection.config_indexes}
    rest = {number: config for number, config in own.items() if number not in used}
    unused = [(_select("", rest, "", namespace), DeviceKind.NIC)] if rest else []
    configs, lines = inspect_configs([*selections, *unused])
    asked = [
        Asked(alternative, found, config, bool(found) and brings_rdma(alternative, scope))
        for alternative, found, config in zip(alternatives, kinds, configs[: len(alternatives)], strict=True)
    ]
    return asked, [line for line in lines if "(from " not in line.partition(".parameters")[0]]


def kinds_of(alternative: Alternative, scope: Scope) -> frozenset[DeviceKind]:
    """The kinds of our devices that the alternative may get; empty if its class is not known."""
    of_class, is_known = class_selectors(alternative.class_name, scope)
    own = request_selectors(alternative)
    if not is_known or own is None:
        return frozenset()
    passing = find_passing((*of_class, *own), scope.driver) or find_passing(of_class, scope.driver)
    return frozenset(sample.kind for sample in passing if sample.kind)


def brings_rdma(alternative: Alternative, scope: Scope) -> bool:
    """Whether each of our devices that passes has RDMA."""
    of_class, _ = class_selectors(alternative.class_name, scope)
    passing = find_passing((*of_class, *(request_selectors(alternative) or ())), scope.driver)
    return all(sample.attributes[RDMA.qualified] for sample in passing)


def _ours(
    configs: list[JsonObject] | tuple[()], source: ConfigSource, scope: Scope
) -> dict[int, OpaqueConfig]:
    found = {}
    for number, config in enumerate(configs):
        opaque = config.get("opaque") or {}
        if opaque.get("driver") == scope.driver and isinstance(opaque.get("parameters"), dict):
            requests = tuple(config.get("requests") or ())
            found[number] = OpaqueConfig(source, scope.driver, opaque["parameters"], requests)
    return found


def _select(
    request: str, configs: Mapping[int, OpaqueConfig], device_class: str, namespace: str
) -> SelectedResult:
    result = AllocationResult(request, "", "", "")
    return SelectedResult(result, tuple(configs.values()), tuple(configs), device_class, namespace)


def _to_finding(line: str, path: str) -> LintFinding:
    match = _LINE.fullmatch(line)
    if not match:
        return LintFinding(rules.PARAMETERS, path.rstrip("."), line)
    config, field, text, fix = match.groups()
    where = f"{path}{config}.opaque.parameters{field}"
    known = _list_fields(field) if text == DecodeFaultKind.UNKNOWN_FIELD.value and not fix else ""
    return LintFinding(rules.PARAMETERS, where, text, fix or known or "see docs/reference/parameters.md")


def _list_fields(field: str) -> str:
    """The fields that there are next to an unknown ``.interface.foo``; empty where that is not known."""
    part: type[Part] | None = NetworkConfig
    for step in _STEP.findall(field)[:-1]:
        known = fields_of(part).get(step) if part else None
        part = known.part if known else None
    return f"fields are {', '.join(fields_of(part))}" if part else ""


def _lint_opaque(config: JsonObject, path: str, scope: Scope) -> Iterator[LintFinding]:
    opaque = config.get("opaque") or {}
    driver, parameters = opaque.get("driver"), opaque.get("parameters")
    if driver == scope.driver and parameters is not None and not isinstance(parameters, dict):
        text = "must be an object, not text that contains one"
        yield LintFinding(
            rules.PARAMETERS, f"{path}.opaque.parameters", text, "without quotes around it, or |"
        )
    if not driver or driver == scope.driver:
        return
    publishers = {sample.driver for sample in scope.devices}
    nearly = suggest(driver, [scope.driver])
    if driver not in publishers and (nearly or (scope.is_live and publishers)):
        text = f"no driver {show(driver)} is known"
        fix = nearly or f"drivers with devices are {', '.join(sorted(publishers))}"
        yield LintFinding(rules.DRIVER_UNKNOWN, f"{path}.opaque.driver", text, fix)


def _find_profile(config: JsonObject, path: str, scope: Scope) -> Iterator[LintFinding]:
    opaque = config.get("opaque") or {}
    parameters = opaque.get("parameters")
    name = parameters.get("profile") if isinstance(parameters, dict) else None
    if opaque.get("driver") == scope.driver and isinstance(name, str) and name:
        text = f"profile {show(name)} is given by the node's profile provider when the pod starts"
        yield LintFinding(
            rules.PROFILE, f"{path}.opaque.parameters.profile", text, "see docs/networking/providers.md"
        )


def _find_without_interface(
    spec: JsonObject, path: str, asked: Iterable[Asked], scope: Scope
) -> Iterator[LintFinding]:
    """Find the claim's configs for devices that cannot take them."""
    for one in asked:
        what, fields = _refused_fields(one)
        number = next(_own_configs(spec, one.alternative.name, scope), None) if what else None
        if number is not None:
            name = one.alternative.name
            text = f"request {name} asks for {what}, which have no interface to configure ({fields})"
            where = f"{path}.devices.config[{number}]"
            fix = "name the requests for NICs in requests, or leave requests out"
            yield LintFinding(rules.NO_INTERFACE, where, text, fix)


def _refused_fields(asked: Asked) -> tuple[str, str]:
    """What the devices are, and the fields that they cannot take; empty where some of them take all."""
    link = ", ".join(asked.config.needs_link)
    if asked.kinds == {DeviceKind.GPU} and not asked.config.is_empty:
        return "GPUs", link or "parameters"
    return ("RDMA-only devices", link) if asked.kinds == {DeviceKind.RDMA} and link else ("", "")


def _own_configs(spec: JsonObject, request: str, scope: Scope) -> Iterator[int]:
    """The numbers of the claim's own configs that cover the request."""
    for number, config in enumerate(claim_devices(spec).get("config") or ()):
        is_ours = (config.get("opaque") or {}).get("driver") == scope.driver
        if is_ours and covers(config.get("requests"), request):
            yield number


def _find_equal_names(asked: list[Asked]) -> Iterator[LintFinding]:
    """Devices of one claim that would have one interface name."""
    users: dict[str, dict[str, Asked]] = defaultdict(dict)
    for one in asked:
        name = fixed_name(one)
        if not name:
            continue
        if one.alternative.number != 1:
            text = f"all devices of request {one.alternative.name} would be called {show(name)}"
            yield LintFinding(
                rules.IFNAME, one.alternative.path, text, "a request of its own for each device"
            )
        if name == _USUALLY_TAKEN:
            text = f"the pod network usually has an interface {show(name)}"
            yield LintFinding(rules.IFNAME_TAKEN, one.alternative.path, text, "interface.name: net1")
        users[name].setdefault(one.alternative.name.partition("/")[0], one)
    for name, requests in users.items():
        if len(requests) > 1:
            path = [*requests.values()][1].alternative.path
            text = f"devices of requests {' and '.join(requests)} would all be called {show(name)}"
            yield LintFinding(rules.IFNAME, path, text, "give each a config of its own: config[].requests")


def fixed_name(asked: Asked) -> str:
    """The name that the device gets in the pod; empty where it keeps its own, or has no interface."""
    is_link = not asked.kinds or DeviceKind.NIC in asked.kinds
    interface = asked.config.interface
    return (interface.name or "") if is_link else ""
