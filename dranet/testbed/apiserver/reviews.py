"""Questions about oneself: who am I, and what may I do (``authentication.k8s.io``,
``authorization.k8s.io``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dranet.testbed.apiserver.errors import bad_request
from dranet.testbed.apiserver.identity import User
from dranet.testbed.apiserver.kinds import ACCESS_REVIEW, REVIEWS, RULES_REVIEW, SUBJECT_REVIEW, JsonObject
from dranet.testbed.apiserver.rbac import Attributes, Authorizer, Rule

_EVERYTHING = Rule(("*",), ("*",), ("*",))
_PATHS = {review.path: review for review in REVIEWS}


def is_review(path: str) -> bool:
    return path in _PATHS


def answer_review(path: str, body: JsonObject, user: User, authorizer: Authorizer) -> JsonObject:
    """The review with its ``status`` filled in; nothing is stored."""
    review = _PATHS[path]
    status = _ANSWERS[review.kind](body.get("spec") or {}, user, authorizer)
    return {
        "kind": review.kind,
        "apiVersion": f"{review.group}/v1",
        "metadata": {"creationTimestamp": None},
        "spec": body.get("spec") or {},
        "status": status,
    }


def _review_access(spec: JsonObject, user: User, authorizer: Authorizer) -> JsonObject:
    wanted = spec.get("resourceAttributes")
    if not isinstance(wanted, dict):
        raise bad_request(
            "spec.resourceAttributes: Required value: questions about other paths are not played"
        )
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
