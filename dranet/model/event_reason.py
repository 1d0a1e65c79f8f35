"""Reasons of the Events that this driver writes, beside those of errors: a closed list."""

from __future__ import annotations

from enum import StrEnum


class EventReason(StrEnum):
    """An Event that is about an error of another kind has that error's ``Reason``.

    The first three are DraNet's: alerts on them keep working.
    """

    CLAIM_PREPARE_FAILED = "ClaimPrepareFailed"
    NETWORK_DEVICE_ATTACH_FAILED = "NetworkDeviceAttachFailed"
    RDMA_DEVICE_ATTACH_FAILED = "RDMADeviceAttachFailed"
    HOST_STATE_NOT_RESTORED = "HostStateNotRestored"
    DEVICE_UNHEALTHY = "NetworkDeviceUnhealthy"
    DEVICE_HEALTHY = "NetworkDeviceHealthy"
    CLAIM_STATUS_REFUSED = "ClaimStatusRefused"
    RUNS_WITHOUT_DEVICES = "RunsWithoutDevices"
    MISALIGNED_TOPOLOGY = "MisalignedTopology"
