"""``docs/reference/rights.md`` and ``docs/reference/permissions.md``: what the driver may do on a node and
in the API server, why, and what fails without each right."""

from __future__ import annotations

from collections.abc import Iterable

from dranet.cluster.permissions import AUTHENTICATION_PERMISSIONS, PERMISSIONS, Permission
from dranet.security.context import CAPABILITIES, MOUNTS, HostMount, resolve_path
from dranet.security.seccomp import CHOSEN, EVERYDAY, FALLBACKS, SyscallRule
from tools.manifests.pod_security import SECCOMP_MOUNT
from tools.pages.page import fill, table

_ALL_CAPABILITIES = 41
"""The number of capabilities in Linux 5.9 and later."""


def rights_page() -> str:
    head = ("what for", "without it", "optional")
    return fill(
        "rights.md",
        count=len(CAPABILITIES),
        all=_ALL_CAPABILITIES,
        capabilities=table(
            ("capability", *head),
            ((f"`{each.name}`", each.why, each.without, each.feature or "-") for each in CAPABILITIES),
        ),
        folders=len(MOUNTS),
        mounts=_table_of_mounts(MOUNTS),
        init=_table_of_mounts((SECCOMP_MOUNT,)),
        calls=_count((*EVERYDAY, *CHOSEN, *FALLBACKS)),
        chosen=table(
            ("calls", *head),
            ((_names(rule), rule.why, rule.without, rule.feature or "-") for rule in CHOSEN),
        ),
        everyday_count=_count(EVERYDAY),
        everyday=table(("calls", "what for"), ((_names(rule), rule.why) for rule in EVERYDAY)),
        fallback_count=_count(FALLBACKS),
        fallbacks=table(("calls", "when"), ((_names(rule), rule.why) for rule in FALLBACKS)),
    )


def _table_of_mounts(mounts: Iterable[HostMount]) -> str:
    head = ("in the container", "on the node", "access", "what for", "without it", "optional")
    return table(head, map(_describe_mount, mounts))


def _describe_mount(mount: HostMount) -> tuple[str, ...]:
    access = "read" if mount.read_only else "write"
    if mount.propagation != "None":
        access += f", {mount.propagation}"
    paths = (f"`{resolve_path(path)}`" for path in (mount.path, mount.host_path))
    return *paths, access, mount.why, mount.without, mount.feature or "-"


def _names(rule: SyscallRule) -> str:
    return ", ".join(f"`{call}`" for call in rule.calls)


def _count(rules: Iterable[SyscallRule]) -> int:
    return len({call for rule in rules for call in rule.calls if not rule.errno})


def permissions_page() -> str:
    head = ("resource", "verbs", "why", "when")
    return fill(
        "permissions.md",
        permissions=table(head, map(_describe_permission, PERMISSIONS)),
        optional=table(head, map(_describe_permission, AUTHENTICATION_PERMISSIONS)),
    )


def _describe_permission(permission: Permission) -> tuple[str, ...]:
    verbs = ", ".join(f"`{verb}`" for verb in permission.verbs)
    group = f" ({permission.group})" if permission.group else ""
    name = ", of this driver's name" if permission.only_driver else ""
    return f"`{permission.resource}`{group}{name}", verbs, permission.why, permission.when
