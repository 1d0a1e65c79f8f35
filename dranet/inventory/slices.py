"""Devices -> pages of ResourceSlices within the limits of the Kubernetes API.

The API server refuses a slice whole: one odd value would hide every device of the node. So whatever comes
here is made to fit. Attributes of a device that has too many are chosen (:func:`fit_attributes`), which is by
design; a value or device that cannot be published is left out with a line in the log.

The order of devices is kept: consumers try them in slice order, so it is the order of preference. Where the
pages fall depends on the devices and the policy alone, so that nothing is rewritten while nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from dranet.inventory.naming import is_device_name
from dranet.inventory.policy import DEFAULT_POLICY, Policy
from dranet.model.attributes import (
    DOMAIN,
    ESSENTIAL_NAMES,
    MAX_ATTRIBUTES_PER_DEVICE,
    MAX_VALUES_PER_DEVICE,
    PLACES,
    STANDARD_NUMA_NODE,
    describe_fault,
    fit_value,
    is_qualified_name,
)
from dranet.model.device import AttributeValue, Device

MAX_DEVICES_PER_SLICE = 128
MAX_DEVICES_PER_SHORT_SLICE = 64
"""``resource.k8s.io/v1``, for a slice with taints (since 1.35) or list attributes (since 1.36); or with
counters, which we do not use."""

NO_ROOM = "there is no room"
_NO_LISTS = "is a list, and the setting list_attributes is off"
_BAD_NAME = "is no attribute name that Kubernetes takes"

Pages = tuple[tuple[Device, ...], ...]
"""The devices of each slice."""

_Rank = tuple[int, int, str]


class FittedAttributes(Struct, frozen=True):
    """What a slice can take of a device. Both map qualified names; ``left_out`` to the reason."""

    kept: Mapping[str, AttributeValue]
    left_out: Mapping[str, str]


class SlicePlan(Struct, frozen=True):
    """``pages``: devices as published."""

    pages: Pages
    losses: tuple[str, ...]
    """One line for each device that lost a value that users may miss: an invalid one, or one that the
    operator added or prefers."""
    crowded: Mapping[str, tuple[str, ...]]
    """By device: what a slice has no room for, the last of the catalogue."""


def build_slices(
    devices: Sequence[Device], policy: Policy = DEFAULT_POLICY
) -> tuple[tuple[Device, ...], ...]:
    """The pages of :func:`plan_slices`."""
    return plan_slices(devices, policy).pages


def plan_slices(devices: Sequence[Device], policy: Policy = DEFAULT_POLICY) -> SlicePlan:
    """Pages of at most 128 devices, or 64 where the policy allows taints or lists; without
    devices one empty page, which marks the pool as complete.

    Where they are allowed every page is short, also one that has none, and also where the cluster keeps none:
    a page may get one at any time, and would then push devices from page to page.
    """
    published: list[Device] = []
    losses: list[str] = []
    crowded: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for device in devices:
        fault = _name_fault(device.name, taken)
        if fault:
            losses.append(f"device {device.name!r} is left out: {fault}")
            continue
        taken.add(device.name)
        fitted = fit_attributes(device, policy)
        published.append(_with_attributes(device, fitted.kept))
        expected = tuple(sorted(_expected_losses(fitted.left_out, policy)))
        losses += _describe_losses(device, fitted.left_out, expected)
        if expected:
            crowded[device.name] = expected
    return SlicePlan(_paginate(published, policy), tuple(losses), crowded)


def fit_attributes(device: Device, policy: Policy = DEFAULT_POLICY) -> FittedAttributes:
    """Which attributes of ``device`` a slice can take.

    At most 32, and at most 48 values with the items of lists. Kept first are those without which nothing
    works, then the operator's own, then those that the operator prefers, then the others in the order of the
    catalogue. Values are cut and invalid ones left out, from any source.
    """
    valid: dict[str, AttributeValue] = {}
    left_out = dict(device.left_out)
    for name, value in device.attributes.items():
        fitted, fault = _fit(name, value, policy)
        if fitted is None:
            left_out[name] = fault
        else:
            valid[name] = fitted
    if _count_values(valid.values()) > MAX_ATTRIBUTES_PER_DEVICE:
        _make_room(valid, left_out, policy)
    return FittedAttributes(valid, left_out)


def _fit(name: str, value: AttributeValue, policy: Policy) -> tuple[AttributeValue | None, str]:
    """The value as the cluster takes it, or ``None`` and the reason."""
    if name not in PLACES and not is_qualified_name(name):
        return None, _BAD_NAME
    fitted = fit_value(value)
    if fitted is None:
        return None, describe_fault(value)
    if not isinstance(fitted, tuple) or policy.list_attributes:
        return fitted, ""
    if (
        name == STANDARD_NUMA_NODE.qualified
    ):  # recorded before the setting was taken back; its own node is first
        return fitted[0], ""
    return None, _NO_LISTS


def _make_room(valid: dict[str, AttributeValue], left_out: dict[str, str], policy: Policy) -> None:
    attributes, values = MAX_ATTRIBUTES_PER_DEVICE, MAX_VALUES_PER_DEVICE
    for name in sorted(valid, key=lambda name: _rank(name, policy.prefer_attributes)):
        size = _size(valid[name])
        if attributes and size <= values:
            attributes, values = attributes - 1, values - size
        else:
            del valid[name]
            left_out[name] = NO_ROOM


@lru_cache(maxsize=4096)  # the names are few, and the same on every device of every scan
def _rank(name: str, prefer_attributes: tuple[str, ...]) -> _Rank:
    """Place in the budget; names that are not in the catalogue are the operator's."""
    preferred = [_qualify(entry) for entry in prefer_attributes]
    place = preferred.index(name) if name in preferred else len(preferred)
    if name in ESSENTIAL_NAMES:
        return (0, PLACES[name], name)
    if name not in PLACES:
        return (1, place, name)
    return (2, place, name) if name in preferred else (3, PLACES[name], name)


