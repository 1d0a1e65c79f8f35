"""``dranet topology``: tree, matrix and JSON of a small node, exactly, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.cli.main import main
from dranet.model.capture import Capture, encode_capture
from dranet.model.facts import Host, NodeFacts
from tests.cli.small_node import SMALL, nic, pci

Shown = Callable[..., str]


@pytest.fixture
def topology(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What the command prints for these facts; it must succeed and say nothing else."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def show(*arguments: str, facts: NodeFacts = SMALL) -> str:
        capture = tmp_path / "facts.json"
        capture.write_text(encode_capture(Capture(facts)))
        code = main(("topology", "--facts", str(capture), *arguments))
        said = capsys.readouterr()
        assert (code, said.err) == (0, "")
        return said.out

    return show


TREE = """\
node-1, ACME Box 9000, 2 NUMA nodes
NUMA node 0  CPUs 0-3
├─ pci0000:00 / 00:1c.0
│  └─ NIC0  pci-0000-01-00-0  eno1              1 Gb/s        \
not offered: is the node's uplink: eno1 carries a default route
└─ pci0000:20 / 20:01.0 / 21:00.0
   ├─ NIC1  pci-0000-23-00-0  rail0     mlx5_0  400 Gb/s NDR  Mellanox ConnectX-7
   └─ GPU0  gpu-0000-24-00-0                                  NVIDIA H100 80GB HBM3
NUMA node 1  CPUs 4-7
└─ pci0000:80 / 80:01.0
   ├─ NIC2  pci-0000-81-00-0  ens1f0            400 Gb/s      Mellanox ConnectX-7
   └─ NIC3  pci-0000-81-00-2  ens1f0v0          down          Mellanox ConnectX-7
no PCI
└─          dummy0            dummy0

4 NICs, 1 GPU offered; 1 not offered
"""

MATRIX = """\
node-1, ACME Box 9000, 2 NUMA nodes

     GPU0 NIC0 NIC1 NIC2
GPU0 X    NODE PIX  SYS
NIC0 NODE X    NODE SYS
NIC1 PIX  NODE X    SYS
NIC2 SYS  SYS  SYS  X

NAME  DEVICE            LINK    RDMA    NUMA  CPU AFFINITY  OFFERED
GPU0  gpu-0000-24-00-0  -       -       0     0-3           yes
NIC0  pci-0000-01-00-0  eno1    -       0     0-3           no
NIC1  pci-0000-23-00-0  rail0   mlx5_0  0     0-3           yes
NIC2  pci-0000-81-00-0  ens1f0  -       1     4-7           yes

X     the device itself
PIX   through the same PCIe switch (at most one bridge between them)
PXB   through several PCIe switches, but not the CPU
PHB   through the CPU's PCIe host bridge
NODE  through several host bridges of one NUMA node
SYS   through the link between NUMA nodes

