"""``dranet pool``: every address that the pools of an ipam_file give, before a node reads the file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet.cluster.nodes import parse_node_addresses
from dranet.errors import ClaimError, SettingsError
from dranet.model.address_pool import AddressPool, expand_range
from dranet.model.attributes import DOMAIN
from dranet.model.ipam import IpamProblem, PoolNode
from dranet.terminal import format_table, print_document, printable
from dranet.view.ipam_file import read_ipam_file

_DESCRIPTION = """\
Check the pools of an ipam_file, and list every address that they give:

  dranet pool ipam.yaml --nodes 'gpu-node-[001-500]'
  kubectl get nodes -o json | dranet pool ipam.yaml --nodes-from -

No cluster is asked. An address that two nodes, devices or pools would have
is an error, and so is a node without a number.
"""

_EPILOG = """\
Exit code: 0, 1 when a node has no number or two have one address, 2 when the
file or the arguments are wrong.
"""
_MOST_BYTES = 256 << 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "pool",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s FILE (--nodes NAMES | --nodes-from FILE)",
    )
    parser.add_argument("file", metavar="FILE", help="the ipam_file")
    nodes = parser.add_mutually_exclusive_group()
    nodes.add_argument(
        "--nodes",
        metavar="NAMES",
        default="",
        help="names between commas, each with a range (gpu-[1-9]) or an address (gpu-1=192.0.2.7)",
    )
    nodes.add_argument(
        "--nodes-from",
        metavar="FILE",
        default="",
        help="nodes as kubectl get nodes -o json has them; -: stdin",
    )
    parser.add_argument("--driver-name", metavar="NAME", default=DOMAIN, help="device.driver of expressions")
    parser.set_defaults(run=_run)


class Row(Struct, frozen=True):
    pool: str
    rail: int
    node: str
    slot: int
    address: str
    gateway: str


def _run(options: argparse.Namespace) -> int:
    sources, _ = read_ipam_file(Path(options.file), options.driver_name)
    pools = {name: source for name, source in sources.items() if isinstance(source, AddressPool)}
    if not pools:
        raise SettingsError(f"{options.file}: has no pool", hint="a pool is NAME: {pool: {...}}")
    nodes = read_nodes(options.nodes_from) if options.nodes_from else parse_nodes(options.nodes)
    if not nodes:
        raise SettingsError("no nodes to number", hint="name them with --nodes or --nodes-from")
    rows, problems = build_table(pools, nodes)
    print_document(_render(rows))
    for problem in problems:
        print(f"dranet: {printable(problem)}", file=sys.stderr)
    if not problems:
        print(f"all {len(rows)} addresses are different", file=sys.stderr)
    return 1 if problems else 0


def build_table(pools: dict[str, AddressPool], nodes: Sequence[PoolNode]) -> tuple[list[Row], list[str]]:
    """All rows, and what is wrong."""
    rows: list[Row] = []
    problems: dict[str, None] = {}
    for name, pool in pools.items():
        for node in nodes:
            try:
                rows += _rows_of(name, pool, node)
            except (ValueError, ClaimError) as error:
                text = error.message if isinstance(error, ClaimError) else str(error)
                problems[f"{name}: {text.removeprefix(f'interface.ipam: {name}: ')}"] = None
    seen: dict[str, Row] = {}
    for row in rows:
        other = seen.setdefault(row.address.partition("/")[0], row)
        if other is not row:
            problems[f"{row.address.partition('/')[0]}: {_place(other)} and {_place(row)} have it"] = None
    return rows, list(problems)


def _rows_of(name: str, pool: AddressPool, node: PoolNode) -> Iterator[Row]:
    number = pool.nodes.find(node)
    for rail in pool.rails:
        for slot in range(pool.addresses_per_node):
            answer = pool.build_answer(name, rail, number, slot)
            for address, gateway in zip(answer.addresses, answer.gateways, strict=True):
                yield Row(name, rail.number, node.name, slot, address, gateway)


def _place(row: Row) -> str:
    return f"{row.node} (pool {row.pool}, rail {row.rail}, slot {row.slot})"


def _render(rows: Sequence[Row]) -> str:
    head = ("POOL", "NODE", "RAIL", "SLOT", "ADDRESS", "GATEWAY")
    cells = [
        (row.pool, row.node, str(row.rail), str(row.slot), row.address, row.gateway or "-") for row in rows
    ]
    return "\n".join(line for lines in format_table(head, cells) for line in lines)


# --- nodes ---


def parse_nodes(text: str) -> list[PoolNode]:
    """``a,b-[1-3],c=192.0.2.7``. Raises SettingsError."""
    nodes: list[PoolNode] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, address = word.partition("=")
        try:
            nodes += [PoolNode(one, (address,) if address else ()) for one in expand_range(name)]
        except IpamProblem as problem:
            raise SettingsError(f"--nodes {word}: {problem}") from None
    return nodes


def read_nodes(file: str) -> list[PoolNode]:
    """The nodes of a NodeList, or one. Raises SettingsError."""
    try:
        text = sys.stdin.read(_MOST_BYTES) if file == "-" else Path(file).read_text()
        found = json.loads(text)
    except OSError as error:
        raise SettingsError(f"--nodes-from {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"--nodes-from {file}: no JSON: {error}", hint="kubectl get nodes -o json writes it"
        ) from error
    items = found.get("items", [found]) if isinstance(found, dict) else found
    return [node for item in (items if isinstance(items, list) else []) if (node := _read_node(item))]


def _read_node(item: Any) -> PoolNode | None:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        return None
    return PoolNode(name, parse_node_addresses(item))
