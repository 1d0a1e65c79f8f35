"""From a request to its answer: what it is about, whether the user may, and which verb of the store it means.

Order as in a real server: authorization, then the verb with defaults and validation, then admission; a dry
run goes through all of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dranet.desk.kubeapi.errors import Refusal, bad_request, invalid, method_not_allowed, no_such_path
from dranet.desk.kubeapi.formats import Causes, forbidden
from dranet.desk.kubeapi.kinds import NAMESPACES, RESOURCE_CLAIMS, build_discovery, find_kind
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.profiles import Profile
from testbed.apiserver.admission import Admission, Policies
from testbed.apiserver.http import HttpRequest, HttpResponse
from testbed.apiserver.identity import Tokens, User
from testbed.apiserver.journal import Journal
from testbed.apiserver.objects import Target
from testbed.apiserver.rbac import Attributes, Authorizer, forbidden_request
from testbed.apiserver.rest import Rest
from testbed.apiserver.reviews import answer_review, is_review

_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_INVALID = 422
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Handler:
    """Answers every request but watches, for which it judges the right alone. ``manifests`` are roles,
    bindings and admission policies."""

    def __init__(self, rest: Rest, profile: Profile, manifests: Iterable[JsonObject], tokens: Tokens) -> None:
        self._tokens = tokens
        documents = list(manifests)
        self._rest = rest
        self._profile = profile
        self._authorizer = Authorizer(documents)
        self._policies = Policies(documents)
        self._journal = Journal.from_environment()
        self._authorizer.on_allowed = self._journal.note_permission

    def handle(self, request: HttpRequest, user: User) -> HttpResponse:
        """Raises :class:`Refusal`."""
        path = request.path.rstrip("/")
        if path in _HEALTH_PATHS:
            return HttpResponse(200, "ok")
        if path == "/version":
            return HttpResponse(200, self._profile.build_version_document())
        if is_review(path) and request.method == "POST":
            return HttpResponse(201, self._answer_review(path, request, user))
        if document := build_discovery(path):
            return HttpResponse(200, document)
        target = parse_target(path)
        if target.subresource not in ("", *target.kind.all_subresources):
            raise no_such_path()
        self.authorize(request, target, user)
        guard = _Guard(self, user, target, _VERBS.get(request.method, ""))
        try:
            kept = self._dispatch(request, target, guard)
        except Refusal as refusal:
            if refusal.code == _INVALID and not user.is_admin:
                self._note_write(request, user, self._find_stored(target))
            raise
        self._note_write(request, user, kept)
        return HttpResponse(201 if request.method == "POST" else 200, kept, _to_headers(guard.warnings))

    def _answer_review(self, path: str, request: HttpRequest, user: User) -> JsonObject:
        return answer_review(path, _read_object(request), user, self._authorizer, self._tokens)

    def _find_stored(self, target: Target) -> JsonObject:
        """What there is of it, the type alone at least."""
        of_type = {"apiVersion": target.kind.api_version, "kind": target.kind.kind}
        with suppress(Refusal):
            return {**of_type, **self._rest.get(target)}
        return of_type

    def _note_write(self, request: HttpRequest, user: User, kept: JsonObject) -> None:
        """What was refused as invalid counts as well: the judge must not learn only of what we let in."""
        if self._journal.is_kept and request.method in _VERBS:
            how = request.content_type if request.method == "PATCH" else request.method
            agent = request.headers.get("user-agent", "")
            self._journal.note_write(agent, user, how, json.loads(request.body), kept)

    def authorize(self, request: HttpRequest, target: Target, user: User) -> None:
        """Raises :class:`Refusal` (403) unless the user may send this request."""
        name = target.name
        if request.is_watch or (request.method == "GET" and not name):
            verb = "watch" if request.is_watch else "list"
        elif request.method == "DELETE":
            verb = "delete" if name else "deletecollection"
        else:
            verb = _VERBS.get(request.method, "get")
        resource = "/".join(part for part in (target.kind.plural, target.subresource) if part)
        asked = Attributes(verb, target.kind.group, resource, target.namespace, name)
        self._authorizer.require(user, asked)

    def _dispatch(self, request: HttpRequest, target: Target, guard: _Guard) -> JsonObject:
        """Which verb a method means: on an object, or on a collection."""
        rest = self._rest.rehearse() if is_rehearsal(request) else self._rest
        rest = rest.guarded(guard)
        manager = _read_manager(request)
        if target.subresource == "binding" and request.method == "POST":
            return rest.bind(target, _read_object(request))
        match request.method, bool(target.name):
            case "GET", True:
                return rest.get(target)
            case "GET", False:
                return rest.list(target, request.query)
            case "POST", False:
                return rest.create(_with_namespace(target, request), _read_object(request), manager)
            case "PUT", True:
                return rest.replace(target, _read_object(request), manager)
            case "PATCH", True:
                body, content_type = _read_json(request), request.content_type
                return rest.patch(target, body, content_type, request.query, manager)
            case "DELETE", True if not target.subresource:
                return rest.delete(target, _read_delete_options(request))
            case "DELETE", False:
                return rest.delete_collection(target, request.query, _read_delete_options(request))
        raise method_not_allowed()

    def review(
        self, user: User, target: Target, verb: str, before: JsonObject | None, after: JsonObject | None
    ) -> list[str]:
        """What can only be judged with the object at hand: raises :class:`Refusal`, or returns warnings.
        Admission policies also apply to administrators."""
        kind = target.kind
        granular = self._profile.has("DRAResourceClaimGranularStatusAuthorization")
        is_status = kind is RESOURCE_CLAIMS and target.subresource == "status"
        if is_status and granular and before and after and not user.is_admin:
            causes = list(check_status_write(self._authorizer, user, verb, before, after))
            if causes:
                raise invalid(kind, target.name, causes)
        operation = "DELETE" if after is None else "UPDATE" if before is not None else "CREATE"
        metadata = (after or before or {})["metadata"]
        write = Admission(
            operation=operation,
            group=kind.group,
            version=kind.version,
            resource="/".join(part for part in (kind.plural, target.subresource) if part),
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            user_info=user.build_user_info(),
            before=before,
            after=after,
            namespace_object=self._find_namespace(metadata.get("namespace", "")),
        )
        return self._policies.review(write)

    def _find_namespace(self, name: str) -> JsonObject | None:
        if not name or not self._policies.enforced:
            return None
        with suppress(Refusal):
            return self._rest.get(Target(NAMESPACES, "", name))
        return None


class _Guard:
    """The checks of one request, called for each object that it would change."""

    def __init__(self, handler: Handler, user: User, target: Target, verb: str) -> None:
        self._handler = handler
        self._user = user
        self._target = target
        self._verb = verb
        self.warnings: list[str] = []

    def check(self, before: JsonObject | None, after: JsonObject | None) -> None:
        self.warnings += self._handler.review(self._user, self._target, self._verb, before, after)


def _to_headers(warnings: Sequence[str]) -> dict[str, str]:
    """RFC 7234, as ``kubectl`` shows them."""
    texts = (f"299 - {json.dumps(warning, ensure_ascii=False)}" for warning in dict.fromkeys(warnings))
    joined = ", ".join(texts).encode("latin-1", "replace").decode("latin-1")
    return {"Warning": joined} if joined else {}


def parse_target(path: str) -> Target:
    """Take ``/api/v1/...`` or ``/apis/GROUP/VERSION/...`` apart; 404 for what is not served."""
    parts = path.strip("/").split("/")
    if parts[:1] == ["api"]:
        parts = ["", *parts[1:]]
    elif parts[:1] == ["apis"]:
        parts = parts[1:]
    else:
        raise no_such_path()
    if len(parts) < 3 or "" in parts[1:]:
        raise no_such_path()
    group, version, *rest = parts
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind = find_kind(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise no_such_path()
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(kind, namespace, name, subresource)


def _with_namespace(target: Target, request: HttpRequest) -> Target:
    """A namespaced object cannot be made at the path of all namespaces."""
    if target.kind.namespaced and not target.namespace:
        raise bad_request(f"an empty namespace may not be set during creation: {request.path}")
    return target


def _read_manager(request: HttpRequest) -> str:
    """The field manager, by default the first word of the user agent."""
    return request.query.get("fieldManager") or request.headers.get("user-agent", "unknown").partition("/")[0]


def is_rehearsal(request: HttpRequest) -> bool:
    """Whether the request is a dry run, by its query or by the options of a DELETE."""
    asked = [request.query["dryRun"]] if request.query.get("dryRun") else []
    if request.method == "DELETE" and request.body:
        asked += _read_object(request).get("dryRun") or ()
    if unknown := [value for value in asked if value != "All"]:
        raise bad_request(f'dryRun: Unsupported value: {json.dumps(unknown[0])}: supported values: "All"')
    return bool(asked)


def _read_json(request: HttpRequest) -> object:
    try:
        parsed: object = json.loads(request.body)
    except ValueError as error:
        raise bad_request(f"the body of the request is not JSON: {error}") from error
    return parsed


def _read_object(request: HttpRequest) -> JsonObject:
    parsed = _read_json(request)
    if not isinstance(parsed, dict):
        raise bad_request("the body of the request is not an object")
    return parsed


def _read_delete_options(request: HttpRequest) -> JsonObject:
    options = _read_object(request) if request.body else {}
    if request.query.get("gracePeriodSeconds", "").isdigit():
        options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    return options


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
