"""Comments above the manifests where a device plugin gives the GPUs: the odds, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.desk.hardware.nodes import NodeHardware
from dranet.desk.templates.choose import Choice
from dranet.desk.templates.odds import Odds, format_shares
from dranet.desk.templates.plugin_gpus import find_odds, find_publisher, odds_on_each_numa_node
from dranet.desk.templates.trial import Distances, Trial, best_distances
from dranet.model.facts import Distance
from dranet.terminal import count_of


def find_luck(choice: Choice, trial: Trial) -> Odds | None:
    """The odds of this node; ``None`` where it is no matter of luck, or not known."""
    if not choice.candidates.request.gpu_resource or not trial.pods or trial.pods[0].gpus:
        return None
    node = next(node for node, _ in choice.makes if node.name == trial.node)
    return find_odds(choice.attempt.shape, trial.pods[0], node, choice.candidates.request.gpus)


def describe_why(choice: Choice) -> Iterator[str]:
    request = choice.candidates.request
    if all(trial.pods[0].gpus for trial in choice.attempt.trials):
        yield "The pod takes all GPUs of its node, so that only the NICs need choosing."
        return
    if driver := find_publisher(choice.makes[0][0]):
        yield f"{driver} publishes these GPUs, but by {request.gpu_resource} a pod gets any: the claim that"
        yield "the scheduler makes for it has no constraint with this one."
    else:
        yield f"The scheduler chooses the NICs, and then the kubelet the GPUs of {request.gpu_resource}:"
        yield "neither knows of the other's choice, and Topology Manager does not know of claims."
    if request.each_numa:
        yield "NICs on other NUMA nodes than the GPUs' are spares, whose TopologyAligned is False."


def describe_odds(choice: Choice, odds: Odds) -> str:
    """A paragraph."""
    shape = choice.attempt.shape
    number = shape.each_numa or len(odds.best)
    nics = "the NIC" if number == 1 else f"the farthest of {number} NICs"
    if shape.each_numa:
        nics = "the nearest NIC" if number == 1 else f"the farthest of the {number} nearest NICs"
    return f"Odds: {nics} is {odds}, if every combination of GPUs and NICs is as likely as any other."


def describe_alternatives(choice: Choice) -> Iterator[str]:
    """A paragraph, for the first node."""
    node, _ = choice.makes[0]
    request = choice.candidates.request
    ways = [*_by_whole_nodes(node, request.gpus)]
    if not choice.attempt.shape.each_numa:
        ways += _by_each_numa_node(node, request.gpus, request.nics)
    ways.append(_by_one_claim(node, request.gpus, request.nics))
    yield f"Instead: {'; '.join(ways)}."


def _by_whole_nodes(node: NodeHardware, gpus: int) -> Iterator[str]:
    every = len(node.gpus)
    nics = min(every, len(node.nics))
    if gpus != every and node.has_all(every):
        best = _farthest(best_distances(node.nics, node.gpus, every, nics))
        yield f"all GPUs of a node (--gpus {every} --nics {nics}): {best} for sure"


def _by_each_numa_node(node: NodeHardware, gpus: int, nics: int) -> Iterator[str]:
    odds = odds_on_each_numa_node(node, gpus, nics)
    if odds is not None:
        worst = list(odds.by_worst)[-1]
        yield f"{count_of(nics, 'NIC')} of each NUMA node (--each-numa): {_word(worst)} or nearer for sure"


def _by_one_claim(node: NodeHardware, gpus: int, nics: int) -> str:
    best = _farthest(best_distances(node.nics, node.gpus, gpus, nics))
    if find_publisher(node):
        way = "one claim for both (without --gpu-resource)"
    else:
        way = "a DRA driver for the GPUs instead of the device plugin"
    return f"{way}: {best} while such pairs are left"


def describe_chance(odds: Odds, best: str) -> str:
    return best if odds.chance == 1 else f"{best} with probability {format_shares([odds.chance])[0]}"


def _farthest(distances: Distances) -> str:
    return _word(distances[-1])


def _word(level: Distance | None) -> str:
    return "an unknown distance" if level is None else level.name
