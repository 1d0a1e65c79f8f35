"""Opaque configs -> one NetworkConfig for each device: decoded strictly, merged, validated.

Whoever wrote the claim sees its mistakes only through a pod that does not start, so every mistake of every
config is in one message, each with its field path.

Merging goes field by field: the DeviceClass's configs first, then the claim's, and whatever comes later
wins. Lists replace, they do not append. Explicit values count (``0``, an empty list), ``null`` does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dranet.claims.select import Selection
from dranet.errors import ClaimError, Reason
from dranet.model.claim import ConfigSource, OpaqueConfig
from dranet.model.device import DeviceKind
from dranet.model.network import NOT_APPLIED, NetworkConfig, strip_version

_Located = tuple[str, OpaqueConfig]
"""A config with the path that messages call it by."""

_SHOWN_MAX = 80


def decode_config(
    configs: Sequence[OpaqueConfig],
    *,
    kind: DeviceKind = DeviceKind.NIC,
    indexes: Sequence[int] = (),
) -> NetworkConfig:
    """The configs that apply to one device, merged.

    Args:
        configs: as selected for the device, in the order of the claim.
        kind: for a GPU, a config without ``requests`` is checked and not applied: it is meant for the
            network devices of the claim.
        indexes: the place of each config in the claim, for messages; by default that in ``configs``.

    Raises:
        ClaimError: InvalidConfig, with every problem of every config.
    """
    config, problems = _decode(_number(configs, indexes), kind)
    _refuse(problems)
    return config


def decode_configs(selections: Sequence[tuple[Selection, DeviceKind]]) -> tuple[NetworkConfig, ...]:
    """One config for each selected result of a claim, in order, with the problems of all in one error.

    Raises:
        ClaimError: InvalidConfig, with every problem of every config, each named once.
    """
    decoded = [_decode(_number(s.configs, s.config_indexes), kind) for s, kind in selections]
    _refuse(problem for _, problems in decoded for problem in problems)
    return tuple(config for config, _ in decoded)


def _number(configs: Sequence[OpaqueConfig], indexes: Sequence[int]) -> list[_Located]:
    numbers = indexes or range(len(configs))
    return [(_path(index, config), config) for index, config in zip(numbers, configs, strict=True)]


def _path(index: int, config: OpaqueConfig) -> str:
    origin = " (from the DeviceClass)" if config.source is ConfigSource.CLASS else ""
    return f"config[{index}]{origin}.parameters"


def _decode(located: Sequence[_Located], kind: DeviceKind) -> tuple[NetworkConfig, list[str]]:
    """The merged config and the problems; a config with problems is left out of the merge."""
    problems: list[str] = []
    merged: dict[str, Any] = {}
    for path, config in sorted(located, key=lambda item: item[1].source is ConfigSource.CLAIM):
        parameters, found = _check(path, config.parameters)
        problems += found
        if not found and (config.requests or kind is not DeviceKind.GPU):
            merged = _merge(merged, parameters)
    decoded, found = _validate("merged parameters", merged)
    return decoded or NetworkConfig(), problems or found


def _check(path: str, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The parameters without their version, and what is wrong with them on their own."""
    try:
        bare = strip_version(parameters)
    except ValueError as error:
        return {}, [f"{path}: {error}"]
    return bare, _validate(path, bare)[1]


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def _validate(path: str, parameters: Mapping[str, Any]) -> tuple[NetworkConfig | None, list[str]]:
    known = NetworkConfig.model_fields
    given = {key: value for key, value in parameters.items() if value is not None or key not in known}
    try:
        return NetworkConfig.model_validate(given), []
    except ValidationError as error:
        return None, [_explain(path, item) for item in error.errors()]


def _explain(path: str, item: ErrorDetails) -> str:
    where = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
    return f"{where}: {_complaint(item)}"


def _complaint(item: ErrorDetails) -> str:
    match item["type"]:
        case "extra_forbidden" if ".".join(map(str, item["loc"])) in NOT_APPLIED:
            return "known to DraNet, not applied by this version; remove it"
        case "extra_forbidden":
            return "unknown field"
        case "missing":
            return "is required"
        case "greater_than_equal":
            text = f"must be at least {item['ctx']['ge']}"
        case "less_than_equal":
            text = f"must be at most {item['ctx']['le']}"
        case "model_type" | "model_attributes_type" | "dict_type":
            text = "must be an object"
        case "tuple_type":
            text = "must be a list"
        case _:
            text = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return text if isinstance(item["input"], Mapping) else f"{text}, not {_shown(item['input'])}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _refuse(problems: Iterable[str]) -> None:
    unique = list(dict.fromkeys(problems))
    if unique:
        raise ClaimError("; ".join(unique), reason=Reason.INVALID_CONFIG)
