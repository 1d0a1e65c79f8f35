"""Slurm itself reads what ``dranet fabric`` writes for it: its controller shows the same topology."""

from __future__ import annotations

import json
import os
import re

import pytest

from dranet.desk.fabric.fabric import Fabric, read_fabric
from dranet.desk.fabric.hostlist import compress
from dranet.desk.fabric.slurm import build_document, render_blocks, render_tree
from testbed.debian.packages import Unavailable
from testbed.slurm import Slurm, fetch_slurm
from tests.desk.fabric.fabrics import cable
from tests.desk.fabric.slices import make_slices, placed
from tests.desk.fabric.test_exports import HOSTLISTS, in_cloud

pytestmark = [pytest.mark.kernel, pytest.mark.process, pytest.mark.slow]

DOTTED = [
    *(placed(f"gpu-{n}.example.com", oke_hpcIslandId="i" * 64, oke_localBlockId=f"b {n}") for n in (1, 2)),
    placed("gpu-3.example.com", oke_hpcIslandId="i" * 64, oke_localBlockId="é" * 20),
]
SORTED = [
    names for names in HOSTLISTS if names and names != ("login", "gpu-1") and names != ("a1", "b1", "a2")
]
"""Slurm keeps the order in which it reads different prefixes."""
FABRICS: dict[str, Fabric] = {
    "units": read_fabric(make_slices(cable(4, 8).values()), "dra.net"),
    "one unit": read_fabric(make_slices(cable(1, 2).values()), "dra.net"),
    "levels of a cloud": in_cloud(),
    "long and odd names": read_fabric(DOTTED, "dra.net"),
}


def get_slurm(suite: str) -> Slurm:
    if os.geteuid():
        pytest.skip("Slurm's controller needs the right to make namespaces")
    try:
        return fetch_slurm(suite, print)
    except Unavailable as error:
        pytest.skip(f"Slurm of Debian {suite}: {error}")


@pytest.fixture(scope="module")
def stable() -> Slurm:
    """Slurm 24.11: ``topology.conf``."""
    return get_slurm("trixie")


@pytest.fixture(scope="module")
def newest() -> Slurm:
    """Slurm 25.05 or later: ``topology.yaml``."""
    return get_slurm("sid")


def read_rows(text: str, key: str, *fields: str) -> dict[str, dict[str, str]]:
    """Name -> these fields of each line of ``scontrol show topology``."""
    rows = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in text.splitlines()]
    return {row[key]: {name: row[name] for name in fields if name in row} for row in rows if key in row}


def read_lines(lines: list[str], key: str, *fields: str) -> dict[str, dict[str, str]]:
    """The same of what was written; the nodes of an upper switch are not."""
    return read_rows("\n".join(line for line in lines if not line.startswith("#")), key, *fields)


def describe_nodes(fabric: Fabric) -> str:
    return compress(fabric.nodes)


@pytest.mark.parametrize("name", FABRICS)
def test_slurm_reads_the_tree(stable: Slurm, name: str) -> None:
    fabric = FABRICS[name]
    lines = list(render_tree(fabric))
    files = {"topology.conf": "\n".join(lines) + "\n"}
    shown = stable.show_topology(files, describe_nodes(fabric), "TopologyPlugin=topology/tree")
    wanted = read_lines(lines, "SwitchName", "Nodes", "Switches")
    found = read_rows(shown, "SwitchName", "Nodes", "Switches")
    assert found.keys() == wanted.keys()
    for switch, row in wanted.items():
        assert {key: found[switch][key] for key in row} == row


def test_slurm_reads_the_blocks(stable: Slurm) -> None:
    fabric = FABRICS["units"]
    lines = list(render_blocks(fabric))
    files = {"topology.conf": "\n".join(lines) + "\n"}
    shown = stable.show_topology(files, describe_nodes(fabric), "TopologyPlugin=topology/block")
    assert read_rows(shown, "BlockName", "Nodes") == read_lines(lines, "BlockName", "Nodes")
    assert "BlockSize=8" in shown


@pytest.mark.parametrize("name", ["units", "long and odd names"])
def test_slurm_reads_topology_yaml(newest: Slurm, name: str) -> None:
    fabric = FABRICS[name]
    files = {"topology.yaml": json.dumps(build_document(fabric))}  # JSON is YAML
    shown = newest.show_topology(files, describe_nodes(fabric))
    wanted = read_lines(list(render_tree(fabric)), "SwitchName", "Nodes")
    found = read_rows(shown, "SwitchName", "Nodes")
    assert {switch: found[switch] for switch, row in wanted.items() if row} == {
        switch: row for switch, row in wanted.items() if row
    }


def test_lists_of_nodes_are_written_as_slurm_writes_them(stable: Slurm) -> None:
    texts = [text for text in HOSTLISTS.values() if text]
    assert stable.list_hosts(texts) == texts
    assert stable.list_hosts(",".join(names) for names in SORTED) == [compress(names) for names in SORTED]
