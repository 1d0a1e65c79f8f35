"""Conflicts between the plans of the devices of one pod."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import TypeVar

from dranet.claims.plan.sysctls import VRF_SYSCTLS
from dranet.errors import ClaimError, Reason
from dranet.model.plan import AttachPlan, JoinVrf, SetSysctl

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def check_pod(plans: Collection[AttachPlan]) -> None:
    """The devices of a pod share its interface names, routing tables and settings.

    Args:
        plans: the plans of every claim of the pod.

    Raises:
        ClaimError: InvalidConfig, with every clash and the devices of each.
    """
    problems = [*_check_names(plans), *_check_vrfs(plans), *_check_sysctls(plans)]
    if problems:
        raise ClaimError(
            "; ".join(problems),
            hint="give each device a config of its own, by the name of its request",
            reason=Reason.INVALID_CONFIG,
        )


def _check_names(plans: Collection[AttachPlan]) -> Iterator[str]:
    owners = _group((plan.pod_ifname, plan.device) for plan in plans if plan.pod_ifname)
    clashes = [f"{', '.join(names)} would all be {name}" for name, names in owners.items() if len(names) > 1]
    clashes += [
        f"{', '.join(owners[vrf.name])} and the VRF of {plan.device} would be {vrf.name}"
        for plan, vrf in _iter_vrfs(plans)
        if vrf.name in owners
    ]
    if clashes:
        yield f"interface.name: names must differ within a pod: {'; '.join(clashes)}"


def _check_vrfs(plans: Collection[AttachPlan]) -> Iterator[str]:
    vrfs = dict.fromkeys((vrf.name, vrf.table) for _, vrf in _iter_vrfs(plans))
    for name, tables in _group(vrfs).items():
        if len(tables) > 1:
            yield f"interface.vrf.table: VRF {name} would have the tables {', '.join(map(str, tables))}"
    for table, names in _group((table, name) for name, table in vrfs).items():
        if len(names) > 1:
            yield f"interface.vrf.table: the VRFs {', '.join(names)} would share {table}; give each its own"


def _check_sysctls(plans: Collection[AttachPlan]) -> Iterator[str]:
    wanted: dict[str, dict[str, str]] = defaultdict(dict)
    for plan in plans:
        for step in plan.steps:
            if isinstance(step, SetSysctl) and not step.early:
                wanted[step.path].setdefault(step.value, plan.device)
    for plan, _ in _iter_vrfs(plans):
        for path in VRF_SYSCTLS:
            if path in wanted:
                wanted[path].setdefault("1", f"the VRF of {plan.device}")
    for path, values in wanted.items():
        if len(values) > 1:
            each = ", ".join(f"{value} by {owner}" for value, owner in values.items())
            yield f'sysctls["net.{path.replace("/", ".")}"]: the pod has one value, and would get {each}'


def _iter_vrfs(plans: Collection[AttachPlan]) -> Iterator[tuple[AttachPlan, JoinVrf]]:
    for plan in plans:
        yield from ((plan, step) for step in plan.steps if isinstance(step, JoinVrf))


def _group(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    groups: dict[Key, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups
