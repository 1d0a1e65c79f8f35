"""Errors, named by the party that must act.

One ``reason`` is at once the condition reason, the Event reason and the metric label, so it comes
from a closed list. ``hint`` is the fix. A third-party exception is mapped once, in the room
that owns the library, and chained with ``from``; anything that is not a ``DranetError`` is our bug.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The closed list of reasons; CamelCase as Kubernetes conditions and Events want it."""

    INVALID_SETTINGS = "InvalidSettings"
    INVALID_CONFIG = "InvalidConfig"
    UNSUPPORTED_CLAIM = "UnsupportedClaim"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_REPLACED = "ClaimReplaced"
    CLAIM_NOT_ALLOCATED = "ClaimNotAllocated"
    CLAIM_NOT_RESERVED = "ClaimNotReserved"
    DEVICE_NOT_FOUND = "DeviceNotFound"
    DEVICE_BUSY = "DeviceBusy"
    DEVICE_IS_UPLINK = "DeviceIsUplink"
    DEVICE_EXCLUDED = "DeviceHeldBack"
    ATTACH_FAILED = "AttachFailed"
    DETACH_FAILED = "DetachFailed"
    HOOK_DEADLINE_EXCEEDED = "HookDeadlineExceeded"
    DHCP_FAILED = "DHCPFailed"
    DHCP_LEASE_EXPIRED = "DHCPLeaseExpired"
    DHCP_LEASE_REFUSED = "DHCPLeaseRefused"
    IPAM_FAILED = "IPAMFailed"
    ADDRESS_CONFLICT = "AddressConflict"
    NETNS_GONE = "NetworkNamespaceGone"
    MISSING_FEATURE = "MissingFeature"
    KERNEL_ERROR = "KernelError"
    API_UNAVAILABLE = "APIServerUnavailable"
    API_CONFLICT = "APIConflict"
    API_FORBIDDEN = "APIForbidden"
    API_NOT_FOUND = "APINotFound"
    API_INVALID = "APIInvalid"
    API_GONE = "APIResourceVersionGone"
    PROTOCOL_ERROR = "ProtocolError"
    PROVIDER_UNAVAILABLE = "ProviderUnavailable"
    PROVIDER_REFUSED = "ProviderRefused"
    PROVIDER_ANSWER_INVALID = "ProviderAnswerInvalid"
    STORE_UNWRITABLE = "StoreUnwritable"
    STORE_CORRUPT = "StoreCorrupt"
    STORE_NEWER = "StoreOfNewerDriver"
    DRAINING = "Draining"


class DranetError(Exception):
    """Base of every error this driver names. ``message`` is what failed and why, ``hint`` (may be empty) the
    fix, ``retryable`` whether the same call may succeed later without a change by anyone."""

    default_reason = Reason.PROTOCOL_ERROR
    default_retryable = False

    def __init__(
        self, message: str, *, hint: str = "", reason: Reason | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.reason = self.default_reason if reason is None else reason
        self.retryable = self.default_retryable if retryable is None else retryable

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class SettingsError(DranetError):
    """The operator must act: the driver's own settings are wrong; it refuses to start (exit code 2)."""

    default_reason = Reason.INVALID_SETTINGS


class NotFoundError(DranetError):
    """What the caller of a command named does not exist; ``NotFound``, as kubectl calls it."""

    default_reason = Reason.CLAIM_NOT_FOUND


class ClaimError(DranetError):
    """The user must act: the claim asks for something invalid or unsupported."""

    default_reason = Reason.INVALID_CONFIG


class DeviceError(DranetError):
    """The node cannot give this device now: gone, busy or the node's own uplink."""

    default_reason = Reason.DEVICE_NOT_FOUND
    default_retryable = True


class DeviceHeldError(DeviceError):
    """Another claim has the device on this node. ``holder`` is that claim's UID."""

    default_reason = Reason.DEVICE_BUSY

    def __init__(self, message: str, *, holder: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


class AddressTakenError(DeviceError):
    """Another claim has got an address of the pool since it was chosen; the next attempt chooses another."""

    default_reason = Reason.ADDRESS_CONFLICT


class KernelError(DranetError):
    """The kernel refused. ``errno`` is the kernel's, ``operation`` what was tried, ``link`` on what."""

    default_reason = Reason.KERNEL_ERROR
    default_retryable = True

    def __init__(
        self,
        message: str,
        *,
        errno: int = 0,
        operation: str = "",
        link: str = "",
        hint: str = "",
        reason: Reason | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, hint=hint, reason=reason, retryable=retryable)
        self.errno = errno
        self.operation = operation
        self.link = link


class HookDeadlineError(KernelError):
    """The runtime has to be answered, and the kernel is still at work."""

    default_reason = Reason.HOOK_DEADLINE_EXCEEDED


class ClusterError(DranetError):
    """The API server: unavailable, conflict, forbidden, not found. ``status`` is the HTTP code, 0 without an
    answer; ``retry_after_seconds`` the server's ``Retry-After``, 0 without one."""

    default_reason = Reason.API_UNAVAILABLE

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        hint: str = "",
        reason: Reason | None = None,
        retryable: bool | None = None,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(message, hint=hint, reason=reason, retryable=retryable)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


class IpamError(DranetError):
    """The administrator must act: a source of addresses refused, is missing, or broke its protocol."""

    default_reason = Reason.IPAM_FAILED
    default_retryable = True


class ProtocolError(DranetError):
    """A peer (kubelet, container runtime, API server) violated the protocol."""


class ProviderError(DranetError):
    """A provider of attributes, configs or profiles: away, refused, or its answer cannot be used."""

    default_reason = Reason.PROVIDER_UNAVAILABLE
    default_retryable = True


class StoreError(DranetError):
    """The disk: unwritable (Prepare fails, nothing else does) or a corrupt record (quarantined)."""

    default_reason = Reason.STORE_UNWRITABLE
