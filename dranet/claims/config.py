"""From the configs of a claim to one NetworkConfig for each device, and to the pod that gets the devices.

Authors of claims see mistakes only through a pod that does not start, so one message has every mistake of
every config, each with its field path.

Every config that applies counts: first those of providers, then those of the DeviceClass, then those of the
claim; a later one wins, field by field. Objects and maps merge, everything else (lists included) is replaced;
``null`` counts as absent, and unknown fields are carried along for the decoder to refuse. To a list of a
provider the others add, as in DraNet; an empty one replaces it. Each field is validated in its own config,
conflicts between fields in the merged whole, and what the claim sets by the policy of the DeviceClass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from dranet.errors import ClaimError, Reason
from dranet.model.claim import AllocationResult, Claim, ConfigSource, Consumer, OpaqueConfig, PodRef
from dranet.model.device import DeviceKind
from dranet.model.parameters.interface import SUB_INTERFACE_TYPES, InterfaceConfig
from dranet.model.parameters.network import Envelope, NetworkConfig, NetworkPolicy, PolicyRule, split_envelope
from dranet.model.parameters.part import (
    DecodeFaultKind,
    Fault,
    Part,
    PartField,
    Path,
    ValidationError,
    fields_of,
    join_path,
    walk_values,
)

if TYPE_CHECKING:
    from dranet.cel import ValueExpression
    from dranet.model.provider import ProvidedConfig


class ClassPolicy(Struct, frozen=True):
    """The policy of one config of a DeviceClass, compiled."""

    owner: str
    """As messages call the class: ``DeviceClass fast``."""
    policy: NetworkPolicy
    conditions: tuple[tuple[PolicyRule, ValueExpression], ...] = ()


def compile_policy(owner: str, policy: NetworkPolicy) -> tuple[ClassPolicy, list[ConfigProblem]]:
    """The policy, and what is wrong with its expressions (also: there is no engine for them)."""
    from dranet.cel import CelError, ValueExpression  # loads CEL, which most classes do without

    conditions, problems = [], []
    for place, rule in enumerate(policy.rules):
        try:
            conditions.append((rule, ValueExpression(rule.expression)))
        except CelError as error:
            problems.append(
                ConfigProblem(("policy", "rules", place, "expression"), f"cannot be used: {error}")
            )
    return ClassPolicy(owner, policy, tuple(conditions)), problems


CLASS_ONLY = "interface.vf"
"""What a claim sets only where a class allows it by name."""


def find_breaches(
    policies: Sequence[ClassPolicy],
    asked: Mapping[str, object],
    effective: NetworkConfig | None,
    namespace: str,
) -> Iterator[ConfigProblem]:
    """What the claim sets and must not.

    Args:
        policies: those of the DeviceClass of the device.
        asked: what the claim's own configs set, merged.
        effective: these over those of the class, decoded; it has the claim's values in canonical form.
            Without it (something else is wrong) no value is looked at.
        namespace: the claim's.
    """
    paths = [path for path, _ in walk_values(NetworkConfig, asked)]
    yield from _find_class_fields(policies, paths)
    for policy in policies:
        yield from _find_closed_fields(policy, paths)
    if effective is not None and any(policy.conditions for policy in policies):
        values = _common(asked, effective.to_json(exclude_unset=True))
        for policy in policies:
            yield from _find_failures(policy, values, namespace)


def _find_class_fields(
    policies: Sequence[ClassPolicy], paths: Iterable[tuple[str, ...]]
) -> Iterator[ConfigProblem]:
    """What concerns the node and other tenants is a claim's only where the policy of a class allows it by
    name; a class without a policy allows everything else."""
    allowed = {outer for policy in policies for outer in policy.policy.allow or ()}
    named = {outer for outer in allowed if _covers(CLASS_ONLY, tuple(outer.split(".")))}
    for path in paths:
        if _covers(CLASS_ONLY, path) and not any(_covers(outer, path) for outer in named):
            yield ConfigProblem(
                path,
                f"must not be set by a claim: only a DeviceClass sets {CLASS_ONLY}, or allows it in "
                "policy.allow",
            )


def _find_closed_fields(policy: ClassPolicy, paths: Iterable[tuple[str, ...]]) -> Iterator[ConfigProblem]:
    allow, lock = policy.policy.allow, policy.policy.lock
    for path in paths:
        locked = next((outer for outer in lock if _covers(outer, path)), None)
        if locked is not None:
            yield ConfigProblem(path, f"must not be set by a claim: {policy.owner} locks {locked}")
        elif allow is not None and not any(_covers(outer, path) for outer in allow):
            allowed = ", ".join(allow) or "nothing"
            yield ConfigProblem(path, f"must not be set by a claim: {policy.owner} allows {allowed}")


def _covers(outer: str, path: tuple[str, ...]) -> bool:
    steps = tuple(outer.split("."))
    return path[: len(steps)] == steps


def _find_failures(
    policy: ClassPolicy, values: Mapping[str, object], namespace: str
) -> Iterator[ConfigProblem]:
    from dranet.cel import CelError

    for rule, expression in policy.conditions:
        path = tuple(rule.field.split("."))
        value = _value_at(values, path)
        if value is None:
            continue
        try:
            if not expression.holds(value, namespace):
                demand = rule.message or f"it must satisfy {rule.expression}"
                yield ConfigProblem(path, f"is refused by {policy.owner}: {demand}")
        except CelError as error:
            yield ConfigProblem(path, f"is refused: the rule of {policy.owner} cannot be judged: {error}")


def _value_at(values: Mapping[str, object], path: tuple[str, ...]) -> object:
    """``None`` where the claim sets nothing of it."""
    value: object = values
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if value == {} else value


def _common(asked: Mapping[str, object], canonical: Mapping[str, object]) -> dict[str, object]:
    """The part of ``canonical`` that ``asked`` names."""
    return {
        name: _common(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        for name, value in canonical.items()
        if (below := asked.get(name)) is not None
    }


_P = TypeVar("_P", bound=Part)

_SHOWN_MAX = 80
_SHOWN_NUMBER_MAX = 10**_SHOWN_MAX


class ConfigProblem(Struct, frozen=True):
    """One mistake. ``text`` completes "<field path>: ..."."""

    path: Path
    text: str
    of_whole: bool = False
    """Another config may fix it: a field that another one contradicts, or a missing one."""


def decode(part: type[_P], document: Mapping[str, object]) -> tuple[_P | None, list[ConfigProblem]]:
    try:
        return part.model_validate(document), []
    except ValidationError as error:
        return None, [_explain(part, fault) for fault in error.faults]


def _explain(part: type[Part], fault: Fault) -> ConfigProblem:
    match fault.kind:
        case DecodeFaultKind.VALUE:
            return ConfigProblem(fault.path, f"{fault.text}, not {_show(fault.value)}")
        case DecodeFaultKind.UNKNOWN_FIELD:
            return ConfigProblem(fault.path, f"{fault.text}{_suggest(part, fault.path)}")
        case DecodeFaultKind.MISSING | DecodeFaultKind.CONFLICT:
            return ConfigProblem(fault.path, fault.text, of_whole=True)


_NEAR_TO_MUCH = 3
"""Letters. ``ip`` is as near to ``ipv6`` as to ``ipam``, and means ``addresses``."""


def _suggest(part: type[Part], path: Path) -> str:
    """The field that an unknown one was perhaps meant to be."""
    from difflib import get_close_matches  # only who mistyped a name pays for it

    *outer, unknown = path
    if len(str(unknown)) < _NEAR_TO_MUCH:
        return ""
    for step in outer:
        field = fields_of(part).get(step) if isinstance(step, str) else None
        part = field.part if field and field.part else part
    known = {name.lower(): name for name in fields_of(part)}
    similar = get_close_matches(str(unknown)[:_SHOWN_MAX].lower(), known, n=1)
    return f"; did you mean {known[similar[0]]}?" if similar else ""


def _show(value: object) -> str:
    """A value as in JSON, short whatever it is."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() if abs(value) > _SHOWN_NUMBER_MAX:
            return "a very long number"
        case str() if len(value) > _SHOWN_MAX:
            return repr(value[:_SHOWN_MAX]) + "..."
        case int() | float() | str():
            return repr(value)
        case Mapping():
            return "an object"
        case _:
            return "a list"


