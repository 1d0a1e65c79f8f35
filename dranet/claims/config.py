"""Decode, merge and validate the opaque configs of a device into one NetworkConfig.

Authors of claims see mistakes only through a pod that does not start, so one message has every mistake of
every config, each with its field path.

Every config that applies counts: first those of the DeviceClass, then those of the claim; a later one wins,
field by field. Objects and maps merge, everything else (lists included) is replaced; ``null`` counts as
absent, and unknown fields are carried along for the decoder to refuse. Each field is validated in its own
config, conflicts between fields in the merged whole, and what the claim sets by the policy of the
DeviceClass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from msgspec import Struct

from dranet.claims.policy import ConfigProblem, decode
from dranet.claims.select import Selection
from dranet.errors import ClaimError, Reason
from dranet.model.claim import ConfigSource, OpaqueConfig
from dranet.model.device import DeviceKind
from dranet.model.parameters.decoder import Path
from dranet.model.parameters.interface import SUB_INTERFACE_TYPES, InterfaceConfig
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import Part, PartField, fields_of, join_path
from dranet.model.parameters.policy import Envelope, split_envelope

if TYPE_CHECKING:
    from dranet.claims.policy import ClassPolicy


_GPU = DeviceKind.GPU


class _Config(Struct, frozen=True):
    """One config, read."""

    name: str
    """As messages call it: ``config[0] (from DeviceClass fast).parameters``."""
    source: ConfigSource
    parameters: Mapping[str, object]
    problems: tuple[ConfigProblem, ...]
    """Problems that no other config can fix."""
    open: tuple[ConfigProblem, ...]
    """Problems that another config may fix."""
    policy: ClassPolicy | None

    def describe(self, problem: ConfigProblem) -> str:
        """Return the line of a message for one problem."""
        return f"{join_path(problem.path, self.name)}: {' '.join(problem.text.split())}"


def decode_configs(selections: Sequence[tuple[Selection, DeviceKind]]) -> tuple[NetworkConfig, ...]:
    """One config for each selected result of a claim, in order, with the problems of all in one error.

    Configs are checked for a GPU and not applied to it where they are meant for network devices: those of a
    DeviceClass, and those of a claim that also cover one of its network devices. Whether such a config names
    the GPU's request does not count, because the scheduler empties ``requests`` that are all of the claim's.

    Raises:
        ClaimError: InvalidConfig, with every problem of every config, each named once.
    """
    configs, problems = inspect_configs(selections)
    if problems:
        raise ClaimError("; ".join(problems), reason=Reason.INVALID_CONFIG)
    return configs


def inspect_configs(
    selections: Sequence[tuple[Selection, DeviceKind]],
) -> tuple[tuple[NetworkConfig, ...], list[str]]:
    """As :func:`decode_configs`, with the problems as lines; without any the configs count."""
    for_links = {i for selection, kind in selections if kind is not _GPU for i in _indexes(selection)}
    decoded = [_decode(selection, kind is _GPU, for_links) for selection, kind in selections]
    problems = dict.fromkeys(problem for _, problems in decoded for problem in problems)
    return tuple(config for config, _ in decoded), list(problems)


def _indexes(selection: Selection) -> Sequence[int]:
    return selection.config_indexes or range(len(selection.configs))


def _decode(
    selection: Selection, is_gpu: bool, for_links: Collection[int]
) -> tuple[NetworkConfig, list[str]]:
    """Return the merged config, which counts only without problems, and the problems. ``for_links`` are the
    indexes of configs that cover network devices."""
    numbered = zip(_indexes(selection), selection.configs, strict=True)
    by_index = {i: _read(i, config, selection.device_class) for i, config in numbered}
    read = [*by_index.values()]
    applied = [
        config
        for i, config in by_index.items()
        if not is_gpu or (config.source is ConfigSource.CLAIM and i not in for_links)
    ]
    applied.sort(key=lambda config: config.source is ConfigSource.CLAIM)
    effective, found = _judge(applied, selection.namespace)
    return effective, [*(config.describe(p) for config in read for p in config.problems), *found]


def _read(index: int, opaque: OpaqueConfig, device_class: str) -> _Config:
    is_claim = opaque.source is ConfigSource.CLAIM
    owner = f"DeviceClass {device_class}" if device_class else "the DeviceClass"
    fields, parameters = split_envelope(opaque.parameters)
    problems: list[ConfigProblem] = []
    if is_claim and fields.pop("policy", None) is not None:
        problems.append(
            ConfigProblem(("policy",), "must not be in a claim: only a DeviceClass may carry one")
        )
    envelope, found = decode(Envelope, fields)
    problems += found
    policy = None
    if envelope and envelope.policy:
        from dranet.claims.policy import compile_policy  # with the CEL engine, for classes that have one

        policy, found = compile_policy(owner, envelope.policy)
        problems += found
    _, own = decode(NetworkConfig, parameters)
    return _Config(
        name=f"config[{index}]{'' if is_claim else f' (from {owner})'}.parameters",
        source=opaque.source,
        parameters=parameters,
        problems=(*problems, *(problem for problem in own if not problem.of_whole)),
        open=tuple(problem for problem in own if problem.of_whole),
        policy=policy,
    )


def _judge(configs: Sequence[_Config], namespace: str) -> tuple[NetworkConfig, list[str]]:
    """The configs as one, and what only shows in the whole."""
    asked = [config for config in configs if config.source is ConfigSource.CLAIM]
    effective, found = decode(NetworkConfig, _merge(configs))
    problems = [problem for problem in found if problem.of_whole]
    if effective and effective.profile:
        problems.append(ConfigProblem(("profile",), "must not be set: no profile provider is configured"))
    policies = [config.policy for config in configs if config.policy]
    lines = [_place(problem, configs) for problem in problems]
    if policies:
        from dranet.claims.policy import find_breaches

        breaches = find_breaches(policies, _merge(asked), effective, namespace)
        lines += (_origin(breach.path, asked).describe(breach) for breach in breaches)
    return effective or NetworkConfig(), lines


def _merge(configs: Iterable[_Config]) -> dict[str, object]:
    return reduce(merge, (config.parameters for config in configs), {})


def _place(problem: ConfigProblem, configs: Sequence[_Config]) -> str:
    """Return the line for a problem of the whole: where it can be fixed, and whether it takes two configs."""
    origin = _origin(problem.path, configs)
    takes_two = problem.of_whole and problem not in origin.open
    return origin.describe(problem) + (" (all configs merged)" if takes_two else "")


def _origin(path: Path, configs: Sequence[_Config]) -> _Config:
    """The config from which the merged value comes, or the object that it is missing in."""
    return max(reversed(configs), key=lambda config: _depth(path, config.parameters))


def _depth(path: Path, value: object) -> int:
    """How many steps of the path there are."""
    for depth, step in enumerate(path):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            value = None
        if value is None:
            return depth
    return len(path)


Json = dict[str, object]


def merge(base: Mapping[str, object], over: Mapping[str, object], part: type[Part] = NetworkConfig) -> Json:
    """``over`` wins. No deeper than the fields of ``part`` go, whatever the nesting of the input."""
    merged = _outdate(base, over) if part is InterfaceConfig else dict(base)
    fields = fields_of(part)
    for name, value in over.items():
        field = fields.get(name)
        if field is None or (value is not None and not (_nests(field) and isinstance(value, Mapping))):
            merged[name] = value
        elif isinstance(value, Mapping):
            below = merged.get(name)
            merged[name] = _merge_below(below if isinstance(below, Mapping) else {}, value, field)
    return merged


def _nests(field: PartField) -> bool:
    return field.is_map or (field.part is not None and not field.is_list)


def _merge_below(base: Mapping[str, object], over: Mapping[str, object], field: PartField) -> Json:
    if field.part:
        return merge(base, over, field.part)
    return {**base, **{name: value for name, value in over.items() if value is not None}}


def _outdate(interface: Mapping[str, object], over: Mapping[str, object]) -> Json:
    """Drop the objects of other types than the one that ``over`` chooses."""
    chosen = over.get("type")
    outdated = [kind for kind in SUB_INTERFACE_TYPES if chosen is not None and kind != chosen]
    return {name: value for name, value in interface.items() if name not in outdated}
