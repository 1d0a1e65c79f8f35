"""Which nodes can give what is asked; when none can, why, and what is the nearest that one could."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dranet.errors import ClaimError, Reason
from dranet.model.distance import Distance
from dranet.templates.ask import Ask, count
from dranet.templates.hardware import Hardware, NodeHardware

HeldBack = Mapping[str, Sequence[str]]
"""Node -> the NICs that it has and does not offer, each with the reason: ``mlx5_8 is the node's uplink``."""


class CannotBeHad(ClaimError):
    """No node can ever give this."""

    default_reason = Reason.DEVICE_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Fitting:
    """What is asked, in numbers, and the nodes that have it."""

    ask: Ask
    rdma: bool
    nodes: tuple[NodeHardware, ...]
    """With the NICs that count."""
    others: tuple[NodeHardware, ...]
    """Nodes that can not give it."""
    only_up: bool = False
    """NICs whose port is down are passed over."""
    needs_down: bool = False
    """There are not enough NICs with a link, so those without count, too."""


def find_fitting(ask: Ask, hardware: Hardware, held_back: HeldBack) -> Fitting:
    """Raises :class:`CannotBeHad`."""
    rdma = _wants_rdma(ask, hardware)
    nodes = tuple(_with_kind(node, rdma) for node in hardware.nodes)
    if not any(node.nics for node in nodes):
        raise _no_nic(hardware, rdma)
    up = tuple(node.up for node in nodes)
    asked_up, asked_all = _in_numbers(ask, up), _in_numbers(ask, nodes)
    good = [node for node in up if _fits(asked_up, node)]
    if good:
        names = {node.name for node in good}
        others = tuple(node for node in nodes if node.name not in names)
        has_down = any(len(a.nics) < len(b.nics) for a, b in zip(up, nodes, strict=True) if a.name in names)
        return Fitting(asked_up, rdma, tuple(good), others, only_up=has_down)
    any_state = tuple(node for node in nodes if _fits(asked_all, node))
    if any_state:
        others = tuple(node for node in nodes if node not in any_state)
        return Fitting(asked_all, rdma, any_state, others, needs_down=True)
    raise _refuse(ask, rdma, nodes, held_back)


def _no_nic(hardware: Hardware, rdma: bool) -> CannotBeHad:
    if not any(node.nics for node in hardware.nodes):
        hint = f"is the driver {hardware.nic_driver} running there? kubectl get resourceslices"
        return CannotBeHad("no node offers a NIC", hint=hint)
    if rdma:
        return CannotBeHad("no node offers an RDMA NIC", hint="--no-rdma takes NICs without RDMA")
    return CannotBeHad("no NIC here has a network interface", hint="--rdma takes RDMA devices alone, too")


def _wants_rdma(ask: Ask, hardware: Hardware) -> bool:
    """Where nobody says: if a node that has GPUs (when some are asked for) has RDMA."""
    if ask.rdma is not None:
        return ask.rdma
    with_gpus = [node for node in hardware.nodes if node.gpus] if ask.gpus else []
    return any(nic.has_rdma for node in with_gpus or hardware.nodes for nic in node.nics)


def _with_kind(node: NodeHardware, rdma: bool) -> NodeHardware:
    return replace(node, nics=tuple(n for n in node.nics if (n.has_rdma if rdma else n.ifname)))


def _in_numbers(ask: Ask, nodes: Sequence[NodeHardware]) -> Ask:
    """With ``--per-node`` the numbers of the largest node; as rails only the NICs nearest to the GPUs. Where
    no GPUs are asked for, there are none."""
    if not ask.per_node:
        return ask
    gpus = max((len(node.gpus) for node in nodes), default=0) if ask.gpus else 0
    counts = [len(_rails(node) if ask.rails else node.nics) for node in nodes]
    return replace(ask, gpus=gpus, nics=max([1, *counts]))


def _rails(node: NodeHardware) -> list[Distance | None]:
    levels = [nic.nearest_gpu for nic in node.nics]
    known = [one for one in levels if one is not None]
    return [one for one in levels if one == min(known)] if known else levels


def _fits(ask: Ask, node: NodeHardware) -> bool:
    if ask.per_node and not ask.rails:
        return bool(node.nics) and (bool(node.gpus) or not ask.gpus)
    return len(node.gpus) >= ask.gpus and len(node.nics) >= ask.nics


def _refuse(ask: Ask, rdma: bool, nodes: Sequence[NodeHardware], held_back: HeldBack) -> CannotBeHad:
    kind = "RDMA NIC" if rdma else "NIC"
    flag = " --rdma" if rdma else " --no-rdma"
    most = max(nodes, key=lambda node: (len(node.gpus), len(node.nics)))
    if ask.gpus > len(most.gpus):
        nearest = f"--gpus {len(most.gpus)} --nics {min(ask.nics, len(most.nics))}"
        return CannotBeHad(
            f"--gpus {ask.gpus}: {_largest(nodes)}, {most.name}, has {len(most.gpus) or 'none'}",
            hint=f"the most that can be had is {nearest}",
        )
    most = max(nodes, key=lambda node: len(node.nics))
    gpus = min(ask.gpus, len(most.gpus))
    if ask.nics > len(most.nics):
        held = "; ".join(held_back.get(most.name, ()))
        return CannotBeHad(
            f"--nics {ask.nics}{flag}: {_largest(nodes)}, {most.name}, offers {count(len(most.nics), kind)}"
            + (f" ({held})" if held else ""),
            hint=f"the most that can be had is --gpus {gpus} --nics {len(most.nics)}",
        )
    best = max(nodes, key=lambda node: min(len(node.gpus), ask.gpus) + min(len(node.nics), ask.nics))
    return CannotBeHad(
        f"no node has both {count(ask.gpus, 'GPU')} and {count(ask.nics, kind)}: {best.name} has "
        f"{count(len(best.gpus), 'GPU')} and {count(len(best.nics), kind)}",
        hint=f"the nearest is --gpus {min(ask.gpus, len(best.gpus))} --nics {min(ask.nics, len(best.nics))}",
    )


def _largest(nodes: Sequence[NodeHardware]) -> str:
    return "the only node" if len(nodes) == 1 else "the largest node"
