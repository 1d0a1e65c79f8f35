"""Parts of a pod that admins write as in Kubernetes' own API. The small ones are closed here, so that a
misspelt key is refused at once; the large ones are left to the API server."""

from __future__ import annotations

from tools.manifests.values.value import FREE_OBJECT, TEXT, Schema, closed, list_of, map_of, one_of

AFFINITY: Schema = closed(
    {
        "nodeAffinity": {**FREE_OBJECT, "description": "Which nodes, by their labels and names."},
        "podAffinity": {**FREE_OBJECT, "description": "Beside which pods."},
        "podAntiAffinity": {**FREE_OBJECT, "description": "Away from which pods."},
    }
)

TOLERATIONS: Schema = list_of(
    closed(
        {
            "key": TEXT,
            "operator": one_of("Exists", "Equal", "Lt", "Gt"),
            "value": TEXT,
            "effect": one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
            "tolerationSeconds": {"type": "integer"},
        }
    )
)

_QUANTITY: Schema = {
    "type": ["string", "number"],
    "pattern": r"^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$",
}

RESOURCES: Schema = closed(
    {
        "requests": {**map_of(_QUANTITY), "description": "What the scheduler sets aside on the node."},
        "limits": {**map_of(_QUANTITY), "description": "What the container may not exceed."},
    }
)

_SELECTOR: Schema = closed(
    {
        "matchLabels": map_of(TEXT),
        "matchExpressions": list_of(
            closed(
                {
                    "key": TEXT,
                    "operator": one_of("In", "NotIn", "Exists", "DoesNotExist"),
                    "values": list_of(TEXT),
                },
                required=("key", "operator"),
            )
        ),
    }
)

NETWORK_PEERS: Schema = list_of(
    closed(
        {
            "podSelector": _SELECTOR,
            "namespaceSelector": _SELECTOR,
            "ipBlock": closed({"cidr": TEXT, "except": list_of(TEXT)}, required=("cidr",)),
        }
    )
)
"""``from`` of a NetworkPolicy."""
