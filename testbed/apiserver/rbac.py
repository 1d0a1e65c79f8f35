"""Authorize requests: an authorizer that reads the roles and bindings of ``rbac.authorization.k8s.io/v1``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dranet.desk.kubeapi.errors import Refusal
from dranet.desk.kubeapi.objects import JsonObject
from testbed.apiserver.identity import User


@dataclass(frozen=True, slots=True)
class Attributes:
    """One question: may this user do that? ``resource`` has its subresource behind a slash, ``namespace`` is
    empty for what is cluster-wide and for all namespaces, ``name`` for a collection."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A ``PolicyRule``; without ``names`` it is about all."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    """Paths that are no resources."""

    def allows_url(self, verb: str, path: str) -> bool:
        return _covers(self.verbs, verb) and _covers(self.urls, path)

    def allows(self, asked: Attributes) -> bool:
        return (
            _covers(self.verbs, asked.verb)
            and _covers(self.groups, asked.group)
            and self._has_resource(asked.resource)
            and (not self.names or asked.name in self.names)
        )

    def _has_resource(self, resource: str) -> bool:
        _, slash, subresource = resource.partition("/")
        return _covers(self.resources, resource) or bool(slash and f"*/{subresource}" in self.resources)

    def build_policy_rule(self) -> JsonObject:
        rule: JsonObject = {
            "verbs": list(self.verbs),
            "apiGroups": list(self.groups),
            "resources": list(self.resources),
        }
        return {**rule, "resourceNames": list(self.names)} if self.names else rule


@dataclass(frozen=True, slots=True)
class _Binding:
    """Subjects with the rules of their role; ``namespace`` is empty for a ClusterRoleBinding."""

    namespace: str
    subjects: frozenset[tuple[str, str]]
    """Kind and name; a service account's name is that of its user."""
    rules: tuple[Rule, ...]


class Authorizer:
    """Answers by roles and bindings. ``on_allowed`` is called for each request that is allowed for a user
    who is not an administrator."""

    def __init__(self, manifests: Iterable[JsonObject] = ()) -> None:
        self.on_allowed: Callable[[User, Attributes], None] = lambda _user, _asked: None
        documents = list(manifests)
        roles = dict(_iter_roles(documents))
        self._bindings = tuple(_iter_bindings(documents, roles))

    def allows(self, user: User, asked: Attributes) -> bool:
        if user.is_admin:
            return True
        if any(rule.allows(asked) for rule in self.rules_of(user, asked.namespace)):
            self.on_allowed(user, asked)
            return True
        return False

    def rules_of(self, user: User, namespace: str) -> Iterator[Rule]:
        """Every rule that holds for a user in a namespace (cluster-wide ones included)."""
        names = {("User", user.name), *(("Group", group) for group in user.groups)}
        for binding in self._bindings:
            if binding.namespace in ("", namespace) and not names.isdisjoint(binding.subjects):
                yield from binding.rules

    def require(self, user: User, asked: Attributes) -> None:
        """Raises :class:`Refusal`, 403."""
        if not self.allows(user, asked):
            raise forbidden_request(user, asked)


def forbidden_request(user: User, asked: Attributes) -> Refusal:
    """A refusal with the text and the details of a real one."""
    plural = asked.resource.partition("/")[0]
    qualified = f"{plural}.{asked.group}" if asked.group else plural
    subject = f'{qualified} "{asked.name}"' if asked.name else qualified
    message = f"{subject} is forbidden: {explain_forbidden(user, asked)}"
    details = {"name": asked.name, "group": asked.group, "kind": plural}
    return Refusal(403, "Forbidden", message, {key: value for key, value in details.items() if value})


def explain_forbidden(user: User, asked: Attributes) -> str:
    scope = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    what = f'{asked.verb} resource "{asked.resource}" in API group "{asked.group}"'
    return f'User "{user.name}" cannot {what} {scope}'


def _covers(values: tuple[str, ...], wanted: str) -> bool:
    return "*" in values or wanted in values


def _iter_roles(documents: Iterable[JsonObject]) -> Iterator[tuple[tuple[str, str, str], tuple[Rule, ...]]]:
    """Roles by kind, namespace and name."""
    for document in documents:
        if document.get("kind") in ("ClusterRole", "Role"):
            metadata = document["metadata"]
            rules = tuple(_read_rule(rule) for rule in document.get("rules") or ())
            yield (document["kind"], metadata.get("namespace", ""), metadata["name"]), rules


def _read_rule(rule: Mapping[str, Any]) -> Rule:
    names = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    return Rule(*(tuple(rule.get(name) or ()) for name in names))


def _iter_bindings(
    documents: Iterable[JsonObject], roles: Mapping[tuple[str, str, str], tuple[Rule, ...]]
) -> Iterator[_Binding]:
    for document in documents:
        if document.get("kind") not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        namespace = document["metadata"].get("namespace", "")
        role = document["roleRef"]
        role_namespace = namespace if role["kind"] == "Role" else ""
        rules = roles.get((role["kind"], role_namespace, role["name"]), ())
        yield _Binding(namespace, frozenset(map(_read_subject, document.get("subjects") or ())), rules)


def _read_subject(subject: Mapping[str, str]) -> tuple[str, str]:
    if subject["kind"] == "ServiceAccount":
        return ("User", f"system:serviceaccount:{subject['namespace']}:{subject['name']}")
    return (subject["kind"], subject["name"])
