"""The objects to apply beside the DeviceClasses: ResourceClaimTemplates and a pod to start from."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.desk.templates.ask import Ask
from dranet.desk.templates.shapes import JsonObject, Shape


def build_templates(ask: Ask, shape: Shape) -> tuple[JsonObject, ...]:
    """One for each claim of the pod."""
    names = _template_names(ask, shape)
    return tuple(
        _object("resource.k8s.io/v1", "ResourceClaimTemplate", name, {"spec": spec}, ask.namespace)
        for name, spec in zip(names, shape.specs, strict=True)
    )


def build_pod(ask: Ask, shape: Shape) -> JsonObject:
    """The container names every claim: that is what holds it back until its NICs are there."""
    templates = _template_names(ask, shape)
    claims = ["devices"] if len(templates) == 1 else ["nics", "gpus"]
    container: JsonObject = {
        "name": "main",
        "image": ask.image,
        "resources": {"claims": [{"name": name} for name in claims]},
    }
    spec: JsonObject = {
        "containers": [container],
        "resourceClaims": [
            {"name": name, "resourceClaimTemplateName": template}
            for name, template in zip(claims, templates, strict=True)
        ],
    }
    if shares_memory(ask):
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 -- the pod's
        spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return _object("v1", "Pod", ask.name or ask.default_name, spec, ask.namespace)


def shares_memory(ask: Ask) -> bool:
    """Processes of several GPUs share memory (NCCL's buffers, batches of data loaders) through ``/dev/shm``,
    of which a container has 64 MB."""
    return ask.gpus > 1


def _template_names(ask: Ask, shape: Shape) -> Sequence[str]:
    name = ask.name or ask.default_name
    return [name, f"{name}-gpus"] if shape.apart else [name]


def _object(version: str, kind: str, name: str, spec: JsonObject, namespace: str) -> JsonObject:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}, "spec": spec}