2 NICs, 1 GPU offered; 1 not offered; 1 virtual function left out (--all lists all)
"""


def test_the_tree_shows_where_everything_sits(topology: Shown) -> None:
    assert topology() == TREE


def test_the_matrix_is_followed_by_what_its_names_and_words_mean(topology: Shown) -> None:
    assert topology("-o", "matrix") == MATRIX


def test_all_adds_software_links_to_the_tree_and_virtual_functions_to_the_matrix(topology: Shown) -> None:
    assert "not offered: is the loopback" in topology("--all")
    assert "not offered: is the loopback" not in topology()
    rows = topology("-o", "matrix", "--all").splitlines()
    assert rows[2] == "     GPU0 NIC0 NIC1 NIC2 NIC3"
    assert rows[7] == "NIC3 SYS  SYS  SYS  PIX  X"
    assert "left out" not in rows[-1]


def test_the_json_matrix_is_in_the_order_of_its_devices(topology: Shown) -> None:
    found = json.loads(topology("-o", "json"))
    assert [device["shortName"] for device in found["devices"]] == ["GPU0", "NIC0", "NIC1", "NIC2", "NIC3"]
    assert found["matrix"][0] == ["X", "NODE", "PIX", "SYS", "SYS"]
    assert found["matrix"][4] == ["SYS", "SYS", "SYS", "PIX", "X"]
    assert found["numaNodes"] == [
        {"node": 0, "cpus": "0-3", "distances": [10, 21]},
        {"node": 1, "cpus": "4-7", "distances": [21, 10]},
    ]
    assert found["host"] == {"name": "node-1", "product": "ACME Box 9000"}
    assert found["devices"][1]["published"] is False


def test_a_narrow_terminal_gets_the_matrix_in_blocks(
    topology: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "16")
    lines = topology("-o", "matrix").splitlines()
    assert lines[2:7] == [
        "     GPU0 NIC0",
        "GPU0 X    NODE",
        "NIC0 NODE X",
        "NIC1 PIX  NODE",
        "NIC2 SYS  SYS",
    ]
    assert lines[8] == "     NIC1 NIC2"


def test_an_unknown_distance_is_a_question_mark_with_an_explanation(topology: Shown) -> None:
    apart = NodeFacts(
        links=(nic(2, "eth0", "0000:01:00.0"), nic(3, "eth1", "0001:01:00.0")),
        pci_functions=(
            pci("0000:01:00.0", "pci0000:00", numa=None),
            pci("0001:01:00.0", "pci0001:00", numa=None),
        ),
    )
    shown = topology("-o", "matrix", facts=apart).splitlines()
    assert shown[0] == "this node"
    assert shown[3] == "NIC0 X    ?"
    assert "?     unknown: the platform does not report where one of the two sits" in shown


def test_a_card_that_is_not_on_pci_hides_no_other_from_the_matrix(topology: Shown) -> None:
    synthetic = replace(nic(7, "eth0", ""), parent_bus="vmbus", parent_device="7ad3", speed_mbps=None)
    shown = topology("-o", "matrix", facts=replace(SMALL, links=(*SMALL.links, synthetic)))
    assert shown.splitlines()[2] == "     GPU0 NIC0 NIC1 NIC2 NIC4"
    assert shown.splitlines()[-1].endswith("; 1 virtual function left out (--all lists all)")


def test_ports_of_one_card_below_a_switch_share_a_line(topology: Shown) -> None:
    switch = ("0000:20:01.0", "0000:21:00.0")
    facts = NodeFacts(
        links=(nic(2, "a", "0000:23:00.0"), nic(3, "b", "0000:23:00.1"), nic(4, "c", "0000:25:00.0")),
        pci_functions=(
            pci("0000:23:00.0", "pci0000:20", *switch, "0000:22:00.0"),
            pci("0000:23:00.1", "pci0000:20", *switch, "0000:22:00.0"),
            pci("0000:25:00.0", "pci0000:20", *switch, "0000:22:01.0"),
        ),
    )
    assert [line[:12].rstrip() for line in topology(facts=facts).splitlines()[2:7]] == [
        "└─ pci0000:2",
        "   ├─ 22:00.",
        "   │  ├─ NIC",
        "   │  └─ NIC",
        "   └─ NIC2",
    ]


def test_an_empty_machine_has_a_tree_a_matrix_and_a_picture(topology: Shown) -> None:
    nothing = NodeFacts(host=Host("bare"))
    assert topology(facts=nothing) == "bare\n\nnothing offered\n"
    assert "no devices with a place in the hardware" in topology("-o", "matrix", facts=nothing)
    assert "no devices with a place in the hardware" in topology("-o", "svg", facts=nothing)


def test_names_from_a_machine_cannot_reach_the_terminal(topology: Shown) -> None:
    odd = replace(SMALL, host=Host("a\x1b[2J", product="\udcff"))
    for form in ("tree", "matrix", "json", "svg"):
        assert "\x1b" not in topology("-o", form, facts=odd)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-o", "png"], "-o png writes a file: name it (--output-file out.png)"),
        (["--facts", "/nonexistent.json"], "capture /nonexistent.json: No such file or directory"),
        (["-o", "svg", "--output-file", "/nonexistent/out.svg"], "there is no folder /nonexistent"),
    ],
)
def test_what_cannot_be_done_is_said_and_exit_code_2(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("topology", *arguments)) == 2
    said = capsys.readouterr()
    assert (said.out, problem in said.err) == ("", True), said.err


def test_a_file_is_written_instead_of_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, out = tmp_path / "facts.json", tmp_path / "tree.txt"
    capture.write_text(encode_capture(Capture(SMALL)))
    assert main(("topology", "-f", str(capture), "--output-file", str(out))) == 0
    assert out.read_text() == TREE
    assert capsys.readouterr() == ("", f"wrote {out}\n")


def test_no_file_is_replaced_unless_force_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "facts.json"
    capture.write_text(encode_capture(Capture(SMALL)))
    before = capture.read_bytes()
    command = ("topology", "-f", str(capture), "--output-file", str(capture))
    assert main(command) == 2
    told = capsys.readouterr().err
    assert f"--output-file {capture}: exists already (name another file, or add --force" in told
    assert capture.read_bytes() == before
    assert main((*command, "--force")) == 0
    assert capture.read_text() == TREE
