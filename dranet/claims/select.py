"""Which results of a claim are ours, and which configs apply to each.

A claim may hold devices of several drivers, and configs for all of them. Both lists come from
``status.allocation.devices``, where the scheduler puts the DeviceClass's configs before the claim's.
"""

from __future__ import annotations

from msgspec import Struct

from dranet.model.claim import AllocationResult, Claim, OpaqueConfig


class Selection(Struct, frozen=True):
    """One of our results with the configs that apply to it, in the order of the claim."""

    result: AllocationResult
    configs: tuple[OpaqueConfig, ...] = ()
    config_indexes: tuple[int, ...] = ()
    """Index of each config in ``status.allocation.devices.config``, for error messages."""
    device_class: str = ""
    """The DeviceClass of the request; empty where the claim does not name it."""
    namespace: str = ""
    """The claim's namespace."""


def select_results(claim: Claim, driver: str) -> tuple[Selection, ...]:
    """Return the results of our driver in the order of the claim; empty when the claim has none.

    Unlike DraNet, every config that applies is kept, and one that names a request applies to whichever
    alternative of it was allocated (KEP-4816).
    """
    return tuple(_select(result, claim, driver) for result in claim.results if result.driver == driver)


def _select(result: AllocationResult, claim: Claim, driver: str) -> Selection:
    chosen = [(i, c) for i, c in enumerate(claim.configs) if c.driver == driver and _applies(c, result)]
    return Selection(
        result,
        configs=tuple(config for _, config in chosen),
        config_indexes=tuple(index for index, _ in chosen),
        device_class=claim.request_classes.get(result.request, ""),
        namespace=claim.ref.namespace,
    )


def _applies(config: OpaqueConfig, result: AllocationResult) -> bool:
    return not config.requests or not {result.request, result.main_request}.isdisjoint(config.requests)
