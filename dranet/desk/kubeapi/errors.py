"""Refusals of the API server stand-in, as ``metav1.Status`` objects with the real server's reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dranet.desk.kubeapi.kinds import Kind
from dranet.desk.kubeapi.objects import JsonObject


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault of an object: ``type`` is a ``metav1.CauseType``, ``field`` a path into it."""

    field: str
    message: str
    type: str = "FieldValueInvalid"


class Refusal(Exception):
    """A request that is answered with a failure Status."""

    def __init__(self, code: int, reason: str, message: str, details: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def build_status(self) -> JsonObject:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def _details(kind: Kind, name: str, causes: Sequence[Cause] = ()) -> JsonObject:
    # Upstream puts the kind into this field for Invalid only and the plural for the rest.
    details: JsonObject = {"name": name, "group": kind.group, "kind": kind.plural}
    if causes:
        details["kind"] = kind.kind
        details["causes"] = [
            {"reason": cause.type, "message": cause.message, "field": cause.field} for cause in causes
        ]
    return details


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{kind.qualified_resource} "{name}" not found', _details(kind, name))


def no_such_path() -> Refusal:
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> Refusal:
    return Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(kind: Kind, name: str) -> Refusal:
    text = f'{kind.qualified_resource} "{name}" already exists'
    return Refusal(409, "AlreadyExists", text, _details(kind, name))


def conflict(kind: Kind, name: str, why: str, causes: Sequence[Cause] = ()) -> Refusal:
    text = f'Operation cannot be fulfilled on {kind.qualified_resource} "{name}": {why}'
    return Refusal(409, "Conflict", text, _details(kind, name, causes))


def expired(version: int, oldest: int) -> Refusal:
    return Refusal(410, "Expired", f"too old resource version: {version} ({oldest})")


def unsupported_media_type(content_type: str) -> Refusal:
    return Refusal(
        415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
    )


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Refusal:
    faults = [f"{cause.field}: {cause.message}" for cause in causes]
    text = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    message = f'{kind.qualified_kind} "{name}" is invalid: {text}'
    return Refusal(422, "Invalid", message, _details(kind, name, causes))


def untyped_patch(kind: Kind, name: str, why: str) -> Refusal:
    """An applied configuration that its schema cannot read: a real server has no better word for it than
    500."""
    return Refusal(500, "", f"failed to create typed patch object ({name}; {kind.kind}): {why}")


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def injected(code: int, path: str) -> Refusal:
    """A failure that a test asked for."""
    reasons = {
        403: "Forbidden",
        409: "Conflict",
        410: "Expired",
        429: "TooManyRequests",
        503: "ServiceUnavailable",
    }
    return Refusal(code, reasons.get(code, "InternalError"), f"injected failure on {path}")
