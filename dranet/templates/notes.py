"""What the manifests say of themselves: what was seen, what was chosen and why, what to expect, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dranet.model.distance import Distance
from dranet.templates.ask import count
from dranet.templates.choose import Attempt, Choice
from dranet.templates.hardware import NodeHardware
from dranet.templates.manifests import gpu_class_name
from dranet.templates.trial import Distances, Trial

_MAX_NAMES = 4


def describe(choice: Choice, *, with_tried: bool = False) -> tuple[str, ...]:
    """Paragraphs, each beginning with its subject."""
    paragraphs = [
        _title(choice),
        f"Seen: {'; '.join(_seen(choice))}.",
        f"Chosen: {choice.attempt.shape.title}. {' '.join(_why(choice))}".rstrip(),
        *_expect(choice),
    ]
    if with_tried:
        paragraphs += [f"Tried: {one}" for one in _tried(choice)]
    return tuple(paragraphs)


def _title(choice: Choice) -> str:
    ask, kind = choice.fitting.ask, "RDMA NIC" if choice.fitting.rdma else "NIC"
    if ask.per_node and not ask.rails:
        return f"All {'GPUs and ' if ask.gpus else ''}{kind}s of a node for each pod."
    gpus = f"{count(ask.gpus, 'GPU')} and " if ask.gpus else ""
    rails = ", each NIC the same rail in every pod" if ask.rails else ""
    return f"{gpus}{count(ask.nics, kind)} for each pod{rails}."


def _seen(choice: Choice) -> Iterator[str]:
    for node, names in choice.makes:
        yield f"{_names(names)}: {_offer(choice, node)}"
    others = [node.name for node in choice.fitting.others]
    if others:
        yield f"not enough on {_names(others)}"
    if choice.fitting.ask.gpus and choice.hardware.other_gpu_drivers:
        left_out = " and ".join(choice.hardware.other_gpu_drivers)
        yield f"GPUs of {left_out} left out, because a claim is for GPUs of one driver"
    if choice.fitting.needs_down:
        yield "too few of these NICs have a link now, so that those without one are used, too"


def _offer(choice: Choice, node: NodeHardware) -> str:
    kind = "RDMA NIC" if choice.fitting.rdma else "NIC"
    words = []
    if node.gpus:
        words.append(f"{count(len(node.gpus), 'GPU')} ({choice.hardware.gpu_driver})")
    known = next((n for n in choice.hardware.nodes if n.name == node.name), node)
    down = sum(not nic.is_up and nic.has_rdma >= choice.fitting.rdma for nic in known.nics)
    passed = f", {down} more without a link and passed over" if down and choice.fitting.only_up else ""
    words.append(f"{count(len(node.nics), kind)} ({choice.hardware.nic_driver}){passed}")
    return " and ".join(words)


def _why(choice: Choice) -> Iterator[str]:
    shape, ask = choice.attempt.shape, choice.fitting.ask
    if ask.gpus and not any(_meet_below_root(node) for node, _ in choice.makes):
        yield "No NIC here has a PCIe root in common with a GPU, so pcieRoot would match nothing."
    if len(shape.rungs) == 1:
        yield f"By {shape.rungs[0].attribute}. There are enough such pairs, so a pod waits for one rather"
        yield "than take a farther one."
    elif shape.rungs:
        yield "Each NIC has an alternative for each of these, and stands before its GPU: the scheduler tries"
        yield "every pair on one before it goes on to the next."
    elif ask.gpus and not ask.per_node and not shape.is_for_one_pod and len(choice.rungs) > 1:
        yield "The pod takes all GPUs of its node, so that only the NICs need choosing."
    if any(rung.groups for rung in shape.rungs):
        yield f"{choice.hardware.gpu_driver} does not publish what they have in common: its GPUs are grouped"
        yield "by PCI address instead. The constraints on the address, which no two devices share, keep a NIC"
        yield "from a GPU of another group."
    if shape.is_for_one_pod and not ask.rails:
        yield "No claim that leaves the choice to the scheduler is sure to get the nearest."
    if shape.is_for_one_pod:
        yield "A node can have one such pod."
    if ask.gpus and not choice.hardware.has_own_gpus:
        yield f"The DeviceClass {gpu_class_name(ask, choice.hardware)} is the one of the GPUs' driver."
    if shape.apart:
        yield "A claim has room for 32 devices, so there are two."


def _meet_below_root(node: NodeHardware) -> bool:
    roots = {gpu.pcie_root for gpu in node.gpus} - {""}
    return any(nic.pcie_root in roots for nic in node.nics)


def _expect(choice: Choice) -> Iterator[str]:
    if not choice.fitting.ask.gpus:
        places = (
            f"{count(len(t.pods), 'such pod')} on {_names(_alike(choice, t))}" for t in choice.attempt.trials
        )
        yield f"Expect: room for {'; '.join(places)}, if nothing else takes these devices."
        return
    for trial in choice.attempt.trials:
        if not trial.pods:
            yield f"Expect: none on {_names(_alike(choice, trial))}: {trial.refusal}."
            continue
        distances = _distances(trial, len(choice.makes))
        yield f"Expect: {distances} on {_names(_alike(choice, trial))}, where {_room(trial)}."
    if any(map(_may_be_nearer, choice.attempt.trials, (node for node, _ in choice.makes))):
        yield (
            "Not told: how far some NICs are from GPUs that are not their nearest. Such pairs count as PHB "
            "below one root complex, else as unknown, and may be nearer."
        )
    words = sorted({d for t in choice.attempt.trials for p in t.pods for d in p.distances if d is not None})
    if words:
        yield f"Distances: {'; '.join(f'{word.name} through {word.meaning}' for word in words)}."


def _may_be_nearer(trial: Trial, node: NodeHardware) -> bool:
    """Nothing is nearer than ``PIX``, which is always told."""
    levels = {level for pod in trial.pods for level in pod.distances}
    return levels != {Distance.PIX} and not node.is_measured


def _distances(trial: Trial, makes: int) -> str:
    first, last = trial.pods[0], trial.pods[-1]
    text = say(first.distances)
    if say(last.distances) != text:
        text += f" for the first pod, {say(last.distances)} for the last"
    if not first.is_best:
        one = "no claim" if makes == 1 else f"no claim for {makes} kinds of node (--node: for one)"
        text += f", and not {say(first.best)}, the best that the node has, which {one} can be sure to get"
    return text


def _room(trial: Trial) -> str:
    pods = count(len(trial.pods), "such pod")
    fit = "fits" if len(trial.pods) == 1 else "fit"
    short = [pod for pod in trial.pods if not pod.is_best]
    if trial.pods[0].is_best and short:
        return f"{pods} {fit}, of which {len(short)} may be farther than what was left would have allowed"
    if not short:
        return f"{pods} {fit}" + (
            "" if len(trial.pods) == 1 else ", each with the nearest that is left for it"
        )
    return f"{pods} {fit}"


def say(distances: Distances) -> str:
    """``PIX``, or ``PIX and 2 x NODE``."""
    if not distances:
        return "no distance"
    counts = Counter(distances)
    if len(counts) == 1:
        return _word(distances[0])
    return " and ".join(f"{number} x {_word(level)}" for level, number in counts.items())


def _word(level: Distance | None) -> str:
    return "an unknown distance" if level is None else level.name


def _alike(choice: Choice, trial: Trial) -> Sequence[str]:
    return next(names for node, names in choice.makes if node.name == trial.node)


def _tried(choice: Choice) -> Iterator[str]:
    for attempt in choice.tried:
        chosen = " (chosen)" if attempt is choice.attempt else ""
        yield f"{attempt.shape.title}{chosen}: {_verdict(attempt)}."


def _verdict(attempt: Attempt) -> str:
    if attempt.fault:
        return attempt.fault
    return "; ".join(f"{trial.node}: {_result(trial)}" for trial in attempt.trials)


def _result(trial: Trial) -> str:
    if not trial.pods:
        return trial.refusal
    good = sum(pod.is_best for pod in trial.pods)
    first = trial.pods[0]
    least = (
        ""
        if first.is_best
        else f", the first of them {say(first.distances)} where {say(first.best)} is possible"
    )
    return f"{len(trial.pods)} of {trial.possible} pods fit, {good} of them with the nearest possible{least}"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) <= _MAX_NAMES:
        return ", ".join(listed)
    return f"{', '.join(listed[: _MAX_NAMES - 1])} and {len(listed) - _MAX_NAMES + 1} more nodes like it"