def _qualify(name: str) -> str:
    return name if "/" in name else f"{DOMAIN}/{name}"


def _size(value: AttributeValue) -> int:
    return len(value) if isinstance(value, tuple) else 1


def _count_values(values: Iterable[AttributeValue]) -> int:
    return sum(map(_size, values))


def _name_fault(name: str, taken: set[str]) -> str:
    if not is_device_name(name):
        return "its name is no DNS label of at most 63 characters"
    return "another device has the same name" if name in taken else ""


def _with_attributes(device: Device, kept: Mapping[str, AttributeValue]) -> Device:
    return device if kept == device.attributes else replace(device, attributes=kept)


def _expected_losses(left_out: Mapping[str, str], policy: Policy) -> Iterator[str]:
    """Attributes that do not fit into a slice and that the operator has not asked for."""
    preferred = {_qualify(entry) for entry in policy.prefer_attributes}
    return (
        name
        for name, reason in left_out.items()
        if reason == NO_ROOM and name in PLACES and name not in preferred
    )


def _describe_losses(device: Device, left_out: Mapping[str, str], expected: Collection[str]) -> list[str]:
    missed = {name: reason for name, reason in left_out.items() if name not in expected}
    crowded = sorted(name for name, reason in missed.items() if reason == NO_ROOM)
    faults = [f"{name} {reason}" for name, reason in sorted(missed.items()) if reason != NO_ROOM]
    if crowded:
        faults.append(f"there is no room for {', '.join(crowded)}")
    if not faults:
        return []
    return [f"device {device.name} is published without some attributes: {'; '.join(faults)}"]


def _paginate(devices: Sequence[Device], policy: Policy) -> Pages:
    is_short = policy.taints or policy.list_attributes
    limit = MAX_DEVICES_PER_SHORT_SLICE if is_short else MAX_DEVICES_PER_SLICE
    starts = range(0, len(devices), limit)
    return tuple(tuple(devices[start : start + limit]) for start in starts) or ((),)
