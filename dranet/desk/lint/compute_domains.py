"""Claim templates that a ComputeDomain of NVIDIA's DRA driver stands for.

Source: kubernetes-sigs/dra-driver-nvidia-gpu, ``api/nvidia.com/resource/v1beta1/computedomain.go`` and
``cmd/compute-domain-controller/resourceclaimtemplate.go``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dranet.desk.kubeapi.objects import JsonObject

_CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"


def build_channel_templates(objects: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield the ResourceClaimTemplate that NVIDIA's controller makes of each ComputeDomain; other objects
    and those without the name of a template make none."""
    for body in objects:
        group = str(body.get("apiVersion")).partition("/")[0]
        name = _find(body, "spec", "channel", "resourceClaimTemplate", "name")
        if (group, body.get("kind")) == ("resource.nvidia.com", "ComputeDomain") and isinstance(name, str):
            yield _build_template(name, _find(body, "metadata", "namespace"))


def _find(body: Any, *path: str) -> Any:
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body


def _build_template(name: str, namespace: Any) -> JsonObject:
    request = {"name": "channel", "exactly": {"deviceClassName": _CHANNEL_CLASS}}
    where = {"namespace": namespace} if isinstance(namespace, str) else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, **where},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
