"""Shapes that name devices by PCI address: rails, which are the same NIC everywhere, and the last resort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dranet.desk.templates import selectors
from dranet.desk.templates.ask import MAX_RESULTS, Ask
from dranet.desk.templates.fitting import CannotBeHad
from dranet.desk.templates.hardware import NodeHardware, Spot
from dranet.desk.templates.rungs import ANY, Rung, gpu_address_attribute
from dranet.desk.templates.shapes import Parts, Shape, name_interfaces, paired, pinned, together
from dranet.desk.templates.trial import find_best
from dranet.model.pairing import level


def pinned_shapes(parts: Parts, ask: Ask, nodes: Sequence[NodeHardware]) -> Iterator[Shape]:
    """The best devices of the first node by their addresses, where every node has these."""
    attribute = gpu_address_attribute(nodes)
    if not attribute:
        return
    nics, gpus = _best_devices(nodes[0], ask)
    if _have_all(nodes, nics, gpus):
        yield pinned(parts, _pins(nics, attribute), _pins(gpus, attribute))


def rail_shapes(
    parts: Parts, ask: Ask, driver: str, nodes: Sequence[NodeHardware], ladders: Sequence[Sequence[Rung]]
) -> Iterator[Shape]:
    """NICs by name, in the order of their GPUs, so that each pod has the same rail in the same place.

    Args:
        parts: classes and selectors.
        ask: what is wanted, in numbers.
        driver: whose configs name the interfaces.
        nodes: one of each make.
        ladders: how a NIC may find its GPU, where the pod does not take all of them.
    """
    attribute = gpu_address_attribute([replace(node, gpus=()) for node in nodes])
    everywhere = set[str].intersection(*map(_addresses, nodes))
    nics, gpus = _best_devices(nodes[0].with_nics(lambda nic: nic.address in everywhere), ask)
    if not attribute or len(nics) < ask.nics:
        lacking = min(nodes, key=lambda node: len(_addresses(node) & _addresses(nodes[0])))
        raise CannotBeHad(
            "rails need the same NICs at the same PCI addresses on every node, and "
            f"{nodes[0].name} and {lacking.name} differ",
            hint=f"write one claim for each kind of node: --node {nodes[0].name}",
        )
    pins = _pins(nics, attribute)
    names = [f"rail-{number}" for number in range(len(pins))]
    configs = name_interfaces(driver, names) if all(nic.ifname for nic in nics) else ()
    whole = all(len(node.gpus) == ask.gpus for node in nodes)
    for ladder in [(ANY,)] if whole or not ask.gpus else ladders:
        if tuple(ladder) == (ANY,):
            shape = _plain_rails(parts, ask, pins)
        else:
            shape = paired(parts, ask.gpus, ask.nics, ladder, in_bundles=False, pins=pins)
        yield replace(shape, configs=configs, is_for_one_pod=True)
    if ladders and not whole and gpu_address_attribute(nodes) and _have_all(nodes, (), gpus):
        yield replace(pinned(parts, pins, _pins(gpus, gpu_address_attribute(nodes)), "rail"), configs=configs)


def _plain_rails(parts: Parts, ask: Ask, pins: Sequence[str]) -> Shape:
    """No GPU to choose: all of the node's, or none."""
    rails = paired(replace(parts, gpu_class=""), len(pins), len(pins), (ANY,), in_bundles=False, pins=pins)
    nics = tuple(request for request in rails.requests if request["name"].startswith("rail-"))
    gpus = together(parts, ask.gpus, 1).requests[1:] if ask.gpus else ()
    title = "a request for each NIC, by its PCI address"
    if len(pins) + ask.gpus > MAX_RESULTS:
        return Shape(title, nics, apart=(gpus,))
    return Shape(title, (*nics, *gpus))


def _best_devices(node: NodeHardware, ask: Ask) -> tuple[list[Spot], list[Spot]]:
    """The best NICs and GPUs of a node, the NICs in the order of their GPUs, or of their addresses."""
    if not ask.gpus:
        nearest = sorted(node.nics, key=lambda nic: (level(nic.nearest_gpu), nic.address))
        return sorted(nearest[: ask.nics], key=lambda nic: nic.address), []
    order = {gpu: number for number, gpu in enumerate(node.gpus)}
    pairs = find_best(node.nics, node.gpus, ask.gpus, ask.nics).pairs
    pairs = tuple(sorted(pairs, key=lambda pair: (order[pair[1]], pair[0].address)))
    gpus = dict.fromkeys((*(gpu for _, gpu in pairs), *node.gpus))
    return [nic for nic, _ in pairs], list(gpus)[: ask.gpus]


def _addresses(node: NodeHardware) -> set[str]:
    return {nic.address for nic in node.nics}


def _pins(spots: Sequence[Spot], attribute: str) -> list[str]:
    return [selectors.address_is_one_of([spot.address], attribute) for spot in spots]


def _have_all(nodes: Sequence[NodeHardware], nics: Sequence[Spot], gpus: Sequence[Spot]) -> bool:
    wanted = {spot.address for spot in nics}, {spot.address for spot in gpus}
    return all(
        wanted[0] <= _addresses(node) and wanted[1] <= {gpu.address for gpu in node.gpus} for node in nodes
    )
