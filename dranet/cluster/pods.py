"""Facts from the status of a pod."""

from __future__ import annotations

from dranet.cluster.client import JsonObject


def is_ready(pod: JsonObject) -> bool:
    """Whether the kubelet reports the pod as ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
