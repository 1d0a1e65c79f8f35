"""The capacities that a claim's requests name, compared with those that the given devices publish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dranet.cel import CelError
from dranet.cel.values import parse_quantity
from dranet.desk.allocation.capacity import format_amount
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import rules
from dranet.desk.lint.demands import find_matching
from dranet.desk.lint.rules import LintFinding, show, suggest
from dranet.desk.lint.scope import Sample, Scope, iter_alternatives
from dranet.model.attributes import BANDWIDTH, DOMAIN

_HOW_TO_COUNT = "set shared_devices and default_bandwidth, or request a NIC without it"


def lint_capacities(spec: JsonObject, path: str, scope: Scope) -> Iterator[LintFinding]:
    """The API server has judged the quantities before."""
    for alternative in iter_alternatives(spec, path):
        requests = (alternative.demand.get("capacity") or {}).get("requests") or {}
        matching = find_matching(alternative, scope) if requests else ()
        for name, asked in requests.items():
            where = f"{alternative.path}.capacity.requests[{name}]"
            yield from _lint_one(name, str(asked), where, matching)


def _lint_one(name: str, asked: str, where: str, matching: Sequence[Sample]) -> Iterator[LintFinding]:
    published = {known for sample in matching for known in sample.capacity or {}}
    if name == BANDWIDTH and matching and name not in published:
        text = f"none of the devices that the request selects is a NIC that counts {name}"
        yield LintFinding(rules.BANDWIDTH_UNCOUNTED, where, text, _HOW_TO_COUNT)
    elif name not in published and (matching or _is_misspelt(name)):
        known = published or {BANDWIDTH}
        what = "no device that the request selects" if matching else "no device of this driver"
        fix = suggest(name, known, f"published are {', '.join(sorted(known))}")
        yield LintFinding(rules.CAPACITY_UNKNOWN, where, f"{what} has the capacity {show(name)}", fix)
    elif matching and (most := max(_amounts(name, matching), default=None)) is not None:
        try:
            is_too_much = parse_quantity(asked) > most
        except CelError:
            return
        if is_too_much:
            text = f"{asked} of {name} is more than any device that the request selects has"
            fix = f"the most is {format_amount(most)}"
            yield LintFinding(rules.CAPACITY_TOO_MUCH, where, text, fix)


def _is_misspelt(name: str) -> bool:
    """Schedulers compare names as they are written, so the domain is a part of it."""
    domain, _, identifier = name.rpartition("/")
    return name != BANDWIDTH and (domain == DOMAIN or identifier == BANDWIDTH.rpartition("/")[2])


def _amounts(name: str, samples: Sequence[Sample]) -> Iterator[int]:
    for sample in samples:
        text = (sample.capacity or {}).get(name)
        if text is not None:
            yield parse_quantity(str(text))
