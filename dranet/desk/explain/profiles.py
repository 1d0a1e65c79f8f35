"""Profiles of webhook providers that claims ask for: which config names them, and what became of them.

A profile is no part of an allocation: the driver of the pod's node asks its provider when the pod starts, and
writes what went wrong into the claim's status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dranet.desk.explain.subject import WantedClaim
from dranet.desk.kubeapi.objects import JsonObject

_OWN = "its config"


def describe_profiles(
    claims: Sequence[WantedClaim], classes: Mapping[str, JsonObject], driver: str
) -> Iterator[str]:
    """A sentence for each profile of each claim."""
    for claim in claims:
        found: dict[tuple[str, str], list[str]] = {}
        for request in (claim.body["spec"].get("devices") or {}).get("requests") or ():
            named = _find_profile(claim, request, classes, driver)
            if named is not None:
                found.setdefault(named, []).append(request["name"])
        for (profile, owner), requests in found.items():
            yield (
                f"claim {claim.label}, request {' and '.join(requests)}: profile {profile} (named by "
                f"{owner}) is given by the node's profile provider (setting profile_provider) when the pod "
                f"starts{_describe_state(claim, requests, driver)}"
            )


def _find_profile(
    claim: WantedClaim, request: JsonObject, classes: Mapping[str, JsonObject], driver: str
) -> tuple[str, str] | None:
    """The profile of a request, and the config that names it. The last one counts, as in the driver."""
    found = None
    for owner, config in _iter_configs(claim, request, classes):
        opaque = config.get("opaque") or {}
        parameters = opaque.get("parameters")
        name = parameters.get("profile") if isinstance(parameters, dict) else None
        applies = {entry.partition("/")[0] for entry in config.get("requests") or ()} or {request["name"]}
        if opaque.get("driver") == driver and isinstance(name, str) and name and request["name"] in applies:
            found = name, owner
    return found


def _iter_configs(
    claim: WantedClaim, request: JsonObject, classes: Mapping[str, JsonObject]
) -> Iterator[tuple[str, JsonObject]]:
    """Those of the class, then those of the claim; as they were allocated, once they are."""
    if claim.allocation is not None:
        for config in (claim.allocation.get("devices") or {}).get("config") or ():
            yield ("its DeviceClass" if config.get("source") == "FromClass" else _OWN), config
        return
    options = [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ()
    for name in dict.fromkeys(option["deviceClassName"] for option in options):
        for config in ((classes.get(name) or {}).get("spec") or {}).get("config") or ():
            yield f"DeviceClass {name}", config
    for config in (claim.body["spec"].get("devices") or {}).get("config") or ():
        yield _OWN, config


def _describe_state(claim: WantedClaim, requests: Sequence[str], driver: str) -> str:
    """What the driver wrote about the last Prepare; empty where that is not about a profile."""
    results = ((claim.allocation or {}).get("devices") or {}).get("results") or ()
    ours = {
        (result["pool"], result["device"])
        for result in results
        if result["driver"] == driver and result["request"].partition("/")[0] in requests
    }
    prepared = [
        condition
        for status in (claim.body.get("status") or {}).get("devices") or ()
        if status.get("driver") == driver and (status.get("pool"), status.get("device")) in ours
        for condition in status.get("conditions") or ()
        if condition.get("type") == "Prepared"
    ]
    for condition in prepared:
        message = str(condition.get("message") or "")
        if condition.get("status") == "False" and "profile" in message:
            since = condition.get("lastTransitionTime")
            when = f", since {since}" if since else ""
            return f". The last try failed ({condition.get('reason')}{when}): {message}"
    is_prepared = prepared and all(condition.get("status") == "True" for condition in prepared)
    return ". It was given" if is_prepared else ""
