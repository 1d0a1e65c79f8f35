"""Links on top of one device, whoever has them: what the kernel cannot put side by side there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.plan import AddAddress, AttachPlan, CreateLink


def check_parents(mine: Sequence[AttachPlan], others: Iterable[tuple[str, AttachPlan]]) -> None:
    """Whether the links of a claim can be made beside each other and beside those that are there.

    Args:
        mine: the plans of one claim.
        others: plans of other claims, each with words for whose it is.

    Raises:
        ClaimError: InvalidConfig: two links of the claim exclude each other.
        DeviceError: DeviceBusy: one of another claim is in the way; retryable, for it goes with its pod.
    """
    for one, other in combinations(mine, 2):
        for problem in _find_conflicts(one, other):
            raise ClaimError(f"device {one.device}: {problem}", reason=Reason.INVALID_CONFIG)
    for owner, other in others:
        for plan in mine:
            for problem in _find_conflicts(plan, other):
                raise DeviceError(
                    f"device {plan.device}: {problem}",
                    hint=f"the other link is that of {owner}",
                    reason=Reason.DEVICE_BUSY,
                )


def _find_conflicts(one: AttachPlan, other: AttachPlan) -> Iterator[str]:
    mine, theirs = _sub_link(one), _sub_link(other)
    if mine is None or theirs is None or mine.parent_ifindex != theirs.parent_ifindex:
        return
    parent, kinds = mine.parent_ifname, {mine.kind, theirs.kind}
    if kinds == {"macvlan", "ipvlan"}:
        yield f"interface.type: {parent} has a link of type {theirs.kind}, which excludes type {mine.kind}"
    elif kinds == {"ipvlan"}:
        yield from _find_ipvlan_conflicts(one, mine, other, theirs)
    elif kinds == {"macvlan"} and mine.mac and mine.mac == theirs.mac:
        yield f"interface.hardwareAddr: {mine.mac} is that of another macvlan of {parent}"
    elif kinds == {"vlan"} and (mine.vlan_id, mine.vlan_protocol) == (theirs.vlan_id, theirs.vlan_protocol):
        yield f"interface.vlan.id: {parent} has a link for VLAN {mine.vlan_id} ({mine.vlan_protocol}) already"


def _find_ipvlan_conflicts(
    one: AttachPlan, mine: CreateLink, other: AttachPlan, theirs: CreateLink
) -> Iterator[str]:
    """A new ipvlan changes the mode and flag of all ipvlans of its parent."""
    parent = mine.parent_ifname
    for what, asked, there in (("mode", mine.mode, theirs.mode), ("flag", mine.flag, theirs.flag)):
        if asked != there:
            yield f"interface.ipvlan.{what}: must be {there} as of the other ipvlan of {parent}, not {asked}"
    for address in sorted(_ips(one) & _ips(other)):
        yield f"interface.addresses: {address} is that of another ipvlan of {parent}"


def _sub_link(plan: AttachPlan) -> CreateLink | None:
    return next((step for step in plan.steps if isinstance(step, CreateLink)), None)


def _ips(plan: AttachPlan) -> set[str]:
    return {step.address.cidr.partition("/")[0] for step in plan.steps if isinstance(step, AddAddress)}
