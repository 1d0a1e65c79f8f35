"""Values about what the driver has in the API server: rights, admission policies, DeviceClasses,
monitoring."""

from __future__ import annotations

from tools.manifests.chart_policies import POLICIES, ChartPolicy, ListOption
from tools.manifests.device_classes import CLASSES, DeviceClass
from tools.manifests.values.kubernetes import NETWORK_PEERS
from tools.manifests.values.value import (
    BOOLEAN,
    FREE_OBJECT,
    LABELS,
    SUBDOMAIN,
    TEXT,
    TEXTS,
    Schema,
    Value,
    closed,
    list_of,
    one_of,
)

RIGHTS = (
    Value(
        "serviceAccount",
        "Who the driver is to the API server.",
        section="What it may do in the API server",
        parts=(
            Value(
                "create",
                "false: it exists already, under the name below.",
                BOOLEAN,
                default=True,
            ),
            Value("name", "Empty is the name of the other objects.", SUBDOMAIN, ""),
            Value("annotations", "For a cloud's identities, for instance.", TEXTS, {}),
        ),
    ),
    Value(
        "rbac",
        "The ClusterRole and its binding. Each right with its reason: docs/user/permissions.md.",
        parts=(
            Value("create", "false: you grant the rights yourself.", BOOLEAN, default=True),
            Value(
                "extraRules",
                "Rules beside those that the driver needs.",
                list_of(
                    closed(
                        {
                            name: list_of(TEXT)
                            for name in (
                                "apiGroups",
                                "resources",
                                "resourceNames",
                                "verbs",
                                "nonResourceURLs",
                            )
                        },
                        required=("verbs",),
                    )
                ),
                [],
            ),
        ),
    ),
)

_ACTIONS: Schema = {
    "type": "array",
    "items": one_of("Deny", "Warn", "Audit"),
    "minItems": 1,
    "uniqueItems": True,
}


def _item_of(option: ListOption) -> Schema:
    return one_of(*option.choices) if option.choices else {"type": "string", "pattern": option.pattern}


def _policy_value(policy: ChartPolicy) -> Value:
    lists = (Value(one.name, one.about, list_of(_item_of(one)), list(one.default)) for one in policy.lists)
    return Value(
        policy.key,
        policy.about,
        is_inline=True,
        parts=(
            Value("enabled", "Make this policy.", BOOLEAN, policy.is_default),
            Value("validationActions", "What becomes of a request that breaks it.", _ACTIONS, ["Deny"]),
            *lists,
        ),
    )


POLICY_VALUES = (
    Value(
        "admissionPolicies",
        "ValidatingAdmissionPolicies (docs/user/admission.md). With validationActions [Warn, Audit] in "
        "place of [Deny] one sees what would be refused before anything is.",
        parts=tuple(map(_policy_value, POLICIES)),
    ),
)

_EXTENDED: Schema = {
    "type": "string",
    "pattern": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
    "maxLength": 253,
}
_EXTENDED_EXAMPLE = "dra.net/rdma-nic"


def _class_value(known: DeviceClass) -> Value:
    return Value(
        known.key,
        f"{known.about} Its name by default: {known.default_name}.",
        is_inline=True,
        parts=(
            Value("create", "Make this class.", BOOLEAN, known.is_default),
            Value("name", "Another name for it.", SUBDOMAIN, ""),
            Value(
                "extendedResourceName",
                "Name of an extended resource that stands for a device of the class.",
                _EXTENDED,
                "",
            ),
            Value(
                "parameters",
                "What the class says about its devices, as in a claim (docs/user/parameters.md), and as "
                "`policy` what claims may set (docs/user/claims.md).",
                FREE_OBJECT,
                dict(known.parameters),
            ),
        ),
    )


CLASS_VALUES = (
    Value(
        "deviceClasses",
        "What claims name. A class costs nothing; classes of your own may stand beside these. Of each:\n"
        "- create: make it. name: in place of the one by default.\n"
        "- extendedResourceName: pods get a device by `resources.limits`, without a claim, for instance "
        f"{_EXTENDED_EXAMPLE}. That is KEP-5004, feature gate DRAExtendedResource: off by default in "
        "Kubernetes 1.34 and 1.35, which then drop the field; on from 1.36.\n"
        "- parameters: what the class says about its devices, as in a claim (docs/user/parameters.md), and "
        "as `policy` what claims may set (docs/user/claims.md).",
        section="DeviceClasses",
        parts=(
            Value("create", "false: none of these.", BOOLEAN, default=True),
            Value(
                "prefix",
                "First part of their names. Empty: dranet; with another driver_name, that name.",
                SUBDOMAIN,
                "",
            ),
            *map(_class_value, CLASSES),
            Value(
                "extra",
                "Classes of your own, in the same release. `expression` is CEL over `device`; that the "
                "device is one of this driver is added.",
                list_of(
                    closed(
                        {
                            "name": {**SUBDOMAIN, "minLength": 1},
                            "expression": TEXT,
                            "extendedResourceName": _EXTENDED,
                            "parameters": FREE_OBJECT,
                        },
                        required=("name",),
                    )
                ),
                [],
                example='- name: rail0\n  expression: device.attributes["dra.net"].?rail.orValue(-1) == 0\n'
                "  parameters: {interface: {mtu: 9000}}",
            ),
        ),
    ),
)

