"""``docs/user/rights.md``: what the driver may do on a node, why, and what fails without."""

from __future__ import annotations

from dranet.security.context import CAPABILITIES, MOUNTS, SECCOMP_MOUNT, Mount, resolve_path
from dranet.security.seccomp import CHOSEN, EVERYDAY, FALLBACKS, Rule

_ALL_CAPABILITIES = 41
"""Of Linux 5.9 and later: what a privileged container has."""

_HEAD = """# Rights of the driver on a node

Generated from `dranet/security/context.py` and `seccomp.py` by `make docs`; a test fails when it is stale.
[Security](security.md) says what they mean together.

The container is not privileged. It runs as user 0 with all capabilities dropped but these, may not gain
rights (`allowPrivilegeEscalation: false`), has a read-only root file system, the network of the node, and
its own process and IPC namespaces. Each right was taken away in turn, in a real container, and what fails was
seen (`tests/runtime/test_containerd_security_minimal.py`); of `/etc/cdi` and `pod-resources` only that
`dranet doctor` tells of it. It names each right that lacks, wherever the driver starts without it.

"optional" says what one may do without; leave the right out then.

"""


def rights_page() -> str:
    return "".join(
        (
            _HEAD,
            f"## Capabilities: {len(CAPABILITIES)} of {_ALL_CAPABILITIES}\n\n",
            "| capability | what for | without it | optional |\n|---|---|---|---|\n",
            *(
                f"| `{each.name}` | {each.why} | {each.without} | {each.feature or '-'} |\n"
                for each in CAPABILITIES
            ),
            f"\n## Folders of the node: {len(MOUNTS)}\n\n",
            "With the paths of the default settings.\n\n",
            _MOUNT_HEAD,
            *map(_mount_row, MOUNTS),
            "\nThe init container, which has no capability at all:\n\n",
            _MOUNT_HEAD,
            _mount_row(SECCOMP_MOUNT),
            f"\n## System calls: {_count((*EVERYDAY, *CHOSEN, *FALLBACKS))}\n\n",
            "The seccomp profile (`dranet seccomp` prints it). Every other call is answered with ENOSYS.\n\n",
            f"### With conditions on their arguments\n\n{_RULE_HEAD}",
            *map(_rule_row, CHOSEN),
            f"\n### Without conditions: {_count(EVERYDAY)}\n\n",
            "Each was taken away in turn; the driver did not start, failed, or complained in its log.\n\n",
            "| calls | what for |\n|---|---|\n",
            *map(_plain_row, EVERYDAY),
            f"\n### Fallbacks: {_count(FALLBACKS)}\n\n",
            "Not made on every machine; without them the profile would fail on the next one.\n\n",
            "| calls | when |\n|---|---|\n",
            *map(_plain_row, FALLBACKS),
        )
    )


_MOUNT_HEAD = (
    "| in the container | on the node | access | what for | without it | optional |\n"
    "|---|---|---|---|---|---|\n"
)
_RULE_HEAD = "| calls | what for | without it | optional |\n|---|---|---|---|\n"


def _mount_row(mount: Mount) -> str:
    access = "read" if mount.read_only else "write"
    if mount.propagation != "None":
        access += f", {mount.propagation}"
    paths = f"`{resolve_path(mount.path)}` | `{resolve_path(mount.host_path)}`"
    return f"| {paths} | {access} | {mount.why} | {mount.without} | {mount.feature or '-'} |\n"


def _rule_row(rule: Rule) -> str:
    return f"| {_names(rule)} | {rule.why} | {rule.without} | {rule.feature or '-'} |\n"


def _plain_row(rule: Rule) -> str:
    return f"| {_names(rule)} | {rule.why} |\n"


def _names(rule: Rule) -> str:
    return ", ".join(f"`{call}`" for call in rule.calls)


def _count(rules: tuple[Rule, ...]) -> int:
    return len({call for rule in rules for call in rule.calls if not rule.errno})
