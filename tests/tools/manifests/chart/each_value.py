"""Each value of the chart with another one than its default, and what has to be set beside it to count."""

from __future__ import annotations

from typing import Any

from tests.tools.manifests.chart.value_sets import CLIENT_CERTIFICATES, PODS
from tools.manifests.values import list_values, walk

JsonObject = dict[str, Any]

WEBHOOK: JsonObject = {"webhook_url": "https://provider.example", "profile_provider": "webhook"}
OTHER: JsonObject = {
    "image": {
        "registry": "r.example",
        "repository": "a/d",
        "tag": "9",
        "digest": "sha256:" + "b" * 64,
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "registry"}],
    "global": {"imageRegistry": "g.example", "imagePullSecrets": ["global"]},
    "settings": {"log_level": "debug", **WEBHOOK},
    "webhook": {"caSecretName": "mine", "clientSecretName": "mine"},
    "attributes": [{"set": {"rail": 7}}],
    "ipam": {"storage": {"cni": {"ipam": {"type": "host-local"}}}},
    "virtualFunctions": [{"count": 4}],
    "pools": [{"name": "gpu"}],
    "nodeSelector": {"example.com/nic": "yes"},
    "affinity": PODS["affinity"],
    "tolerations": [],
    "priorityClassName": "mine",
    "criticalPodsQuota": {"enabled": True, "pods": 7},
    "resources": {"limits": {"memory": "1Gi"}},
    "dnsPolicy": "ClusterFirst",
    "updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxSurge": 7, "maxUnavailable": 7}},
    "terminationGracePeriodSeconds": 77,
    **{
        f"{name}Probe": {
            "initialDelaySeconds": 7,
            "periodSeconds": 7,
            "timeoutSeconds": 7,
            "failureThreshold": 7,
        }
        for name in ("startup", "readiness", "liveness")
    },
    "securityContext": {
        "capabilities": ["NET_ADMIN"],
        "seccomp": {"type": "RuntimeDefault", "localhostProfile": "mine.json"},
        "appArmor": {"type": "RuntimeDefault", "localhostProfile": "mine"},
        "seLinuxType": "mine_t",
    },
    "mounts": {"cdiStatic": False, "podResources": False, "procSysNet": False, "procIrq": False},
    "serviceAccount": {"create": False, "name": "mine", "annotations": {"a": "b"}},
    "rbac": {
        "create": False,
        "extraRules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}],
        "viewer": {"create": False, "aggregateToView": True},
    },
    "admissionPolicies": {
        "slices": {"enabled": False, "validationActions": ["Audit"]},
        "claimStatus": {"enabled": False, "validationActions": ["Audit"]},
        "sliceOwners": {"enabled": True, "validationActions": ["Audit"], "admins": ["alice"]},
        "parameters": {"enabled": False, "validationActions": ["Audit"]},
        "tenants": {
            "enabled": True,
            "validationActions": ["Audit"],
            "namespaces": ["batch"],
            "fields": ["sysctls"],
        },
    },
    "deviceClasses": {
        "create": False,
        "prefix": "fast",
        "extra": [{"name": "mine"}],
        **{
            key: {
                "create": False,
                "name": "other",
                "extendedResourceName": "a/b",
                "parameters": {"interface": {"mtu": 1}},
            }
            for key in ("all", "nic", "rdma", "rdmaOnly", "gpu")
        },
    },
    "metrics": {
        "tls": {"secretName": "mine", "clientCASecretName": "mine"},
        "authentication": "client-certificate",
    },
    **{
        key: {
            "enabled": True,
            "additionalLabels": {"a": "b"},
            "interval": "7s",
            "scrapeTimeout": "7s",
            "tlsConfig": {"insecureSkipVerify": True},
            "authorization": {"type": "Bearer"},
            "metricRelabelings": [{"action": "drop"}],
        }
        for key in ("podMonitor", "serviceMonitor")
    },
    "prometheusRule": {
        "enabled": True,
        "additionalLabels": {"a": "b"},
        "runbookUrl": "https://wiki.example.com",
    },
    "dashboards": {
        "enabled": True,
        "labels": {"a": "b"},
        "annotations": {"a": "b"},
        "namespace": "grafana",
    },
    "topologyLabels": {
        "enabled": True,
        "holdSeconds": 7,
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "resources": {"limits": {"memory": "1Gi"}},
    },
    "networkPolicy": {"enabled": True, "metricsFrom": [{"podSelector": {}}]},
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "tests": {"enabled": False, "timeoutSeconds": 7},
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "{{ .Release.Name }}-more", "namespace": "{{ .Release.Namespace }}"},
        }
    ],
    "nameOverride": "mine",
    "fullnameOverride": "mine",
    "commonLabels": {"a": "b"},
    "namespace": {"create": True},
}
"""Another value for each, all in one."""

_ON: JsonObject = {"enabled": True}
BESIDE: dict[str, JsonObject] = {
    "criticalPodsQuota.pods": {"criticalPodsQuota": _ON},
    "updateStrategy.rollingUpdate.maxSurge": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}},
    "updateStrategy.rollingUpdate.maxUnavailable": {"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}},
    "securityContext.seccomp.localhostProfile": {"securityContext": {"seccomp": {"type": "Localhost"}}},
    "securityContext.appArmor.localhostProfile": {"securityContext": {"appArmor": {"type": "Localhost"}}},
    "serviceAccount.create": {"serviceAccount": {"name": "mine"}},
    "extraVolumeMounts": {"extraVolumes": OTHER["extraVolumes"]},
    "admissionPolicies.sliceOwners.validationActions": {"admissionPolicies": {"sliceOwners": _ON}},
    "admissionPolicies.sliceOwners.admins": {"admissionPolicies": {"sliceOwners": _ON}},
    **{
        f"admissionPolicies.tenants.{name}": {"admissionPolicies": {"tenants": _ON}}
        for name in ("validationActions", "namespaces", "fields")
    },
    "webhook.caSecretName": {"settings": WEBHOOK},
    "webhook.clientSecretName": {"settings": WEBHOOK},
    "metrics.tls.clientCASecretName": CLIENT_CERTIFICATES,
    "metrics.authentication": {"metrics": {"tls": {"secretName": "mine", "clientCASecretName": "mine"}}},
    **{
        f"{part}.{name}": {part: _ON}
        for part in ("podMonitor", "serviceMonitor", "prometheusRule", "dashboards", "topologyLabels")
        for name in OTHER[part]
        if name != "enabled"
    },
    "networkPolicy.metricsFrom": {"networkPolicy": _ON},
}
"""What has to be set as well, for a value to count."""
IN_NEED = {"metrics.authentication", "updateStrategy.rollingUpdate.maxUnavailable"} | {
    path for path in BESIDE if path.endswith("localhostProfile")
}
"""Without them, what stands beside them is refused: there is nothing to compare with but the defaults."""
LEAVES = [path for path, value in walk(list_values()) if not value.is_object]


def take(values: JsonObject, path: str) -> Any:
    value: Any = values
    for step in path.split("."):
        value = value[step]
    return value


def put(values: JsonObject, path: str, new: Any) -> JsonObject:
    step, _, rest = path.partition(".")
    return {**values, step: put(values.get(step, {}), rest, new) if rest else new}


def build_pair(path: str) -> tuple[JsonObject, JsonObject]:
    """Return values without and with the other one at ``path``."""
    beside = BESIDE.get(path, {})
    return {} if path in IN_NEED else beside, put(beside, path, take(OTHER, path))
