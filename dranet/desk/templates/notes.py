"""The comments above the manifests: what was seen, what was chosen and why, what to expect, and where."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from dranet.desk.hardware.nodes import NodeHardware, bandwidth_of
from dranet.desk.kubeapi.objects import MAX_RESULTS
from dranet.desk.templates.candidates import gpu_class_name, nic_class_name
from dranet.desk.templates.choose import Choice, ShapeAttempt
from dranet.desk.templates.plugin_notes import (
    describe_alternatives,
    describe_chance,
    describe_odds,
    describe_why,
    find_luck,
)
from dranet.desk.templates.request import listed
from dranet.desk.templates.shapes import shares_memory
from dranet.desk.templates.trial import Distances, Trial
from dranet.model.facts import Distance
from dranet.terminal import count_of, join_words

_MAX_NAMES = 4
_Line = TypeVar("_Line", bound=Hashable)


def describe(choice: Choice, *, with_tried: bool = False) -> tuple[str, ...]:
    """Paragraphs, each beginning with its subject."""
    paragraphs = [
        _title(choice),
        f"Seen: {'; '.join(_seen(choice))}.",
        f"Chosen: {choice.attempt.shape.title}. {' '.join(_why(choice))}".rstrip(),
        *_shared(choice),
        *_expect(choice),
        *_assumed(choice),
        *_assumed_classes(choice),
        *_mounted(choice),
    ]
    if with_tried:
        paragraphs += [f"Tried: {one}" for one in _tried(choice)]
    return tuple(paragraphs)


def _title(choice: Choice) -> str:
    request, kind = choice.candidates.request, "RDMA NIC" if choice.candidates.rdma else "NIC"
    if request.per_node and not request.rails:
        return f"All {'GPUs and ' if request.gpus else ''}{kind}s of a node for each pod."
    gpus = f"{request.gpu_title} and " if request.gpus else ""
    rails = ", each NIC the same rail in every pod" if request.rails else ""
    each = " of each NUMA node" if request.each_numa else ""
    if request.bandwidth:
        return f"{gpus}{request.nic_title} for each pod."
    return f"{gpus}{count_of(request.nics, kind)}{each} for each pod{rails}."


def _seen(choice: Choice) -> Iterator[str]:
    for offer, names in _together((_offer(choice, node), names) for node, names in choice.makes):
        yield f"{_names(names)}: {offer}"
    candidates, hardware = choice.candidates, choice.hardware
    others = [node.name for node in candidates.others]
    if others:
        yield f"not enough on {_names(others)}"
    if candidates.request.gpus and hardware.other_gpu_drivers:
        left_out = join_words(hardware.other_gpu_drivers)
        yield f"GPUs of {left_out} left out, because a claim is for GPUs of one driver"
    if hardware.other_nic_drivers:
        yield f"NICs of {join_words(hardware.other_nic_drivers)} left out: they are another driver's"
    if hardware.defects:
        yield f"not looked at, because {listed(hardware.defects)}"
    all_published = not candidates.request.per_node or hardware.gpu_driver or candidates.request.gpu_resource
    if not all_published and any(node.has_gpus_nearby for node in candidates.nodes):
        yield "their GPUs left out, because no DRA driver publishes them"
    if candidates.needs_down:
        yield "too few of these NICs have a link now, so that those without one are used as well"
    if candidates.several_fabrics:
        fabrics = " and ".join(candidates.several_fabrics)
        yield f"NICs of {fabrics} together, because there are too few of each"


def _offer(choice: Choice, node: NodeHardware) -> str:
    candidates = choice.candidates
    words = []
    if node.gpus:
        kind = f"{candidates.request.gpu_part} GPU part".lstrip() if candidates.request.gpu_part else "GPU"
        words.append(f"{count_of(len(node.gpus), kind)} ({_giver(choice, node)})")
    kind = " ".join(filter(None, (candidates.fabric, "RDMA NIC" if candidates.rdma else "NIC")))
    words.append(f"{count_of(len(node.nics), kind)} ({choice.hardware.nic_driver})")
    text = " and ".join(words)
    if off := candidates.off_fabric.get(node.name):
        text += f", {off} more of another fabric and left out"
    if down := candidates.without_link.get(node.name):
        text += f", {down} more without a link and passed over"
    if node.tainted:
        text += f", {count_of(len(node.tainted), 'device')} left out for now ({listed(node.tainted)})"
    return text


def _giver(choice: Choice, node: NodeHardware) -> str:
    """The driver, or the resource of a device plugin, with its number where that is another."""
    resource, number = choice.candidates.request.gpu_resource, node.allocatable_gpus
    if number == len(node.gpus):
        return resource or choice.hardware.gpu_driver
    return f"{resource}: {number}{', parts or shares of them' if number > len(node.gpus) else ' allocatable'}"


def _together(lines: Iterable[tuple[_Line, Sequence[str]]]) -> Iterator[tuple[_Line, list[str]]]:
    """Each line once, with the names of all nodes that it applies to."""
    found: dict[_Line, list[str]] = {}
    for published, names in lines:
        found.setdefault(published, []).extend(names)
    yield from found.items()


def _why(choice: Choice) -> Iterator[str]:
    shape, request = choice.attempt.shape, choice.candidates.request
    yield from describe_why(choice) if request.gpu_resource else _about_roots(choice)
    if len(shape.relations) == 1:
        yield f"By {shape.relations[0].attribute}."
        if not shape.is_for_one_pod:
            yield "There are enough such pairs, so a pod waits for one rather than take a farther one."
    elif shape.relations:
        yield "Each NIC has an alternative for each of these, and comes before its GPU: the scheduler tries"
        yield "every pair on one before it goes on to the next."
    elif request.gpus and not request.per_node and shape.takes_any and len(choice.relations) > 1:
        yield "The pod takes all GPUs of its node, so that only the NICs need choosing."
    yield from _about_choices(choice)
    if any(relation.groups for relation in shape.relations):
        attribute = shape.constraints[-1]["matchAttribute"].rpartition("/")[2]
        yield f"{choice.hardware.gpu_driver} does not publish what they have in common: its GPUs are grouped"
        yield f"by PCI address instead. The constraints on {attribute}, which no NIC has in common with a"
        yield "GPU, keep a NIC from a GPU of another group."
    if shape.is_for_one_pod and not request.rails:
        kinds = f" on {len(choice.makes)} kinds of node (--node: for one)" if len(choice.makes) > 1 else ""
        yield f"No claim that leaves the choice to the scheduler is sure to get the nearest{kinds}."
    if shape.is_for_one_pod:
        yield "A node can have one such pod."
    yield from _about_classes(choice)
    if shape.apart:
        yield f"It takes two claims, because a claim has at most {MAX_RESULTS} devices."


def _about_roots(choice: Choice) -> Iterator[str]:
    if any(relation.is_listed for relation in choice.attempt.shape.relations):
        yield "These NICs share no PCIe root with a GPU. Their pcieRoot is a list of their own root and those"
        yield "of the GPUs of their NUMA node, which Kubernetes 1.37 compares with DRAListTypeAttributes on."
    elif choice.candidates.request.gpus and not any(_meet_below_root(node) for node, _ in choice.makes):
        yield "No NIC here has a PCIe root in common with a GPU, so pcieRoot would match nothing."


def _about_choices(choice: Choice) -> Iterator[str]:
    if choice.attempt.shape.choices:
        yield f"{choice.hardware.gpu_driver} and these NICs have no attribute in common that could keep a NIC"
        yield "from a GPU of another group in one claim. So each group has a template, and pods of its own:"
        yield f"{'; '.join(_shares(choice))}."


def _shares(choice: Choice) -> Iterator[str]:
    """How many pods of each template a node has room for."""
    for trial in choice.attempt.trials:
        numbers = zip(choice.pods, trial.pods_of_choices, strict=True)
        words = ", ".join(f"{number} of {pod['metadata']['name']}" for pod, number in numbers)
        yield f"{words} on {_names(_alike(choice, trial))}"


def _about_classes(choice: Choice) -> Iterator[str]:
    request, known = choice.candidates.request, choice.known or {}
    gpu_class = gpu_class_name(request, choice.hardware) if request.gpus else ""
    used = [name for name in _class_names(choice) if name in known and name not in choice.assumed]
    if used:
        yield f"Used without a change, because the cluster has it: DeviceClass {' and '.join(used)}."
    if not gpu_class or gpu_class in known or choice.hardware.has_own_gpus:
        return
    yield f"The DeviceClass {gpu_class} is the one of the GPUs' driver."
    if choice.known is not None and not (choice.assumed and choice.known.keys() <= choice.assumed):
        yield "It is not among those that were read, and without it no pod starts: --gpu-class names another."


def _meet_below_root(node: NodeHardware) -> bool:
    roots = {gpu.pcie_root for gpu in node.gpus} - {""}
    return any(nic.pcie_root in roots for nic in node.nics)


def _shared(choice: Choice) -> Iterator[str]:
    """How many pods the bandwidth is enough for, and what the link of each lacks."""
    request = choice.candidates.request
    if not request.bandwidth:
        return
    pods = (
        f"{count_of(sum(bandwidth_of(nic.device) // request.bandwidth for nic in node.nics), 'such pod')} on "
        f"{_names(names)}"
        for node, names in choice.makes
    )
    yield f"Bandwidth: enough for {'; '.join(pods)}, if nothing else takes it."
    yield (
        "The link: a macvlan, unless the class sets another interface.type. It has no address of the NIC: "
        "add interface.addresses, interface.ipam or interface.dhcp. The limit does not hold for RDMA."
    )


def _expect(choice: Choice) -> Iterator[str]:
    if not choice.candidates.request.gpus and not choice.candidates.request.bandwidth:
        places = (
            f"{count_of(len(t.pods), 'such pod')} on {_names(_alike(choice, t))}"
            for t in choice.attempt.trials
        )
        yield f"Expect: room for {'; '.join(places)}, if nothing else takes these devices."
    if not choice.candidates.request.gpus:
        return
    published = ((_expected(choice, trial), _alike(choice, trial)) for trial in choice.attempt.trials)
    for (what, where), names in _together(published):
        yield f"Expect: {what} on {_names(names)}{where}."
    lucks = [luck for trial in choice.attempt.trials if (luck := find_luck(choice, trial))]
    for odds in dict.fromkeys(lucks):
        if odds.chance != 1:
            yield describe_odds(choice, odds)
    if any(luck.chance != 1 for luck in lucks):
        yield from describe_alternatives(choice)
    if any(map(_may_be_nearer, choice.attempt.trials, (node for node, _ in choice.makes))):
        yield (
            "Not published: how far some NICs are from GPUs that are not their nearest. Such pairs count as "
            "PHB below one root complex, else as unknown, and may be nearer."
        )
    certain = {d for t in choice.attempt.trials for p in t.pods for d in p.distances}
    words = sorted(d for d in certain.union(*(luck.by_worst for luck in lucks)) if d is not None)
    if words:
        yield f"Distances: {'; '.join(f'{word.name} through {word.meaning}' for word in words)}."


def _assumed(choice: Choice) -> Iterator[str]:
    found = ((node.assumption, names) for node, names in choice.makes if choice.candidates.request.gpus)
    for assumption, names in _together((one, names) for one, names in found if one is not None):
        nodes: dict[int, list[str]] = defaultdict(list)
        for address, node in sorted(assumption.numa_nodes.items()):
            nodes[node].append(address)
        places = "; ".join(f"{' '.join(gpus)} on NUMA node {node}" for node, gpus in sorted(nodes.items()))
        yield (
            f"Assumed on {_names(names)}: {places}. No attribute has these places. The addresses are those "
            f"of {assumption.platform.name}, by {assumption.platform.source}. The driver of this project "
            "publishes the places that the kernel reports, and then nothing is assumed."
        )


def _assumed_classes(choice: Choice) -> Iterator[str]:
    used = [name for name in _class_names(choice) if name in choice.assumed]
    if used:
        kind, them = ("DeviceClass", "it") if len(used) == 1 else ("DeviceClasses", "them")
        yield (
            f"Assumed: the cluster has the {kind} {' and '.join(used)}, as the driver's chart installs "
            f"{them}. Classes that you give with -f FILE are used instead."
        )


def _class_names(choice: Choice) -> list[str]:
    """The DeviceClass of the NICs, and that of the GPUs."""
    request = choice.candidates.request
    names = [nic_class_name(request, choice.candidates.rdma)]
    return [*names, gpu_class_name(request, choice.hardware)] if request.gpus else names


def _mounted(choice: Choice) -> Iterator[str]:
    if shares_memory(choice.candidates.request):
        yield (
            "Mounted: memory at /dev/shm, of which a container has 64 MB, and NCCL and data loaders of "
            "several GPUs share more. It counts as the container's."
        )


def _expected(choice: Choice, trial: Trial) -> tuple[str, str]:
    """The text before and after the names of the nodes."""
    if not trial.pods:
        return "none", f": {trial.refusal}"
    if luck := find_luck(choice, trial):
        pods = count_of(len(trial.pods), "such pod")
        return describe_chance(luck, format_distances(luck.best)), f", where {pods} {_fit(trial)}"
    where = "" if choice.candidates.request.bandwidth else f", where {_room(trial)}"
    return _distances(trial, len(choice.makes)), where


def _may_be_nearer(trial: Trial, node: NodeHardware) -> bool:
    """Nothing is nearer than ``PIX``, which is always published."""
    levels = {level for pod in trial.pods for level in pod.distances}
    return levels != {Distance.PIX} and not node.is_measured


def _distances(trial: Trial, makes: int) -> str:
    first, last = trial.pods[0], trial.pods[-1]
    text = format_distances(first.distances)
    if format_distances(last.distances) != text:
        text += f" for the first pod, {format_distances(last.distances)} for the last"
    if not first.is_best:
        one = "no claim" if makes == 1 else f"no claim for {makes} kinds of node (--node: for one)"
        best = format_distances(first.best)
        text += f", and not {best}, the best that the node has, which {one} can be sure to get"
    return text


def _room(trial: Trial) -> str:
    pods = count_of(len(trial.pods), "such pod")
    fit = _fit(trial)
    short = [pod for pod in trial.pods if not pod.is_best]
    if trial.pods[0].is_best and short:
        return f"{pods} {fit}, of which {len(short)} may be farther than what was left would have allowed"
    if not short:
        return f"{pods} {fit}" + (
            "" if len(trial.pods) == 1 else ", each with the nearest that is left for it"
        )
    return f"{pods} {fit}"


def _fit(trial: Trial) -> str:
    return "fits" if len(trial.pods) == 1 else "fit"


def format_distances(distances: Distances) -> str:
    """``PIX``, or ``5 x PIX, 1 x NODE and 2 x SYS``."""
    if not distances:
        return "no distance"
    counts = Counter(distances)
    if len(counts) == 1:
        return _word(distances[0])
    return join_words([f"{number} x {_word(level)}" for level, number in counts.items()])


def _word(level: Distance | None) -> str:
    return "an unknown distance" if level is None else level.name


def _alike(choice: Choice, trial: Trial) -> Sequence[str]:
    return next(names for node, names in choice.makes if node.name == trial.node)


def _tried(choice: Choice) -> Iterator[str]:
    for attempt in choice.tried:
        chosen = " (chosen)" if attempt is choice.attempt else ""
        yield f"{attempt.shape.title}{chosen}: {_describe_attempt(attempt)}."


def _describe_attempt(attempt: ShapeAttempt) -> str:
    if attempt.fault:
        return attempt.fault
    return "; ".join(f"{trial.node}: {_result(trial)}" for trial in attempt.trials)


def _result(trial: Trial) -> str:
    if not trial.pods:
        return trial.refusal
    good = sum(pod.is_best for pod in trial.pods)
    first, least = trial.pods[0], ""
    if not first.is_best:
        best = format_distances(first.best)
        least = f", the first of them {format_distances(first.distances)} where {best} is possible"
    return f"{len(trial.pods)} of {trial.possible} pods fit, {good} of them with the nearest possible{least}"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) <= _MAX_NAMES:
        return ", ".join(listed)
    return f"{', '.join(listed[: _MAX_NAMES - 1])} and {len(listed) - _MAX_NAMES + 1} more nodes like it"
