"""The Kubernetes that objects are validated for: a minor version with its feature gates and limits.

A field behind a gate that is off is dropped on write without a word (``drops``), and so is a field that the
version does not know: that is how a client meets an older server. Gates: ``pkg/features/kube_features.go`` of
each version; limits: the API descriptions of ``resource.k8s.io/v1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dranet.errors import SettingsError

_MINORS = (34, 35, 36, 37)
LATEST = "1.37"

_DEFAULTS: Mapping[str, tuple[bool, bool, bool, bool]] = {
    # gate: on by default in 1.34, 1.35, 1.36, 1.37; a gate that a version does not know is off there
    "DRAAdminAccess": (True, True, True, True),
    "DRAPrioritizedList": (True, True, True, True),
    "DRAResourceClaimDeviceStatus": (True, True, True, True),
    "DRAPartitionableDevices": (False, False, True, True),
    "DRADeviceTaints": (False, False, True, True),
    "DRADeviceTaintRules": (False, False, False, True),
    "DRAConsumableCapacity": (False, False, True, True),
    "DRADeviceBindingConditions": (False, False, True, True),
    "DRAExtendedResource": (False, False, True, True),
    "DRAListTypeAttributes": (False, False, False, False),
    "DRANodeAllocatableResources": (False, False, False, False),
    "DRAResourceClaimGranularStatusAuthorization": (False, False, True, True),
    "DRAWorkloadResourceClaims": (False, False, False, False),
    "DRAPartitionableDevicesType": (False, False, False, False),
    "DRAOptionalNodeOperations": (False, False, False, False),
    "DRADerivedAttributes": (False, False, False, False),
    "DRADeviceCompatibilityGroups": (False, False, False, False),
}

_SINCE: Mapping[str, int] = {
    "DRAListTypeAttributes": 36,
    "DRANodeAllocatableResources": 36,
    "DRAResourceClaimGranularStatusAuthorization": 36,
    "DRAWorkloadResourceClaims": 36,
    "DRAPartitionableDevicesType": 37,
    "DRAOptionalNodeOperations": 37,
    "DRADerivedAttributes": 37,
    "DRADeviceCompatibilityGroups": 37,
}
"""First minor that knows the gate at all, where that is not the oldest version here."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One server version. Make it with :func:`load_profile`."""

    minor: int
    gates: Mapping[str, bool] = field(default_factory=dict)

    def has(self, *gates: str) -> bool:
        """Whether all these gates are on."""
        return all(self.gates[gate] for gate in gates)

    @property
    def version(self) -> str:
        return f"1.{self.minor}"

    @property
    def max_taints(self) -> int:
        """Limit of a device."""
        return 4 if self.minor < 35 else 16

    @property
    def taint_effects(self) -> tuple[str, ...]:
        known = ("NoExecute", "NoSchedule")
        return known if self.minor < 35 else ("NoExecute", "NoSchedule", "None")

    @property
    def max_advanced_devices(self) -> int:
        """Limit of a slice in which a device has taints, counters or list attributes."""
        return 128 if self.minor < 35 else 64

    @property
    def mixes_counters_and_devices(self) -> bool:
        """One slice may have both, with 32 counters in all its sets together."""
        return self.minor < 35

    def build_version_document(self) -> dict[str, str]:
        """What ``/version`` answers."""
        return {
            "major": "1",
            "minor": str(self.minor),
            "gitVersion": f"v1.{self.minor}.0-standin",
            "gitCommit": "",
            "gitTreeState": "",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "none",
            "compiler": "none",
            "platform": "linux/none",
        }


def load_profile(version: str = LATEST, gates: Mapping[str, bool] | None = None) -> Profile:
    """The defaults of a version (``1.36``), with some ``gates`` set otherwise.

    Raises:
        SettingsError: a version that is not supported, or a gate that it does not know.
    """
    known = {f"1.{minor}": minor for minor in _MINORS}
    if version not in known:
        raise SettingsError(f"no profile {version!r}", hint=f"known are {', '.join(known)}")
    minor = known[version]
    column = _MINORS.index(minor)
    found = {gate: defaults[column] for gate, defaults in _DEFAULTS.items()}
    for gate, enabled in (gates or {}).items():
        if gate not in found or minor < _SINCE.get(gate, 0):
            raise SettingsError(f"Kubernetes {version} has no feature gate {gate!r}")
        found[gate] = enabled
    return Profile(minor, found)
