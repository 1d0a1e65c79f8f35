"""Who may write which half of a claim's status (gate ``DRAResourceClaimGranularStatusAuthorization``).

Beside the right to write the status, the allocation needs ``resourceclaims/binding`` and the entries of a
driver need ``resourceclaims/driver`` of that driver's name, with a verb that says on which node. A refusal is
one of the object (422, cause FieldValueForbidden), not of the request (403): that is what a real server
answers. Source: ``AuthorizedForBinding`` and ``AuthorizedForDeviceStatus`` in ``pkg/registry/resource``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dranet.desk.kubeapi.formats import Causes, forbidden
from dranet.desk.kubeapi.kinds import RESOURCE_CLAIMS, JsonObject
from testbed.apiserver.identity import User
from testbed.apiserver.rbac import Attributes, Authorizer, forbidden_request

_KEYS = ("driver", "pool", "device", "shareID")


def check_status_write(
    authorizer: Authorizer, user: User, verb: str, before: JsonObject, after: JsonObject
) -> Causes:
    """What this user may not change of a claim's status; ``verb`` is update or patch."""
    old, new = before.get("status") or {}, after.get("status") or {}
    if any(old.get(key) != new.get(key) for key in ("allocation", "reservedFor")):
        asked = Attributes(verb, RESOURCE_CLAIMS.group, f"{RESOURCE_CLAIMS.plural}/binding")
        if not authorizer.allows(user, asked):
            why = _explain("status.allocation or status.reservedFor", verb, user, asked)
            yield forbidden("status", why)
    drivers = _find_changed_drivers(old.get("devices") or [], new.get("devices") or [])
    if not drivers:
        return
    verbs = [f"arbitrary-node:{verb}"]
    if user.node_name and user.node_name == read_allocated_node(new.get("allocation") or {}):
        verbs.insert(0, f"associated-node:{verb}")
    for driver in drivers:
        questions = [_ask_for_driver(one, after, driver) for one in verbs]
        if not any(authorizer.allows(user, asked) for asked in questions):
            why = _explain("status.devices", f"[{' '.join(verbs)}]", user, questions[0])
            yield forbidden("status.devices", why)


def _ask_for_driver(verb: str, claim: JsonObject, driver: str) -> Attributes:
    resource = f"{RESOURCE_CLAIMS.plural}/driver"
    return Attributes(verb, RESOURCE_CLAIMS.group, resource, claim["metadata"]["namespace"], driver)


def _explain(what: str, verb: str, user: User, asked: Attributes) -> str:
    refusal = forbidden_request(user, asked).message
    return f'changing {what} requires resource="{asked.resource}", verb="{verb}" permission: {refusal}'


def read_allocated_node(allocation: Mapping[str, Any]) -> str:
    """The one node of a node-local allocation: one term, one ``matchFields`` for the name, nothing else."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    fields = terms[0].get("matchFields") or []
    if len(fields) != 1 or (fields[0].get("key"), fields[0].get("operator")) != ("metadata.name", "In"):
        return ""
    values = fields[0].get("values") or []
    return str(values[0]) if len(values) == 1 else ""


def _find_changed_drivers(old: Sequence[JsonObject], new: Sequence[JsonObject]) -> list[str]:
    """Drivers whose entries were added, changed or removed."""
    before = {_key(entry): entry for entry in old}
    after = {_key(entry): entry for entry in new}
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return sorted({key[0] for key in changed})


def _key(entry: JsonObject) -> tuple[str, ...]:
    return tuple(str(entry.get(key, "")) for key in _KEYS)
