"""The fields of objects that the desk reads, with their types: the only description of them.

An API server refuses an object whose fields have other types, but a file has not passed one. So every object
is checked here (:func:`find_fault`) before anything else reads it. :mod:`dranet.desk.lint.fields` takes the
names of fields from the same description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ANY_KEY = "*"
FieldShape = Any
"""A type, a tuple of types, ``[shape]`` for a list, ``None`` for anything, or keys with their shapes.

A key that ends with ``!`` is required; ``*`` is any key.
"""

_REQUIREMENT = {"key!": str, "operator!": str, "values": [str]}
_SELECTOR = {
    "nodeSelectorTerms!": [{"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}],
}
_AMOUNT = (str, int, float)
_TAINT = {"key!": str, "effect!": str, "value": str, "timeAdded": str}
_ATTRIBUTE = {
    "int": int, "bool": bool, "string": str, "version": str,
    "ints": [int], "bools": [bool], "strings": [str], "versions": [str],
}  # fmt: skip
_RANGE = {"min": _AMOUNT, "max": _AMOUNT, "step": _AMOUNT}
_POLICY = {"default": _AMOUNT, "validValues": [_AMOUNT], "validRange": _RANGE}
_COUNTERS = {_ANY_KEY: {"value!": _AMOUNT}}
_DEVICE = {
    "name!": str,
    "attributes": {_ANY_KEY: _ATTRIBUTE},
    "capacity": {_ANY_KEY: {"value!": _AMOUNT, "requestPolicy": _POLICY}},
    "consumesCounters": [{"counterSet!": str, "counters": _COUNTERS}],
    "taints": [_TAINT],
    "allowMultipleAllocations": bool,
    "nodeName": str,
    "nodeSelector": _SELECTOR,
    "allNodes": bool,
    "bindsToNode": bool,
    "bindingConditions": [str],
    "bindingFailureConditions": [str],
}
_SLICE = {
    "driver!": str,
    "pool!": {"name!": str, "generation": int, "resourceSliceCount!": int},
    "nodeName": str,
    "nodeSelector": _SELECTOR,
    "allNodes": bool,
    "perDeviceNodeSelection": bool,
    "sharedCounters": [{"name!": str, "counters": _COUNTERS}],
    "devices": [_DEVICE],
}
_SELECTORS = [{"cel!": {"expression!": str}}]
_CONFIG = {"opaque": {"driver": str, "parameters": None}}
_CLASS = {"selectors": _SELECTORS, "config": [_CONFIG], "extendedResourceName": str}
_TOLERATION = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
ALTERNATIVE: Mapping[str, FieldShape] = {
    "deviceClassName!": str,
    "selectors": _SELECTORS,
    "allocationMode": str,
    "count": int,
    "tolerations": [_TOLERATION],
    "capacity": {"requests": {_ANY_KEY: _AMOUNT}},
    "derivedAttributes": None,
}
"""What a request and each of its prioritised alternatives ask for."""
_REQUEST = {
    "name!": str,
    "exactly": {**ALTERNATIVE, "adminAccess": bool},
    "firstAvailable": [{"name!": str, **ALTERNATIVE}],
}
_CONSTRAINT = {"requests": [str], "matchAttribute": str, "distinctAttribute": str}
_CLAIM_SPEC = {
    "devices": {
        "requests": [_REQUEST],
        "constraints": [_CONSTRAINT],
        "config": [{"requests": [str], **_CONFIG}],
    }
}
_RESULT = {
    "request!": str, "driver!": str, "pool!": str, "device!": str, "adminAccess": bool, "shareID": str,
    "consumedCapacity": {_ANY_KEY: _AMOUNT},
}  # fmt: skip
_CONDITIONS = [{"type!": str, "status!": str, "reason": str, "message": str, "lastTransitionTime": str}]
_CLAIM_STATUS = {
    "allocation": {
        "devices": {"results": [_RESULT], "config": [{"source": str, "requests": [str], **_CONFIG}]},
        "nodeSelector": _SELECTOR,
    },
    "reservedFor": [{"resource!": str, "name!": str, "uid": str}],
    "devices": [{"driver!": str, "pool!": str, "device!": str, "conditions": _CONDITIONS}],
}
_METADATA = {
    "name": str, "generateName": str, "namespace": str, "uid": str,
    "labels": {_ANY_KEY: str}, "annotations": {_ANY_KEY: str},
    "ownerReferences": [{"kind!": str, "name!": str, "uid": str}],
}  # fmt: skip
POD_CLAIM = {"name!": str, "resourceClaimName": str, "resourceClaimTemplateName": str}
CONTAINER_CLAIM = {"name!": str, "request": str}
_CONTAINER = {
    "name!": str,
    "resources": {
        "requests": {_ANY_KEY: _AMOUNT},
        "limits": {_ANY_KEY: _AMOUNT},
        "claims": [CONTAINER_CLAIM],
    },
}
_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _SELECTOR}}
_POD_SPEC = {
    "affinity": _AFFINITY,
    "tolerations": [_TOLERATION],
    "resourceClaims": [POD_CLAIM],
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "hostNetwork": bool,
    "nodeName": str,
    "nodeSelector": {_ANY_KEY: str},
    "schedulingGates": [{"name!": str}],
}
_CONTAINER_STATE = {"waiting": {"reason": str}, "terminated": {"reason": str}}
_CONTAINER_STATUSES = [{"state": _CONTAINER_STATE, "restartCount": int}]
_POD_STATUS = {
    "phase": str,
    "reason": str,
    "conditions": _CONDITIONS,
    "containerStatuses": _CONTAINER_STATUSES,
    "initContainerStatuses": _CONTAINER_STATUSES,
    "resourceClaimStatuses": [{"name!": str, "resourceClaimName": str}],
    "extendedResourceClaimStatus": {"resourceClaimName": str},
}
_NODE_SPEC = {"unschedulable": bool, "taints": [{"key!": str, "effect!": str, "value": str}]}
_TAINT_RULE = {
    "deviceSelector": {"driver": str, "pool": str, "device": str},
    "taint!": _TAINT,
}

SHAPES: Mapping[str, FieldShape] = {
    "ResourceSlice": {"spec!": _SLICE},
    "DeviceClass": {"spec": _CLASS},
    "ResourceClaim": {"spec!": _CLAIM_SPEC, "status": _CLAIM_STATUS},
    "ResourceClaimTemplate": {"spec!": {"metadata": _METADATA, "spec!": _CLAIM_SPEC}},
    "Pod": {"spec!": _POD_SPEC, "status": _POD_STATUS},
    "Node": {"spec": _NODE_SPEC, "status": {"conditions": _CONDITIONS}},
    "DeviceTaintRule": {"spec!": _TAINT_RULE},
}
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_MAX_SHOWN = 60


def without_nulls(value: Any) -> Any:
    """As the API server keeps it: a field that is null is absent. Parameters of drivers stay as they are.

    Raises:
        ValueError: invalid text: JSON can spell half a character.
    """
    if isinstance(value, str) and not value.isascii():
        value.encode()
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        without_nulls(key): item if key == "parameters" else without_nulls(item)
        for key, item in value.items()
        if item is not None
    }


def get_fields(shape: FieldShape) -> dict[str, FieldShape]:
    """The fields of a mapping's shape by name; none for another shape, or where every key is allowed."""
    if not isinstance(shape, Mapping) or _ANY_KEY in shape:
        return {}
    return {key.removesuffix("!"): inner for key, inner in shape.items()}