class SelectedResult(Struct, frozen=True):
    """One of our results with the configs that apply to it, in the order of the claim."""

    result: AllocationResult
    configs: tuple[OpaqueConfig, ...] = ()
    config_indexes: tuple[int, ...] = ()
    """Index of each config in ``status.allocation.devices.config``, for error messages."""
    device_class: str = ""
    """The DeviceClass of the request; empty where the claim does not name it."""
    namespace: str = ""
    """The claim's namespace."""
    provided: tuple[ProvidedConfig, ...] = ()
    """Under all others, the lowest first."""


def select_results(claim: Claim, driver: str) -> tuple[SelectedResult, ...]:
    """Return the results of our driver in the order of the claim; empty when the claim has none.

    Unlike DraNet, every config that applies is kept, and one that names a request applies to whichever
    alternative of it was allocated (KEP-4816).
    """
    return tuple(_select(result, claim, driver) for result in claim.results if result.driver == driver)


def _select(result: AllocationResult, claim: Claim, driver: str) -> SelectedResult:
    chosen = [
        (index, config)
        for index, config in enumerate(claim.configs)
        if config.driver == driver
        and (not config.requests or not {result.request, result.main_request}.isdisjoint(config.requests))
    ]
    return SelectedResult(
        result,
        configs=tuple(config for _, config in chosen),
        config_indexes=tuple(index for index, _ in chosen),
        device_class=claim.request_classes.get(result.request, ""),
        namespace=claim.ref.namespace,
    )


