"""Kubernetes objects as the suite sends them: paths, and scenarios' objects made fit for a real cluster.

Pure. A scenario names images that a registry may not have, pods that ignore SIGTERM, and no namespace.
"""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import quote

JsonObject = dict[str, Any]

NAMESPACE = "dranet-e2e"
MARK = "dra.net/e2e"
"""Label on all that the suite makes outside its namespace; what has none is not the suite's to remove."""

_RBAC = "rbac.authorization.k8s.io/v1"
_ADMISSION = "admissionregistration.k8s.io/v1"
_ADMISSION_BETA = "admissionregistration.k8s.io/v1beta1"
_RESOURCE = "resource.k8s.io/v1"

_PLURALS = {
    ("v1", "ConfigMap"): ("configmaps", True),
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "Node"): ("nodes", False),
    ("v1", "Pod"): ("pods", True),
    ("v1", "ResourceQuota"): ("resourcequotas", True),
    ("v1", "ServiceAccount"): ("serviceaccounts", True),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
    (_RBAC, "ClusterRole"): ("clusterroles", False),
    (_RBAC, "ClusterRoleBinding"): ("clusterrolebindings", False),
    (_ADMISSION, "MutatingAdmissionPolicy"): ("mutatingadmissionpolicies", False),
    (_ADMISSION, "MutatingAdmissionPolicyBinding"): ("mutatingadmissionpolicybindings", False),
    (_ADMISSION_BETA, "MutatingAdmissionPolicy"): ("mutatingadmissionpolicies", False),
    (_ADMISSION_BETA, "MutatingAdmissionPolicyBinding"): ("mutatingadmissionpolicybindings", False),
    (_ADMISSION, "ValidatingAdmissionPolicy"): ("validatingadmissionpolicies", False),
    (_ADMISSION, "ValidatingAdmissionPolicyBinding"): ("validatingadmissionpolicybindings", False),
    (_RESOURCE, "DeviceClass"): ("deviceclasses", False),
    (_RESOURCE, "ResourceClaim"): ("resourceclaims", True),
    (_RESOURCE, "ResourceClaimTemplate"): ("resourceclaimtemplates", True),
}


def collection(api_version: str, kind: str, namespace: str = "") -> str:
    """The request path of all objects of a kind, in one namespace or in all of them."""
    plural, namespaced = _PLURALS[api_version, kind]
    root = "/apis/" if "/" in api_version else "/api/"
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespaced and namespace else ""
    return f"{root}{api_version}{inside}/{plural}"


def path_of(item: JsonObject) -> str:
    """The request path of one object."""
    metadata = item["metadata"]
    inside = collection(item["apiVersion"], item["kind"], metadata.get("namespace", ""))
    return f"{inside}/{quote(metadata['name'], safe='')}"


def is_namespaced(item: JsonObject) -> bool:
    return _PLURALS[item["apiVersion"], item["kind"]][1]


def on_node(name: str) -> JsonObject:
    """A pod's ``affinity`` to one node, by its name: the label with the host's name may be another."""
    here = {"key": "metadata.name", "operator": "In", "values": [name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def fit(item: JsonObject, image: str) -> JsonObject:
    """A scenario's object for a real cluster: in the suite's namespace, or marked; containers of ``image``,
    which is not pulled where it is there, and which end at once when asked to."""
    fitted = copy.deepcopy(item)
    metadata = fitted["metadata"]
    if is_namespaced(item):
        metadata["namespace"] = NAMESPACE
    else:
        metadata["labels"] = {**metadata.get("labels", {}), MARK: "true"}
    if item["kind"] == "Pod":
        fitted["spec"].setdefault("terminationGracePeriodSeconds", 1)
        for container in fitted["spec"]["containers"]:
            container |= {"image": image, "imagePullPolicy": "IfNotPresent"}
            container.setdefault("command", ["sleep", "infinity"])
    return fitted
