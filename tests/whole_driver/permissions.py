"""Which permissions the driver has, and which of them no scenario uses."""

from __future__ import annotations

from dranet.cluster.permissions import PERMISSIONS

SHOWN_BY_ONE_TEST = frozenset(
    {
        ("", "events", "patch"),
        ("", "pods", "list"),
        ("resource.k8s.io", "resourceslices", "delete"),
        ("resource.k8s.io", "resourceslices", "update"),
    }
)
"""Group, resource and verb of what no scenario needs. ``test_the_code_needs_every_permission_and_no_other``
shows by itself who does."""


def list_needed() -> set[tuple[str, str, str]]:
    return {(rule.group, rule.resource, verb) for rule in PERMISSIONS for verb in rule.verbs}