_GPU = DeviceKind.GPU


class _Config(Struct, frozen=True):
    name: str
    """As messages call it: ``config[0] (from DeviceClass fast).parameters``."""
    source: ConfigSource | None
    """``None``: a provider."""
    parameters: Mapping[str, object]
    problems: tuple[ConfigProblem, ...]
    """Problems that no other config can fix."""
    open: tuple[ConfigProblem, ...]
    """Problems that another config may fix."""
    policy: ClassPolicy | None = None

    def describe(self, problem: ConfigProblem) -> str:
        return f"{join_path(problem.path, self.name)}: {' '.join(problem.text.split())}"


def decode_configs(
    selections: Sequence[tuple[SelectedResult, DeviceKind]], *, has_profiles: bool = True
) -> tuple[NetworkConfig, ...]:
    """One config for each selected result of a claim, in order, with the problems of all in one error.

    Configs are checked for a GPU and not applied to it where they are meant for network devices: those of a
    DeviceClass, and those of a claim that also cover one of its network devices. Whether such a config names
    the GPU's request does not count, because the scheduler empties ``requests`` that are all of the claim's.

    Args:
        selections: with the kind of each device.
        has_profiles: whether a provider can be asked for a profile.

    Raises:
        ClaimError: InvalidConfig, with every problem of every config, each named once.
    """
    configs, problems = inspect_configs(selections, has_profiles=has_profiles)
    if problems:
        raise ClaimError("; ".join(problems), reason=Reason.INVALID_CONFIG)
    return configs


def inspect_configs(
    selections: Sequence[tuple[SelectedResult, DeviceKind]], *, has_profiles: bool = True
) -> tuple[tuple[NetworkConfig, ...], list[str]]:
    """As :func:`decode_configs`, with the problems as lines; without any the configs count."""
    for_links = {i for selection, kind in selections if kind is not _GPU for i in _indexes(selection)}
    decoded = [_decode(selection, kind, for_links, has_profiles) for selection, kind in selections]
    problems = dict.fromkeys(problem for _, problems in decoded for problem in problems)
    return tuple(config for config, _ in decoded), list(problems)


def _indexes(selection: SelectedResult) -> Sequence[int]:
    return selection.config_indexes or range(len(selection.configs))


