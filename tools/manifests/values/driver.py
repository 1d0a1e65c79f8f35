"""Values about the driver itself: its image, its settings, the pools of nodes that have settings of their
own."""

from __future__ import annotations

from tools.manifests.values.kubernetes import AFFINITY, RESOURCES, TOLERATIONS
from tools.manifests.values.settings import ATTRIBUTES_SCHEMA, SETTINGS_REF
from tools.manifests.values.value import (
    LABELS,
    NAME,
    TEXT,
    TEXTS,
    Schema,
    Value,
    closed,
    list_of,
    one_of,
)

IMAGE = Value(
    "image",
    "The driver's image. One image serves all nodes, amd64 and arm64.",
    section="What runs",
    parts=(
        Value(
            "repository",
            "Registry and name, without a tag. With a registry of your own: registry.example.com/dranet.",
            {"type": "string", "minLength": 1, "pattern": "^[!-~]+$"},
            "dranet",
        ),
        Value(
            "tag",
            "Empty is the chart's appVersion. For another version take its chart, too: rights, mounts and "
            "the seccomp profile belong to one version.",
            {"type": "string", "pattern": r"^[A-Za-z0-9_.-]*$", "maxLength": 128},
            "",
        ),
        Value(
            "digest",
            "The image by content; wins over the tag. For clusters that admit nothing else.",
            {"type": "string", "pattern": r"^(sha256:[0-9a-f]{64})?$"},
            "",
        ),
        Value(
            "pullPolicy",
            "When the kubelet asks the registry.",
            one_of("Always", "IfNotPresent", "Never"),
            "IfNotPresent",
        ),
    ),
)

PULL_SECRETS = Value(
    "imagePullSecrets",
    "Secrets of the namespace with the registry's credentials.",
    list_of(closed({"name": {**NAME, "maxLength": 253}}, required=("name",))),
    [],
    example="- name: registry-credentials",
)

SETTINGS = Value(
    "settings",
    "The driver's settings, by the names of docs/user/settings.md. They become the file "
    "/etc/dranet/settings.yaml; a change restarts the driver node by node, and running pods keep their "
    "NICs. Paths named here (kubelet_root, state_dir, ...) are mounted accordingly. What the chart sees to "
    "by itself (node_name, pod_uid, node_addresses, ready_file, ...) is refused.",
    SETTINGS_REF,
    {},
    section="The driver's settings",
)

ATTRIBUTES = Value(
    "attributes",
    "Attributes of your own for devices chosen by CEL (docs/user/inventory.md): a rack, a rail, a fabric. "
    "Read again within some two minutes of a change, without a restart.",
    ATTRIBUTES_SCHEMA,
    [],
    example='- match: device.attributes["dra.net"].ifName == "eth2"\n  set: {example.com/rail: 2}',
)

_POOL: dict[str, Schema] = {
    "name": {
        "type": "string",
        "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "maxLength": 20,
        "description": "Short name; it becomes part of the DaemonSet's.",
    },
    "nodeSelector": {**LABELS, "description": "Labels of the pool's nodes, beside the common nodeSelector."},
    "affinity": {**AFFINITY, "description": "In place of the common affinity."},
    "tolerations": {**TOLERATIONS, "description": "In place of the common tolerations."},
    "settings": {**SETTINGS_REF, "description": "Settings over the common ones, key by key."},
    "attributes": {**ATTRIBUTES_SCHEMA, "description": "Rules after the common ones."},
    "resources": {**RESOURCES, "description": "In place of the common resources."},
    "podLabels": {**LABELS, "description": "Labels beside the common podLabels."},
    "podAnnotations": {**TEXTS, "description": "Annotations beside the common podAnnotations."},
}

POOLS = Value(
    "pools",
    "Pools of nodes with settings of their own: a DaemonSet and a ConfigMap for each, and then none for "
    "other nodes. Two pools must not meet on one node, where they would take each other for an update: give "
    "them the same label with different values, or an affinity each. driver_name is one for all.",
    list_of(closed(_POOL, required=("name",))),
    [],
    example="- name: gpu\n"
    "  nodeSelector: {example.com/pool: gpu}\n"
    "  settings: {health_taints: NoExecute}\n"
    "- name: storage\n  nodeSelector: {example.com/pool: storage}\n  settings: {publish_gpus: never}",
)

NAMES = (
    Value(
        "nameOverride",
        "In place of the chart's name in the names of objects, and in the labels that select pods: not to be "
        "changed while the release is installed.",
        {**NAME, "maxLength": 40},
        "",
        section="Names",
    ),
    Value(
        "fullnameOverride",
        "The name of the objects; empty is the release's name, with the chart's name behind it if it is not "
        "in it.",
        {**NAME, "maxLength": 40},
        "",
    ),
    Value("commonLabels", "Labels for every object.", LABELS, {}),
    Value(
        "namespace",
        "The namespace itself; `helm install --create-namespace` makes a plain one.",
        parts=(
            Value(
                "create",
                "Make the namespace a part of the release, with the labels by which Pod Security admits "
                "pods with the host's network and folders: for `helm template`, and for Helm 4 together with "
                "--create-namespace (Helm 3 cannot make what exists). `helm uninstall` then deletes it with "
                "all that is in it.",
                {"type": "boolean"},
                default=False,
            ),
        ),
    ),
)

EXTRA = (
    Value("podAnnotations", "Annotations of the pods.", TEXTS, {}, section="More for the pods"),
    Value("podLabels", "Labels of the pods.", LABELS, {}),
    Value(
        "extraEnv",
        "Environment of the driver's container. For a cluster whose node network does not reach the Service "
        "addresses (no kube-proxy), say here where the API server is.",
        list_of(
            closed(
                {
                    "name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                    "value": TEXT,
                    "valueFrom": {"type": "object"},
                },
                required=("name",),
            )
        ),
        [],
        example="- {name: KUBERNETES_SERVICE_HOST, value: 10.0.0.1}",
    ),
    Value(
        "extraVolumes",
        "Volumes beside those of the chart, as in a pod.",
        list_of({"type": "object", "required": ["name"]}),
        [],
    ),
    Value(
        "extraVolumeMounts",
        "Mounts beside those of the chart, as in a container.",
        list_of({"type": "object", "required": ["name", "mountPath"]}),
        [],
    ),
)
