"""Values as administrators write them."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]

MORE = """\
apiVersion: v1
kind: Secret
metadata:
  name: {{ .Release.Name }}-more
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "dranet.labels" . | nindent 4 }}
"""
"""An object of the administrator's own, with templates in it."""

KIND: JsonObject = {
    "image": {"repository": "localhost/dranet", "tag": "dev", "pullPolicy": "Never"},
    "settings": {"offer_link_kinds": ["dummy", "veth"], "log_level": "debug"},
    "resources": {},
}
GKE: JsonObject = {
    "criticalPodsQuota": {"enabled": True, "pods": 4000},
    "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-b200"},
    "settings": {"publish_gpus": "never"},
}
TOPOLOGY_LABELS: JsonObject = {"topologyLabels": {"enabled": True}}
AIR_GAPPED: JsonObject = {
    "image": {"repository": "registry.example.com/mirror/dranet", "digest": "sha256:" + "a" * 64},
    "imagePullSecrets": [{"name": "mirror"}],
}
POOLS: JsonObject = {
    "settings": {"drain_seconds": 20},
    "attributes": [{"set": {"example.com/site": "a"}}],
    "pools": [
        {
            "name": "gpu",
            "nodeSelector": {"example.com/pool": "gpu"},
            "settings": {"health_taints": "NoExecute", "drain_seconds": 60.5, "device_metadata": False},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
        {
            "name": "storage",
            "nodeSelector": {"example.com/pool": "storage"},
            "settings": {"publish_gpus": "never"},
            "attributes": [
                {"match": 'device.attributes["dra.net"].ifName == "eth2"', "set": {"rail": 1000000}}
            ],
            "resources": {"limits": {"memory": "1Gi"}},
            "podLabels": {"team": "storage"},
        },
    ],
}
OTHER_NAME: JsonObject = {"settings": {"driver_name": "nic.example.com"}, "fullnameOverride": "nics"}
OTHER_PLACES: JsonObject = {
    "settings": {
        "kubelet_root": "/var/lib/k0s/kubelet",
        "state_dir": "/srv/dranet",
        "cdi_dir": "/etc/cdi",
        "nri_socket": "/run/k3s/nri/nri.sock",
        "bind_address": "127.0.0.1:9999",
    }
}
MONITORED: JsonObject = {
    "podMonitor": {"enabled": True, "interval": "15s", "additionalLabels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True, "namespace": "monitoring"},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ],
    },
}
TLS: JsonObject = {
    "metrics": {"tls": {"secretName": "dranet-tls"}, "authentication": "kubernetes"},
    "settings": {"node_page": "all"},
    "podMonitor": {"enabled": True, "tlsConfig": {"insecureSkipVerify": True}},
}
CLIENT_CERTIFICATES: JsonObject = {
    "metrics": {
        "tls": {"secretName": "dranet-tls", "clientCASecretName": "scrapers"},
        "authentication": "client-certificate",
    }
}
EVERYTHING_OFF: JsonObject = {
    "admissionPolicies": {
        key: {"enabled": False} for key in ("slices", "claimStatus", "sliceOwners", "parameters", "tenants")
    },
    "serviceAccount": {"create": False, "name": "mine"},
    "rbac": {"create": False, "viewer": {"create": False}},
    "tests": {"enabled": False},
    "deviceClasses": {"create": False},
    "mounts": {"cdiStatic": False, "podResources": False, "procIrq": False},
    "priorityClassName": "",
    "tolerations": [],
    "nodeSelector": {"kubernetes.io/os": None},
    "resources": None,
    "securityContext": {"seccomp": {"type": "RuntimeDefault"}, "seLinuxType": ""},
}
OWN_CLASSES: JsonObject = {
    "deviceClasses": {
        "prefix": "fast",
        "nic": {"create": False},
        "all": {"name": "dra.net"},
        "rdma": {"extendedResourceName": "example.com/rdma-nic", "parameters": {"interface": {"mtu": 9000}}},
        "extra": [
            {"name": "rail0", "expression": 'device.attributes["dra.net"].?rail.orValue(-1) == 0 || false'},
            {"name": "bare"},
        ],
    }
}
OWN_PROFILES: JsonObject = {
    "securityContext": {
        "seccomp": {"type": "Localhost", "localhostProfile": "mine.json"},
        "appArmor": {"type": "Localhost", "localhostProfile": "dranet"},
    }
}
PODS: JsonObject = {
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"team": "net"},
    "commonLabels": {"example.com/owner": "net"},
    "extraEnv": [{"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "nic", "operator": "Exists"}]}]
            }
        }
    },
    "updateStrategy": {"rollingUpdate": {"maxSurge": "10%"}},
    "terminationGracePeriodSeconds": 90,
    "namespace": {"create": True},
    "rbac": {"extraRules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]},
    "serviceAccount": {"annotations": {"example.com/identity": "x"}},
    "livenessProbe": {"failureThreshold": 3},
    "extraObjects": [MORE],
}
SERVICE_MONITORED: JsonObject = {
    "serviceMonitor": {"enabled": True, "scrapeTimeout": "5s", "additionalLabels": {"release": "prometheus"}}
}
UMBRELLA: JsonObject = {
    "global": {"imageRegistry": "registry.example.com", "imagePullSecrets": ["mirror"], "storageClass": "x"},
    "imagePullSecrets": ["mirror", {"name": "more"}],
    "image": {"registry": "unused.example.com"},
    "rbac": {"viewer": {"aggregateToView": True}},
}
CAMEL_CASE: JsonObject = {
    "settings": {"logLevel": "debug", "driverName": "nic.example.com", "bindAddress": ":9999"},
    "pools": [{"name": "gpu", "settings": {"log_level": "error", "healthTaints": "NoExecute"}}],
}

VALUE_SETS: dict[str, JsonObject] = {
    "defaults": {},
    "kind": KIND,
    "gke": GKE,
    "air-gapped": AIR_GAPPED,
    "two pools": POOLS,
    "another name": OTHER_NAME,
    "other places": OTHER_PLACES,
    "monitored": MONITORED,
    "monitored pools": {**POOLS, **MONITORED},
    "service monitored": SERVICE_MONITORED,
    "service monitored pools": {**POOLS, **SERVICE_MONITORED},
    "tls": TLS,
    "umbrella": UMBRELLA,
    "camel case": CAMEL_CASE,
    "client certificates": CLIENT_CERTIFICATES,
    "all policies": {
        "admissionPolicies": {
            "sliceOwners": {"enabled": True, "admins": ["alice", "system:admin"]},
            "parameters": {"validationActions": ["Warn", "Audit"]},
            "tenants": {"enabled": True, "namespaces": ["batch"], "fields": ["sysctls", "routes.default"]},
        }
    },
    "everything off": EVERYTHING_OFF,
    "own classes": OWN_CLASSES,
    "own profiles": OWN_PROFILES,
    "pods": PODS,
    "no surge": {"updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}},
    "topology labels": TOPOLOGY_LABELS,
    "by hand": {"updateStrategy": {"type": "OnDelete"}},
    "unconfined": {"securityContext": {"seccomp": {"type": "Unconfined"}}},
}