def _decode(
    selection: SelectedResult, kind: DeviceKind, for_links: Collection[int], has_profiles: bool
) -> tuple[NetworkConfig, list[str]]:
    """Return the merged config, which counts only without problems, and the problems. ``for_links`` are the
    indexes of configs that cover network devices."""
    numbered = zip(_indexes(selection), selection.configs, strict=True)
    by_index = {i: _read(i, config, selection.device_class) for i, config in numbered}
    provided = [] if kind is _GPU else [_read_provided(config) for config in selection.provided]
    read = [*provided, *by_index.values()]
    applied = [
        config
        for i, config in by_index.items()
        if kind is not _GPU or (config.source is ConfigSource.CLAIM and i not in for_links)
    ]
    applied.sort(key=lambda config: config.source is ConfigSource.CLAIM)
    effective, found = _judge([*provided, *applied], selection.namespace, has_profiles)
    return effective, [*(config.describe(p) for config in read for p in config.problems), *found]


def _read_provided(config: ProvidedConfig) -> _Config:
    _, own = decode(NetworkConfig, config.parameters)
    problems, open_ = _divide(own)
    return _Config(f"{config.owner}.config", None, config.parameters, problems, open_)


def _divide(problems: Sequence[ConfigProblem]) -> tuple[tuple[ConfigProblem, ...], ...]:
    """The problems that no other config can fix, and the others."""
    return (
        tuple(problem for problem in problems if not problem.of_whole),
        tuple(problem for problem in problems if problem.of_whole),
    )


def _read(index: int, opaque: OpaqueConfig, device_class: str) -> _Config:
    is_claim = opaque.source is ConfigSource.CLAIM
    owner = f"DeviceClass {device_class}" if device_class else "the DeviceClass"
    fields, parameters = split_envelope(opaque.parameters)
    problems: list[ConfigProblem] = []
    if is_claim and fields.pop("policy", None) is not None:
        text = "must not be in a claim: only a DeviceClass may carry one"
        problems.append(ConfigProblem(("policy",), text))
    envelope, found = decode(Envelope, fields)
    problems += found
    policy = None
    if envelope and envelope.policy:
        policy, found = compile_policy(owner, envelope.policy)
        problems += found
    _, found = decode(NetworkConfig, parameters)
    own, open_ = _divide(found)
    return _Config(
        name=f"config[{index}]{'' if is_claim else f' (from {owner})'}.parameters",
        source=opaque.source,
        parameters=parameters,
        problems=(*problems, *own),
        open=open_,
        policy=policy,
    )


def _judge(configs: Sequence[_Config], namespace: str, has_profiles: bool) -> tuple[NetworkConfig, list[str]]:
    """The configs as one, and what only shows in the whole."""
    asked = [config for config in configs if config.source is ConfigSource.CLAIM]
    effective, found = decode(NetworkConfig, _merge(configs))
    problems = [problem for problem in found if problem.of_whole]
    if effective and effective.profile and not has_profiles:
        problems.append(ConfigProblem(("profile",), "must not be set: no profile provider is configured"))
    policies = [config.policy for config in configs if config.policy]
    lines = [_place(problem, configs) for problem in problems]
    without = None
    if policies:
        without, _ = decode(NetworkConfig, _merge_plain(configs))  # the lists are the claim's own
    breaches = find_breaches(policies, _merge_plain(asked), without or effective, namespace)
    lines += (_origin(breach.path, asked).describe(breach) for breach in breaches)
    return effective or NetworkConfig(), lines


def _merge(configs: Sequence[_Config]) -> dict[str, object]:
    layers = [config.parameters for config in configs if config.source is None]
    own = _merge_plain(config for config in configs if config.source is not None)
    return reduce(merge_provided, [*layers, own], {})


def _merge_plain(configs: Iterable[_Config]) -> dict[str, object]:
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


