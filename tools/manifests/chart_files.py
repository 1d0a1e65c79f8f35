"""The files in ``charts/dranet/files`` that templates read: DeviceClasses, admission policies, rights and the
pod's properties, as the code declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dranet.cluster.permissions import AUTHENTICATION_PERMISSIONS, build_rules
from dranet.desk.templates import selectors
from dranet.desk.templates.chart_classes import CHART_CLASSES, DEFAULT_DRIVER, PREFIX, ChartClass
from dranet.security import context as security
from dranet.security.context import HostMount
from dranet.security.seccomp import SECCOMP_NAME
from dranet.settings import DECLARATIONS
from tools.manifests import admission, pod_security, tenant_policy
from tools.manifests.admission import Driver
from tools.manifests.chart_settings import BIND_ADDRESS
from tools.manifests.parameters_policy import build_parameters_policy
from tools.manifests.tenant_policy import build_tenant_policy
from tools.manifests.values import build_schema, mount_key, needed_values, plain, refused_values

DRIVER, NAMESPACE, ACCOUNT = "{driver_name}", "{namespace}", "{service_account}"
ADMINS, FIELDS, NAMESPACES = "{admins}", "{fields}", "{namespaces}"
"""Placeholders that a template replaces by names; those of the second line by lists."""


class ChartPolicy(Struct, frozen=True):
    """A policy with its binding. ``key`` is its name among the chart's values, ``name`` that of the objects.

    The release's name replaces ``dranet-`` in ``name``.
    """

    key: str
    name: str
    build: Callable[[], list[JsonObject]]


def _guard(name: str) -> Callable[[], list[JsonObject]]:
    return lambda: [
        document
        for document in admission.build_policies(DRIVER, NAMESPACE, ACCOUNT)
        if document["metadata"]["name"] == name
    ]


POLICIES = (
    ChartPolicy("slices", admission.SLICES, _guard(admission.SLICES)),
    ChartPolicy("claimStatus", admission.CLAIM_STATUS, _guard(admission.CLAIM_STATUS)),
    ChartPolicy(
        "sliceOwners",
        admission.SLICE_OWNERS,
        lambda: admission.build_slice_owners(Driver(DRIVER, NAMESPACE, ACCOUNT), [ADMINS]),
    ),
    ChartPolicy("parameters", "dranet-parameters", lambda: build_parameters_policy(DRIVER)),
    ChartPolicy(
        "tenants",
        tenant_policy.NAME,
        lambda: build_tenant_policy(DRIVER, fields=("", FIELDS), namespaces=("", NAMESPACES)),
    ),
)
"""Whether a policy is on by default, and what may be chosen of it, is in ``values.yaml``."""


def build_policy_files() -> Mapping[str, JsonObject]:
    """Return the content of each policy file, by file name."""
    return {f"admission-{policy.key}.yaml": {"objects": policy.build()} for policy in POLICIES}


JsonObject = dict[str, Any]

READY_FILE = "/run/dranet-pod/ready"

_WATCHED = (
    "driver_name",
    "kubelet_root",
    "state_dir",
    "cdi_dir",
    "nri_socket",
    "bind_address",
    "drain_seconds",
    "node_page",
    "cni_bin_dirs",
    "lldpd_file",
)
"""Settings on which the pod specification or the notes of the chart depend."""


def build_chart_files() -> Mapping[str, Any]:
    """Return the content of each file below ``files``, by file name."""
    return {
        "driver.yaml": _build_driver(),
        "rbac-rules.yaml": build_rules(DRIVER),
        "rbac-authentication-rules.yaml": build_rules(DRIVER, AUTHENTICATION_PERMISSIONS),
        "device-classes.yaml": _build_classes(),
        "refused-values.yaml": {"values": dict(refused_values()), "needed": list(needed_values())},
        "values.schema.json": build_schema(),
        **build_policy_files(),
    }


def _build_driver() -> JsonObject:
    """Return the pod's mounts and rights, and the settings that depend on them."""
    return {
        "defaults": {name: plain(DECLARATIONS[name].default) for name in _WATCHED},
        "bindAddress": BIND_ADDRESS,
        "chartSettings": {"procfs_root": security.HOST_PROC, "ready_file": READY_FILE},
        "pod": pod_security.build_pod_security(),
        "securityContext": pod_security.build_security_context(),
        "initSecurityContext": pod_security.build_init_context(),
        "seccompProfile": SECCOMP_NAME,
        "mounts": [_build_mount(mount) for mount in security.MOUNTS],
        "ipamMounts": [_build_mount(mount) for mount in security.IPAM_MOUNTS],
        "seccompMount": _build_mount(pod_security.SECCOMP_MOUNT),
    }


def _build_mount(mount: HostMount) -> JsonObject:
    options: JsonObject = {"readOnly": True} if mount.read_only else {}
    if mount.propagation != "None":
        options["mountPropagation"] = mount.propagation
    return {
        "name": mount.name,
        "path": mount.path,
        "hostPath": mount.host_path,
        "type": mount.kind,
        "options": options,
        **({"key": mount_key(mount)} if mount.feature else {}),
    }


def _build_classes() -> JsonObject:
    """Their help, and the parameters that they have by default, are in ``values.yaml``."""
    classes = [
        {"key": one.key, "suffix": one.suffix, "expression": _without_driver(one)} for one in CHART_CLASSES
    ]
    return {"driver": DEFAULT_DRIVER, "prefix": PREFIX, "classes": classes}


def _without_driver(one: ChartClass) -> str:
    """Remove the condition on the driver's name, which the chart adds because the name is a value."""
    condition = selectors.of_driver(DEFAULT_DRIVER)
    return one.select(DEFAULT_DRIVER).removeprefix(condition).removeprefix(" && ")
