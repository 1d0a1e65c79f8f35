"""Addresses for the devices of a claim from pools: which slot, and that nothing on this node has them yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dranet.errors import AddressTakenError, ClaimError, Reason
from dranet.model.address_pool import SOURCE, AddressPool
from dranet.model.device import Device
from dranet.model.ipam import IpamAnswer, PoolNode
from dranet.model.plan import AttachPlan

Wanted = tuple[str, Device, bool, str]
"""Key of the answer, device, whether the claim has a share of it, and the pool's name."""


def take_addresses(
    pools: Mapping[str, AddressPool], node: PoolNode, wanted: Iterable[Wanted], held: Sequence[AttachPlan]
) -> Mapping[str, IpamAnswer]:
    """One answer for each device that names a pool. ``held`` are the plans of the node's other claims. A
    share gets the first slot that none of them has. Raises ClaimError."""
    taken = _find_taken(held)
    answers: dict[str, IpamAnswer] = {}
    for key, device, is_share, name in wanted:
        pool = pools.get(name)
        if pool is None:
            continue
        answers[key] = _take(pool, name, node, device, is_share, taken)
        taken |= {_strip(address): f"device {device.name}" for address in answers[key].addresses}
    return answers


def check_not_taken(answers: Mapping[str, IpamAnswer], held: Sequence[AttachPlan]) -> None:
    """Whether the addresses are still no one else's: claims for other devices of a rail may be prepared at
    the same time. Raises AddressTakenError."""
    taken = _find_taken(held)
    for answer in answers.values():
        for ip in map(_strip, answer.addresses):
            if ip in taken:
                raise AddressTakenError(
                    f"interface.ipam: {answer.name}: {ip} is that of {taken[ip]} on this node by now",
                    hint="another claim was prepared at the same time; this is retried",
                )


def _find_taken(held: Iterable[AttachPlan]) -> dict[str, str]:
    """The device that has it, by address."""
    return {
        _strip(address): f"device {plan.device}"
        for plan in held
        if plan.ipam is not None and plan.ipam.source == SOURCE
        for address in plan.ipam.addresses
    }


def _strip(cidr: str) -> str:
    return cidr.partition("/")[0]


def _take(
    pool: AddressPool, name: str, node: PoolNode, device: Device, is_share: bool, taken: Mapping[str, str]
) -> IpamAnswer:
    rail = pool.find_rail(device)
    try:
        number = pool.nodes.find(node)
    except ValueError as error:
        raise _refusal(f"{name}: {error}", "correct nodes of the pool in ipam_file") from error
    conflict = ""
    for slot in pool.find_slots(device, is_share=is_share):
        answer = pool.build_answer(name, rail, number, slot)
        used = [ip for cidr in answer.addresses if (ip := _strip(cidr)) in taken]
        if not used:
            return answer
        conflict = f"{used[0]} is already that of {taken[used[0]]} on this node"
    if is_share:
        raise _refusal(
            f"{name}: device {device.name} has no free address for one more share: {conflict}",
            f"addressesPerNode is {pool.addresses_per_node}; each share needs one",
        )
    raise _refusal(
        f"{name}: device {device.name} of rail {rail.number}: {conflict}",
        "give each device of a node a rail of its own, or set addressesPerNode for its virtual functions",
    )


def _refusal(text: str, hint: str) -> ClaimError:
    return ClaimError(f"interface.ipam: {text}", hint=hint, reason=Reason.INVALID_CONFIG)