def merge(
    base: Mapping[str, object],
    over: Mapping[str, object],
    part: type[Part] = NetworkConfig,
    *,
    add_lists: bool = False,
) -> dict[str, object]:
    """``over`` wins. No deeper than the fields of ``part`` go, whatever the nesting of the input.
    ``add_lists``: a list of ``over`` that is not empty adds to that of ``base``."""
    merged = dict(base)
    if part is InterfaceConfig and over.get("type") is not None:
        for kind in SUB_INTERFACE_TYPES:
            if kind != over["type"]:
                merged.pop(kind, None)
    for name, value in over.items():
        field = fields_of(part).get(name)
        nests = field is not None and (field.is_map or (field.part is not None and not field.is_list))
        below = merged.get(name)
        if add_lists and field and field.is_list and isinstance(below, list) and isinstance(value, list):
            merged[name] = _add(below, value, field)
        elif field is None or (value is not None and not (nests and isinstance(value, Mapping))):
            merged[name] = value
        elif isinstance(value, Mapping):
            base_below = below if isinstance(below, Mapping) else {}
            merged[name] = _merge_below(base_below, value, field, add_lists)
    return merged


def _merge_below(
    base: Mapping[str, object], over: Mapping[str, object], field: PartField, add_lists: bool
) -> dict[str, object]:
    if field.part:
        return merge(base, over, field.part, add_lists=add_lists)
    return {**base, **{name: value for name, value in over.items() if value is not None}}


def _add(base: list[object], over: list[object], field: PartField) -> list[object]:
    """Entries of ``over`` replace those of ``base`` that are about the same (:attr:`Part.identity`)."""
    if not over:
        return over
    replaced = {_identify(entry, field) for entry in over}
    return [*(entry for entry in base if _identify(entry, field) not in replaced), *over]


def _identify(entry: object, field: PartField) -> object:
    try:
        (item,) = field.decoder([entry])
    except ValidationError:
        return object()  # reported for the config that it is in
    return item.identity if isinstance(item, Part) else item


def merge_provided(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """As :func:`merge`, for the config of a provider and one above it."""
    return merge(base, over, add_lists=True)


_MAX_NAMED = 5
"""Pods named in a message; a claim may be reserved for 256."""


def choose_pod(claim: Claim, *, moves: bool) -> PodRef:
    """The pod that the claim's devices are for.

    Args:
        claim: with its pod groups replaced by their pods on this node (``cluster.pods.resolve_pod_groups``).
        moves: whether a device of the claim goes into the pod.

    Raises:
        ClaimError: UnsupportedClaim for a consumer that is no pod, and for several pods where a device moves;
            ClaimNotReserved when no pod has reserved the claim.
    """
    for consumer in claim.reserved_for:
        if not consumer.is_pod:
            kind = f"{consumer.resource}.{consumer.api_group}" if consumer.api_group else consumer.resource
            raise ClaimError(
                f"claim {claim.ref} is reserved for {kind} {consumer.name}",
                hint="only pods and pod groups can use a claim of this driver",
                reason=Reason.UNSUPPORTED_CLAIM,
            )
    pods = list({consumer.uid: consumer for consumer in claim.reserved_for}.values())
    if not pods:
        raise ClaimError(
            f"claim {claim.ref} is not reserved for any pod",
            hint="the scheduler reserves it; was the pod bound by hand?",
            reason=Reason.CLAIM_NOT_RESERVED,
            retryable=True,
        )
    if moves and len(pods) > 1:
        raise _too_many(claim, pods)
    return PodRef(namespace=claim.ref.namespace, name=pods[0].name, uid=pods[0].uid)


def _too_many(claim: Claim, pods: Sequence[Consumer]) -> ClaimError:
    names = ", ".join(pod.name for pod in pods[:_MAX_NAMED])
    more = f" and {len(pods) - _MAX_NAMED} more" if len(pods) > _MAX_NAMED else ""
    return ClaimError(
        f"claim {claim.ref} is used by {len(pods)} pods ({names}{more}), and a network device can be in one "
        "pod only",
        hint="use a ResourceClaimTemplate in the pod, so that each pod gets a claim of its own",
        reason=Reason.UNSUPPORTED_CLAIM,
        retryable=True,  # one of them may have ended, and its reservation not yet be gone
    )