def find_fault(body: Mapping[str, Any]) -> str:
    """The first field of the object that has no shape for it, and why; empty if all fit."""
    return _fault({"metadata!": _METADATA, **SHAPES[body["kind"]]}, body, "")


def _fault(shape: FieldShape, value: Any, place: str) -> str:
    if shape is None:
        return ""
    if isinstance(shape, Mapping):
        return _fault_of_mapping(shape, value, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} must be a list"
        faults = (_fault(shape[0], item, f"{place}[{number}]") for number, item in enumerate(value))
        return next(filter(None, faults), "")
    types = shape if isinstance(shape, tuple) else (shape,)
    if isinstance(value, types) and not (isinstance(value, bool) and bool not in types):
        return ""
    return f"{place} must be {' or '.join(_NAMES[t] for t in types[:2])}, not {str(value)[:_MAX_SHOWN]!r}"


def _fault_of_mapping(shape: Mapping[str, FieldShape], value: Any, place: str) -> str:
    if not isinstance(value, dict):
        return f"{place} must be a mapping"
    for key, inner in shape.items():
        name = key.removesuffix("!")
        if key == _ANY_KEY:
            faults = (_fault(inner, item, f"{place}[{name}]") for name, item in value.items())
            fault = next(filter(None, faults), "")
        elif value.get(name) is None:
            fault = f"{_join(place, name)} is missing" if key.endswith("!") else ""
        else:
            fault = _fault(inner, value[name], _join(place, name))
        if fault:
            return fault
    return ""


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
