"""The objects to apply: DeviceClasses, ResourceClaimTemplates and a pod to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dranet.templates import selectors
from dranet.templates.ask import Ask
from dranet.templates.hardware import Hardware
from dranet.templates.shapes import JsonObject, Shape

_API = "resource.k8s.io/v1"
_RDMA_CLASS, _NIC_CLASS, _GPU_CLASS = "dranet-rdma", "dranet-nic", "dranet-gpu"


def nic_class_name(ask: Ask, rdma: bool) -> str:
    return ask.nic_class or (_RDMA_CLASS if rdma else _NIC_CLASS)


def gpu_class_name(ask: Ask, hardware: Hardware) -> str:
    """What the user says; else ours for our own GPUs; else the driver's name, as vendors call their class."""
    return ask.gpu_class or (_GPU_CLASS if hardware.has_own_gpus else hardware.gpu_driver)


def build_classes(
    ask: Ask, hardware: Hardware, rdma: bool, known: Mapping[str, JsonObject]
) -> tuple[JsonObject, ...]:
    """The classes that the manifests bring with them. A vendor's is not written anew, and neither is one that
    the user named and the cluster has."""
    driver = hardware.nic_driver
    classes = [_nic_class(nic_class_name(ask, rdma), driver, rdma)]
    if ask.gpus and hardware.has_own_gpus:
        classes.append(_device_class(gpu_class_name(ask, hardware), selectors.own_gpu(driver)))
    named = {ask.nic_class, ask.gpu_class} - {""}
    return tuple(
        c for c in classes if not (c["metadata"]["name"] in named and c["metadata"]["name"] in known)
    )


def assumed_classes(ask: Ask, hardware: Hardware) -> dict[str, JsonObject]:
    """A vendor's class as it must be for the manifests to work, for a look without the cluster's own."""
    if not ask.gpus or hardware.has_own_gpus:
        return {}
    driver = hardware.gpu_driver
    kind = f'device.attributes["{driver}"].?type.orValue("gpu").contains("gpu")'
    name = gpu_class_name(ask, hardware)
    return {name: _device_class(name, f"{selectors.of_driver(driver)} && {kind}")}


def build_templates(ask: Ask, shape: Shape) -> tuple[JsonObject, ...]:
    """One for each claim of the pod."""
    names = _template_names(ask, shape)
    return tuple(
        _object(_API, "ResourceClaimTemplate", name, {"spec": spec}, ask.namespace)
        for name, spec in zip(names, shape.specs, strict=True)
    )


def build_pod(ask: Ask, shape: Shape) -> JsonObject:
    """The container names every claim: that is what holds it back until its NICs are there."""
    templates = _template_names(ask, shape)
    claims = ["devices"] if len(templates) == 1 else ["nics", "gpus"]
    spec = {
        "containers": [
            {
                "name": "main",
                "image": ask.image,
                "resources": {"claims": [{"name": name} for name in claims]},
            }
        ],
        "resourceClaims": [
            {"name": name, "resourceClaimTemplateName": template}
            for name, template in zip(claims, templates, strict=True)
        ],
    }
    return _object("v1", "Pod", ask.name or ask.default_name, spec, ask.namespace)


def _template_names(ask: Ask, shape: Shape) -> Sequence[str]:
    name = ask.name or ask.default_name
    return [name, f"{name}-gpus"] if shape.apart else [name]


def _nic_class(name: str, driver: str, rdma: bool) -> JsonObject:
    """RDMA pins what it sends and receives, and the limit of most runtimes is too small for that. The class
    raises it, so that no claim has to, and none for GPUs does."""
    if not rdma:
        return _device_class(name, selectors.nic_with_interface(driver))
    made = _device_class(name, selectors.rdma_nic(driver))
    parameters = {"rdma": {"memlock": "unlimited"}}
    made["spec"]["config"] = [{"opaque": {"driver": driver, "parameters": parameters}}]
    return made


def _device_class(name: str, expression: str) -> JsonObject:
    return _object(_API, "DeviceClass", name, {"selectors": [{"cel": {"expression": expression}}]})


def _object(version: str, kind: str, name: str, spec: JsonObject, namespace: str = "") -> JsonObject:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}, "spec": spec}
