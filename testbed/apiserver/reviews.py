"""Reviews of the caller's identity and rights and, for callers with the right, of another user's
(``authentication.k8s.io``, ``authorization.k8s.io``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dranet.desk.kubeapi.errors import Refusal, bad_request
from dranet.desk.kubeapi.kinds import (
    ACCESS_REVIEW,
    OTHERS_ACCESS_REVIEW,
    REVIEWS,
    RULES_REVIEW,
    SUBJECT_REVIEW,
    TOKEN_REVIEW,
)
from dranet.desk.kubeapi.objects import JsonObject
from testbed.apiserver.identity import Tokens, User
from testbed.apiserver.rbac import Attributes, Authorizer, Rule

_EVERYTHING = Rule(("*",), ("*",), ("*",))
_PATHS = {review.path: review for review in REVIEWS}


def is_review(path: str) -> bool:
    return path in _PATHS


def answer_review(
    path: str, body: JsonObject, user: User, authorizer: Authorizer, tokens: Tokens
) -> JsonObject:
    """The review with its ``status`` filled in; nothing is stored."""
    review, spec = _PATHS[path], body.get("spec") or {}
    if review in (TOKEN_REVIEW, OTHERS_ACCESS_REVIEW):
        authorizer.require(user, Attributes("create", review.group, review.plural))
        about_token = review is TOKEN_REVIEW
        status = _review_token(spec, tokens) if about_token else _review_others_access(spec, authorizer)
    else:
        status = _ANSWERS[review.kind](spec, user, authorizer)
    return {
        "kind": review.kind,
        "apiVersion": f"{review.group}/v1",
        "metadata": {"creationTimestamp": None},
        "spec": body.get("spec") or {},
        "status": status,
    }


def _review_token(spec: JsonObject, tokens: Tokens) -> JsonObject:
    try:
        user = tokens.identify(f"Bearer {spec.get('token', '')}")
    except Refusal:
        return {"authenticated": False, "error": "invalid bearer token"}
    return {"authenticated": True, "user": user.build_user_info()}


def _review_others_access(spec: JsonObject, authorizer: Authorizer) -> JsonObject:
    wanted = spec.get("nonResourceAttributes")
    if not isinstance(wanted, dict):
        raise bad_request("spec.nonResourceAttributes: Required value: resource attributes are not supported")
    user = User(spec.get("user", ""), tuple(spec.get("groups") or ()))
    verb, path = wanted.get("verb", ""), wanted.get("path", "")
    rules = authorizer.rules_of(user, "")
    return {"allowed": user.is_admin or any(rule.allows_url(verb, path) for rule in rules)}


def _review_access(spec: JsonObject, user: User, authorizer: Authorizer) -> JsonObject:
    wanted = spec.get("resourceAttributes")
    if not isinstance(wanted, dict):
        raise bad_request("spec.resourceAttributes: Required value: other paths are not supported")
    resource = wanted.get("resource", "")
    if wanted.get("subresource"):
        resource += f"/{wanted['subresource']}"
    asked = Attributes(
        wanted.get("verb", ""),
        wanted.get("group", ""),
        resource,
        wanted.get("namespace", ""),
        wanted.get("name", ""),
    )
    allowed = user.is_admin or any(rule.allows(asked) for rule in authorizer.rules_of(user, asked.namespace))
    return {"allowed": allowed} if allowed else {"allowed": False, "reason": "no rule allows it"}


def _review_rules(spec: JsonObject, user: User, authorizer: Authorizer) -> JsonObject:
    namespace = spec.get("namespace", "")
    if not namespace:
        raise bad_request("no namespace on request")
    rules = [_EVERYTHING] if user.is_admin else authorizer.rules_of(user, namespace)
    return {
        "incomplete": False,
        "nonResourceRules": [],
        "resourceRules": [rule.build_policy_rule() for rule in rules],
    }


def _review_subject(_spec: JsonObject, user: User, _authorizer: Authorizer) -> JsonObject:
    return {"userInfo": user.build_user_info()}


_ANSWERS: Mapping[str, Callable[[JsonObject, User, Authorizer], JsonObject]] = {
    ACCESS_REVIEW.kind: _review_access,
    RULES_REVIEW.kind: _review_rules,
    SUBJECT_REVIEW.kind: _review_subject,
}