_FOUND_BY = "Labels by which your Prometheus finds it, such as release: kube-prometheus-stack."
_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))?$"}

MONITORING = (
    Value(
        "metrics",
        "The port of metrics, probes and the node's page (settings.bind_address, 9177 on the node's "
        "addresses). Without TLS everybody who reaches the node reads it; the page is for the node itself.",
        section="Monitoring",
        parts=(
            Value(
                "tls",
                "With a certificate the port speaks HTTPS alone.",
                parts=(
                    Value(
                        "secretName",
                        "Secret of type kubernetes.io/tls in the namespace (tls.crt, tls.key), as "
                        "cert-manager makes it. A new certificate is taken without a restart.",
                        SUBDOMAIN,
                        "",
                    ),
                    Value(
                        "clientCASecretName",
                        "Secret with ca.crt: who signs the certificates that callers show. For "
                        "authentication client-certificate.",
                        SUBDOMAIN,
                        "",
                    ),
                ),
            ),
            Value(
                "authentication",
                "Who may read (docs/user/node-page.md). kubernetes: by bearer token, whose user needs the "
                "right to get the path; the ClusterRole then has the two rights by which the driver asks. "
                "client-certificate: by a certificate. Both need TLS. /healthz stays open, for the probes.",
                one_of("none", "kubernetes", "client-certificate"),
                "none",
            ),
        ),
    ),
    Value(
        "monitoring",
        "Objects for the Prometheus operator and Grafana. Their kinds must be known to the cluster. What "
        "the metrics mean: docs/user/metrics.md.",
        parts=(
            Value(
                "podMonitor",
                "Has Prometheus scrape each node's driver.",
                parts=(
                    Value(
                        "enabled",
                        "Needs the kind PodMonitor (monitoring.coreos.com/v1).",
                        BOOLEAN,
                        default=False,
                    ),
                    Value("labels", _FOUND_BY, LABELS, {}),
                    Value("interval", "Empty: Prometheus' own.", _DURATION, ""),
                    Value("scrapeTimeout", "Empty: Prometheus' own.", _DURATION, ""),
                    Value(
                        "tlsConfig",
                        "How Prometheus trusts the driver, as in a PodMonitor; with TLS on the metrics port.",
                        FREE_OBJECT,
                        {},
                    ),
                    Value(
                        "authorization",
                        "What Prometheus shows, as in a PodMonitor; with authentication on the metrics port.",
                        FREE_OBJECT,
                        {},
                    ),
                    Value(
                        "metricRelabelings",
                        "As in a PodMonitor, to leave out series.",
                        list_of(FREE_OBJECT),
                        [],
                    ),
                ),
            ),
            Value(
                "rules",
                "Recording and alert rules.",
                parts=(
                    Value("enabled", "Needs the kind PrometheusRule.", BOOLEAN, default=False),
                    Value("labels", _FOUND_BY, LABELS, {}),
                    Value(
                        "runbookUrl",
                        "Where your people read docs/user/alerts.md; each alert then links to its section.",
                        TEXT,
                        "",
                        example="https://wiki.example.com/dranet/alerts.html",
                    ),
                ),
            ),
            Value(
                "dashboard",
                "The Grafana dashboard in a ConfigMap, for Grafana's sidecar.",
                parts=(
                    Value("enabled", "Make the ConfigMap.", BOOLEAN, default=False),
                    Value("labels", "Labels that the sidecar looks for.", LABELS, {"grafana_dashboard": "1"}),
                    Value("annotations", "For instance grafana_folder.", TEXTS, {}),
                    Value("namespace", "Empty: the release's.", SUBDOMAIN, ""),
                ),
            ),
        ),
    ),
    Value(
        "networkPolicy",
        "A NetworkPolicy for the driver's pods. Know that most networks do not apply one to pods on the "
        "host's network, as these are: with them it states an intention and no more. What closes the port "
        "everywhere is settings.bind_address, TLS and authentication.",
        parts=(
            Value("enabled", "Make it.", BOOLEAN, default=False),
            Value(
                "metricsFrom",
                "Who may reach the metrics port, as `from` in a NetworkPolicy. Empty: everybody.",
                NETWORK_PEERS,
                [],
                example="- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}",
            ),
        ),
    ),
)
