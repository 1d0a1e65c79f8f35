"""All values in the order in which ``values.yaml`` has them, and those of DraNet's chart that are no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tools.manifests.values.cluster import CLASS_VALUES, MONITORING, POLICY_VALUES, RIGHTS
from tools.manifests.values.driver import ATTRIBUTES, EXTRA, IMAGE, NAMES, POOLS, PULL_SECRETS, SETTINGS
from tools.manifests.values.pod import PLACEMENT, SECURITY, UPDATES
from tools.manifests.values.settings import refused_settings
from tools.manifests.values.value import Value, walk

VALUES: tuple[Value, ...] = (
    IMAGE,
    PULL_SECRETS,
    SETTINGS,
    ATTRIBUTES,
    POOLS,
    *PLACEMENT,
    *UPDATES,
    *SECURITY,
    *RIGHTS,
    *POLICY_VALUES,
    *CLASS_VALUES,
    *MONITORING,
    *EXTRA,
    *NAMES,
)

FORMER: Mapping[str, str] = {
    "args.filter": "settings.filter (the same expressions work)",
    "args.dbPath": "settings.state_dir (a folder on the node's disk; it survives a reboot)",
    "args.inventoryMinPollInterval": "nothing: changes of the node trigger a scan at once",
    "args.inventoryMaxPollInterval": "settings.rescan_seconds",
    "args.inventoryPollBurst": "nothing: changes of the node trigger a scan at once",
    "args.moveIBInterfaces": "settings.move_ib_interfaces",
    "args.cloudProviderHint": "attributes (attributes of a cloud come from rules of your own)",
    "args.cloudProviderOptions": "attributes (attributes of a cloud come from rules of your own)",
    "args.uplinkInterfaces": "settings.filter (the node's uplink is never offered)",
    "args.profileProvider": "the parameters of DeviceClasses (deviceClasses)",
    "args.webhookURL": "the parameters of DeviceClasses, and DHCP for addresses",
    "args.featureGates": "settings.list_attributes",
    "kubeletRootDir": "settings.kubelet_root",
    "logVerbosity": "settings.log_level",
    "metricsPath": "nothing: the probes know their path",
    "metricsPort": 'settings.bind_address (":9177")',
}
"""Value of DraNet's chart -> what there is in its place here."""

_FOR_NOTHING = frozenset(
    {
        "nodeSelector",
        "tolerations",
        "priorityClassName",
        "resources",
        "securityContext.seLinuxType",
        "deviceClasses.rdma.parameters",
        "deviceClasses.rdmaOnly.parameters",
        "monitoring.dashboard.labels",
    }
)
"""Values with a default that an admin may take away by null."""

_READ_ALWAYS = ("settings", "attributes", "deviceClasses.extra", "admissionPolicies.")
"""Values that are empty by default, and that templates still want to be there."""


def needed_values() -> Sequence[str]:
    """Dotted paths that null must not take away."""
    return [
        path
        for path, value in walk(VALUES)
        if path not in _FOR_NOTHING
        and (value.is_object or value.default not in ("", None, [], {}) or path.startswith(_READ_ALWAYS))
    ]


def refused_values() -> Mapping[str, str]:
    """Dotted path -> why a template refuses it. The schema lets these through, so that the reader gets a
    sentence."""
    return {
        "args": "are those of DraNet's chart; here there is `settings` (docs/user/settings.md)",
        **{path: f"is a value of DraNet's chart; here it is {new}" for path, new in FORMER.items()},
        **{f"settings.{name}": f"is not to be set: {reason}" for name, reason in refused_settings().items()},
    }
