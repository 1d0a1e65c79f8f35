"""The hierarchy in Slurm's configuration files: ``topology.conf`` for the plugins topology/tree and
topology/block, and ``topology.yaml`` (Slurm 25.05 and later) with both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dranet.desk.fabric.fabric import Fabric, Place
from dranet.desk.fabric.hostlist import compress
from dranet.desk.fabric.labels import label_value

_MAX_NAME = 64
"""Characters of a switch's name."""
_ROOT = "fabric"


class Switch(Struct, frozen=True):
    """A switch of Slurm's tree: a leaf with nodes, or one above others."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


_Path = tuple[str, ...]
"""Source, then the values of its levels."""


def build_tree(fabric: Fabric) -> tuple[Switch, ...]:
    """A switch for each value of each level, leaves first.

    A node has one leaf in Slurm, so that the leaf switches of all rails of a unit are one. Networks that are
    known from different sources stay apart: Slurm starts no job across them.
    """
    nodes = {_path(place): place.nodes for place in fabric.places}
    below = _find_children(nodes)
    mixed = [path for path in nodes if below[path]]
    names = _name_paths(below, mixed)
    found: list[Switch] = []
    for path in sorted(below, key=len, reverse=True):
        children = tuple(names[child] for child in below[path])
        is_root = len(path) == 1
        if path in nodes and children:  # some of its nodes are known more closely than others
            found.append(Switch(names[_others(path)], nodes[path]))
            children = (*children, found[-1].name)
        if children and not (is_root and len(children) == 1):
            found.append(Switch(names[path], switches=children))
        elif path in nodes:
            found.append(Switch(names[path], nodes[path]))
    return tuple(found)


def _path(place: Place) -> _Path:
    return place.source.key, *filter(None, place.path)


def _find_children(paths: Iterable[_Path]) -> Mapping[_Path, Sequence[_Path]]:
    found: dict[_Path, dict[_Path, None]] = {}
    for path in paths:
        for end in range(1, len(path) + 1):
            found.setdefault(path[:end], {})
            if end > 1:
                found[path[: end - 1]][path[:end]] = None
    return {path: tuple(children) for path, children in found.items()}


def _others(path: _Path) -> _Path:
    """The place of the nodes of which no closer level is known; no level has an empty value."""
    return (*path, "")


def _name_paths(paths: Collection[_Path], mixed: Iterable[_Path]) -> Mapping[_Path, str]:
    """The last value where no other switch has it, else the whole path. ``mixed``: places that also need a
    switch for their other nodes."""
    roots: list[_Path] = [path for path in paths if len(path) == 1]
    ends: dict[_Path, str] = {path: _ROOT if len(roots) == 1 else f"{_ROOT}-{path[0]}" for path in roots}
    ends |= {path: path[-1] for path in paths if len(path) > 1}
    ends |= {_others(path): f"{ends[path]}-others" for path in mixed}
    uses = Counter(ends.values())
    return {
        path: label_value(end if uses[end] == 1 else "/".join(path), _MAX_NAME) for path, end in ends.items()
    }


class Block(Struct, frozen=True):
    """Nodes that are as close as the network distinguishes."""

    name: str
    nodes: tuple[str, ...]


def build_blocks(fabric: Fabric) -> tuple[Block, ...]:
    return tuple(Block(switch.name, switch.nodes) for switch in build_tree(fabric) if switch.nodes)


def _block_size(blocks: Sequence[Block]) -> int:
    """Every block must have as many nodes as the smallest size."""
    return min(len(block.nodes) for block in blocks)


def render_tree(fabric: Fabric) -> Iterator[str]:
    """``topology.conf`` for ``TopologyPlugin=topology/tree``."""
    yield from _comments(fabric, "TopologyPlugin=topology/tree")
    for switch in build_tree(fabric):
        below = f"Nodes={compress(switch.nodes)}" if switch.nodes else f"Switches={compress(switch.switches)}"
        yield f"SwitchName={switch.name} {below}"


def render_blocks(fabric: Fabric) -> Iterator[str]:
    """``topology.conf`` for ``TopologyPlugin=topology/block`` (Slurm 23.11 and later)."""
    yield from _comments(fabric, "TopologyPlugin=topology/block")
    blocks = build_blocks(fabric)
    yield from (f"BlockName={block.name} Nodes={compress(block.nodes)}" for block in blocks)
    yield f"BlockSizes={_block_size(blocks)}"


def build_document(fabric: Fabric) -> list[Mapping[str, Any]]:
    """``topology.yaml``: the tree as the cluster's default, and the blocks for partitions that name them."""
    blocks = build_blocks(fabric)
    return [
        {
            "topology": "tree",
            "cluster_default": True,
            "tree": {"switches": [_describe(switch) for switch in build_tree(fabric)]},
        },
        {
            "topology": "block",
            "cluster_default": False,
            "block": {
                "block_sizes": [_block_size(blocks)],
                "blocks": [{"block": block.name, "nodes": compress(block.nodes)} for block in blocks],
            },
        },
    ]


def _describe(switch: Switch) -> Mapping[str, str]:
    if switch.nodes:
        return {"switch": switch.name, "nodes": compress(switch.nodes)}
    return {"switch": switch.name, "children": compress(switch.switches)}


def _comments(fabric: Fabric, setting: str) -> Iterator[str]:
    yield f"# topology.conf, written by dranet fabric; slurm.conf: {setting}"
    for place in fabric.places:
        if place.unit is not None and len(place.unit.switches) > 1:
            leaves = compress(label_value(fabric.switches[switch]) for switch in place.unit.switches)
            yield f"# {label_value(place.name, _MAX_NAME)}: leaf switches {leaves}"
    if fabric.unplaced:
        yield f"# not here, because their place is unknown: {compress(fabric.unplaced)}"
