"""What goes wrong when devices are allocated, with the cause as a word of a closed list."""

from __future__ import annotations

from enum import StrEnum

from dranet.errors import ClaimError, Reason


class Cause(StrEnum):
    """Why an attempt broke off; the text is the rest of "the attempt ended because ..."."""

    CLASS_MISSING = "a DeviceClass does not exist"
    NOT_MODELLED = "something is asked for that is not modelled here"
    SELECTOR_INVALID = "a selector does not compile"
    SELECTOR_FAILED = "a selector could not be evaluated for a device"
    ALL_OF_INCOMPLETE = "all devices are asked for while a pool is incomplete"
    ALL_OF_INVALID = "all devices are asked for while a pool is invalid"
    ALL_AGAINST_CONSTRAINT = "all devices are asked for and a constraint forbids one of them"
    TOO_MANY_DEVICES = "a claim asks for more devices than a claim may have"
    GAVE_UP = "the search took too long"
    CAPACITY_INVALID = "an amount of capacity is asked for that cannot be understood"


class Unschedulable(ClaimError):
    """No devices can be had for the pod now; it may be tried again when something changes."""

    default_reason = Reason.DEVICE_NOT_FOUND


class AllocationError(Unschedulable):
    """The attempt broke off. A real scheduler then tries no other node for the pod."""

    def __init__(
        self,
        message: str,
        cause: Cause,
        *,
        claim: str = "",
        request: str = "",
        device: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause
        self.claim = claim
        """``namespace/name``."""
        self.request = request
        """``req`` or ``req/sub``."""
        self.device = device
        """``driver/pool/device``, where one device made the attempt break off."""
