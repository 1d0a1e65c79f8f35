"""What a search found, as ``status.allocation`` of the claims (KEP-4381)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence

from dranet.desk.allocation.capacity import format_amount
from dranet.desk.allocation.constraints import covers
from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.nodes import JsonObject, Node
from dranet.desk.allocation.outcome import Pick
from dranet.desk.allocation.requests import Alternative, ClaimView


def build_allocation(view: ClaimView, picks: Sequence[Pick], node: Node) -> JsonObject:
    """The allocation of one claim, from its picks."""
    allocation: JsonObject = {
        "devices": {
            "results": [_build_result(pick) for pick in picks],
            "config": [*_class_configs(picks), *_claim_configs(view, picks)],
        }
    }
    selector = _build_node_selector([pick.candidate for pick in picks], node)
    return {**allocation, "nodeSelector": selector} if selector else allocation


def _build_result(pick: Pick) -> JsonObject:
    driver, pool, device = pick.candidate.id
    result: JsonObject = {"request": pick.alternative.name, "driver": driver, "pool": pool, "device": device}
    if pick.alternative.admin_access:
        result["adminAccess"] = True
    if pick.alternative.tolerations:
        result["tolerations"] = list(pick.alternative.tolerations)
    if pick.candidate.shared:
        result["shareID"] = str(uuid.uuid4())
    if pick.consumed:
        result["consumedCapacity"] = dict(_consumed(pick))
    if pick.candidate.skipped:
        result["skipNodeOperations"] = list(pick.candidate.skipped)
    return {**result, **pick.candidate.binding}


def _consumed(pick: Pick) -> Iterator[tuple[str, str]]:
    """By the names that the driver publishes."""
    for name, amount in pick.consumed:
        capacity = pick.candidate.capacity[name]
        yield capacity.spelling, format_amount(amount, like=capacity.text)


def _class_configs(picks: Sequence[Pick]) -> Iterator[JsonObject]:
    """One entry for each config of each class in use, for the requests that used it."""
    users: dict[str, dict[str, Alternative]] = defaultdict(dict)
    for pick in picks:
        users[pick.alternative.class_name][pick.alternative.name] = pick.alternative
    for alternatives in users.values():
        for config in next(iter(alternatives.values())).class_configs:
            yield _build_config("FromClass", list(alternatives), config, picks)


def _claim_configs(view: ClaimView, picks: Sequence[Pick]) -> Iterator[JsonObject]:
    for config in view.configs:
        requests = frozenset(config.get("requests") or ())
        if any(covers(requests, pick.alternative.name) for pick in picks):
            yield _build_config("FromClaim", config.get("requests") or (), config, picks)


def _build_config(
    source: str, requests: Sequence[str], config: JsonObject, picks: Sequence[Pick]
) -> JsonObject:
    """``requests`` is left out where the entry covers every result."""
    rest = {key: value for key, value in config.items() if key != "requests"}
    if all(covers(frozenset(requests), pick.alternative.name) for pick in picks):
        return {"source": source, **rest}
    return {"source": source, "requests": list(requests), **rest}


def _build_node_selector(candidates: Sequence[Candidate], node: Node) -> JsonObject | None:
    """Where the claim can be used: the node, what the devices' selectors ask, or anywhere (``None``)."""
    if any(candidate.reach.node_name or candidate.binds_to_node for candidate in candidates):
        fields = [{"key": "metadata.name", "operator": "In", "values": [node.name]}]
        return {"nodeSelectorTerms": [{"matchFields": fields}]}
    merged: dict[str, list[JsonObject]] = defaultdict(list)
    for candidate in candidates:
        for term in (candidate.reach.node_selector or {}).get("nodeSelectorTerms") or ():
            for key in ("matchExpressions", "matchFields"):
                merged[key] += [r for r in term.get(key) or () if not _holds(merged[key], r)]
    term = {key: requirements for key, requirements in merged.items() if requirements}
    return {"nodeSelectorTerms": [term]} if term else None


def _holds(requirements: Sequence[JsonObject], new: JsonObject) -> bool:
    """Whether the same is required already; the order of the values says nothing."""
    return any(_normal(requirement) == _normal(new) for requirement in requirements)


def _normal(requirement: JsonObject) -> tuple[str, str, frozenset[str]]:
    return requirement["key"], requirement["operator"], frozenset(requirement.get("values") or ())
